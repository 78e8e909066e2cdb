"""Catalogue entries of the delta rule room: the scan over a chunk of tokens; one step is a chunk of one."""

from dataclasses import replace

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import IN_REGISTERS, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

WARPS, STAGED_WARPS = 2, 4  # of a block


#: From how many tokens of a pass on the scan copies its tokens into shared memory ahead of their turn.
STAGED_FROM = 16


#: Up to how many sequences a warp takes 4 rows instead of 8, so that there are warps enough.
FEW = 4


def scan_form(T: int, B: int) -> tuple[str, int]:
    """Kernel and rows a warp of a pass of T tokens of B sequences; every choice gives the same bits."""
    return ("delta_rule_staged", 4) if T >= STAGED_FROM else ("delta_rule", 4 if B <= FEW else 8)


def _derive(dims: Dims) -> dict[str, Value]:
    D, HK, HV = int(dims["D"]), int(dims["HK"]), int(dims["HV"])
    width, value = 2 * HK * D + HV * D, HV * D
    return {"width": width, "value": value, "qkv_pitch": width, "o_pitch": value, "scale": D**-0.5}


def _geometry(dims: Dims) -> Geometry:
    warps, block = int(dims["HV"]) * (int(dims["D"]) // int(dims["ROWS"])), STAGED_WARPS if dims["STAGED"] else WARPS
    return Geometry((ceil_div(warps, block), int(dims["B"]), 1), (32 * block, 1, 1))


STATE = Param("STATE", ("f32", "f16"))

DELTA_RULE = Kernel(
    name="delta_rule",
    room="delta_rule",
    symbol="delta_rule",
    dependent=True,
    early=("slot",),
    params=(HEAD_DIMS, STATE, Param("ROWS", (4, 8, 16)), Param("STAGED", (False,))),
    args=(
        *rows_f32("qkv", "width", "r"),
        Buffer("alpha", "f32", ("rows", "HV"), "r"),
        Buffer("beta", "f32", ("rows", "HV"), "r"),
        Buffer("state", "STATE", ("slots", "HV", "D", "D"), "rw", align=16),
        *SEQUENCES,
        Buffer("replay", "i32", ("B",), "r"),
        *rows_f32("o", "value", "w"),
        Scalar("B"),
        Scalar("HK"),
        Scalar("HV"),
        Scalar("scale", "float"),
    ),
    geometry=_geometry,
    derive=token_dims(_derive),
    rules=(
        *CHUNK_RULES,
        head_multiple("HV", "HK"),
        *row_pitch("qkv_pitch", "width"),
        *row_pitch("o_pitch", "value", step=1),
        Rule(lambda d: int(d["width"]) < 2**31, "a row of {width} elements exceeds what an int can count"),
    ),
    limits={"registers": 255, "smem": 0, **IN_REGISTERS},
    doc="S = alpha S; d = beta (v - S k); S += d k^T; o = S q / sqrt(D), token by token, the state in registers.",
)

DELTA_RULE_STAGED = replace(
    DELTA_RULE,
    name="delta_rule_staged",
    params=(HEAD_DIMS, STATE, Param("ROWS", (4,)), Param("STAGED", (True,))),
    limits={"registers": 255, "smem": 36 * 1024, **IN_REGISTERS},
    doc="The same with a few tokens at a time in shared memory, copied ahead, read by all warps of a head's block.",
)

KERNELS = (DELTA_RULE, DELTA_RULE_STAGED)
