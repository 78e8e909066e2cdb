"""Which form of attention a pass takes: query heads and tokens of a block, and blocks along the context.

Every form writes the same bits, so this is a choice of speed alone.
"""

from dataclasses import dataclass

from kernels.attention import CHUNK, MOST_CLUSTER, TILES, ring_bytes, static_bytes, team_bytes
from kernels.attention_prefill import TOKENS, WIDTHS, shared_bytes
from kernels.entry import Value
from kernels.lowering import Machine
from kernels.rules import ceil_div
from kernels.tuning import Tuning

#: Most bytes of scratch that chunks of a shared context may take.
MOST_PARTS = 1 << 30
#: Shared memory that the driver takes of every block.
RESERVED = 1024
#: Blocks of teams, one an SM: of so many SMs at most one may have none.
EVEN = 3
#: Prefill blocks on an SM at once: their registers.
PREFILL_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Pass:
    """T tokens of each of B sequences over caches of `context` rows of type kv."""

    T: int
    B: int
    HQ: int
    HKV: int
    D: int
    context: int
    kv: str

    @property
    def ratio(self) -> int:
        """Query heads that share a KV head."""
        return self.HQ // self.HKV

    @property
    def chunks(self) -> int:
        """Chunks of 256 positions."""
        return ceil_div(self.context, CHUNK)

    def walks(self, G: int, tokens: int) -> int:
        """Blocks of G heads and so many tokens that walk every context once."""
        return self.B * self.HKV * (self.ratio // G) * ceil_div(self.T, tokens)


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel with its template and dims.

    blocks: how many share a context (1: each walks it whole). parts: they leave chunks that are still to be combined.
    """

    kernel: str
    template: dict[str, Value]
    dims: dict[str, Value]
    blocks: int
    parts: bool


def choose(p: Pass, machine: Machine, tuning: Tuning) -> Form:
    """The form of a pass. Pure and total for head counts that divide each other."""
    if tuning.attention_prefill <= p.T:
        return _prefill(p, machine)
    # one head a block reads a row once for each head that shares it
    heads = [G for G in range(2, p.ratio + 1) if p.ratio % G == 0 and G in TILES] or [1]
    shapes = [(G, Q) for G in heads for Q in TILES if Q % G == 0]
    if tuning.attention_heads in TILES and p.ratio % tuning.attention_heads == 0:
        shapes = [(tuning.attention_heads, Q) for Q in TILES if Q % tuning.attention_heads == 0]
    wanted = tuning.attention_units * machine.multiprocessors // 4

    def cost(shape: tuple[int, int]) -> tuple[int, int]:
        # the least work among shapes that fill the machine, or the most blocks: a key or value that is loaded and
        # converted costs as much as two queries' products with it, whoever shares it
        walks = p.walks(shape[0], shape[1] // shape[0])
        return max(0, wanted - walks * p.chunks), walks * (shape[1] + 2)

    G, Q = min(shapes, key=cost)
    walks, sms, static = p.walks(G, Q // G), machine.multiprocessors, static_bytes(p.D, Q)
    waves = ceil_div(walks, sms) * sms
    teamed = tuning.attention_teams and machine.arch == "sm_90a" and p.chunks > 1
    even = walks * EVEN >= waves * (EVEN - 1)
    if teamed and even and machine.shared_per_block >= team_bytes(p.D, Q, p.kv):
        return Form("attention_teams", {"D": p.D, "Q": Q, "KV": p.kv}, {"G": G}, 1, parts=False)
    most = min(tuning.attention_blocks, machine.shared_per_block // (ring_bytes(p.D, p.kv) + static + RESERVED))
    blocks = _blocks(p, walks, sms * max(1, most))
    clustered = tuning.attention_cluster and machine.arch == "sm_90a" and 2 <= p.chunks <= MOST_CLUSTER
    if clustered and walks * p.chunks <= sms * most:
        blocks = p.chunks
    else:
        clustered = False
    here = ceil_div(walks * blocks, sms)
    # launches overlap: blocks come where others end, and would crowd on the SMs that end first
    spread = 0 if here >= most or machine.is_host else machine.shared_per_block // here - static - RESERVED
    return _form("attention", p, {"Q": Q}, {"G": G, "shared": spread // 128 * 128}, blocks, clustered)


def _prefill(p: Pass, machine: Machine) -> Form:
    widths = [W for W in WIDTHS if shared_bytes(p.D, p.kv, W) <= machine.shared_per_block] or WIDTHS[:1]
    shapes = [(G, W) for W in widths for G in range(1, W + 1) if W % G == 0 and p.ratio % G == 0]
    # most heads, whose tokens then end together, in the widest block that short passes fill
    G, W = max(shapes, key=lambda s: (-p.walks(s[0], s[1] // s[0] * TOKENS) * s[1], *s))
    walks = p.walks(G, W // G * TOKENS)
    blocks = _blocks(p, walks, machine.multiprocessors * PREFILL_BLOCKS)
    return _form("attention_prefill", p, {"W": W}, {"G": G}, blocks)


def _blocks(p: Pass, walks: int, resident: int) -> int:
    """As many blocks along the context as stay on the machine at once, no more than there are chunks."""
    if p.T * p.B * p.HQ * p.chunks * p.D * 4 > MOST_PARTS:
        return 1
    return min(p.chunks, max(1, resident // walks))


def _form(
    kernel: str, p: Pass, template: dict[str, Value], dims: dict[str, Value], blocks: int, clustered: bool = False
) -> Form:
    full = {"D": p.D, **template, "KV": p.kv}
    if blocks == 1:
        return Form(kernel, full, dims, 1, parts=False)
    name = f"{kernel}_cluster" if clustered else f"{kernel}_split"
    return Form(name, full, dims | {"blocks": blocks}, blocks, not clustered)
