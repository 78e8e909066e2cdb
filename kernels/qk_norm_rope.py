"""Catalogue entry of the q/k norm and RoPE room, with the store into the KV cache."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, CONTEXT, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

WARPS = 4


def _derive(dims: Dims) -> dict[str, Value]:
    D, HQ, HKV = int(dims["D"]), int(dims["HQ"]), int(dims["HKV"])
    width, queries = 2 * HQ * D + 2 * HKV * D, HQ * D
    return {
        "width": width,
        "queries": queries,
        "x_pitch": width,
        "q_pitch": queries,
        "half": int(dims["R"]) // 2,
        "table": dims["context"],
    }


def _geometry(dims: Dims) -> Geometry:
    heads = int(dims["HQ"]) + 2 * int(dims["HKV"])
    return Geometry((int(dims["rows"]), ceil_div(heads, WARPS), 1), (32 * WARPS, 1, 1))


CACHE = ("slots", "HKV", "context", "D")

QK_NORM_ROPE = Kernel(
    name="qk_norm_rope",
    room="qk_norm_rope",
    symbol="qk_norm_rope",
    dependent=True,
    params=(HEAD_DIMS, Param("KV", ("f32", "f16"))),
    args=(
        *rows_f32("x", "width", "r"),
        Buffer("wq", "f32", ("D",), "r", align=16),
        Buffer("wk", "f32", ("D",), "r", align=16),
        Buffer("cosine", "f32", ("table", "half"), "r"),
        Buffer("sine", "f32", ("table", "half"), "r"),
        *SEQUENCES,
        *rows_f32("q", "queries", "w"),
        Buffer("keys", "KV", CACHE, "rw", align=16),
        Buffer("values", "KV", CACHE, "rw", align=16),
        Scalar("B"),
        Scalar("HQ"),
        Scalar("HKV"),
        Scalar("R"),
        Scalar("context"),
        Scalar("eps", "float"),
    ),
    geometry=_geometry,
    derive=token_dims(_derive),
    rules=(
        *CHUNK_RULES,
        head_multiple("HQ", "HKV"),
        between("context", 1, CONTEXT + 256, "the positions that the model knows, and drafts behind them"),
        Rule(
            lambda d: 0 < int(d["R"]) <= int(d["D"]) and int(d["R"]) % (int(d["D"]) // 16) == 0,
            "R = {R} rotated dims must be at most D = {D} and a multiple of D / 16, so that lanes hold whole pairs",
        ),
        *row_pitch("x_pitch", "width"),
        *row_pitch("q_pitch", "queries"),
    ),
    limits={"registers": 96, "smem": 0, **IN_REGISTERS},
    doc="RMS norm and rotation of q and k heads at the row's position; k and v go into the cache, rounded once.",
)

KERNELS = (QK_NORM_ROPE,)
