"""The programs of a decode: prefill a chunk, draft, commit, take a step (plain, or a verify of drafts).

Control buffers, int32 a sequence: `slot` (-1: takes no part), `position` (tokens consumed), `end` (positions it may
fill), `current` (the token to consume next), `flags` (0: live), `history` (picks by position). What the last pass left
for the draft head: `hidden` rows and the `accepted` tokens behind them, `pending` of them from position `began` on.
`taken`: rows of the last verify that the recurrent state still has to replay. `chunk.*` describes a prefill chunk.
"""

from collections.abc import Iterator

from kernels.columns import ordered
from kernels.lowering import Projection
from kernels.plan import Launch, Plan, Ref, launch, sized
from kernels.programs import (
    Rows,
    Setting,
    attention,
    embed,
    feed_forward,
    final,
    head,
    last_rows,
    layers,
    norm,
    pick,
    project,
    quantize_rows,
    scan,
    weight,
)
from kernels.storage import loads, state_buffers
from oracle.errors import LanelockError

MOST_DRAFTS = 4
MOST_SEQUENCES = 4096  # five rows each still fit the grid axis of every kernel of a verify


def prefill(s: Setting, T: int, *, drafts: bool, first: bool) -> Iterator[Launch]:
    """Consume T tokens of every sequence, chunk.length[b] of them; pick a token where chunk.last[b] is 1 (else -1).

    With `drafts` the draft head's cache takes its rows too. Row p is made of hidden state p and token p + 1: a chunk
    that starts its prompts (`first`) has one row less, a later one starts from the hidden state carried over in row 0
    of `chunk.hidden`, and the prompt's last row stays pending until its next token is picked.
    """
    d, B = s.config.d, s.B
    rows = Rows(T, Ref("chunk.position"), Ref("chunk.length"), prefill=True)
    hidden = Ref("chunk.hidden", B * d)
    yield embed(s, "embed", Ref("chunk.tokens"), T * B, Ref("residual"))
    yield from layers(s, rows)
    yield final(s, last_block(s), "on", T * B, hidden)
    if drafts and not first:
        carried = Rows(T, Ref("chunk.before"), Ref("chunk.length"))
        yield from draft_block(s, carried, Ref("chunk.tokens"), Ref("chunk.hidden"))
    if drafts and first and T > 1:
        paired = Rows(T - 1, Ref("chunk.position"), Ref("chunk.paired"))
        yield from draft_block(s, paired, Ref("chunk.tokens", B), hidden)
    yield last_rows(s, "carried", hidden, T, Ref("chunk.length"), Ref("chunk.hidden"))
    yield last_rows(s, "hidden", Ref("chunk.hidden"), 1, Ref("chunk.last"), Ref("hidden"))
    yield quantize_rows(s, "last_codes", Ref("chunk.hidden"), B, d)
    yield head(s, B, Ref("chunk.logits"))
    yield from pick(s, "pick", B, Ref("chunk.logits"), Ref("chunk.picks"), Ref("chunk.flags"))
    yield accept(s, 1, Ref("chunk.tokens"), "chunk.", Ref("chunk.last"), None)


def last_block(s: Setting) -> str:
    """Name in front of the last block's tensors."""
    return f"layers.{s.config.layers - 1}."


def accept(s: Setting, T: int, tokens: Ref, prefix: str, length: Ref, taken: Ref | None) -> Launch:
    """Store picks behind positions as plain decoding would."""
    refs = {name: Ref(name) for name in ("current", "position", "history", "accepted", "began", "pending")}
    picked = {"picks": Ref(f"{prefix}picks"), "pick_flags": Ref(f"{prefix}flags")}
    given = {"tokens": tokens, "length": length, "flags": Ref("flags"), "taken": taken}
    return launch("accept", "speculation_accept", {**refs, **picked, **given}, {"T": T, "B": s.B, "limit": s.limit})


def pack(s: Setting, T: int, tokens: Ref, length: Ref) -> Launch:
    """Rows of a pass: the current token and T - 1 drafts; fewer near the end, none for a sequence that is done."""
    refs: dict[str, Ref | None] = {name: Ref(name) for name in ("current", "drafts", "flags", "position", "end")}
    return launch("pack", "speculation_pack", {**refs, "tokens": tokens, "length": length}, {"T": T, "B": s.B})


def step(s: Setting, T: int, *, verify: bool) -> Iterator[Launch]:
    """Consume the current token and T - 1 drafts, and accept what plain decoding would have said.

    A verify leaves the recurrent state where it was and counts the rows it accepted in `taken`.
    """
    rows = Rows(T, Ref("position"), Ref("step.length"))
    yield pack(s, T, Ref("step.tokens"), rows.length)
    yield embed(s, "embed", Ref("step.tokens"), T * s.B, Ref("residual"))
    yield from layers(s, rows, verify)
    yield final(s, last_block(s), "on", T * s.B, Ref("hidden"))
    yield head(s, T * s.B, Ref("logits"))
    yield from pick(s, "pick", T * s.B, Ref("logits"), Ref("step.picks"), Ref("step.flags"))
    yield accept(s, T, Ref("step.tokens"), "step.", rows.length, Ref("taken") if verify else None)


def commit(s: Setting, T: int) -> Iterator[Launch]:
    """Replay the rows that the last verify accepted, so that the recurrent state stands at `position` again."""
    rows = Rows(T, Ref("began"), Ref("taken"))
    for i in range(s.config.layers):
        if not s.config.is_attention(i):
            yield scan(s, i, rows, f"keep.{i}.", "replay.all")


