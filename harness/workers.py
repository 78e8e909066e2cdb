"""Which GPU a pytest-xdist worker uses: entry n mod count of the caller's own list, chosen before CUDA starts."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.cache import cache_root
from harness.device import DeviceError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What CUDA_VISIBLE_DEVICES said before a worker narrowed it, so that a child process computes the same choice.
CALLER = "LANELOCK_CALLER_DEVICES"
#: Bytes that buffers of this process may hold on its GPU.
BUDGET = "LANELOCK_GPU_MEMORY"
#: How many of the workers share this worker's GPU.
SHARERS = "LANELOCK_GPU_SHARERS"

_UNSET = "(unset)"
#: Modules whose import may start CUDA, after which the list of visible devices is read no more.
_STARTERS = ("cuda.bindings.driver", "cuda.bindings.runtime", "torch", "cupy")


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker gets: the value for CUDA_VISIBLE_DEVICES, and the number of workers on that GPU."""

    visible: str
    sharers: int


def entries(visible: str | None, count: int) -> tuple[str, ...]:
    """The caller's list of devices: indices, UUIDs or MIG UUIDs as written; all `count` GPUs when it is unset.

    As CUDA reads it: the list ends before the first entry that is no device (such as -1), and an empty list hides
    every GPU. An index that the machine does not have ends it too; a UUID is left for CUDA to check.
    """
    if visible is None:
        return tuple(str(i) for i in range(count))
    found: list[str] = []
    for entry in (e.strip() for e in visible.split(",")):
        named = re.match(r"(GPU|MIG)-", entry) is not None
        indexed = re.fullmatch(r"\d+", entry) is not None and (count == 0 or int(entry) < count)
        if not (named or indexed):
            break
        if entry not in found:
            found.append(entry)
    return tuple(found)


def share(worker: int, workers: int, visible: str | None, count: int) -> Share:
    """The choice of worker `worker` of `workers`, on a machine of `count` GPUs (0: not known).

    With no GPU left the list stays empty: the worker sees none, and its GPU locks are not run.
    """
    listed = entries(visible, count)
    if not listed:
        return Share("", 0)
    mine = worker % len(listed)
    return Share(listed[mine], sum(1 for w in range(workers) if w % len(listed) == mine))


def pin_worker(environ: MutableMapping[str, str] = os.environ, count: int | None = None) -> Share | None:
    """Narrow this worker's environment to its GPU.

    Returns None and changes nothing outside pytest-xdist, and where the caller gave no list and the machine's GPUs
    cannot be counted: to hide them all would turn every GPU lock into a silent 'not run'.
    Raises DeviceError when the choice would change after CUDA may have started in this process.
    """
    name = environ.get("PYTEST_XDIST_WORKER", "")
    match = re.fullmatch(r"gw(\d+)", name)
    if match is None:
        return None
    caller = environ.setdefault(CALLER, environ.get(VISIBLE, _UNSET))
    workers = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    machine = gpu_count() if count is None else count
    if caller == _UNSET and machine == 0:
        return None
    chosen = share(int(match[1]), workers, None if caller == _UNSET else caller, machine)
    if environ.get(VISIBLE) != chosen.visible:
        started = [m for m in _STARTERS if m in sys.modules] if environ is os.environ else []
        if started:
            raise DeviceError(f"worker {name} must choose its GPU before CUDA starts, but {started[0]} is imported")
        environ[VISIBLE] = chosen.visible
    environ[SHARERS] = str(chosen.sharers)
    return chosen


def gpu_count() -> int:
    """GPUs of the machine, counted without starting CUDA: the driver's files, else what nvidia-smi lists."""
    folder = Path("/proc/driver/nvidia/gpus")
    if folder.is_dir() and (known := len(list(folder.iterdir()))):
        return known
    files = len([p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)])
    smi = shutil.which("nvidia-smi")
    if files or smi is None:
        return files
    try:
        listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))


def memory_budget(environ: MutableMapping[str, str] = os.environ) -> int | None:
    """Bytes that this process may hold on its GPU, as LANELOCK_GPU_MEMORY says; None: no limit of ours.

    Raises DeviceError for a value that is no number of bytes.
    """
    text = environ.get(BUDGET)
    if text is None:
        return None
    if not text.isdecimal():
        raise DeviceError(f"{BUDGET}={text!r} is no number of bytes")
    return int(text)


def budget(memory: int, sharers: int, reserve: int = 1 << 30) -> int:
    """Bytes for each of `sharers` workers on a GPU of `memory` bytes, a reserve a worker for its context taken off.

    Raises DeviceError when nothing is left: there are more workers than the GPU can hold.
    """
    left = memory // max(1, sharers) - reserve
    if left <= 0:
        raise DeviceError(f"{sharers} workers on a GPU of {memory} bytes leave each less than {reserve} bytes")
    return left


@contextmanager
def exclusive(gpu: str) -> Iterator[None]:
    """Hold a GPU (by UUID) alone among the workers of this machine: for whole models, which run one at a time."""
    folder = cache_root() / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
