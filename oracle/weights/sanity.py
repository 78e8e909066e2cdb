"""What can be seen in weights without running them: hashes, ranges, and values that are suspicious."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.model_weights import Weights
from oracle.weights.quantised import QuantisedWeights
from oracle.weights.save import Progress, stored_pieces

NORMS = ("an", "fn", "on", "Qn", "Kn", "Gn", "enorm", "hnorm", "shnorm")
SMALLEST_NORMAL = 2.0**-14  # of float16


@dataclass(frozen=True, slots=True)
class Examined:
    """One stored tensor.

    Units:  lowest and highest are over its elements (codes for codes); sha256 is of its bytes as a file of ours holds
            them, so that a checkpoint and its import show the same.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    lowest: float
    highest: float
    remarks: tuple[str, ...]


def examine(weights: Weights, progress: Progress | None = None) -> Iterator[Examined]:
    """Read every tensor once, a few rows at a time.

    Shapes: one row for each stored tensor.
    Error:  none; ranges are of the stored values.
    Source: the format's definition for the remarks. Raises LanelockError, naming file and tensor, for a wrong hash, NaN
    or infinity.
    """
    parts: dict[str, _Tally] = {}
    for name, array in stored_pieces(QuantisedWeights(weights), progress):
        # a tensor is complete when the next one starts; codes and scales of one matrix come in turn.
        if parts and base_name(name) not in {tally.base for tally in parts.values()}:
            yield from (tally.result() for tally in parts.values())
            parts = {}
        parts.setdefault(name, _Tally(name)).add(array)
    yield from (tally.result() for tally in parts.values())


def base_name(stored: str) -> str:
    """The model's name of a stored tensor."""
    return stored.removesuffix(".codes").removesuffix(".scales")


class _Tally:
    """Counts over the pieces of one stored tensor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.base = base_name(name)
        self.digest = hashlib.sha256()
        self.dtype, self.rows, self.tail = "", 0, (0,)
        self.lowest, self.highest = np.inf, -np.inf
        self.subnormal = self.zero = self.size = 0
        self.total = 0.0

    def add(self, array: NDArray[Any]) -> None:
        """One more piece."""
        self.digest.update(np.ascontiguousarray(array).tobytes())
        self.dtype, self.tail = array.dtype.name, array.shape[1:]
        self.rows += array.shape[0]
        self.lowest, self.highest = min(self.lowest, float(array.min())), max(self.highest, float(array.max()))
        self.size += array.size
        if self.dtype == "float16":
            magnitude = np.abs(array)
            self.zero += int((magnitude == 0).sum())
            self.subnormal += int(((magnitude > 0) & (magnitude < SMALLEST_NORMAL)).sum())
        if self.dtype == "float32":
            self.total += float(array.sum(dtype=np.float64))

    def result(self) -> Examined:
        """The whole tensor."""
        return Examined(self.name, self.dtype, (self.rows, *self.tail), self.digest.hexdigest(), self.lowest,
                        self.highest, tuple(self._remarks()))

    def _remarks(self) -> Iterator[str]:
        part = self.base.rpartition(".")[2]
        if part in NORMS and abs(self.total / self.size) < 0.1:
            yield "a norm with a mean near 0: is it w - 1?"
        if part == "Al" and self.highest >= 0:
            yield "A is not negative: such a head never decays"
        if self.dtype == "int8" and self.lowest == -128:
            yield "a code of -128, which the published rule never gives"
        if self.dtype == "float16" and self.lowest < 0:
            yield "a negative scale"
        if self.subnormal:
            yield f"{self.subnormal} subnormal scales: their blocks lose accuracy"
        if self.zero:
            yield f"{self.zero} blocks are zero"
