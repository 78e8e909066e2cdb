"""The text that the small checkpoint is trained and measured on, as bytes."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError

HELD_OUT = 0.05


def read_text(path: Path) -> NDArray[np.uint8]:
    """One verse a line, without chapter headings and numbers: what is learnt is prose.

    Raises LanelockError for a file that cannot be read or holds less than 1 MB of verses.
    """
    try:
        text = path.read_text(encoding="ascii", errors="ignore")
    except OSError as error:
        raise LanelockError(f"{path}: cannot be read ({error.strerror})") from error
    verses = re.findall(r"^  \d+ (.+?)(?=^  \d+ |^\n|\Z)", text, re.MULTILINE | re.DOTALL)
    data = np.frombuffer("\n".join(" ".join(verse.split()) for verse in verses).encode("ascii"), np.uint8)
    if data.size < 1_000_000:
        raise LanelockError(f"{path}: {data.size} bytes are too few to train on")
    return data


def training(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All but the end."""
    return data[: int(len(data) * (1 - HELD_OUT))]


def held_out(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The end, which training never sees."""
    return data[int(len(data) * (1 - HELD_OUT)) :]
