"""One layer: norm, mixer, residual, norm, feed-forward, residual. Every step is recorded under its buffer's name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from oracle import roundings as rounds
from oracle.add import add
from oracle.arrays import F64
from oracle.attention import attention
from oracle.config import ModelConfig
from oracle.conv import conv_silu_l2
from oracle.embedding import dense
from oracle.functions import exp
from oracle.gate_mul import gate_mul
from oracle.gated_norm import gated_norm
from oracle.gates import gates
from oracle.lane import EXACT, Lane, weight_values
from oracle.model_weights import Tensor, Weights
from oracle.projection import projection
from oracle.qk_norm_rope import qk_norm_rope
from oracle.rms_norm import rms_norm
from oracle.rope import table
from oracle.roundings import FUNCTION, Roundings, Size
from oracle.state import Cache, GdnState
from oracle.swiglu import swiglu

Recorder = Callable[[str, F64], None]


def ignore(_name: str, _value: F64) -> None:
    """Record nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whose weights, in which formats, who is told of every buffer, and who rounds."""

    weights: Weights
    lane: Lane = EXACT
    record: Recorder = ignore
    roundings: Roundings = field(default_factory=Roundings)

    @property
    def config(self) -> ModelConfig:
        """Sizes of the model."""
        return self.weights.config


@dataclass(frozen=True, slots=True)
class Place:
    """One layer of a run: where its tensors are, what its buffers are called, and where its rows stand."""

    run: Run
    tensors: str
    buffers: str
    start: int

    def vector(self, name: str) -> F64:
        """A small tensor as float64."""
        return dense(self.run.weights.tensor(self.tensors + name))

    def keep(self, name: str, value: F64, units: float | Size = 0.0) -> F64:
        """Record [B, T, ...] as [B, T, width] and pass it on. units: of u = 2**-24, how far a kernel's result may lie.

        A number is relative to the value, a function gives it absolutely; zero where others have said it.
        """
        size = units if callable(units) else lambda: units * np.abs(value)
        rounded = self.run.roundings.result(self.buffers + name, value, size) if units else value
        self.run.record(self.buffers + name, rounded.reshape(*value.shape[:2], -1))
        return rounded

    def project(self, x: F64, name: str, extra: int = 0) -> F64:
        """Quantise as the lane does and multiply by that tensor. extra: roundings of whoever reads the result next."""
        run = self.run
        lane, w = run.lane, run.weights.tensor(self.tensors + name)
        values = partial(weight_values, weights=lane.weights, name=self.tensors + name)
        return rounded_projection(run, self.buffers + name, x, w, values, lane.activations, extra)


def rounded_projection(
    run: Run, name: str, x: F64, w: Tensor, values: Callable[[Tensor], F64], activations: str, extra: int = 0
) -> F64:
    """A projection of codes.

    Shapes: x [..., K], w [N, K] -> [..., N].
    Units:  those of x times those of w.
    Error:  that of the run's roundings.
    Source: the contract, Projections.
    """
    read = run.roundings.codes(name, x, activations)
    count = rounds.of_projection(x.shape[-1]) + extra
    y = projection(read, w, values)
    return run.roundings.result(name, y, lambda: count * projection(np.abs(read), w, lambda t: np.abs(values(t))))


def block(place: Place, x: F64, state: GdnState | Cache) -> tuple[F64, GdnState | Cache]:
    """One layer over a chunk of tokens.

    Shapes: x [B, T, d] -> the same, the layer's next state.
    Units:  those of the residual stream.
    Error:  the sum of its steps'.
    Source: the model's definition, Block. Raises LanelockError where a tensor is missing.
    """
    eps, norm = place.run.config.eps, rounds.of_row_norm(x.shape[-1])
    h = place.keep("norm1", rms_norm(x, place.vector("an"), eps), norm)
    mixed, state = _attend(place, h, state) if isinstance(state, Cache) else _recur(place, h, state)
    x = place.keep("residual1", add(x, place.keep("mixer", place.project(mixed, "Wo"))), 1.0)
    h = place.keep("norm2", rms_norm(x, place.vector("fn"), eps), norm)
    hidden = place.keep("swiglu", swiglu(place.keep("gu", place.project(h, "gu"))), FUNCTION + 1.0)
    return place.keep("residual", add(x, place.keep("down", place.project(hidden, "Wd"))), 1.0), state


def _recur(place: Place, h: F64, state: GdnState) -> tuple[F64, GdnState]:
    config, lane = place.run.config, place.run.lane
    # the convolution's four fma count as errors of its inputs.
    qkvz = place.keep("qkvz", place.project(h, "qkvz", extra=config.conv_taps))
    # the small projection is float32 in every lane and reads the norm before it is quantised.
    w = place.vector("ba")
    chain = rounds.of_float_projection(h.shape[-1])
    ba = place.keep("ba", projection(h, w), lambda: chain * projection(np.abs(h), np.abs(w)))
    rate, offset = place.vector("Al"), place.vector("Dt")
    beta, g = gates(ba, rate, offset)
    beta = place.keep("beta", beta, float(FUNCTION))
    # softplus, a product and the sum before it; the exponential of g counts as an error of g.
    of_sum = np.abs(rate * (ba[..., config.v_heads :] + offset))
    g = place.keep("g", g, lambda: (FUNCTION + 1) * np.abs(g) + of_sum + FUNCTION)
    place.keep("alpha", exp(g))
    mixed, ring = conv_silu_l2(qkvz[..., : config.conv_channels], state.ring, place.vector("Wc"), config.k_heads,
                               config.gdn_dim)
    mixed = place.keep("conv", mixed, FUNCTION + rounds.of_head_norm(config.gdn_dim))
    q, k, v = _split_heads(config, mixed)
    o, s = place.run.roundings.scan(place.buffers + "S", (q, k, v, g, beta), state.s, lane.state)
    z = qkvz[..., config.conv_channels :].reshape(o.shape)
    gated = gated_norm(place.keep("scan", o), z, place.vector("Gn"), config.eps)
    place.run.record(place.buffers + "S", s)
    place.run.record(place.buffers + "ring", ring)
    gated = place.keep("gated", gated, rounds.of_head_norm(config.gdn_dim) + FUNCTION + 1.0)
    return gated.reshape(*h.shape[:2], -1), GdnState(s, ring)


def _split_heads(config: ModelConfig, qkv: F64) -> tuple[F64, F64, F64]:
    lead, qk, dim = qkv.shape[:2], config.gdn_qk, config.gdn_dim
    # tiled order: value head h reads key head h % k_heads.
    key_head = np.arange(config.v_heads) % config.k_heads
    q = qkv[..., :qk].reshape(*lead, -1, dim)[:, :, key_head]
    k = qkv[..., qk : 2 * qk].reshape(*lead, -1, dim)[:, :, key_head]
    return q, k, qkv[..., 2 * qk :].reshape(*lead, -1, dim)


def _attend(place: Place, h: F64, cache: Cache) -> tuple[F64, Cache]:
    config = place.run.config
    qgkv, lead = place.keep("qgkv", place.project(h, "qgkv")), h.shape[:2]
    q, gate, k, v = np.split(qgkv, np.cumsum([config.q_width, config.q_width, config.kv_width]), axis=-1)
    cos, sin = table(np.arange(place.start, place.start + lead[1]), config.rope_dim, config.rope_theta)
    q = qk_norm_rope(q.reshape(*lead, -1, config.head_dim), place.vector("Qn"), cos, sin, config.eps)
    k = qk_norm_rope(k.reshape(*lead, -1, config.head_dim), place.vector("Kn"), cos, sin, config.eps)
    k = place.keep("k", k, lambda: _rotated_units(config, k))
    cache = _append(place, cache, k, v.reshape(k.shape))
    # the roundings of a score count as errors of its query.
    q = place.keep("q", q, lambda: _rotated_units(config, q) + (config.head_dim / 32 + 6) * np.abs(q))
    o = attention(q, cache.k, cache.v, place.start)
    place.run.record(place.buffers + "K", cache.k)
    place.run.record(place.buffers + "V", cache.v)
    count = rounds.of_attention(cache.k.shape[1])
    o = place.keep("attention", o, lambda: count * attention(q, cache.k, np.abs(cache.v), place.start))
    o = o.reshape(*lead, -1)
    return place.keep("gated", gate_mul(o, gate), FUNCTION + 1.0), cache


def _rotated_units(config: ModelConfig, x: F64) -> F64:
    # norm; then table entry, product and fma, relative to a pair's length, which a rotation keeps.
    half, norm = config.rope_dim // 2, rounds.of_head_norm(config.head_dim)
    units = norm * np.abs(x)
    pair = np.hypot(x[..., :half], x[..., half : 2 * half])
    units[..., : 2 * half] = np.concatenate([pair, pair], axis=-1) * (norm + 3 * np.sqrt(2.0))
    return units


def _append(place: Place, cache: Cache, k: F64, v: F64) -> Cache:
    # keys and values are read as they are stored, those of this very chunk too.
    lane, rounded = place.run.lane, place.run.roundings.stored
    k, v = rounded(place.buffers + "K", k, lane.cache), rounded(place.buffers + "V", v, lane.cache)
    return Cache(np.concatenate([cache.k, k], axis=1), np.concatenate([cache.v, v], axis=1))
