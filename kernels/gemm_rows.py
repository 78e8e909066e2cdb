"""Catalogue entries of the rows-in-M tile: Q8_0, Q4 and pre-tiled weights."""

from collections.abc import Sequence

from kernels.entry import ALL_ARCHS, Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.projections import (
    ARGS,
    ARGS_Q4,
    ARGS_TILED,
    GRID_RULE,
    PANEL_ROWS,
    SIZE_RULES,
    SPLIT_RULES,
    WORDS,
    activation_bytes,
    derived,
    panel_bytes,
)
from kernels.rules import IN_REGISTERS, ceil_div

TILE_M = 128
WEIGHT_WARPS = 4
THREADS = 256
BLOCKS = 4  # of a chunk
NARROW, WIDE = Param("PANELS", (1,)), Param("PANELS", (2,))  # of 16 weight rows, a warp
CHUNK, STAGES = Param("CHUNK", (128,)), Param("STAGES", (3,))


def smem(panels: int, words: int, bits: int, stages: int) -> int:
    """Bytes of the ring of stages, and of the totals of a wide tile."""
    stage = activation_bytes(TILE_M, words, BLOCKS) + WEIGHT_WARPS * panels * panel_bytes(bits, BLOCKS)
    return stages * stage + (TILE_M * PANEL_ROWS * WEIGHT_WARPS * panels * 4 if panels > 1 else 0)


def _units(d: Dims) -> int:
    tile = PANEL_ROWS * WEIGHT_WARPS * int(d["PANELS"])
    return ceil_div(int(d["N"]), tile) * ceil_div(int(d["rows"]), TILE_M)


def _geometry(d: Dims) -> Geometry:
    ring = smem(int(d["PANELS"]), int(d.get("WORDS", 1)), int(d["bits"]), int(d["STAGES"]))
    return Geometry((int(d["grid"]), int(d["splits"]), 1), (THREADS, 1, 1), ring)


#: Architectures whose blocks can have the shared memory of a wide tile.
WIDE_ARCHS = ("sm_90a", "sm_100a")
A8, Q4, Q8 = Param("WORDS", (1,)), Param("BITS", (4,)), Param("BITS", (8,))


def _entries(
    name: str, symbol: str, params: Sequence[Param], args: tuple[Buffer | Scalar, ...], bits: int, doc: str
) -> tuple[Kernel, Kernel]:
    """A tile 64 weight rows wide for every architecture, and one of 128 where its ring fits."""
    rows = [
        (name, NARROW, ALL_ARCHS, f"{doc}; 64 weight rows a block."),
        (f"{name}_wide", WIDE, WIDE_ARCHS, f"{doc}; 128 weight rows a block."),
    ]
    narrow, wide = (
        Kernel(
            name=n,
            room="gemm_rows",
            family="projection",
            symbol=symbol,
            params=tuple(width if p.name == "PANELS" else p for p in params),
            args=args,
            geometry=_geometry,
            derive=derived(_units, bits=bits),
            rules=(*SIZE_RULES, GRID_RULE, *SPLIT_RULES),
            limits={"registers": 255, "smem": 0, **IN_REGISTERS},
            archs=archs,
            doc=text,
        )
        for n, width, archs, text in rows
    )
    return narrow, wide


ROWS_DOC = "128 rows of activations in the rows of fragments"
Q4_DOC, TILED_DOC, TILED_Q4_DOC = (f"The same with {w}" for w in ("packed Q4", "pre-tiled Q8_0", "pre-tiled Q4"))

KERNELS = (
    *_entries("gemm_rows", "gemm_rows", (WORDS, NARROW, CHUNK, STAGES), ARGS, 8, ROWS_DOC),
    *_entries("gemm_rows_q4", "gemm_rows_q4", (NARROW, CHUNK, STAGES), ARGS_Q4, 4, Q4_DOC),
    *_entries("gemm_rows_tiled", "gemm_rows_tiled", (WORDS, Q8, NARROW, STAGES), ARGS_TILED, 8, TILED_DOC),
    *_entries("gemm_rows_tiled_q4", "gemm_rows_tiled", (A8, Q4, NARROW, STAGES), ARGS_TILED, 4, TILED_Q4_DOC),
)
