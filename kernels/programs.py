"""The programs of the engine as launch lists: prefill chunk, decode step, draft, verify.

Rows are token-major: T tokens of B sequences, row t * B + b. Buffer names follow the oracle's (`layers.3.qkvz` here is
`layer3.qkvz` there); scratch is shared by all layers, because a program runs in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.attention_combine import FAR_CHUNKS, LONG_CHUNKS
from kernels.attention_form import Pass
from kernels.attention_form import choose as choose_form
from kernels.delta_chunk import pieces
from kernels.delta_rule import scan_form
from kernels.entry import Value
from kernels.lanes import Lane
from kernels.lowering import Lowering, Machine, Projection, choose
from kernels.plan import Launch, Ref, launch
from kernels.rms_norm import parts_of, warps_of
from kernels.tuning import Tuning
from oracle.config import ModelConfig

RING = 8
SPARE_ROWS = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plan is made for. limit: positions a sequence may fill; a cache has 4 more rows, for drafts behind it."""

    config: ModelConfig
    lane: Lane
    B: int
    slots: int
    limit: int
    machine: Machine
    tuning: Tuning

    @property
    def context(self) -> int:
        """Cache rows of a slot."""
        return self.limit + SPARE_ROWS


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a pass: T tokens of every sequence, and the control buffers that say where each stands.

    A prefill may go through the chunked delta rule, where the lane says so; steps, verifies and replays never do.
    """

    T: int
    position: Ref
    length: Ref
    prefill: bool = False


def weight(name: str) -> Ref:
    """A tensor of the model; a Q8_0 tensor is two buffers, `.codes` and `.scales`."""
    return Ref(f"w.{name}")


def lowered(s: Setting, projection: Projection, rows: int) -> Lowering:
    """The lowering of a projection in this setting; pure, so a consumer can ask how many planes it will find."""
    return choose(projection, rows, s.lane, s.machine, s.tuning)


def project(s: Setting, projection: Projection, rows: int, y: Ref) -> Launch:
    """Y [planes, rows, N] = activations in `codes` and `scales` times the weights of the projection."""
    low = lowered(s, projection, rows)
    name = f"w.{projection.name}"
    weights = {
        "rows": {"w": Ref(f"{name}.codes"), "ws": Ref(f"{name}.scales")},
        "q4 rows": {"w": Ref(f"{name}.q4.codes"), "ws": Ref(f"{name}.q4.scales")},
        "panels": {"tiles": Ref(f"{name}.panels")},
        "q4 panels": {"tiles": Ref(f"{name}.q4.panels")},
    }[low.weights]
    refs: dict[str, Ref | None] = {"codes": Ref("codes"), "scales": Ref("scales"), **weights, "y": y}
    given = {k: v for k, v in low.dims.items() if k not in low.instance.template}
    return launch(projection.name, low.kernel, refs, given, **low.instance.template)


def embed(s: Setting, label: str, tokens: Ref, rows: int, x: Ref) -> Launch:
    """Embedding rows of tokens."""
    refs = {"tokens": tokens, "codes": weight("emb.codes"), "weight_scales": weight("emb.scales"), "y": x}
    return launch(label, "embedding", refs, {"rows": rows, "K": s.config.d, "V": s.config.vocab})


def norm(
    s: Setting, label: str, w: str, rows: int, added: tuple[str, int] | None, normed: Ref | None = None
) -> Launch:
    """RMS norm of the residual into codes; `added` is what the residual takes first: a buffer and its planes."""
    refs: dict[str, Ref | None] = {
        "x": Ref("residual"),
        "w": weight(w),
        "codes": Ref("codes"),
        "scales": Ref("scales"),
        "normed": normed,
    }
    dims: dict[str, Value] = {"rows": rows, "K": s.config.d, "eps": s.config.eps}
    if added is None:
        return launch(label, "rms_norm_quantize", refs, dims, WORDS=s.lane.words)
    buffer, planes = added
    parts = parts_of(s.config.d, rows, s.machine.arch, s.machine.multiprocessors)
    kernel = ("add_rms_norm_spread" if parts > 1 else "add_rms_norm_quantize") + ("_planes" if planes > 1 else "")
    dims |= {"planes": planes, **({"parts": parts} if parts > 1 else {})}
    form: dict[str, Value] = {"WARPS": warps_of(s.config.d)} if planes > 1 and parts == 1 else {}
    return launch(label, kernel, {**refs, "y": Ref(buffer)}, dims, WORDS=s.lane.words, **form)


def gdn(s: Setting, i: int, rows: Rows, verify: bool) -> Iterator[Launch]:
    """The Gated DeltaNet mixer of layer i, from codes of the normed rows to `mixer`.

    A verify keeps what the recurrence reads (`keep.I.*`) and leaves the state where it was; `commit` replays it.
    """
    c, B, at = s.config, s.B, f"layers.{i}."
    count = rows.T * B
    keep = f"keep.{i}." if verify else ""
    # the gates need only the normed row: before the large projection they run while its first weights are on their way
    ba = launch(
        at + "ba",
        "projection_f32",
        {"x": Ref("normed"), "w": weight(at + "ba"), "y": Ref("ba")},
        {"rows": count, "K": c.d, "N": 2 * c.v_heads},
        SEQS=next(n for n in (1, 2, 4, 8) if n >= min(count, 8)),
    )
    yield ba
    gates = {"beta": Ref(keep + "beta"), "g": Ref("g"), "alpha": Ref(keep + "alpha")}
    yield launch(
        at + "gates",
        "gates",
        {"ba": Ref("ba"), "A": weight(at + "Al"), "dt": weight(at + "Dt"), **gates},
        {"rows": count, "HV": c.v_heads, "planes": ba.dims["planes"]},
    )
    yield project(s, Projection(at + "qkvz", c.gdn_proj, c.d), count, Ref("qkvz"))
    place = {"slot": Ref("slot"), "position": rows.position, "length": rows.length}
    yield launch(
        at + "conv",
        "conv",
        {"x": Ref("qkvz"), "w": weight(at + "Wc"), "ring": Ref(f"ring.{i}"), "y": Ref(keep + "conv"), **place},
        {
            "T": rows.T,
            "B": B,
            "slots": s.slots,
            "C": c.conv_channels,
            "x_pitch": c.gdn_proj,
            "normed_heads": 2 * c.k_heads,
        },
        D=c.gdn_dim,
    )
    if s.lane.delta and rows.prefill:
        yield from chunked_rule(s, i, rows)
    else:
        yield scan(s, i, rows, keep, "replay.none" if verify else "replay.all")
    yield launch(
        at + "gated",
        "gated_norm_quantize",
        {
            "o": Ref("scan"),
            "z": Ref("qkvz", c.conv_channels),
            "w": weight(at + "Gn"),
            "codes": Ref("codes"),
            "scales": Ref("scales"),
            "normed": None,
        },
        {"rows": count, "HV": c.v_heads, "z_pitch": c.gdn_proj, "eps": c.eps},
        D=c.gdn_dim,
        WORDS=s.lane.words,
    )
    yield project(s, mixer_out(s, i), count, Ref("mixer"))


def scan(s: Setting, i: int, rows: Rows, keep: str, replay: str) -> Launch:
    """The delta rule of layer i over conv, alpha and beta under the prefix `keep`."""
    c = s.config
    name, form = scan_form(rows.T, s.B)
    return launch(
        f"layers.{i}.scan",
        name,
        {
            "qkv": Ref(keep + "conv"),
            "alpha": Ref(keep + "alpha"),
            "beta": Ref(keep + "beta"),
            "state": Ref(f"state.{i}"),
            "slot": Ref("slot"),
            "position": rows.position,
            "length": rows.length,
            "replay": Ref(replay),
            "o": Ref("scan"),
        },
        {"T": rows.T, "B": s.B, "slots": s.slots, "HK": c.k_heads, "HV": c.v_heads},
        D=c.gdn_dim,
        STATE=s.lane.state,
        **form,
    )


def chunked_rule(s: Setting, i: int, rows: Rows) -> Iterator[Launch]:
    """The same for a prefill of the +delta lane: a launch for each chunk whose length is built."""
    c, first = s.config, 0
    refs: dict[str, Ref | None] = {
        "qkv": Ref("conv"),
        "g": Ref("g"),
        "beta": Ref("beta"),
        "state": Ref(f"state.{i}"),
        "slot": Ref("slot"),
        "position": rows.position,
        "length": rows.length,
        "o": Ref("scan"),
    }
    dims: dict[str, Value] = {"T": rows.T, "B": s.B, "slots": s.slots, "HK": c.k_heads, "HV": c.v_heads}
    for chunk in pieces(rows.T):
        template: dict[str, Value] = {"D": c.gdn_dim, "CHUNK": chunk, "STATE": s.lane.state}
        yield launch(f"layers.{i}.delta", "delta_chunk", refs, {**dims, "first": first}, **template)
        first += chunk


def attention(s: Setting, at: str, rows: Rows, cache: str) -> Iterator[Launch]:
    """The gated-attention mixer whose tensors are named `at`, from codes to `mixer`; `cache` names keys and values."""
    c, B = s.config, s.B
    count = rows.T * B
    yield project(s, Projection(at + "qgkv", c.attn_proj, c.d), count, Ref("qgkv"))
    place = {"slot": Ref("slot"), "position": rows.position, "length": rows.length}
    kv = {"keys": Ref(f"keys.{cache}"), "values": Ref(f"values.{cache}")}
    heads: dict[str, Value] = {
        "T": rows.T,
        "B": B,
        "slots": s.slots,
        "HQ": c.q_heads,
        "HKV": c.kv_heads,
        "context": s.context,
    }
    yield launch(
        at + "rope",
        "qk_norm_rope",
        {
            "x": Ref("qgkv"),
            "wq": weight(at + "Qn"),
            "wk": weight(at + "Kn"),
            "cosine": Ref("cosine"),
            "sine": Ref("sine"),
            "q": Ref("q"),
            **place,
            **kv,
        },
        {**heads, "R": c.rope_dim, "eps": c.eps},
        D=c.head_dim,
        KV=s.lane.kv,
    )
    yield from attend(s, at, rows, {"queries": Ref("q"), **kv, **place}, heads)
    yield launch(
        at + "gated",
        "gate_mul_quantize",
        {"x": Ref("attention"), "gate": Ref("qgkv", c.q_width), "codes": Ref("codes"), "scales": Ref("scales")},
        {"rows": count, "K": c.q_width, "gate_pitch": c.attn_proj},
        WORDS=s.lane.words,
    )
    yield project(s, Projection(at + "Wo", c.d, c.q_width, planes=True), count, Ref("mixer"))


def attend(
    s: Setting, at: str, rows: Rows, refs: dict[str, Ref | None], heads: dict[str, Value]
) -> Iterator[Launch]:
    """Attention proper: split along the context where one block a head group would leave the device empty."""
    c = s.config
    sizes = Pass(rows.T, s.B, c.q_heads, c.kv_heads, c.head_dim, s.context, s.lane.kv)
    form = choose_form(sizes, s.machine, s.tuning)
    given = {**heads, **form.dims}
    if not form.parts:
        whole = {**refs, "out": Ref("attention"), "parts": None, "summaries": None}
        yield launch(at + "attention", form.kernel, whole, given, **form.template)
        return
    parts: dict[str, Ref | None] = {"parts": Ref("parts"), "summaries": Ref("summaries")}
    yield launch(at + "attention.split", form.kernel, {**refs, **parts, "out": None}, given, **form.template)
    combine = {**{k: refs[k] for k in ("slot", "position", "length")}, **parts, "out": Ref("attention")}
    dims = {k: heads[k] for k in ("T", "B", "slots", "HQ")} | {"chunks": sizes.chunks}
    if sizes.chunks >= FAR_CHUNKS:
        yield launch(at + "attention", "attention_combine_far", combine, dims, D=c.head_dim)
    else:
        long = sizes.chunks >= LONG_CHUNKS
        yield launch(at + "attention", "attention_combine", combine, dims, D=c.head_dim, LONG=long)


def mixer_out(s: Setting, i: int) -> Projection:
    """Output projection of layer i's mixer; the norm behind it adds its planes."""
    c = s.config
    return Projection(f"layers.{i}.Wo", c.d, c.q_width if c.is_attention(i) else c.gdn_v, planes=True)