def draft_block(s: Setting, rows: Rows, tokens: Ref, hidden: Ref) -> Iterator[Launch]:
    """The draft head over rows made of `hidden` and the next `tokens`; its own normed output goes to `draft.hidden`."""
    c, count = s.config, rows.T * s.B
    yield embed(s, "mtp.embed", tokens, count, Ref("draft.embed"))
    yield launch(
        "mtp.cat",
        "mtp_concat_quantize",
        {
            "embedded": Ref("draft.embed"),
            "hidden": hidden,
            "enorm": weight("mtp.enorm"),
            "hnorm": weight("mtp.hnorm"),
            "codes": Ref("codes"),
            "scales": Ref("scales"),
        },
        {"rows": count, "K": c.d, "eps": c.eps},
        WORDS=s.lane.words,
    )
    yield project(s, Projection("mtp.ehproj", c.d, 2 * c.d, q4=False), count, Ref("residual"))
    yield norm(s, "mtp.norm1", "mtp.an", count, None)
    yield from attention(s, "mtp.", rows, "mtp")
    yield from feed_forward(s, "mtp.", count, Projection("mtp.Wo", c.d, c.q_width, planes=True))
    yield final(s, "mtp.", "mtp.shnorm", count, Ref("draft.hidden"))


def draft_pick(s: Setting, T: int, count: Ref, drafts: Ref) -> Iterator[Launch]:
    """The draft of each sequence from its last row of `draft.hidden`."""
    yield last_rows(s, "mtp.last", Ref("draft.hidden"), T, count, Ref("draft.last"))
    yield quantize_rows(s, "mtp.last_codes", Ref("draft.last"), s.B, s.config.d)
    yield head(s, s.B, Ref("draft.logits"))
    yield from pick(s, "mtp.pick", s.B, Ref("draft.logits"), drafts, Ref("draft.flags"))


def draft_rows(s: Setting) -> Iterator[Launch]:
    """Logits of the first rows of `draft.hidden`, for whoever looks at the draft head by itself."""
    yield quantize_rows(s, "mtp.codes", Ref("draft.hidden"), s.B, s.config.d)
    yield head(s, s.B, Ref("draft.logits"))


def draft(s: Setting, T: int, k: int) -> Iterator[Launch]:
    """Fill the draft cache with the pending rows (at most T), then draft k tokens from the last accepted hidden state.

    The second and later drafts read the head's own output; their cache rows are overwritten once the truth is known.
    With k = 0 only the cache is filled.
    """
    B = s.B
    yield from draft_block(s, Rows(T, Ref("began"), Ref("pending")), Ref("accepted"), Ref("hidden"))
    if k == 0:
        return
    yield from draft_pick(s, T, Ref("pending"), Ref("drafts"))
    if k > 1:
        yield pack(s, 1, Ref("draft.tokens"), Ref("draft.length"))
        refs: dict[str, Ref | None] = {"start": Ref("position"), "positions": Ref("draft.position")}
        yield launch("mtp.positions", "set_positions", refs, {"B": B, "T": k - 1})
    for j in range(1, k):
        one = Rows(1, Ref("draft.position", (j - 1) * B), Ref("draft.length"))
        yield from draft_block(s, one, Ref("drafts", (j - 1) * B), Ref("draft.last"))
        yield from draft_pick(s, 1, one.length, Ref("drafts", j * B))


def programs(s: Setting, chunk: int, drafts: int) -> dict[str, tuple[Launch, ...]]:
    """Every program of a decode with prefill chunks of `chunk` tokens and k = `drafts` (0: no speculation)."""
    k = drafts
    made: dict[str, Iterator[Launch]] = {
        "prefill.first": prefill(s, chunk, drafts=k > 0, first=True),
        "prefill.next": prefill(s, chunk, drafts=k > 0, first=False),
        # beside drafts a plain step is a verify of one row, so that `commit` follows either
        "step": step(s, 1, verify=k > 0),
    }
    if k:
        made |= {
            "draft": draft(s, k + 1, k),
            "draft.fill": draft(s, k + 1, 0),
            "draft.logits": draft_rows(s),
            "commit": commit(s, k + 1),
            "verify": step(s, k + 1, verify=True),
        }
    return {name: ordered(launches) for name, launches in made.items()}


def make_plan(s: Setting, chunk: int, drafts: int = 0) -> Plan:
    """The plan of a decode. Raises LanelockError for a size that a kernel, a grid or the model refuses."""
    if not 1 <= s.B <= MOST_SEQUENCES:
        raise LanelockError(f"plan: a batch of {s.B} sequences is not between 1 and {MOST_SEQUENCES}")
    if s.slots < s.B:
        raise LanelockError(f"plan: {s.slots} slots cannot hold a batch of {s.B} sequences")
    if not 1 <= chunk <= s.limit:
        raise LanelockError(f"plan: a chunk of {chunk} tokens is not between 1 and the cache's {s.limit} positions")
    if not 0 <= drafts <= MOST_DRAFTS:
        raise LanelockError(f"plan: {drafts} drafts a step are not between 0 and {MOST_DRAFTS}")
    if drafts and not s.config.mtp:
        raise LanelockError(f"plan: model {s.config.name} has no draft head, so it cannot speculate")
    if s.limit > s.config.context:
        raise LanelockError(f"plan: {s.limit} positions exceed the context of {s.config.name}, {s.config.context}")
    made = programs(s, chunk, drafts)
    return sized({**made, **loads(made)}, state_buffers(s, made))
