"""Which files belong to a room, and which lock files hold it.

The rule is the stem: kernels/rms_norm.cu, oracle/rms_norm.py and oracle/bits/rms_norm.py are held by
locks/test_rms_norm.py. SPECIAL lists the rooms that are more than a stem; shared sources are held by the locks of the
rooms that use them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Room:
    """Files (patterns relative to the root) and the lock files that hold them, the likeliest killer first."""

    name: str
    files: tuple[str, ...]
    locks: tuple[str, ...]


SPECIAL: tuple[Room, ...] = ()

#: Folders whose files form stem rooms.
STEM_FOLDERS = ("kernels", "oracle", "oracle/bits")
SOURCES = (".cu", ".cuh", ".py", ".cpp", ".hpp", ".h")


def room_of(file: str) -> str:
    """The room of a source file: a special room that lists it, else its stem."""
    for room in SPECIAL:
        if any(fnmatch(file, pattern) for pattern in room.files):
            return room.name
    return PurePosixPath(file).stem.removeprefix("test_")


def locks_of(room: str, root: Path) -> tuple[str, ...]:
    """The lock files of a room that exist. Raises LanelockError if there is none."""
    named = next((r.locks for r in SPECIAL if r.name == room), ())
    wanted = named or (f"locks/test_{room}.py", f"locks/oracle/test_{room}.py")
    found = tuple(p.relative_to(root).as_posix() for pattern in wanted for p in sorted(root.glob(pattern)))
    if not found:
        raise LanelockError(f"room {room} has no lock file; looked for {', '.join(wanted)}")
    return found


def all_rooms(root: Path) -> list[str]:
    """Rooms that have both sources and a lock file, special ones first."""
    names = [r.name for r in SPECIAL if any(sources_of(r.name, root))]
    for folder in STEM_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            name = room_of(path.relative_to(root).as_posix())
            if path.suffix in SOURCES and name not in names and _has_locks(name, root):
                names.append(name)
    return names


def sources_of(room: str, root: Path) -> Iterator[str]:
    """Source files of a room, relative to the root, sorted."""
    special = next((r for r in SPECIAL if r.name == room), None)
    patterns = special.files if special else tuple(f"{f}/{room}{s}" for f in STEM_FOLDERS for s in SOURCES)
    found = {p.relative_to(root).as_posix() for pattern in patterns for p in root.glob(pattern) if p.is_file()}
    yield from sorted(f for f in found if room_of(f) == room)


def _has_locks(room: str, root: Path) -> bool:
    try:
        return bool(locks_of(room, root))
    except LanelockError:
        return False