def feed_forward(s: Setting, at: str, rows: int, mixer: Projection) -> Iterator[Launch]:
    """Second half of a block: the residual takes the mixer, then norm, gate/up, SwiGLU, down."""
    c = s.config
    gate_up = Projection(at + "gu", 2 * c.ffn, c.d, planes=True)
    planes = lowered(s, gate_up, rows).planes
    yield norm(s, at + "norm2", at + "fn", rows, ("mixer", lowered(s, mixer, rows).planes))
    yield project(s, gate_up, rows, Ref("gu"))
    yield launch(
        at + "swiglu",
        "swiglu_quantize" + ("_planes" if planes > 1 else ""),
        {"x": Ref("gu"), "codes": Ref("codes"), "scales": Ref("scales")},
        {"rows": rows, "F": c.ffn, "planes": planes},
        WORDS=s.lane.words,
    )
    yield project(s, down(s, at), rows, Ref("down"))


def down(s: Setting, at: str) -> Projection:
    """Down projection of a block; the norm behind it adds its planes."""
    return Projection(at + "Wd", s.config.d, s.config.ffn, planes=True)


def layers(s: Setting, rows: Rows, verify: bool = False) -> Iterator[Launch]:
    """All blocks over the rows of `residual`; the last down projection is still to be added."""
    count = rows.T * s.B
    for i in range(s.config.layers):
        at = f"layers.{i}."
        is_attention = s.config.is_attention(i)
        added = ("down", lowered(s, down(s, f"layers.{i - 1}."), count).planes) if i else None
        # the small float32 projection of a GDN layer reads the normed row itself
        yield norm(s, at + "norm1", at + "an", count, added, None if is_attention else Ref("normed"))
        yield from attention(s, at, rows, str(i)) if is_attention else gdn(s, i, rows, verify)
        yield from feed_forward(s, at, count, mixer_out(s, i))


