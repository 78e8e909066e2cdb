"""Where the time of a program goes: its graph without one kernel, and with that kernel alone, beside its floor.

A graph of a program at real positions, less the launch that moves positions on, can be replayed as often as one likes:
every replay does the work of the same step. What a kernel costs there is the whole time less the time without it, which
counts what it hides of its neighbours; alone, one behind the other, its launches hide nothing.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.ablate import GROUPS, OUTSIDE, groups
from harness.engine import Engine
from kernels.plan import Launch
from reports.plan_floor import floors

#: What moves sequences on; left out, so that a program can be replayed at one position.
ADVANCES = ("speculation_accept",)


def profile(engine: Engine, program: str, read: float, repeats: int, *, parts: bool = True) -> dict[str, Any]:
    """Rows of kernels and of parts for one program of an engine whose sequences stand where they are to be measured.

    Shapes: read is the read bandwidth of this run.
    Units:  milliseconds of a replay; GB/s.
    Error:  a median of `repeats` replays, by device events.
    Source: ours. Raises KeyError for a program that is none.
    """
    launches = [i for i in engine.plan.programs[program] if i.instance.kernel.name not in ADVANCES]
    timed = Timed(engine, repeats)
    whole = timed.ms(launches)
    found: dict[str, Any] = {"ms": whole, "ms_again": timed.ms(launches), "launches": len(launches)}
    found["kernels"] = _rows(timed, launches, [_name(item) for item in launches], whole, read)
    if parts:
        found["parts"] = _rows(timed, launches, groups(launches), whole, read, (*GROUPS, OUTSIDE))
    return found


@dataclass(frozen=True, slots=True)
class Timed:
    """Times launches of an engine as one graph."""

    engine: Engine
    repeats: int

    def ms(self, launches: Sequence[Launch]) -> float:
        """Median milliseconds of a replay behind one that is not counted; nothing takes no time."""
        if not launches:
            return 0.0
        device = self.engine.device
        with device.capture() as stream:
            for item in launches:
                self.engine.launch(item, stream)
        stream.graph.replay()
        events = [device.event()]
        for _ in range(self.repeats):
            stream.graph.replay()
            events.append(device.event())
        device.synchronize()
        return statistics.median(device.elapsed(a, b) for a, b in itertools.pairwise(events))


def _name(item: Launch) -> str:
    """The kernel, and of a projection its shape."""
    shape = f" {item.dims['N']}x{item.dims['K']}" if "N" in item.dims else ""
    return item.instance.kernel.name + shape


def _rows(
    timed: Timed,
    launches: Sequence[Launch],
    names: Sequence[str],
    whole: float,
    read: float,
    order: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """A row for each name, the slowest first."""

    def picked(keep: Callable[[str], bool]) -> list[Launch]:
        return [item for item, name in zip(launches, names, strict=True) if keep(name)]

    rows = []
    for name in order or dict.fromkeys(names):
        mine, rest = picked(lambda n, name=name: n == name), picked(lambda n, name=name: n != name)  # type: ignore[misc]  # bound
        if mine:
            floor = sum(f.floor for f in floors(mine, read)) / 1e3
            rows.append({"name": name, "launches": len(mine), "ms": whole - timed.ms(rest), "ms_alone": timed.ms(mine),
                         "floor_ms": floor})  # fmt: skip  # a map
    return sorted(rows, key=lambda row: -float(row["ms"]))
