"""Another commit of this checkout as a run: its sources in a folder of their own, its trace in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.record import ROOT
from harness.trace import Written
from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class CommitRun:
    """What `lanelock trace` of another commit writes. words: its options, which name no file relative to a folder."""

    name: str
    folder: Path
    words: tuple[str, ...]

    def traced(self, *, keep: bool = False) -> tuple[list[int] | None, list[Written]]:
        """Every launch; a trace does not tell tokens. Raises LanelockError where the other commit cannot trace this."""
        if keep:
            raise LanelockError(f"bisect: {self.name} is compared by its bits; a tolerance needs both runs here")
        rows = [json.loads(line) for line in self._trace("--json").splitlines()]
        return None, [
            Written((r["pass"], r["program"], r["launch"], r["number"]), r["kernel"], r["buffer"], tuple(r["shape"]),
                    r["digest"])
            for r in rows
        ]  # fmt: skip  # a row

    def array(self, written: Written) -> np.ndarray:
        """What a launch wrote to a buffer. Raises LanelockError as `traced` does."""
        at, _, label, number = written.key
        counted = ("--number", str(number)) if number else ()  # commits without the option have the first one
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "written.npz"
            self._trace("--launch", label, "--pass", str(at), *counted, "--out", str(out))
            with np.load(out, allow_pickle=False) as arrays:
                return np.asarray(arrays[written.buffer])

    def _trace(self, *more: str) -> str:
        command = [sys.executable, "-m", "harness", "trace", *self.words, *more]
        # -m looks in the working folder first, so that every module is the other commit's
        done = subprocess.run(command, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)}, check=False,
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise LanelockError(f"bisect: {self.name} cannot trace this run: {said}")
        return done.stdout


def commit_of(revision: str, checkout: Path = ROOT) -> str:
    """The commit of a revision. Raises LanelockError where this is no git checkout or it has no such commit."""
    top = _git(checkout, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != checkout.resolve():
        raise LanelockError(f"{checkout} is not a git checkout, so it has no other commit to compare with")
    commit = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if not commit:
        raise LanelockError(f"there is no commit {revision!r} in the checkout {checkout}")
    return commit


@contextmanager
def sources_of(revision: str, checkout: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """The commit of a revision, shortened, and a folder with its files, which is removed at the end.

    Raises LanelockError as `commit_of`.
    """
    commit = commit_of(revision, checkout)
    with tempfile.TemporaryDirectory(prefix="lanelock-") as scratch:
        archive, folder = Path(scratch) / "sources.zip", Path(scratch) / "sources"
        if _git(checkout, "archive", "--format=zip", "-o", str(archive), commit) is None:
            raise LanelockError(f"git cannot read the files of commit {commit[:12]}")
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        yield commit[:12], folder


def last_change(path: Path, checkout: Path = ROOT) -> str | None:
    """The commit that changed a file last; None where git does not know the file."""
    return _git(checkout, "log", "-1", "--format=%H", "--", str(path)) or None


def _git(checkout: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(("git", "-C", str(checkout), *words), capture_output=True, text=True, check=False)  # noqa: S607  # git is where the user has it
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def trace_words(
    engine: str, weights: str, config: str | None, lane: str, tokens: Sequence[int], count: int, drafts: int, chunk: int
) -> tuple[str, ...]:
    """The options of a trace, with files as absolute paths."""
    words = ["--engine", engine, "--weights", _absolute(weights), "--lane", lane]
    words += ["--config", _absolute(config)] if config is not None else []
    words += ["--tokens", ",".join(map(str, tokens)), "--n", str(count)]
    return (*words, "--drafts", str(drafts), "--chunk", str(chunk))


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).exists() else name
