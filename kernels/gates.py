"""Catalogue entry of the gates room."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar
from kernels.rules import GRID_X, IN_REGISTERS, ROWS, between, ceil_div, row_pitch

THREADS = 128


def _derive(dims: Dims) -> Dims:
    return {"pair": 2 * int(dims["HV"]), "ba_pitch": 2 * int(dims["HV"]), "planes": 1}


GATES = Kernel(
    name="gates",
    room="gates",
    symbol="gates",
    dependent=True,
    args=(
        Buffer("ba", "f32", ("planes", "rows", "pair"), "r", "ba_pitch"),
        Scalar("ba_pitch"),
        Scalar("planes"),
        Buffer("A", "f32", ("HV",), "r"),
        Buffer("dt", "f32", ("HV",), "r"),
        Buffer("beta", "f32", ("rows", "HV"), "w"),
        Buffer("g", "f32", ("rows", "HV"), "w"),
        Buffer("alpha", "f32", ("rows", "HV"), "w"),
        Scalar("rows"),
        Scalar("HV"),
    ),
    geometry=lambda d: Geometry((ceil_div(int(d["rows"]) * int(d["HV"]), THREADS), 1, 1), (THREADS, 1, 1)),
    derive=_derive,
    rules=(
        ROWS,
        between("HV", 1, 65535, "value heads"),
        Rule(lambda d: int(d["rows"]) * int(d["HV"]) <= GRID_X - THREADS, "rows * HV exceeds what an int can count"),
        between("planes", 1, 2**16, "the chunks of the widest projection"),
        *row_pitch("ba_pitch", "pair", step=1),
    ),
    limits={"registers": 128, "smem": 0, **IN_REGISTERS},
    doc="beta = sigmoid(b), g = A softplus(a + dt), alpha = exp(g), a row and value head each, from planes of b and a.",
)

KERNELS = (GATES,)
