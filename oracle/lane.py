"""Number formats of a lane, for asking the oracle what those formats alone cost."""

from dataclasses import dataclass

from oracle.arrays import F64
from oracle.embedding import dense
from oracle.errors import LanelockError
from oracle.formats import (
    Q8_0,
    e4m3_blocks_decode,
    e4m3_blocks_encode,
    e4m3_pair_decode,
    e4m3_pair_encode,
    e4m3_rows_decode,
    e4m3_rows_encode,
    q4_decode,
    q4_from_q8_0,
)
from oracle.model_weights import Tensor


@dataclass(frozen=True, slots=True)
class Lane:
    """Formats that values pass through; all arithmetic stays float64.

    Units: activations none, a8, a15, e4m3_rows or e4m3_blocks; weights q8_0 (as they are), q4, e4m3_rows,
    e4m3_blocks or e4m3_pair; state f64, f16 or bf16, rounded after every token; cache f64 or f16.
    """

    name: str
    activations: str = "none"
    weights: str = "q8_0"
    state: str = "f64"
    cache: str = "f64"

    @property
    def head_activations(self) -> str:
        """Activations of the head and of the draft's entry, which stay Q8_0 in every lane."""
        return "a8" if self.activations.startswith("e4m3") else self.activations


EXACT = Lane("f64")

_BASES = {
    "f64": EXACT,
    "a15": Lane("a15", "a15"),
    "a8": Lane("a8", "a8"),
    "q4": Lane("q4", "a8", "q4"),
    "fp8c": Lane("fp8c", "e4m3_rows", "e4m3_rows"),
    "fp8b": Lane("fp8b", "e4m3_blocks", "e4m3_blocks"),
    "fp8b2": Lane("fp8b2", "e4m3_blocks", "e4m3_pair"),
}
LANES = tuple(_BASES)


def parse(name: str) -> Lane:
    """Lane of a name as reports print it: a base, then +s16, +kv16 or +delta.

    Shapes: none.
    Units:  +delta changes an order of operations and no format, so it is the same lane here.
    Error:  none.
    Source: the table of lanes. Raises LanelockError, naming the part that is unknown.
    """
    base, *extras = name.split("+")
    if base not in _BASES:
        raise LanelockError(f"there is no lane {base!r}; lanes are {', '.join(LANES)}.")
    unknown = sorted(set(extras) - {"s16", "kv16", "delta"})
    if unknown:
        raise LanelockError(f"lane {name!r}: +{unknown[0]} is none of +s16, +kv16 and +delta.")
    lane = _BASES[base]
    state = "f16" if "s16" in extras else "f64"
    cache = "f16" if "kv16" in extras else "f64"
    return Lane(name, lane.activations, lane.weights, state, cache)


def weight_values(w: Tensor, weights: str, name: str = "matrix") -> F64:
    """Values of whole rows of a projection in a lane's weight format.

    Shapes: w [N, K] -> [N, K]. Rows are independent in every format, so a block of rows may be asked for.
    Units:  those of w.
    Error:  the format's.
    Source: the contract. Raises LanelockError, naming the matrix, where the format starts from Q8_0 and w is not, or
            where it cannot hold a value.
    """
    if weights == "q8_0":
        return dense(w)
    if not isinstance(w, Q8_0):
        raise LanelockError(f"{weights} weights are made from Q8_0, and these are not quantised.")
    match weights:
        case "q4":
            return q4_decode(q4_from_q8_0(w, name))
        case "e4m3_rows":
            return e4m3_rows_decode(e4m3_rows_encode(dense(w)))
        case "e4m3_blocks":
            return e4m3_blocks_decode(e4m3_blocks_encode(dense(w)))
        case "e4m3_pair":
            return e4m3_pair_decode(e4m3_pair_encode(dense(w)))
        case _:
            raise LanelockError(f"there is no weight format {weights!r}.")
