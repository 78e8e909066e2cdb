"""Files as read-only arrays of bytes that need no memory of their own."""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError

RESIDENT = 1 << 28  # files up to this size stay resident; larger ones are let go between tensors


def refusal(path: Path, what: str) -> LanelockError:
    """The error that names a file and what is wrong with it."""
    return LanelockError(f"{path}: {what}.")


def map_file(path: Path) -> NDArray[np.uint8]:
    """The file's bytes, mapped and read-only. Raises LanelockError if it is no readable file."""
    try:
        if not path.is_file():
            raise refusal(path, "is not a file")
        if path.stat().st_size == 0:
            raise refusal(path, "is empty")
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:
        raise refusal(path, f"cannot be read ({error})") from error


def let_go(content: NDArray[np.uint8]) -> None:
    """Drop the pages of a large mapped file from this process, so that a 27B file never counts as 27 GB of its memory.

    Arrays over the mapping stay valid: their pages come back from the file, or from the system's cache of it.
    """
    mapping = getattr(content.base, "obj", content.base)  # NumPy holds the mapping through a memoryview
    if content.size > RESIDENT and isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
