"""Catalogue entries of the attention room: a block walks the context, blocks share it, their chunks are combined."""

from collections.abc import Callable

from kernels.entry import ALL_ARCHS, Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, CONTEXT, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

CHUNK = 256
WARPS, DEEP_WARPS = 4, 8  # of a block: several blocks an SM, or one with a deep ring
GROUP = 8  # positions that a warp scores at once
MOST_CLUSTER = 8  # blocks
MOST_RING = 196608  # bytes of a deep ring
CACHE = ("slots", "HKV", "context", "D")
TILES = (1, 2, 3, 4, 6, 8)  # queries of a block: G query heads of one KV head over Q / G tokens
DEEP_TILES = (1, 2, 3)
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
        "shared": 0,
    }


derive = token_dims(_derive)


def ring_bytes(D: int, kv: str, warps: int) -> int:
    """Shared memory of the tiles that are on the way, as attention.cu counts them."""
    rows = GROUP * warps
    tile = rows * D * (2 if kv == "f16" else 4)
    stages = (3 if tile <= 1 << 14 else 2) if warps == WARPS else min(MOST_RING // tile, 2 * CHUNK // rows)
    return tile * stages


def static_bytes(D: int, Q: int, warps: int) -> int:
    """Shared memory that attention.cu declares: exponentials in rows of 264, and what is said of each query."""
    shares = 32 * warps // (D // 2)
    return ceil_div(Q, shares) * shares * (CHUNK + 8) * 4 + Q * 16


def _geometry(dims: Dims, blocks: int) -> Geometry:
    Q, D, warps = (int(dims[n]) for n in ("Q", "D", "WARPS"))
    tiles = ceil_div(int(dims["T"]), Q // int(dims["G"])) * int(dims["B"])
    cluster = bool(dims["CLUSTER"])
    running = Q * D * 4 if blocks == 1 and not cluster else 0
    # at least `shared`: a block that asks for more than it needs is never one too many on an SM
    smem = max(ring_bytes(D, str(dims["KV"]), warps) + running, int(dims["shared"]))
    walks = tiles * (int(dims["HQ"]) // int(dims["G"]))
    if cluster:
        return Geometry((walks * blocks, 1, 1), (32 * warps, 1, 1), smem, blocks)
    return Geometry((walks, 1, blocks), (32 * warps, 1, 1), smem)


RULES = (
    *CHUNK_RULES,
    head_multiple("HQ", "HKV"),
    Rule(
        lambda d: int(d["G"]) > 0 and int(d["HQ"]) % (int(d["HKV"]) * int(d["G"])) == 0,
        "G = {G} query heads a block do not divide the {HQ} / {HKV} heads that share a KV head",
    ),
    between("HQ", 1, GRID_Y, "the query heads that one grid axis can hold"),
    between("context", 1, CONTEXT + CHUNK, "the positions that the model knows, and drafts behind them"),
    CHUNKS_RULE,
    Rule(lambda d: int(d["chunks"]) * CHUNK >= int(d["context"]), "chunks = {chunks} of 256 do not hold the context"),
    *row_pitch("queries_pitch", "width"),
    *row_pitch("out_pitch", "width", step=1),
)


def whole_tokens(dim: str, what: str) -> Rule:
    """The queries or warps of a block are G heads of so many tokens."""
    return Rule(
        lambda d: int(d[dim]) % int(d["G"]) == 0,
        f"{dim} = {{{dim}}} {what} a block are no whole tokens of G = {{G}} heads",
    )


ARGS: tuple[Buffer | Scalar, ...] = (
    *rows_f32("queries", "width", "r"),
    Buffer("keys", "KV", CACHE, "r", align=16),
    Buffer("values", "KV", CACHE, "r", align=16),
    *SEQUENCES,
    *rows_f32("out", "width", "w", optional=True),
    Buffer("parts", "f32", PARTS, "w", align=16, optional=True),
    Buffer("summaries", "f32", SUMMARIES, "w", align=4, optional=True),
    *(Scalar(name) for name in ("B", "G", "HQ", "HKV", "context", "chunks")),
    Scalar("scale", "float"),
)


def _attention(
    name: str,
    blocks: Callable[[Dims], int],
    tiles: tuple[int, ...],
    warps: int,
    *rules: Rule,
    doc: str,
    cluster: bool = False,
) -> Kernel:
    """An entry of the one source: one block along the context writes `out`, more write `parts` and `summaries`."""
    return Kernel(
        name=name,
        room="attention",
        symbol="attention",
        dependent=True,
        params=(HEAD_DIMS, Param("Q", tiles), KV, Param("WARPS", (warps,)), Param("CLUSTER", (cluster,))),
        args=ARGS,
        geometry=lambda dims: _geometry(dims, blocks(dims)),
        derive=derive,
        rules=(
            *RULES,
            whole_tokens("Q", "queries"),
            *rules,
        ),
        archs=("sm_90a",) if cluster else ALL_ARCHS,
        limits={"registers": 255, "smem": 20480, **IN_REGISTERS},
        doc=doc,
    )


ATTENTION = _attention(
    "attention",
    lambda _: 1,
    TILES,
    WARPS,
    doc="Causal softmax attention: a block walks the chunks of 256 positions for G heads and Q / G tokens.",
)

SHARED_CONTEXT = between("blocks", 2, GRID_Y, "the blocks along a context; one alone writes the output")

ATTENTION_SPLIT = _attention(
    "attention_split",
    lambda d: int(d["blocks"]),
    TILES,
    WARPS,
    SHARED_CONTEXT,
    doc="The same with blocks along the context: outputs, maximum and sum of each chunk go to scratch.",
)

ATTENTION_DEEP = _attention(
    "attention_deep_split",
    lambda d: int(d["blocks"]),
    DEEP_TILES,
    DEEP_WARPS,
    SHARED_CONTEXT,
    doc="The same with a deep ring and more warps a block, for so few blocks that each has an SM to itself.",
)

CLUSTERED = (
    between("blocks", 2, MOST_CLUSTER, "the blocks of a cluster, one a chunk"),
    Rule(lambda d: int(d["blocks"]) >= int(d["chunks"]), "blocks = {blocks} of a cluster do not take {chunks} chunks"),
)

ATTENTION_CLUSTER = _attention(
    "attention_cluster",
    lambda d: int(d["blocks"]),
    TILES,
    WARPS,
    *CLUSTERED,
    doc="The same with a block a chunk, which combine their chunks in the shared memory of their cluster.",
    cluster=True,
)

ATTENTION_DEEP_CLUSTER = _attention(
    "attention_deep_cluster",
    lambda d: int(d["blocks"]),
    DEEP_TILES,
    DEEP_WARPS,
    *CLUSTERED,
    doc="The same with a deep ring and more warps a block.",
    cluster=True,
)

KERNELS = (ATTENTION, ATTENTION_SPLIT, ATTENTION_DEEP, ATTENTION_CLUSTER, ATTENTION_DEEP_CLUSTER)
