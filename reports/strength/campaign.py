"""A campaign: the baseline of every room must be green, then each mutant meets the locks of its room."""

import math
import os
import queue
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oracle.errors import LanelockError
from reports.strength.equivalence import proven_equivalent, stored_checks
from reports.strength.mutant import Mutant
from reports.strength.plan import PLANTED
from reports.strength.result import EQUIVALENT, SURVIVED, Verdict, judge
from reports.strength.rooms import locks_of
from reports.strength.worker import TIER_FLAGS, Limit, Run, Worker

Report = Callable[[Verdict], None]
T = TypeVar("T")
R = TypeVar("R")
# a mutant may loop for ever; it gets several times what the healthy room took, and enough for one slow compile. Of the
# processor's time it gets less: that does not depend on what else the machine does
PATIENCE, SLACK_SECONDS, CPU_PATIENCE, SLACK_CPU = 6.0, 60.0, 3.0, 15.0
BASELINE = Limit(1800.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a campaign runs. flags go to pytest behind those of the tier; no mutant starts after so many seconds."""

    root: Path
    tier: str = "host"
    processes: int = 0
    flags: tuple[str, ...] = ()
    seconds: float = math.inf


class Campaign:
    """Workers with their overlays. Use as a context; overlays are removed at its end."""

    def __init__(self, setting: Setting) -> None:
        """Raises LanelockError for an unknown tier."""
        if setting.tier not in TIER_FLAGS:
            raise LanelockError(f"unknown tier {setting.tier!r}; known are {', '.join(TIER_FLAGS)}")
        self.setting = setting
        self._stack = ExitStack()
        self._idle: queue.Queue[Worker] = queue.Queue()
        self._kills: Counter[str] = Counter()
        self._healthy: dict[tuple[str, ...], Run] = {}
        self._checks = stored_checks(setting.root / PLANTED)
        self._deadline = time.monotonic() + setting.seconds

    def __enter__(self) -> "Campaign":
        """Make the overlays and start the servers."""
        folder = Path(tempfile.mkdtemp(prefix="lanelock-strength-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        flags = (*TIER_FLAGS[self.setting.tier], *self.setting.flags)
        environment = {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
        for number in range(self.workers):
            worker = Worker(self.setting.root, folder / f"overlay{number}", flags, environment)
            self._stack.callback(worker.close)
            self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers and remove the overlays."""
        self._stack.close()

    @property
    def workers(self) -> int:
        """Number of workers: as asked, else one a processor."""
        return self.setting.processes or os.cpu_count() or 1

    def baselines(self, mutants: Sequence[Mutant], tell: Callable[[str], None]) -> None:
        """Run the locks of every room unmutated.

        Raises LanelockError if one fails or none passes: a red room would count every mutant as killed.
        """
        wanted = list(dict.fromkeys(self.locks(m) for m in mutants))

        def one(locks: tuple[str, ...]) -> None:
            run = self._run(locks, BASELINE, None)
            name = ", ".join(locks)
            if run.failed or run.timeout or run.crash:
                first = run.first or {}
                message = first.get("message", run.crash or "timed out")
                raise LanelockError(f"the locks {name} are red without a mutant: {first.get('lock')}: {message}")
            if not run.passed:
                raise LanelockError(f"no lock of {name} ran without a mutant ({run.skipped} skipped)")
            self._healthy[locks] = run
            tell(f"baseline green: {name}: {run.passed} passed, {run.skipped} skipped, {run.seconds:.1f} s")

        self._spread(one, wanted)

    def run(self, mutants: Sequence[Mutant], report: Report) -> list[Verdict]:
        """Run the mutants, in parallel; report is called as verdicts come in, the result is in the order given.

        It ends with the mutants that started in time.
        """

        def one(mutant: Mutant) -> Verdict | None:
            if time.monotonic() > self._deadline:
                return None
            locks = self.locks(mutant)
            healthy = self._healthy[locks]
            limit = Limit(PATIENCE * healthy.seconds + SLACK_SECONDS, CPU_PATIENCE * healthy.cpu + SLACK_CPU)
            verdict = judge(mutant, locks, self._run(locks, limit, mutant))
            if verdict.by:
                self._kills[verdict.by] += 1
            if verdict.fate == SURVIVED and proven_equivalent(mutant, self.setting.root, self._checks):
                verdict = Verdict(mutant, EQUIVALENT, locks, verdict.run)
            report(verdict)
            return verdict

        return [verdict for verdict in self._spread(one, mutants) if verdict is not None]

    def locks(self, mutant: Mutant) -> tuple[str, ...]:
        """The lock files that a mutant meets."""
        return mutant.locks or locks_of(mutant.room, self.setting.root)

    def _spread(self, one: Callable[[T], R], over: Sequence[T]) -> list[R]:
        pool = ThreadPoolExecutor(self.workers)
        try:
            return list(pool.map(one, over))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, locks: tuple[str, ...], limit: Limit, mutant: Mutant | None) -> Run:
        worker = self._idle.get()
        try:
            return worker.run(locks, limit, self._order(locks), mutant)
        finally:
            self._idle.put(worker)

    def _order(self, locks: tuple[str, ...]) -> dict[str, float]:
        """Rank of each lock: those that killed before, most kills first, then the quick ones.

        The verdict does not depend on the order, only the time does: a kill ends the run.
        """
        if locks not in self._healthy:
            return {}
        durations = self._healthy[locks].durations
        return {node: math.log10(max(took, 1e-4)) - 1.5 * self._kills[node] for node, took in durations.items()}


def measure(setting: Setting, mutants: Sequence[Mutant], report: Report,
            tell: Callable[[str], None]) -> tuple[list[Verdict], float]:  # fmt: skip
    """Baselines, then all mutants. Returns the verdicts and the seconds taken."""
    began = time.monotonic()
    with Campaign(setting) as campaign:
        campaign.baselines(mutants, tell)
        return campaign.run(mutants, report), time.monotonic() - began
