"""Where a room is: the files that share its stem, and its kernels."""

from pathlib import Path

from kernels.catalogue import by_room
from kernels.entry import Kernel

ROOT = Path(__file__).resolve().parent.parent

#: What a room is made of -> its file, below the repository's root.
FILES = {
    "truth (float64)": "oracle/{family}.py",
    "contract (NumPy float32)": "oracle/bits/{family}.py",
    "source (CUDA C++)": "kernels/{room}.cu",
    "entries (catalogue)": "kernels/{room}.py",
    "locks": "locks/test_{family}.py",
}


def places(room: str) -> dict[str, Path]:
    """What the room is made of -> path below the repository's root. Raises LanelockError for an unknown room."""
    family = by_room(room)[0].family or room
    return {what: Path(pattern.format(room=room, family=family)) for what, pattern in FILES.items()}


def describe(kernel: Kernel) -> str:
    """A kernel in two lines: name with its template values, and what it does."""
    values = [f"{p.name} = {' | '.join(str(v) for v in p.values)}" for p in kernel.params if len(p.values) > 1]
    shown = f"  ({', '.join(values)})" if values else ""
    return f"{kernel.name}{shown}\n    {kernel.doc}"


def page(room: str) -> str:
    """The room as text: its files, each said to be missing where it is, and its kernels.

    Raises LanelockError for an unknown room.
    """
    files = [f"{what:26}{path}{'' if (ROOT / path).exists() else '  (missing)'}" for what, path in places(room).items()]
    return "\n".join([room, *files, "", *(describe(k) for k in by_room(room))])
