"""Catalogue entries of the attention room: a block walks the context, blocks share it, their chunks are combined."""

from collections.abc import Callable

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch
from kernels.sequences import CHUNK_RULES, CONTEXT, HEAD_DIMS, SEQUENCES, head_multiple, token_dims, token_rows

CHUNK = 256
THREADS = 256
COMBINE_WARPS = 4
CACHE = ("slots", "HKV", "context", "D")
TILES = (1, 2, 4, 6, 8)  # queries of a block: G query heads of one KV head over Q / G tokens
QUERIES = Param("Q", TILES)
KV = Param("KV", ("f32", "f16"))
PARTS = ("rows", "HQ", "chunks", "D")
SUMMARIES = ("rows", "HQ", "chunks", 2)
CHUNKS_RULE = between("chunks", 1, CONTEXT // CHUNK + 1, "the chunks of the longest context")


def _derive(dims: Dims) -> dict[str, Value]:
    D = int(dims["D"])
    width = int(dims["HQ"]) * D
    chunks = ceil_div(int(dims["context"]), CHUNK)
    return {
        "width": width,
        "queries_pitch": width,
        "out_pitch": width,
        "scale": D**-0.5,
        "chunks": chunks,
        "blocks": chunks,
    }


def _derive_combine(dims: Dims) -> dict[str, Value]:
    width = int(dims["HQ"]) * int(dims["D"])
    return {"width": width, "out_pitch": width}


def _geometry(dims: Dims, blocks: int) -> Geometry:
    tiles = ceil_div(int(dims["T"]), int(dims["Q"]) // int(dims["G"])) * int(dims["B"])
    return Geometry((tiles, int(dims["HQ"]) // int(dims["G"]), blocks), (THREADS, 1, 1))


def _combine(dims: Dims) -> Geometry:
    return Geometry((int(dims["rows"]), ceil_div(int(dims["HQ"]), COMBINE_WARPS), 1), (32 * COMBINE_WARPS, 1, 1))


RULES = (
    *CHUNK_RULES,
    head_multiple("HQ", "HKV"),
    Rule(
        lambda d: int(d["G"]) > 0 and int(d["HQ"]) % (int(d["HKV"]) * int(d["G"])) == 0,
        "G = {G} query heads a block do not divide the {HQ} / {HKV} heads that share a KV head",
    ),
    Rule(lambda d: int(d["Q"]) % int(d["G"]) == 0, "Q = {Q} queries a block are no whole tokens of G = {G} heads"),
    between("HQ", 1, GRID_Y, "the query heads that one grid axis can hold"),
    between("context", 1, CONTEXT + CHUNK, "the positions that the model knows, and drafts behind them"),
    CHUNKS_RULE,
    Rule(lambda d: int(d["chunks"]) * CHUNK >= int(d["context"]), "chunks = {chunks} of 256 do not hold the context"),
    *row_pitch("queries_pitch", "width"),
    *row_pitch("out_pitch", "width", step=1),
)


def _attention(name: str, blocks: Callable[[Dims], int], *rules: Rule, doc: str) -> Kernel:
    """An entry of the one source: one block along the context writes `out`, more write `parts` and `summaries`."""
    return Kernel(
        name=name,
        room="attention",
        symbol="attention",
        dependent=True,
        params=(HEAD_DIMS, QUERIES, KV),
        args=(
            *token_rows("queries", "width", "r"),
            Buffer("keys", "KV", CACHE, "r", align=16),
            Buffer("values", "KV", CACHE, "r", align=2),
            *SEQUENCES,
            *token_rows("out", "width", "w", optional=True),
            Buffer("parts", "f32", PARTS, "w", align=16, optional=True),
            Buffer("summaries", "f32", SUMMARIES, "w", align=4, optional=True),
            *(Scalar(name) for name in ("B", "G", "HQ", "HKV", "context", "chunks")),
            Scalar("scale", "float"),
        ),
        geometry=lambda dims: _geometry(dims, blocks(dims)),
        derive=token_dims(_derive),
        rules=(*RULES, *rules),
        limits={"registers": 255, "smem": 16384, **IN_REGISTERS},
        doc=doc,
    )


ATTENTION = _attention(
    "attention",
    lambda _: 1,
    doc="Causal softmax attention: a block walks the chunks of 256 positions for G heads and Q / G tokens.",
)

ATTENTION_SPLIT = _attention(
    "attention_split",
    lambda d: int(d["blocks"]),
    between("blocks", 2, GRID_Y, "the blocks along a context; one alone writes the output"),
    doc="The same with blocks along the context: outputs, maximum and sum of each chunk go to scratch.",
)

ATTENTION_COMBINE = Kernel(
    name="attention_combine",
    room="attention",
    symbol="attention_combine",
    dependent=True,
    params=(HEAD_DIMS,),
    args=(
        Buffer("parts", "f32", PARTS, "r", align=16),
        Buffer("summaries", "f32", SUMMARIES, "r"),
        *SEQUENCES,
        *token_rows("out", "width", "w"),
        Scalar("B"),
        Scalar("HQ"),
        Scalar("chunks"),
    ),
    geometry=_combine,
    derive=token_dims(_derive_combine),
    rules=(
        *CHUNK_RULES,
        between("HQ", 1, GRID_Y * COMBINE_WARPS, "the query heads that one grid axis can hold"),
        CHUNKS_RULE,
        *row_pitch("out_pitch", "width"),
    ),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="Adds the chunks of attention_split ascending: the same bits as attention.",
)

KERNELS = (ATTENTION, ATTENTION_SPLIT, ATTENTION_COMBINE)
