"""Catalogue entries of the tensor-core tile: Q8_0, Q4 and pre-tiled weights, rings of other chunks and stages."""

from kernels.entry import Dims, Geometry, Kernel, Param
from kernels.projections import (
    ARGS,
    ARGS_Q4,
    ARGS_TILED,
    GRID_RULE,
    MAX_WARPS,
    PANEL_ROWS,
    SIZE_RULES,
    SPLIT_RULES,
    WORDS,
    activation_bytes,
    derived,
    grid_of,
    panel_bytes,
    row_groups,
)
from kernels.rules import BLOCK, IN_REGISTERS, between, ceil_div

COLS = Param("COLS", (8, 16, 32, 64))
CHUNK, STAGES = Param("CHUNK", (128,)), Param("STAGES", (3,))
LIMITS = {"registers": 255, "smem": 0, **IN_REGISTERS}
RULES = (
    *SIZE_RULES,
    GRID_RULE,
    *SPLIT_RULES,
    row_groups("z", 8),
    between("warps", 1, MAX_WARPS, "16 weight rows a warp"),
)


def smem(cols: int, words: int, bits: int, chunk: int, stages: int, warps: int) -> int:
    """Bytes of the ring of stages."""
    blocks = chunk // BLOCK
    return stages * (activation_bytes(cols, words, blocks) + warps * panel_bytes(bits, blocks))


def _units(d: Dims) -> int:
    return ceil_div(int(d["N"]), PANEL_ROWS * int(d["warps"]))


def _geometry(d: Dims) -> Geometry:
    words, bits, chunk, warps = int(d.get("WORDS", 1)), int(d["bits"]), int(d.get("CHUNK", 128)), int(d["warps"])
    ring = smem(int(d["COLS"]), words, bits, chunk, int(d["STAGES"]), warps)
    return grid_of(d, int(d["COLS"]), 32 * warps, ring)


GEMM_TC = Kernel(
    name="gemm_tc",
    room="gemm_tc",
    family="projection",
    symbol="gemm_tc",
    params=(WORDS, COLS, CHUNK, STAGES),
    args=ARGS,
    geometry=_geometry,
    derive=derived(_units, bits=8, warps=4),
    rules=RULES,
    limits=LIMITS,
    doc="Weights in the rows of the fragment, COLS sequences in its columns, a ring of asynchronous copies.",
)

GEMM_TC_RING = Kernel(
    name="gemm_tc_ring",
    room="gemm_tc",
    family="projection",
    symbol="gemm_tc",
    params=(Param("WORDS", (1,)), Param("COLS", (8,)), Param("CHUNK", (64, 256)), Param("STAGES", (1, 2, 4))),
    args=ARGS,
    geometry=_geometry,
    derive=derived(_units, bits=8, warps=4),
    rules=RULES,
    limits=LIMITS,
    doc="The same with other chunk widths and stage counts: for devices with less shared memory, and for the locks.",
)

GEMM_TC_Q4 = Kernel(
    name="gemm_tc_q4",
    room="gemm_tc",
    family="projection",
    symbol="gemm_tc_q4",
    params=(COLS, CHUNK, STAGES),
    args=ARGS_Q4,
    geometry=_geometry,
    derive=derived(_units, bits=4, warps=4),
    rules=RULES,
    limits=LIMITS,
    doc="The same with packed Q4 weights, in a ring of two stages or more.",
)

GEMM_TC_TILED = Kernel(
    name="gemm_tc_tiled",
    room="gemm_tc",
    family="projection",
    symbol="gemm_tc_tiled",
    params=(WORDS, Param("BITS", (8,)), COLS, STAGES),
    args=ARGS_TILED,
    geometry=_geometry,
    derive=derived(_units, bits=8, warps=4),
    rules=RULES,
    limits=LIMITS,
    doc="The same with Q8_0 weights in the panels of pretile.",
)

GEMM_TC_TILED_Q4 = Kernel(
    name="gemm_tc_tiled_q4",
    room="gemm_tc",
    family="projection",
    symbol="gemm_tc_tiled",
    params=(Param("WORDS", (1,)), Param("BITS", (4,)), COLS, STAGES),
    args=ARGS_TILED,
    geometry=_geometry,
    derive=derived(_units, bits=4, warps=4),
    rules=RULES,
    limits=LIMITS,
    doc="The same with Q4 weights in the panels of pretile.",
)

KERNELS = (GEMM_TC, GEMM_TC_RING, GEMM_TC_Q4, GEMM_TC_TILED, GEMM_TC_TILED_Q4)
