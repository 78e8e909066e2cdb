"""The first launch at which two runs that should agree write different bits."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from harness.engine import Engine, Request, decode
from harness.run import same_bits
from harness.trace import Written, arrays_at, hexadecimal, trace
from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Side:
    """One of two runs: what it is called, how to open its engine, what it decodes, and which sequence counts."""

    name: str
    open: Callable[[], AbstractContextManager[Engine]]
    requests: tuple[Request, ...]
    sequence: int = 0


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
    tokens: tuple[list[int], list[int]]


def bisect(first: Side, second: Side) -> Verdict:
    """Trace both runs, then open both again up to the first launch whose digests differ.

    Launches are matched by pass, program, label and buffer; where the two plans write another shape (a split
    projection, a split attention) they are skipped. Each side is first run twice, untraced and traced: a control.
    Raises LanelockError where tracing changes a run, or nothing could be compared.
    """
    (tokens_a, a), (tokens_b, b) = _traced(first), _traced(second)
    theirs = {(w.key, w.buffer): w for w in b}
    compared = skipped = 0
    for mine in a:
        other = theirs.get((mine.key, mine.buffer))
        if other is None or other.shape != mine.shape:
            skipped += 1
            continue
        compared += 1
        if other.digest != mine.digest:
            return Verdict(_locate(first, second, mine), compared, skipped, (tokens_a, tokens_b))
    if not compared:
        raise LanelockError(f"bisect: {first.name} and {second.name} have no launch in common")
    return Verdict(None, compared, skipped, (tokens_a, tokens_b))


def _traced(side: Side) -> tuple[list[int], list[Written]]:
    with side.open() as engine:
        control = decode(engine, side.requests)[side.sequence].tokens
    with side.open() as engine:
        streams, written = trace(engine, side.requests, side.sequence)
    if streams[side.sequence].tokens != control:
        raise LanelockError(f"bisect: {side.name} gives other tokens when it is traced; it does not repeat itself")
    return control, written


def _locate(first: Side, second: Side, written: Written) -> Difference:
    arrays = []
    for side in (first, second):
        with side.open() as engine:
            arrays.append(arrays_at(engine, side.requests, written.key, side.sequence)[written.buffer])
    a, b = arrays
    unequal = np.argwhere(~same_bits(a, b))
    if not unequal.size:
        raise LanelockError(f"bisect: {written.place} differed once and not again; one side does not repeat itself")
    at = tuple(int(i) for i in unequal[0])
    values = (_shown(a[at]), _shown(b[at]))
    return Difference(written, at, values, (hexadecimal(a[at]), hexadecimal(b[at])), len(unequal), a.size)


def _shown(value: np.generic) -> str:
    return str(value.item())
