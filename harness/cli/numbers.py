"""Numbers that options give, refused before a command begins."""

import argparse
import math

from oracle.errors import LanelockError

#: Option -> least value, in every command that has it.
LEAST = {
    "against_batch": 1,
    "batch": 1,
    "chunk": 1,
    "context": 1,
    "drafts": 0,
    "limit": 0,
    "max_age": 0,
    "most": 0,
    "n": 1,
    "per_room": 0,
    "prefill": 1,
    "processes": 0,
    "prompt": 1,
    "repeats": 1,
    "seconds": 0,
    "seed": 0,
}
#: Options that divide: more than nothing.
ABOVE_ZERO = ("bandwidth",)


def check_numbers(args: argparse.Namespace) -> None:
    """Raises LanelockError naming the first option whose number is too small, not finite or none (nan)."""
    for name, value in vars(args).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in LEAST and not LEAST[name] <= value < math.inf:
            finite = " and finite" if isinstance(value, float) else ""
            raise LanelockError(f"--{name.replace('_', '-')}: {value} is not at least {LEAST[name]}{finite}")
        if name in ABOVE_ZERO and not 0 < value < math.inf:
            raise LanelockError(f"--{name}: {value} is not above 0 and finite")
