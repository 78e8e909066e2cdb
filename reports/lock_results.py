"""Results of a lock run as data: one row a lock, with its sentence and the share of each bound it used."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

SENTENCE = "sentence"
SHARE = "share "


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
    """Counts by outcome and room, the largest shares, what was not run and why, and every failure."""
    outcomes = Counter(r.outcome for r in results)
    shares = sorted(((v, r.node, k) for r in results for k, v in r.shares.items()), reverse=True)
    return {
        "seconds": round(seconds, 2),
        "passed": outcomes["passed"],
        "failed": outcomes["failed"],
        "not_run": outcomes["not run"],
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
