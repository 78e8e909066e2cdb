"""exp, log1p, sigmoid, silu and softplus against mpmath at 50 digits, and at both ends."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from locks.oracle.exact import worst_ulps
from oracle.functions import exp, log1p, sigmoid, silu, softplus

RNG = np.random.default_rng(11)
SIZES = 10.0 ** RNG.uniform(-300, 2.8, 150)
BOTH = np.concatenate([SIZES, -SIZES, RNG.uniform(-40, 40, 300), [0.0, -0.0, 37.0, -37.0, 708.0, -708.0]])
# below -708 results are subnormal or zero, where only an absolute bound can hold.
NORMAL = BOTH[(BOTH > -708) & (BOTH < 709)]

# ulps: the library function at most 1 each; a sum, a quotient and a product half each, one more for alignment.
CASES = {
    "exp": (exp, mpmath.exp, NORMAL, 1.0),
    "log1p": (log1p, mpmath.log1p, np.concatenate([SIZES, RNG.uniform(-0.999, 1, 200), [0.0]]), 1.0),
    "sigmoid": (sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), NORMAL, 4.0),
    "silu": (silu, lambda x: x / (1 + mpmath.exp(-x)), NORMAL[np.abs(NORMAL) > 1e-290], 5.0),
    "softplus": (softplus, lambda x: mpmath.log1p(mpmath.exp(x)), NORMAL, 4.0),
}


class TestValues:
    """Accuracy where results are normal."""

    @pytest.mark.parametrize("name", CASES)
    def test_it_agrees_with_mpmath(self, name: str, share: Callable[[str, float, float], float]) -> None:
        """The function is within its stated number of ulp wherever the result is normal."""
        function, truth, points, bound = CASES[name]

        assert share(name, worst_ulps(function, truth, points), bound) <= 1


class TestEnds:
    """Limits, NaN, and small results."""

    @pytest.mark.parametrize(("function", "x", "want"), [
        (exp, 0.0, 1.0), (exp, -0.0, 1.0), (exp, -np.inf, 0.0), (exp, np.inf, np.inf), (exp, 1e4, np.inf),
        (log1p, 0.0, 0.0), (log1p, 1e-300, 1e-300), (log1p, np.inf, np.inf), (log1p, -1e-20, -1e-20),
        (sigmoid, 1e4, 1.0), (sigmoid, -1e4, 0.0), (sigmoid, np.inf, 1.0), (sigmoid, -np.inf, 0.0), (sigmoid, 0.0, 0.5),
        (silu, np.inf, np.inf), (silu, -np.inf, 0.0), (silu, 1e5, 1e5), (silu, -1e5, 0.0), (silu, 0.0, 0.0),
        (softplus, 1e5, 1e5), (softplus, -1e5, 0.0), (softplus, np.inf, np.inf), (softplus, -np.inf, 0.0)])
    def test_it_saturates(self, function, x: float, want: float) -> None:
        """At the ends the value is the limit, exactly, and never a NaN for a number."""
        assert function(np.array([x]))[0] == want

    @pytest.mark.parametrize("name", CASES)
    def test_nan_stays_nan(self, name: str) -> None:
        """NaN in, NaN out."""
        assert np.isnan(CASES[name][0](np.array([np.nan]))).all()

    def test_softplus_keeps_the_digits_of_small_results(self) -> None:
        """At -40 the value is exp(-40), not 0 as log(1 + exp(x)) in float64 has it."""
        assert abs(softplus(np.array([-40.0]))[0] / np.exp(-40.0) - 1) < 1e-15
