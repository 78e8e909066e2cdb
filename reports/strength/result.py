"""What became of each mutant, and the figures of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.strength.mutant import Dead, Mutant
from reports.strength.worker import Run

#: A lock saw it; the run did not end in time (red in any runner); the process died; the source did not compile;
#: nobody noticed; nothing ran, which is not a kill; the stored check proved that nothing changed.
KILLED, TIMED_OUT, CRASHED, BUILD, SURVIVED, NOTHING_RAN, EQUIVALENT = (
    "killed", "timed out", "crashed", "build", "survived", "nothing ran", "equivalent",
)  # fmt: skip
SEEN = (KILLED, TIMED_OUT, CRASHED)
UNSEEN = (SURVIVED, NOTHING_RAN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mutant with its fate; `by` is the lock that failed first and `ran` the lock files."""

    mutant: Mutant
    fate: str
    ran: tuple[str, ...]
    run: Run
    by: str = ""

    @property
    def seen(self) -> bool:
        """True if a lock noticed: a build failure counts only for a mutant planted to be refused by the compiler."""
        return self.fate in SEEN or (self.fate == BUILD and self.mutant.planted and self.mutant.kind == BUILD)


def judge(mutant: Mutant, ran: Sequence[str], run: Run) -> Verdict:
    """Turn what the locks said into a fate. Skipped locks, or none at all, kill nothing."""
    by = (run.first or {}).get("lock", "")
    if run.timeout:
        fate = TIMED_OUT
    elif run.crash:
        fate = CRASHED
    elif run.build and run.failed:
        fate = BUILD
    elif run.failed:
        fate = KILLED
    else:
        fate = SURVIVED if run.passed else NOTHING_RAN
    return Verdict(mutant, fate, tuple(ran), run, by)


@dataclass(frozen=True, slots=True)
class Strength:
    """A whole run. total counts every mutant that applied, made a program and is not equivalent.

    A planted mutant that does not compile stays in the total as killed_by_build: somebody meant it as a fault. One that
    an operator made is no program and so no mutant; it is counted beside the total as not_compiled. sample is how the
    mutants were chosen; of those that were planned, some may not have been started in time.
    """

    verdicts: tuple[Verdict, ...]
    dead: tuple[Dead, ...]
    operators: Mapping[str, int]
    candidates: Mapping[str, int]
    sample: Mapping[str, Any]
    planned: int
    tier: str
    seconds: float

    @property
    def counted(self) -> tuple[Verdict, ...]:
        """Verdicts without the equivalent mutants."""
        return tuple(v for v in self.verdicts if v.fate != EQUIVALENT)

    @property
    def not_started(self) -> int:
        """Mutants that were to run when the time was over."""
        return self.planned - len(self.verdicts)

    @property
    def survivors(self) -> tuple[Verdict, ...]:
        """Mutants that nobody noticed."""
        return tuple(v for v in self.verdicts if v.fate in UNSEEN)

    @property
    def share(self) -> float:
        """Killed over the mutants that compiled; NaN when there were none."""
        figures = tally(self.counted)
        compiled = figures["killed"] + figures["survived"]
        return figures["killed"] / compiled if compiled else float("nan")


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The total is killed (timed out and crashed among them) + survived + killed_by_build; beside it, not_compiled."""
    fates = Counter(v.fate for v in verdicts)
    return {
        "total": len(verdicts) - sum(v.fate == BUILD and not v.mutant.planted for v in verdicts),
        "killed": sum(v.seen for v in verdicts),
        "timed_out": fates[TIMED_OUT],
        "crashed": fates[CRASHED],
        "killed_by_build": sum(v.fate == BUILD and not v.seen and v.mutant.planted for v in verdicts),
        "not_compiled": sum(v.fate == BUILD and not v.mutant.planted for v in verdicts),
        "survived": sum(fates[f] for f in UNSEEN),
    }


def as_json(strength: Strength) -> dict[str, Any]:
    """The record of a run: figures, survivors and dead anchors, by room and by class, operators and seed."""
    counted = strength.counted
    return {
        **tally(counted),
        "strength": strength.share if counted else None,
        "tier": strength.tier,
        "sample": dict(strength.sample),
        "not_started": strength.not_started,
        "seconds": round(strength.seconds, 1),
        "by_room": {name: tally(group) for name, group in grouped(counted, "room").items()},
        "by_class": {name: tally(group) for name, group in grouped(counted, "kind").items()},
        "operators": dict(strength.operators),
        "candidates": dict(strength.candidates),
        "planted": sum(v.mutant.planted for v in counted),
        "generated": sum(not v.mutant.planted and v.fate != BUILD for v in counted),
        "survivors": [describe(v) for v in strength.survivors],
        "built": [describe(v) for v in counted if v.fate == BUILD],
        "equivalent": [describe(v) for v in strength.verdicts if v.fate == EQUIVALENT],
        "dead": [
            {"id": d.id, "room": d.room, "file": d.file, "class": d.kind, "sentence": d.sentence, "reason": d.reason}
            for d in strength.dead
        ],
        "mutants": [
            {"id": v.mutant.id, "fate": v.fate, "by": v.by, "seconds": round(v.run.seconds, 2)}
            for v in strength.verdicts
        ],
    }


def grouped(verdicts: Sequence[Verdict], attribute: str) -> dict[str, list[Verdict]]:
    """Verdicts by room or by class, names sorted."""
    names = sorted({getattr(v.mutant, attribute) for v in verdicts})
    return {name: [v for v in verdicts if getattr(v.mutant, attribute) == name] for name in names}


def describe(verdict: Verdict) -> dict[str, Any]:
    """One mutant, with what changed and what ran."""
    mutant, run = verdict.mutant, verdict.run
    return {
        "id": mutant.id,
        "room": mutant.room,
        "file": mutant.file,
        "line": mutant.line,
        "class": mutant.kind,
        "sentence": mutant.sentence,
        "original": mutant.original,
        "replacement": mutant.replacement,
        "origin": mutant.origin,
        "fate": verdict.fate,
        "by": verdict.by,
        "ran": {"locks": list(verdict.ran), "passed": run.passed, "skipped": run.skipped},
    }
