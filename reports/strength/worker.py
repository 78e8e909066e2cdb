"""One worker: an overlay of the checkout and a fork server that runs locks in it."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle.errors import LanelockError
from reports.strength.mutant import Mutant
from reports.strength.overlay import applied, copy_checkout

#: pytest flags by tier. The options of the project's own conftest come behind them.
TIER_FLAGS: Mapping[str, tuple[str, ...]] = {"host": ("-x", "-p", "no:xdist", "-o", "addopts=")}
SERVER = Path(__file__).with_name("forkserver.py")


@dataclass(frozen=True, slots=True)
class Run:
    """What the locks said. first is {"lock", "message"} of the first failure; cpu is seconds of the processor."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    timeout: bool = False
    crash: str = ""
    build: bool = False
    first: Mapping[str, str] | None = None
    durations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """What the locks may take: seconds by the clock, and of the processor."""

    seconds: float
    cpu: float


class Worker:
    """Owns an overlay folder and a server process; close() ends the process, the caller removes the folder."""

    def __init__(self, root: Path, overlay: Path, flags: Sequence[str], environment: Mapping[str, str]) -> None:
        """Copy the checkout and start the server; neither holds a module of the checkout."""
        self.overlay = overlay
        self.flags = tuple(flags)
        self.environment = dict(environment)
        self.log = overlay.with_name(overlay.name + ".log")
        copy_checkout(root, overlay)
        single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # -P keeps the folder of the server off the path, so that its neighbours cannot shadow a library
        self._server = subprocess.Popen(
            [sys.executable, "-P", str(SERVER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **single},
        )  # fmt: skip

    def run(self, locks: Sequence[str], limit: Limit, order: Mapping[str, float], mutant: Mutant | None) -> Run:
        """Run lock files with the mutant in place. Raises LanelockError if the server died."""
        job = {
            "overlay": str(self.overlay), "log": str(self.log), "locks": list(locks), "flags": self.flags,
            "timeout": limit.seconds, "cpu": math.ceil(limit.cpu), "order": dict(order),
            "environment": self.environment,
        }  # fmt: skip
        with applied(mutant, self.overlay) if mutant else nullcontext():
            answer = self._ask(job)
        return Run(**answer)

    def close(self) -> None:
        """End the server; a job in flight is killed with its children."""
        with self._server:  # closes both pipes; the server ends when its input does
            if self._server.stdin is not None:
                self._server.stdin.close()
            try:
                self._server.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._server.terminate()

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        try:
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            line = self._server.stdout.readline()
        except (BrokenPipeError, ValueError) as error:
            raise LanelockError(f"the process that runs the locks died: {error}") from error
        if not line:
            raise LanelockError("the process that runs the locks died without an answer")
        return dict(json.loads(line))
