"""Lanes: formats of activations, weights, state and cache. A lane never depends on batch, chunk or device."""

from dataclasses import dataclass

from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Lane:
    """words: int8 words of an activation code; q4: 4-bit projections; state, kv: dtype names.

    Exact, except with delta: prefill then goes through the chunked delta rule, which is bounded.
    """

    name: str
    words: int
    q4: bool = False
    state: str = "f32"
    kv: str = "f32"
    delta: bool = False


BASES = {"a15": Lane("a15", 2), "a8": Lane("a8", 1), "q4": Lane("q4", 1, q4=True)}


def lane(name: str) -> Lane:
    """The lane of a name as reports print it, such as `a8+s16+kv16+delta`. Raises LanelockError for an unknown part."""
    base, *extras = name.split("+")
    if base not in BASES:
        raise LanelockError(f"lane {name!r} is not one that kernels are built for; choose from {', '.join(BASES)}")
    for extra in extras:
        if extra not in ("s16", "kv16", "delta") or extras.count(extra) > 1:
            raise LanelockError(f"lane {name!r}: +{extra} is none of +s16, +kv16 and +delta, each at most once")
    chosen = BASES[base]
    state, kv = ("f16" if half in extras else "f32" for half in ("s16", "kv16"))
    return Lane(name, chosen.words, chosen.q4, state, kv, "delta" in extras)
