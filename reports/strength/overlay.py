"""A private copy of the checkout, in which one file at a time is replaced."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oracle.errors import LanelockError
from reports.strength.mutant import Mutant

#: The top-level folders of the project.
FOLDERS = ("oracle", "kernels", "harness", "locks", "golden", "reports")

# a compiled module is taken for fresh when time (whole seconds) and size of its source agree; two mutants of the same
# size within one second would run each other's code, so every replaced file gets a time of its own.
_ticks = itertools.count(1)


def checkout_files(root: Path) -> list[str]:
    """Tracked files and untracked ones that git does not ignore, relative to the root, that exist.

    Without git (an unpacked archive, an installed package) the files of our own folders. Raises LanelockError if none.
    """
    names = _listed_by_git(root) or _files_of_folders(root)
    found = sorted({n for n in names if (root / n).is_file()})
    if not found:
        raise LanelockError(f"{root} holds no files to copy")
    return found


def _listed_by_git(root: Path) -> list[str]:
    """Nothing where there is no git, or where git ignores the folder, as it does an environment inside a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [n for n in done.stdout.decode().split("\0") if n]


def _files_of_folders(root: Path) -> list[str]:
    inside = [p.relative_to(root) for folder in FOLDERS for p in (root / folder).rglob("*")]
    return [p.as_posix() for p in inside if not _hidden(p)] + [p.name for p in root.glob("*.toml")]


def copy_checkout(root: Path, target: Path) -> None:
    """Copy the checkout, file by file with times kept; nothing is linked, so nothing can write through."""
    for name in checkout_files(root):
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, destination)


@contextmanager
def applied(mutant: Mutant, overlay: Path) -> Iterator[None]:
    """The overlay with the mutant in it; the original file, with its time, is back at the end."""
    path = overlay / mutant.file
    before = path.stat()
    original = path.read_bytes()
    when = before.st_mtime_ns + next(_ticks) * 1_000_000_000
    _replace(path, mutant.apply(original.decode("utf-8")).encode("utf-8"), when)
    try:
        yield
    finally:
        _replace(path, original, before.st_mtime_ns)


def _replace(path: Path, content: bytes, when: int) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    os.utime(fresh, ns=(when, when))
    fresh.replace(path)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)
