"""Catalogue entry of the synthetic weights room."""

from kernels.entry import Buffer, Geometry, Kernel, Rule, Scalar
from kernels.rules import GRID_X, IN_REGISTERS, between, ceil_div

THREADS = 256

SYNTHETIC = Kernel(
    name="synthetic",
    room="synthetic",
    symbol="synthetic",
    args=(
        Buffer("codes", "i8", ("blocks", 32), "w", align=8),
        Buffer("scales", "f16", ("blocks",), "w"),
        Scalar("code_key", "long long"),
        Scalar("scale_key", "long long"),
        Scalar("lowest_scale"),
        Scalar("blocks", "long long"),
    ),
    geometry=lambda d: Geometry((ceil_div(int(d["blocks"]), THREADS), 1, 1), (THREADS, 1, 1)),
    rules=(
        Rule(lambda d: 1 <= int(d["blocks"]) <= GRID_X * THREADS, "{blocks} blocks of 32 do not fit one grid"),
        between("lowest_scale", 1, 0x7BFF - 127, "the float16 bits that 127 may be added to"),
    ),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="Q8_0 codes and scales of a synthetic tensor, counted from its first block.",
)

KERNELS = (SYNTHETIC,)
