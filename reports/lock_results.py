"""Results of a lock run as data: one row a lock, with its sentence and the share of each bound it used."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from oracle import json_text
from oracle.errors import LanelockError

SENTENCE = "sentence"
SHARE = "share "
FEW = 200  # locks up to which a record names each


@dataclass(frozen=True, slots=True)
class LockResult:
    """One lock on one device. outcome is passed, failed or not run; shares are fractions of derived bounds."""

    node: str
    room: str
    sentence: str
    outcome: str
    seconds: float
    shares: dict[str, float]
    reason: str = ""


def room_of(node: str) -> str:
    """The room a lock belongs to: the stem of its file without `test_`."""
    return PurePosixPath(node.split("::", maxsplit=1)[0]).stem.removeprefix("test_")


def result_of(report: Any) -> LockResult | None:
    """A pytest report as a result; None for a phase that decides nothing (a set-up that went well)."""
    if report.when != "call" and report.outcome == "passed":
        return None
    properties = dict(report.user_properties)
    outcome = {"skipped": "not run"}.get(report.outcome, report.outcome)
    longrepr = report.longrepr
    reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr or "").removeprefix("Skipped: ")
    shares = {k.removeprefix(SHARE): float(v) for k, v in properties.items() if k.startswith(SHARE)}
    return LockResult(
        report.nodeid,
        room_of(report.nodeid),
        str(properties.get(SENTENCE, "")),
        outcome,
        float(report.duration),
        shares,
        reason if outcome != "passed" else "",
    )


def summary(results: Sequence[LockResult], seconds: float) -> dict[str, Any]:
    """Counts by outcome and room, the largest shares, what was not run and why, and every failure.

    A run of few locks, which somebody chose, names each that passed, with its seconds.
    """
    outcomes = Counter(r.outcome for r in results)
    passed = {r.node: round(r.seconds, 1) for r in results if r.outcome == "passed"}
    shares = sorted(((v, r.node, k) for r in results for k, v in r.shares.items()), reverse=True)
    return {
        "seconds": round(seconds, 2),
        "passed": outcomes["passed"],
        "failed": outcomes["failed"],
        "not_run": outcomes["not run"],
        "passed_locks": passed if len(passed) <= FEW else None,
        "rooms": {room: dict(Counter(r.outcome for r in rows)) for room, rows in by_room(results).items()},
        "largest_shares": [{"share": round(v, 4), "lock": n, "of": k} for v, n, k in shares[:20]],
        "not_run_reasons": dict(Counter(r.reason for r in results if r.outcome == "not run")),
        "failures": [asdict(r) for r in results if r.outcome == "failed"],
    }


def by_room(results: Iterable[LockResult]) -> dict[str, list[LockResult]]:
    """Results grouped by room, rooms sorted by name."""
    rooms: dict[str, list[LockResult]] = {}
    for result in results:
        rooms.setdefault(result.room, []).append(result)
    return dict(sorted(rooms.items()))


@dataclass(frozen=True, slots=True)
class LockRun:
    """Results of one lock run, and the commit it was of. dirty: whether the tree had changes; None if nobody knows."""

    commit: str | None
    dirty: bool | None
    locks: tuple[LockResult, ...]


def read_run(path: Path) -> LockRun:
    """What `pytest locks/ --results FILE` wrote. Raises LanelockError, naming the file, if it is not that."""
    try:
        data = json_text.loads(path.read_text(encoding="utf-8"))
        return LockRun(data["commit"], data["dirty"], tuple(LockResult(**row) for row in data["locks"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LanelockError(f"{path}: not the results of a lock run ({error})") from error


def parameters(node: str) -> tuple[str, ...]:
    """What a lock was parametrised with: `t.py::T::test[cuda-a8-2]` with cuda, a8 and 2."""
    return tuple(node.partition("[")[2].removesuffix("]").split("-"))


def doubt(run: LockRun | None, commit: str | None, lanes: Sequence[str], lane: str, device: str) -> str:
    """Why a lane on a device (host or cuda) is not held by a lock run of this commit; "" if it is.

    A lock that failed and names no lane speaks of all lanes; one that passed speaks of those it names.
    """
    if run is None:
        return "no results of a lock run were given (--locks FILE)"
    if commit is None or run.commit != commit or run.dirty:
        tree = " with changes" if run.dirty else ""
        return f"the lock run is of commit {(run.commit or 'unknown')[:10]}{tree}, this is {(commit or 'unknown')[:10]}"
    passed = 0
    for lock in run.locks:
        named = parameters(lock.node)
        mine = lane in named
        if lock.outcome == "failed" and (mine or not set(named) & set(lanes)):
            return f"failed: {lock.node}"
        passed += mine and lock.outcome == "passed" and any(name.partition(":")[0] == device for name in named)
    return "" if passed else f"no lock of {lane} passed on {device}"
