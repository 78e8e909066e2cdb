"""Machine-written records: measured figures with everything that one needs to know about where they were measured."""

import datetime
import itertools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
from harness.cache import check_writable, write_whole
from harness.device import NotRun
from oracle.errors import LanelockError

#: The checkout, and the folder that its records go to.
ROOT = Path(harness.__file__).parents[1]
RECORDS = ROOT / "reports" / "records"
#: Several commands of one night each leave a record: those before do not make the sources other than the commit's.
NOT_RECORDS = ":(exclude)reports/records"

#: What nvidia-smi is asked for. A release that does not know one of the names refuses the whole question, so each
#: is then asked alone; the last is the older name of the one before it.
_SMI_FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)


def record(kind: str, figures: Mapping[str, Any], folder: Path = RECORDS) -> Path:
    """Write `<kind>-<UTC time>.json` with the figures and the circumstances; returns its path.

    The figures must be JSON as they are (numbers, texts, lists, maps). Raises LanelockError for a kind that is no
    plain name or a figure that is not finite JSON.
    """
    if not kind.replace("-", "").replace("_", "").isalnum():
        raise LanelockError(f"a record's kind is letters, digits, - and _, not {kind!r}")
    now = datetime.datetime.now(datetime.UTC)
    content = {"kind": kind, "date": now.isoformat(timespec="seconds"), **circumstances(), "figures": dict(figures)}
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LanelockError(f"record {kind}: a figure cannot be written as JSON ({error})") from error
    path = _free(folder, kind, now)
    write_whole(path, text + "\n")
    return path


def _free(folder: Path, kind: str, now: datetime.datetime) -> Path:
    """A name that no record has: of two that end in the same second the later one takes the next."""
    seconds = (now + datetime.timedelta(seconds=s) for s in itertools.count())
    names = (folder / f"{kind}-{at:%Y%m%dT%H%M%SZ}.json" for at in seconds)
    return next(path for path in names if not path.exists())


def check_records(folder: Path = RECORDS) -> None:
    """Raises LanelockError where no record could be written, for a command that measures first and writes last."""
    try:
        check_writable(folder / "record")
    except OSError as error:
        raise LanelockError(f"a record cannot be written: {folder} is no folder that this user may write to") from error


def newest_record(kind: str, folder: Path = RECORDS) -> str | None:
    """The file name of the newest record of a kind, or None when there is none."""
    # a kind may be the beginning of another (locks, locks-h200): the time has no dash, so the kind is all before it
    names = (path.name for path in folder.glob(f"{kind}-*.json"))
    return max((name for name in names if name.rpartition("-")[0] == kind), default=None)


def circumstances() -> dict[str, Any]:
    """Commit, machine, toolkit and every GPU with its clocks, power and throttling; null where it cannot be known."""
    return {
        # a copy of the checkout on a test machine has no .git: who copied it says the commit
        "commit": _git("rev-parse", "HEAD") or os.environ.get("LANELOCK_COMMIT"),
        "dirty": None if (changes := _git("status", "--porcelain", "--", ".", NOT_RECORDS)) is None else bool(changes),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "toolkit": toolkit(),
        "gpus": gpu_state(),
    }


def toolkit() -> str | None:
    """The run-time compiler, or null where none is installed."""
    from harness.cuda.compiler import version_text

    try:
        return version_text()
    except NotRun:
        return None


def cpu_name() -> str | None:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or None
    names = (line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or None)


def gpu_state() -> list[dict[str, str | None]] | None:
    """One map a GPU of what nvidia-smi reads now; null without nvidia-smi or without a GPU.

    A throttling state of 0x0000000000000000 is none at all, 0x0000000000000001 an idle GPU.
    """
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    together = _ask(smi, ",".join(_SMI_FIELDS[:-1]))
    if together:
        return [dict(zip(_SMI_FIELDS, (v.strip() for v in line.split(",")), strict=False)) for line in together]
    columns = {field: _ask(smi, field) for field in _SMI_FIELDS}
    count = max((len(values) for values in columns.values()), default=0)
    if count == 0:
        return None
    return [{field: values[i] if i < len(values) else None for field, values in columns.items()} for i in range(count)]


def _ask(smi: str, fields: str) -> list[str]:
    """A line a GPU; empty when this release does not know a field."""
    done = _run(smi, f"--query-gpu={fields}", "--format=csv,noheader")
    return [] if done is None else [line.strip() for line in done.splitlines() if line.strip()]


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    return None if git is None else _run(git, "-C", str(ROOT), *arguments)


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
