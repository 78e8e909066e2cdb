"""Catalogue entry of the positions room."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar
from kernels.rules import IN_REGISTERS, between, ceil_div

THREADS = 128


def _geometry(dims: Dims) -> Geometry:
    return Geometry((ceil_div(int(dims["rows"]), THREADS), 1, 1), (THREADS, 1, 1))


def _derive(dims: Dims) -> Dims:
    return {"rows": int(dims["T"]) * int(dims["B"])}


SET_POSITIONS = Kernel(
    name="set_positions",
    room="positions",
    symbol="set_positions",
    dependent=True,
    args=(
        Buffer("start", "i32", ("B",), "r"),
        Buffer("positions", "i32", ("rows",), "w"),
        Scalar("B"),
        Scalar("T"),
    ),
    geometry=_geometry,
    derive=_derive,
    rules=(
        between("B", 1, 2**20, "the sequences of a batch"),
        between("T", 1, 2**20, "the tokens of a chunk"),
        Rule(lambda d: int(d["rows"]) < 2**31 - THREADS, "rows = {rows} do not fit an int"),
        Rule(lambda d: int(d["rows"]) == int(d["B"]) * int(d["T"]), "rows = {rows} is not B * T = {B} * {T}"),
    ),
    limits={"registers": 32, "smem": 0, **IN_REGISTERS},
    doc="Positions of a chunk's rows: row t * B + b of sequence b stands at start[b] + t.",
)

KERNELS = (SET_POSITIONS,)
