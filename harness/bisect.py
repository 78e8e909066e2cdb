"""The first launch at which two runs that should agree write different bits."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.engine import Engine, Request, decode
from harness.run import same_bits
from harness.trace import Written, arrays_at, digest_of, hexadecimal, trace
from oracle.errors import LanelockError


class Run(Protocol):
    """One of two runs that should agree: of engines in this process, or of another commit in its own."""

    @property
    def name(self) -> str:
        """What a sentence calls it."""

    def traced(self, *, keep: bool = False) -> tuple[list[int] | None, list[Written]]:
        """Tokens, where the run tells them, and everything that its launches wrote, with arrays if they are to be kept.

        Raises LanelockError where the run cannot be had, or cannot keep arrays.
        """

    def array(self, written: Written) -> np.ndarray:
        """What a launch wrote to a buffer, in another run of the same."""


@dataclass(frozen=True, slots=True)
class Side:
    """A run in this process: how to open its engine, what it decodes, and which sequence counts."""

    name: str
    open: Callable[[], AbstractContextManager[Engine]]
    requests: tuple[Request, ...]
    sequence: int = 0

    def traced(self, *, keep: bool = False) -> tuple[list[int] | None, list[Written]]:
        """Run untraced, as a control, then traced. Raises LanelockError where the tokens differ."""
        with self.open() as engine:
            control = decode(engine, self.requests)[self.sequence].tokens
        with self.open() as engine:
            streams, written = trace(engine, self.requests, self.sequence, keep=keep)
        if streams[self.sequence].tokens != control:
            raise LanelockError(f"bisect: {self.name} gives other tokens when it is traced; it does not repeat itself")
        return control, written

    def array(self, written: Written) -> np.ndarray:
        """What a launch wrote to a buffer."""
        with self.open() as engine:
            return arrays_at(engine, self.requests, written.key, self.sequence)[written.buffer]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first differing launch. written: where; element: index as the sequence sees it; values as text with bits."""

    written: Written
    element: tuple[int, ...]
    values: tuple[str, str]
    bits: tuple[str, str]
    differing: int
    size: int

    def sentence(self, first: str, second: str) -> str:
        """In words."""
        return (
            f"{self.written.place}, element {list(self.element)}: {first} wrote {self.values[0]} ({self.bits[0]}), "
            f"{second} {self.values[1]} ({self.bits[1]}); {self.differing} of {self.size} elements differ"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a bisection found. difference is None where all compared launches agree; skipped have another shape."""

    difference: Difference | None
    compared: int
    skipped: int
    tokens: tuple[list[int] | None, list[int] | None]


def bisect(first: Run, second: Run, tolerance: float = 0.0) -> Verdict:
    """Trace both runs, then run both again up to the first launch whose digests differ.

    With a tolerance, for lanes that are bounded: the first launch that wrote a float further from the other run's than
    this share of the buffer's largest value. Codes follow from floats, and a rounding moves a low word by all it has.

    Launches are matched by pass, program, label and buffer; where the two plans write another shape (a split
    projection, a split attention) they are skipped. Raises LanelockError where a run does not repeat itself, tracing
    changes it, or nothing could be compared.
    """
    (tokens_a, a), (tokens_b, b) = (run.traced(keep=tolerance > 0) for run in (first, second))
    theirs = {(w.key, w.buffer): w for w in b}
    compared = skipped = 0
    for mine in a:
        other = theirs.get((mine.key, mine.buffer))
        if other is None or other.shape != mine.shape:
            skipped += 1
            continue
        compared += 1
        if other.digest != mine.digest and not _within(mine, other, tolerance):
            return Verdict(_locate((first, mine), (second, other)), compared, skipped, (tokens_a, tokens_b))
    if not compared:
        raise LanelockError(f"bisect: {first.name} and {second.name} have no launch in common")
    return Verdict(None, compared, skipped, (tokens_a, tokens_b))


def _within(mine: Written, other: Written, tolerance: float) -> bool:
    """Whether no float lies further from the other than a share of the largest; never without arrays.

    A NaN is near a NaN alone: rows of a cache that nobody wrote yet are full of them.
    """
    if mine.array is None or other.array is None:
        return False
    if mine.array.dtype.kind != "f":
        return True
    a, b = mine.array.astype(np.float64), other.array.astype(np.float64)
    moved = np.abs(a - b)[~same_bits(mine.array, other.array)]
    return bool((moved <= tolerance * np.nanmax(np.abs(b), initial=0.0)).all())


def _locate(*sides: tuple[Run, Written]) -> Difference:
    """The first element that differs. Raises LanelockError where a run writes other bits than it traced."""
    arrays = [run.array(written) for run, written in sides]
    for (run, written), array in zip(sides, arrays, strict=True):
        if digest_of(array) != written.digest:
            raise LanelockError(f"bisect: {run.name} wrote {written.place} otherwise when it ran again; it does not "
                                "repeat itself")  # fmt: skip
    a, b = arrays
    unequal = np.argwhere(~same_bits(a, b))
    at = tuple(int(i) for i in unequal[0])
    values = (_shown(a[at]), _shown(b[at]))
    return Difference(sides[0][1], at, values, (hexadecimal(a[at]), hexadecimal(b[at])), len(unequal), a.size)


def _shown(value: np.generic) -> str:
    return str(value.item())
