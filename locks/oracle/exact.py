"""What the oracle's locks compare with: mpmath at 50 digits, distances in ulp, relative L2."""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

U = 2.0**-53  # unit roundoff of float64
DIGITS = 50


def ulps(value: float, truth: mpmath.mpf) -> float:
    """Distance in units of the last place of the truth's float64; a wrong special value is infinitely far."""
    if not mpmath.isfinite(truth):
        return 0.0 if value == float(truth) else float("inf")
    if not np.isfinite(value):
        return float("inf")
    with mpmath.workdps(DIGITS):
        return float(abs(mpmath.mpf(float(value)) - truth) / float(np.spacing(abs(float(truth)))))


def worst_ulps(function: Callable[[Any], Any], truth: Callable[[Any], Any], points: np.ndarray) -> float:
    """Largest distance of a vectorised function from its truth over the points, which must not be empty."""
    values = function(points)
    assert values.shape == points.shape
    assert points.size
    with mpmath.workdps(DIGITS):
        return max(ulps(v, truth(mpmath.mpf(float(x)))) for v, x in zip(values, points, strict=True))


def rel_l2(value: np.ndarray, truth: np.ndarray) -> float:
    """Relative L2 distance; shapes must agree, and anything that is not finite counts as infinitely far."""
    assert value.shape == truth.shape
    assert truth.size
    if not np.isfinite(value).all():
        return float("inf")
    return float(np.linalg.norm(value - truth) / np.linalg.norm(truth))
