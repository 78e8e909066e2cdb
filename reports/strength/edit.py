"""An edit of a text, and the classes of faults that operators plant."""

from dataclasses import dataclass

BARRIER = "barrier removed"
MASK = "warp mask narrowed"
LANE = "lane index off by one"
LOOP = "loop bound off by one"
START = "first step skipped"
NEIGHBOUR = "neighbour's element"
SCALE = "neighbour's scale"
FMA = "fma split in two"
ORDER = "additions swapped"
CONSTANT = "constant changed"
WRITE = "write-back skipped"
EPSILON = "epsilon dropped"
TIE = "tie rule reversed"
GUARD = "guard removed"
COMPARE = "< for <="
SIGN = "operator changed"
REMAINDER = "remainder taken as quotient"
CONDITION = "condition inverted"
SELECTION = "selection swapped"
OPERANDS = "operands swapped"
AXIS = "axis swapped"
SLICE = "slice off by one"
TRANSPOSE = "transpose dropped"


@dataclass(frozen=True, slots=True)
class Edit:
    """Text [start, end) becomes `replacement`; kind is the class of the fault."""

    start: int
    end: int
    replacement: str
    kind: str
