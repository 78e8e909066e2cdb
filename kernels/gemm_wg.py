"""Catalogue entries of the warpgroup tile: Q8_0 and Q4 panels with Hopper's wgmma."""

from kernels.entry import Dims, Geometry, Kernel, Param
from kernels.projections import (
    ARGS_TILED,
    GRID_RULE,
    PANEL_BLOCKS,
    PANEL_ROWS,
    SIZE_RULES,
    SPLIT_RULES,
    WORDS,
    activation_bytes,
    derived,
    panel_bytes,
)
from kernels.rules import IN_REGISTERS, ceil_div

TILE_ROWS = 128  # activation rows of a tile: the columns of a product
WARPS = 8  # of a block, a panel each
THREADS = 32 * (WARPS + 4)  # a group of four copies
BARRIERS = 16  # bytes of a stage's two


def smem(words: int, bits: int, stages: int) -> int:
    """Bytes of the ring of stages with a barrier each, and of the sums of closed slices."""
    stage = activation_bytes(TILE_ROWS, words, PANEL_BLOCKS) + WARPS * panel_bytes(bits)
    return stages * (stage + BARRIERS) + TILE_ROWS * PANEL_ROWS * WARPS * 4


def _units(d: Dims) -> int:
    return ceil_div(int(d["N"]), PANEL_ROWS * WARPS) * ceil_div(int(d["rows"]), TILE_ROWS)


def _geometry(d: Dims) -> Geometry:
    ring = smem(int(d["WORDS"]), int(d["BITS"]), int(d["STAGES"]))
    return Geometry((int(d["grid"]), int(d["splits"]), 1), (THREADS, 1, 1), ring)


def _kernel(name: str, words: Param, bits: int, doc: str) -> Kernel:
    return Kernel(
        name=name,
        room="gemm_wg",
        family="projection",
        symbol="gemm_wg",
        params=(words, Param("BITS", (bits,)), Param("STAGES", (2, 3))),
        args=ARGS_TILED,
        geometry=_geometry,
        derive=derived(_units, bits=bits),
        rules=(*SIZE_RULES, GRID_RULE, *SPLIT_RULES),
        limits={"registers": 255, "smem": 0, **IN_REGISTERS},
        archs=("sm_90a",),
        doc=doc,
    )


GEMM_WG = _kernel("gemm_wg", WORDS, 8, "128 pre-tiled weight rows by 128 activation rows, by products of warpgroups.")
GEMM_WG_Q4 = _kernel("gemm_wg_q4", Param("WORDS", (1,)), 4, "The same with pre-tiled Q4.")

KERNELS = (GEMM_WG, GEMM_WG_Q4)
