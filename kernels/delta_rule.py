"""Catalogue entries of the delta rule room: the scan over a chunk of tokens; one step is a chunk of one."""

from dataclasses import replace

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

WARPS = 4  # of a block


#: From how many tokens of a pass on the scan copies its tokens into shared memory ahead of their turn.
STAGED_FROM = 16


#: Up to how many sequences a warp takes 4 rows of several tokens instead of 8, so that there are warps enough.
FEW = 4


def scan_form(T: int, B: int) -> tuple[str, dict[str, Value]]:
    """Kernel of a pass of T tokens of B sequences, and its template values; every choice gives the same bits.

    One token is a matter of bandwidth: 4 rows a warp leave registers for more warps. With several tokens the sums
    over a warp cost more than the memory, and 8 rows share them.
    """
    if T >= STAGED_FROM:
        return "delta_rule_staged", {"ROWS": 4}
    return "delta_rule", {"ROWS": 4 if T == 1 or B <= FEW else 8, "ONE": T == 1}


def _derive(dims: Dims) -> dict[str, Value]:
    D, HK, HV = int(dims["D"]), int(dims["HK"]), int(dims["HV"])
    width, value = 2 * HK * D + HV * D, HV * D
    return {"width": width, "value": value, "qkv_pitch": width, "o_pitch": value, "scale": D**-0.5}


def _geometry(dims: Dims) -> Geometry:
    """Neighbouring blocks hold neighbouring rows of the pool, which the memory likes.

    Value heads of one key head are a grid row apart, so that no thread divides by a number of heads.
    """
    HK, warps = int(dims["HK"]), int(dims["HK"]) * (int(dims["D"]) // int(dims["ROWS"]))
    return Geometry((ceil_div(warps, WARPS), int(dims["HV"]) // HK, int(dims["B"])), (32 * WARPS, 1, 1))


STATE = Param("STATE", ("f32", "f16"))

DELTA_RULE = Kernel(
    name="delta_rule",
    room="delta_rule",
    symbol="delta_rule",
    dependent=True,
    early=("slot",),
    params=(HEAD_DIMS, STATE, Param("ROWS", (4, 8)), Param("STAGED", (False,)), Param("ONE", (False, True))),
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
        Rule(lambda d: not d["ONE"] or int(d["T"]) == 1, "a pass of T = {T} tokens is not one of a token"),
        Rule(lambda d: int(d["HV"]) // int(d["HK"]) <= GRID_Y, "{HV} / {HK} heads a key head exceed a grid axis"),
        Rule(lambda d: int(d["width"]) < 2**31, "a row of {width} elements exceeds what an int can count"),
    ),
    limits={"registers": 255, "smem": 0, **IN_REGISTERS},
    doc="S = alpha S; d = beta (v - S k); S += d k^T; o = S q / sqrt(D), token by token, the state in registers.",
)

DELTA_RULE_STAGED = replace(
    DELTA_RULE,
    name="delta_rule_staged",
    params=(HEAD_DIMS, STATE, Param("ROWS", (4,)), Param("STAGED", (True,)), Param("ONE", (False,))),
    limits={"registers": 255, "smem": 36 * 1024, **IN_REGISTERS},
    doc="The same with a few tokens at a time in shared memory, copied ahead, read by all warps of a head's block.",
)

KERNELS = (DELTA_RULE, DELTA_RULE_STAGED)
