"""The oracle on a device's codes, every value before a rounding, and how far arithmetic may have moved it."""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.observed import Observed
from locks.support import U
from oracle.blocks import Run
from oracle.error_bound import factor
from oracle.formats.activations import SCALE_FLOOR
from oracle.lane import parse
from oracle.model import forward
from oracle.model_weights import Weights
from oracle.roundings import TOPS, Following, half_step, half_unit_of_f16


def following(
    found: Observed, w: Weights, lane: str, text: Sequence[int], samples: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By buffer name, the value [T, ...] and the deviation that so many runs whose arithmetic errs have from it."""
    layers: dict[str, np.ndarray] = {}

    def keep(name: str, value: np.ndarray) -> None:
        if name.endswith(".residual"):
            layers[name] = value

    rounds = Following(found.given, arithmetic=True)
    run = Run(w, parse(lane), keep, rounds)
    logits = forward(run, np.repeat([text], 1 + samples, axis=0), rows="all").logits
    every = {**rounds.asked, **layers, "the logits": logits}
    return {name: (v[0], np.sqrt(((v[1:] - v[0]) ** 2).mean(0))) for name, v in every.items()}


def rounding_of(found: Observed, lane: str, name: str, value: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
    """What the device made of a value, and the most that its rounding alone may have moved it."""
    if name == "the logits":
        return found.logits, 0.0
    if name.endswith(".residual"):
        return found.residuals[int(name.removeprefix("layer").partition(".")[0])], 0.0
    if name in found.scales:
        return found.given[name], half_step(found.scales[name], parse(lane).activations)
    place, _, token = name.partition(".S.")
    made = found.given[f"{place}.S"][int(token)] if token else found.given[name]
    return made.reshape(value.shape), half_unit_of_f16(value)


def excesses(
    found: Observed, w: Weights, lane: str, text: Sequence[int], samples: int = 64
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, how far the device is from the following oracle beyond its own rounding, and the bound of arithmetic."""
    values = following(found, w, lane, text, samples)
    deviations = factor(samples, sum(v.size for v, _ in values.values()))
    for name, (value, spread) in values.items():
        reach = deviations * spread
        made, rounding = rounding_of(found, lane, name, value)
        yield name, np.maximum(np.abs(made - value) - rounding, 0.0), reach
        if name in found.scales:
            scales, top = found.scales[name], TOPS[parse(lane).activations]
            blocks = np.abs(value).reshape(*scales.shape, 32).max(-1) / top
            away = np.abs(scales - np.maximum(blocks, SCALE_FLOOR)) - U * blocks
            yield f"{name}, scales", np.maximum(away, 0.0), reach.reshape(*scales.shape, 32).max(-1) / top
