"""One compile cache for both devices, safe under several processes that want the same entry at once."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from oracle.errors import LanelockError


def cache_root() -> Path:
    """The cache's folder: LANELOCK_CACHE, else XDG_CACHE_HOME/lanelock, else ~/.cache/lanelock."""
    chosen = os.environ.get("LANELOCK_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lanelock"


def cache_key(*parts: str | bytes) -> str:
    """SHA-256 of the parts, each with its length in front, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached(key: str, produce: Callable[[Path], None], root: Path | None = None) -> Path:
    """The entry of this key, made by `produce(path)` when it is not there: a file, or a folder of files.

    Of several processes that ask at once one produces and the others wait for it. The entry is made under a
    temporary name and renamed, so a process that dies half way leaves no entry. Whatever `produce` raises is
    raised here, and nothing is kept. Raises LanelockError where the folder takes no files.
    """
    folder = (root or cache_root()) / key[:2]
    entry = folder / key
    if entry.exists():
        return entry
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(entry)
    except OSError as error:
        said = f"cannot be written ({error.strerror}); LANELOCK_CACHE names another folder"
        raise LanelockError(f"compile cache {folder.parent}: {said}.") from error
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if entry.exists():
            return entry
        with tempfile.TemporaryDirectory(prefix=f"{key[:8]}.", dir=folder) as scratch:
            made = Path(scratch) / "entry"
            produce(made)
            made.rename(entry)
    return entry


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file under a temporary name, then rename: a reader sees the old file or the whole new one.

    Raises LanelockError, naming the file, where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = _beside(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LanelockError(f"{path}: cannot be written ({error.strerror}).") from error


def check_writable(path: Path) -> None:
    """Raises OSError where `write_whole` could not write: tried, since not every folder refuses by its permissions."""
    handle, name = _beside(path)
    os.close(handle)
    Path(name).unlink()


def _beside(path: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)


def clear(root: Path | None = None) -> None:
    """Remove every entry."""
    shutil.rmtree(root or cache_root(), ignore_errors=True)
