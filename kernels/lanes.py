"""Lanes: a choice of formats for activations, weights, state and cache. A lane never depends on batch, chunk or device."""

from dataclasses import dataclass

from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Lane:
    """An exact lane. words: int8 words of an activation code; q4: 4-bit projections; state, kv: dtype names."""

    name: str
    words: int
    q4: bool = False
    state: str = "f32"
    kv: str = "f32"


BASES = {"a15": Lane("a15", 2), "a8": Lane("a8", 1), "q4": Lane("q4", 1, q4=True)}


def lane(name: str) -> Lane:
    """The lane of a name as reports print it, such as `a8+s16+kv16`. Raises LanelockError for an unknown part."""
    base, *extras = name.split("+")
    if base not in BASES:
        raise LanelockError(f"lane {name!r} is not one that kernels are built for; choose from {', '.join(BASES)}")
    for extra in extras:
        if extra not in ("s16", "kv16") or extras.count(extra) > 1:
            raise LanelockError(f"lane {name!r}: +{extra} is none of +s16 and +kv16, each at most once")
    chosen = BASES[base]
    state = "f16" if "s16" in extras else "f32"
    return Lane(name, chosen.words, chosen.q4, state, "f16" if "kv16" in extras else "f32")
