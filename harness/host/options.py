"""What a host device may choose freely: the order of threads, when copies complete, where buffers lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.device import DeviceError

Schedule = Literal["ascending", "descending"] | int
CopyOrder = Literal["eager", "late"] | int
Align = Literal["end", "start"]


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The choices of a host device; an integer is the seed of a random order.

    schedule: order of blocks, warps and lanes between two barriers.
    copies: cp.async completes at once (eager), exactly when a wait demands it (late), or in between.
    align: buffers and shared arrays end (or start) at a guard page, so that reading past (before) them is an error.
    march: `x86-64-v3` and the like, None for the best this processor has; compiler: its path or name, None to find one.
    source_root: the folder that kernel sources are read from, None for the package's own.
    watch: kernels count the bytes that they store to buffers, and run several times slower.
    """

    schedule: Schedule = "ascending"
    copies: CopyOrder = "eager"
    align: Align = "end"
    march: str | None = None
    compiler: str | None = None
    source_root: Path | None = None
    watch: bool = False

    def __post_init__(self) -> None:
        for name, value, words in (
            ("schedule", self.schedule, ("ascending", "descending")),
            ("copies", self.copies, ("eager", "late")),
        ):
            if isinstance(value, bool) or not (value in words or (isinstance(value, int) and value >= 0)):
                raise DeviceError(f"host device: {name} is {value!r}; choose {words[0]}, {words[1]} or a seed")
        if self.align not in ("end", "start"):
            raise DeviceError(f"host device: align is {self.align!r}; choose end or start")

    @property
    def flags(self) -> str:
        """The command-line options that choose the same."""
        return f"--schedule {self.schedule} --copies {self.copies} --align {self.align}"


def coded(value: str | int, words: tuple[str, str]) -> tuple[int, int]:
    """The runtime's code of a choice and its seed: 0 and 1 for the words, 2 for a seed."""
    return (2, value) if isinstance(value, int) else (words.index(value), 0)
