"""Catalogue entries of the attention room: a block walks the context, blocks share it, their chunks are combined."""

from collections.abc import Callable

from kernels.entry import ALL_ARCHS, Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, CONTEXT, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

CHUNK = 256
WARPS = 4  # that share tiles: of a block, or of a team of one
GROUP = 8  # positions that a warp scores at once
MOST_CLUSTER = 8  # blocks
LINE = 128  # bytes that tiles in shared memory are aligned to
CACHE = ("slots", "HKV", "context", "D")
TILES = (1, 2, 3, 4, 6, 8)  # queries of a block: G query heads of one KV head over Q / G tokens
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


def ring_bytes(D: int, kv: str) -> int:
    """Shared memory of the tiles that are on the way, as attention.cu counts them."""
    tile = GROUP * WARPS * D * (2 if kv == "f16" else 4)
    return tile * (3 if tile <= 1 << 14 else 2)


def static_bytes(D: int, Q: int, count: int = 1) -> int:
    """Shared memory that attention.cu declares: exponentials of teams in rows of 264, and what is said of a query."""
    shares = 32 * WARPS // (D // 2)
    used = count * (ceil_div(Q, shares) * shares * (CHUNK + 8) * 4 + Q * 16) + Q * 8 + 4
    return ceil_div(used, LINE) * LINE


def teams(Q: int, kv: str) -> int:
    """Teams of four warps of one block, for which there are registers."""
    return 2 if Q > 6 else 3 if kv == "f32" else 4


def team_bytes(D: int, Q: int, kv: str) -> int:
    """Shared memory of a block of teams, its declared part included."""
    return ring_bytes(D, kv) * teams(Q, kv) + Q * D * 4 + static_bytes(D, Q, teams(Q, kv))


def _geometry(dims: Dims, blocks: int) -> Geometry:
    Q, D, kv = int(dims["Q"]), int(dims["D"]), str(dims["KV"])
    tiles = ceil_div(int(dims["T"]), Q // int(dims["G"])) * int(dims["B"])
    cluster, count = bool(dims["CLUSTER"]), teams(Q, kv) if dims["TEAMED"] else 1
    running = Q * D * 4 if blocks == 1 and not cluster else 0
    # at least `shared`: a block that asks for more than it needs is never one too many on an SM
    smem = max(ring_bytes(D, kv) * count + running, int(dims["shared"]))
    walks = tiles * (int(dims["HQ"]) // int(dims["G"]))
    if cluster:
        return Geometry((walks * blocks, 1, 1), (32 * WARPS, 1, 1), smem, blocks)
    return Geometry((walks, 1, blocks), (32 * WARPS * count, 1, 1), smem)


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
    *rules: Rule,
    doc: str,
    cluster: bool = False,
    teamed: bool = False,
) -> Kernel:
    """An entry of the one source: one block along the context writes `out`, more write `parts` and `summaries`."""
    return Kernel(
        name=name,
        room="attention",
        symbol="attention",
        dependent=True,
        params=(HEAD_DIMS, Param("Q", TILES), KV, Param("CLUSTER", (cluster,)), Param("TEAMED", (teamed,))),
        args=ARGS,
        geometry=lambda dims: _geometry(dims, blocks(dims)),
        derive=derive,
        rules=(
            *RULES,
            whole_tokens("Q", "queries"),
            *rules,
        ),
        archs=("sm_90a",) if cluster or teamed else ALL_ARCHS,
        limits={"registers": 255, "smem": 36864 if teamed else 20480, **IN_REGISTERS},
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

ATTENTION_CLUSTER = _attention(
    "attention_cluster",
    lambda d: int(d["blocks"]),
    between("blocks", 2, MOST_CLUSTER, "the blocks of a cluster, one a chunk"),
    Rule(lambda d: int(d["blocks"]) >= int(d["chunks"]), "blocks = {blocks} of a cluster do not take {chunks} chunks"),
    doc="The same with a block a chunk, which combine their chunks in the shared memory of their cluster.",
    cluster=True,
)

ATTENTION_TEAMS = _attention(
    "attention_teams",
    lambda _: 1,
    doc="The same with a block of several teams, which walk the chunks by turns and combine them in their order.",
    teamed=True,
)

KERNELS = (ATTENTION, ATTENTION_SPLIT, ATTENTION_CLUSTER, ATTENTION_TEAMS)
