"""A preloaded Python that forks one child a job and runs pytest in it.

Run as a file, never imported: it must not hold any module of the checkout, because the children import them from an
overlay. Importing numpy, mpmath, hypothesis and pytest once saves about a second a mutant.
Protocol: one JSON object a line on stdin (a job) and on stdout (its outcome).
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = 16 << 30  # bytes a child may take, mapped files apart; a mutant must not take the machine down
BUILD_ERRORS = {"BuildError", "SyntaxError", "IndentationError"}
PRELOAD = ("numpy", "mpmath", "hypothesis", "pytest", "_pytest.assertion.rewrite", "rich.console", "rich.progress",
           "concurrent.futures", "safetensors", "gguf", "cuda.bindings.nvrtc")  # fmt: skip


class Recorder:
    """A pytest plugin: orders the locks, and keeps what ran and the first failure."""

    def __init__(self, order: dict[str, float]) -> None:
        """Order maps a node id to its rank; unknown locks keep their place behind."""
        self.order = order
        self.outcome: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "durations": {}, "first": None}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Cheap and so far deadly locks first."""
        items.sort(key=lambda item: self.order.get(item.nodeid, 1e9))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count calls; a failure in setup or teardown counts as a failure, a strict xpass too."""
        if report.when == "call" and report.passed:
            self.outcome["passed"] += 1
        if report.skipped and not hasattr(report, "wasxfail"):
            self.outcome["skipped"] += 1
        if report.failed:
            self._fail(report.nodeid, str(report.longrepr))
        durations = self.outcome["durations"]
        durations[report.nodeid] = durations.get(report.nodeid, 0.0) + report.duration

    def pytest_collectreport(self, report: Any) -> None:
        """A lock file that cannot be imported is red."""
        if report.failed:
            self._fail(report.nodeid, str(report.longrepr))

    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        """Tell a source that does not compile from a lock that failed."""
        names = {c.__name__ for c in call.excinfo.type.__mro__}
        text = str(report.longrepr)
        # a module that pytest cannot import is reported as a collection error that quotes the syntax error
        syntax = type(report).__name__ == "CollectReport" and ("SyntaxError" in text or "IndentationError" in text)
        if names & BUILD_ERRORS or syntax:
            self.outcome["build"] = True

    def pytest_internalerror(self, excrepr: Any) -> None:
        """The runner itself broke, as when a mutated conftest raises in a hook."""
        self._fail("pytest", str(excrepr))

    def _fail(self, nodeid: str, text: str) -> None:
        self.outcome["failed"] += 1
        if self.outcome["first"] is None:
            self.outcome["first"] = {"lock": nodeid, "message": text[-2000:]}


def run_pytest(job: dict[str, Any]) -> dict[str, Any]:
    """In the child: run the locks of the job in its overlay."""
    import hypothesis
    import pytest

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("strength", phases=phases)  # a killed mutant needs no smallest example
    hypothesis.settings.load_profile("strength")
    recorder = Recorder(job["order"])
    flags = ["-q", "--no-header", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning",
             "--tb=short", "--show-capture=no", *job["flags"]]  # fmt: skip
    code = pytest.main([*flags, *job["locks"]], plugins=[recorder])
    outcome = recorder.outcome
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR) and not outcome["failed"]:
        outcome["failed"], outcome["first"] = 1, {"lock": "pytest", "message": f"pytest ended with {code!r}"}
    return outcome


def child(job: dict[str, Any], out: int) -> None:
    """Set the process up as if it had been started in the overlay, run, and write the outcome to the pipe."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # a loop without end is told from a slow machine by the processor's time
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], resource.RLIM_INFINITY))
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir(job["overlay"])
    sys.path.insert(0, job["overlay"])
    os.environ.update(job["environment"])
    os.environ["PYTHONPATH"] = job["overlay"]
    outcome = run_pytest(job)
    with os.fdopen(out, "w") as pipe:
        pipe.write(json.dumps(outcome) + "\n")


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Fork a child for the job, wait for its outcome or the timeout, and end its whole process group."""
    began = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            child(job, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        text = _read_all(read, began + job["timeout"])
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
    outcome = _outcome(text, status, job)
    outcome["seconds"] = time.monotonic() - began
    outcome["cpu"] = used.ru_utime + used.ru_stime
    return outcome


def _outcome(text: str | None, status: int, job: dict[str, Any]) -> dict[str, Any]:
    if text is None:
        return {"timeout": True}
    if text:
        return dict(json.loads(text))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return {"timeout": True}
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
    tail = Path(job["log"]).read_text(errors="replace")[-2000:] if Path(job["log"]).exists() else ""
    return {"crash": how, "first": {"lock": "the process", "message": f"{how}: {tail}"}}


def _read_all(descriptor: int, deadline: float) -> str | None:
    """One line, or what came before the pipe ended; None when the deadline passed first.

    It stops at the line's end because a process that the locks left behind may hold the pipe open.
    """
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(descriptor, 1 << 16)
        parts.append(part)
        if not part or part.endswith(b"\n"):
            return b"".join(parts).decode()


def main() -> None:
    """Preload, then serve jobs until stdin ends."""
    for name in PRELOAD:
        with contextlib.suppress(ImportError):
            __import__(name)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
