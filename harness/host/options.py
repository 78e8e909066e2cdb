"""How the host device runs a launch, where the programming model leaves a choice."""

from dataclasses import dataclass
from typing import Literal

from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class HostOptions:
    """schedule: order of blocks, warps and lanes between barriers; copies: when asynchronous copies complete.

    An integer is the seed of a random choice. align puts a buffer's end, or its start, against a guard page. march and
    compiler choose how kernels are compiled; empty means the best of this machine.
    """

    schedule: Literal["ascending", "descending"] | int = "ascending"
    copies: Literal["eager", "late"] | int = "eager"
    align: Literal["end", "start"] = "end"
    march: str = ""
    compiler: str = ""

    def __post_init__(self) -> None:
        for name, value, words in (
            ("schedule", self.schedule, ("ascending", "descending")),
            ("copies", self.copies, ("eager", "late")),
        ):
            if isinstance(value, bool) or not (isinstance(value, int) or value in words):
                raise LanelockError(f"host option {name} = {value!r} is neither {words[0]}, {words[1]} nor a seed")
        if self.align not in ("end", "start"):
            raise LanelockError(f"host option align = {self.align!r} is neither end nor start")