def final(s: Setting, last: str, w: str, rows: int, hidden: Ref) -> Launch:
    """Final norm behind the block named `last`: float32 rows into `hidden`, codes beside them."""
    return norm(s, w, w, rows, ("down", lowered(s, down(s, last), rows).planes), hidden)


def head(s: Setting, rows: int, logits: Ref) -> Launch:
    """Logits of the rows whose codes stand in `codes`; the head stays Q8_0 in every lane."""
    name = "emb" if s.config.tied else "Wout"
    return project(s, Projection(name, s.config.vocab, s.config.d, q4=False), rows, logits)


def quantize_rows(s: Setting, label: str, x: Ref, rows: int, K: int) -> Launch:
    """Float32 rows into `codes`."""
    refs: dict[str, Ref | None] = {"x": x, "codes": Ref("codes"), "scales": Ref("scales")}
    return launch(label, "quantize", refs, {"rows": rows, "K": K}, WORDS=s.lane.words)


def last_rows(s: Setting, label: str, x: Ref, T: int, count: Ref, y: Ref) -> Launch:
    """Row count - 1 of each sequence."""
    refs: dict[str, Ref | None] = {"x": x, "count": count, "y": y}
    return launch(label, "pick_rows", refs, {"T": T, "B": s.B, "K": s.config.d})


def pick(s: Setting, label: str, rows: int, logits: Ref, tokens: Ref, flags: Ref) -> Iterator[Launch]:
    """Greedy picks of rows of logits: the best key of each tile, by many blocks, then of the row."""
    dims: dict[str, Value] = {"rows": rows, "V": s.config.vocab}
    part = launch(label + ".part", "greedy_part", {"logits": logits, "parts": Ref("pick.parts")}, dims)
    yield part
    picked: dict[str, Ref | None] = {"parts": Ref("pick.parts"), "tokens": tokens, "flags": flags}
    yield launch(label, "greedy_pick_parts", picked, {"rows": rows, "tiles": part.dims["tiles"]})
