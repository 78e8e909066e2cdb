"""Catalogue entries of prefill attention: warps of 8 tokens share the keys and values that a block reads."""

from collections.abc import Callable

from kernels.attention import ARGS, CHUNK, KV, RULES, derive, ring_bytes, whole_tokens
from kernels.entry import Dims, Geometry, Kernel, Param, Rule
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div
from kernels.sequences import HEAD_DIMS

TOKENS = 8  # of a warp
WIDTHS = (2, 4, 6)  # warps of a block
E_PITCH = CHUNK + 4


def shared_bytes(D: int, kv: str, W: int) -> int:
    """Shared memory of a block: the tiles that are on the way, and the scores of its tokens."""
    return ring_bytes(D, kv) + W * TOKENS * E_PITCH * 4


def _geometry(dims: Dims, blocks: int) -> Geometry:
    G, W = int(dims["G"]), int(dims["W"])
    tiles = ceil_div(int(dims["T"]), W // G * TOKENS) * int(dims["B"])
    smem = shared_bytes(int(dims["D"]), str(dims["KV"]), W)
    return Geometry((tiles * (int(dims["HQ"]) // G), 1, blocks), (32 * W, 1, 1), smem)


def _prefill(name: str, blocks: Callable[[Dims], int], *rules: Rule, doc: str) -> Kernel:
    return Kernel(
        name=name,
        room="attention_prefill",
        symbol="attention_prefill",
        family="attention",
        dependent=True,
        params=(HEAD_DIMS, Param("W", WIDTHS), KV),
        args=ARGS,
        geometry=lambda dims: _geometry(dims, blocks(dims)),
        derive=derive,
        rules=(
            *RULES,
            whole_tokens("W", "warps"),
            *rules,
        ),
        limits={"registers": 168, "smem": 0, **IN_REGISTERS},
        doc=doc,
    )


PREFILL = _prefill(
    "attention_prefill",
    lambda _: 1,
    doc="Causal softmax attention of many tokens: W warps of 8 tokens, G heads of one KV head, share its rows.",
)

PREFILL_SPLIT = _prefill(
    "attention_prefill_split",
    lambda d: int(d["blocks"]),
    between("blocks", 2, GRID_Y, "the blocks along a context; one alone writes the output"),
    doc="The same with blocks along the context: outputs, maximum and sum of each chunk go to scratch.",
)

KERNELS = (PREFILL, PREFILL_SPLIT)
