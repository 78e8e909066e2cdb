"""Catalogue entry of the dp4a tile."""

from kernels.entry import Dims, Geometry, Kernel, Param
from kernels.projections import ARGS, GRID_RULE, SIZE_RULES, SPLIT_RULES, WORDS, derived, grid_of, row_groups
from kernels.rules import IN_REGISTERS, ceil_div

THREADS = 128
TILE_N, TILE_M = 64, 32  # weight rows, sequences
CHUNKS = (64, 128)  # bytes of K a step


def _units(d: Dims) -> int:
    return ceil_div(int(d["N"]), TILE_N)


def _geometry(d: Dims) -> Geometry:
    return grid_of(d, TILE_M, THREADS)


GEMM_DP4A = Kernel(
    name="gemm_dp4a",
    room="gemm_dp4a",
    family="projection",
    symbol="gemm_dp4a",
    params=(WORDS, Param("CHUNK", CHUNKS)),
    args=ARGS,
    geometry=_geometry,
    derive=derived(_units),
    rules=(*SIZE_RULES, GRID_RULE, *SPLIT_RULES, row_groups("z", TILE_M)),
    limits={"registers": 255, "smem": (TILE_N + 2 * TILE_M) * 9 * 16 + 4 * (TILE_N + TILE_M) * 4, **IN_REGISTERS},
    doc="64 weight rows by 32 sequences in shared memory, 16 outputs a thread, integer dots of four.",
)

KERNELS = (GEMM_DP4A,)
