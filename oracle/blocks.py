"""One layer: norm, mixer, residual, norm, feed-forward, residual. Every step is recorded under its buffer's name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from oracle.add import add
from oracle.arrays import F64
from oracle.attention import attention
from oracle.config import ModelConfig
from oracle.conv import conv_silu_l2
from oracle.delta_rule import chunked, sequential
from oracle.embedding import dense
from oracle.formats import f16_round
from oracle.functions import exp
from oracle.gate_mul import gate_mul
from oracle.gated_norm import gated_norm
from oracle.gates import gates
from oracle.lane import EXACT, Lane, weight_values
from oracle.model_weights import Weights
from oracle.projection import projection
from oracle.qk_norm_rope import qk_norm_rope
from oracle.quantize import quantize
from oracle.rms_norm import rms_norm
from oracle.rope import table
from oracle.state import Cache, GdnState
from oracle.swiglu import swiglu

Recorder = Callable[[str, F64], None]


def ignore(_name: str, _value: F64) -> None:
    """Record nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whose weights, in which formats, and who is told of every buffer."""

    weights: Weights
    lane: Lane = EXACT
    record: Recorder = ignore

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

    def keep(self, name: str, value: F64) -> F64:
        """Record [B, T, ...] as [B, T, width] and pass it on."""
        self.run.record(self.buffers + name, value.reshape(*value.shape[:2], -1))
        return value

    def project(self, x: F64, name: str) -> F64:
        """Quantise as the lane does and multiply by that tensor."""
        lane, w = self.run.lane, self.run.weights.tensor(self.tensors + name)
        values = partial(weight_values, weights=lane.weights, name=self.tensors + name)
        return projection(quantize(x, lane.activations), w, values)


def block(place: Place, x: F64, state: GdnState | Cache) -> tuple[F64, GdnState | Cache]:
    """One layer over a chunk of tokens.

    Shapes: x [B, T, d] -> the same, the layer's next state.
    Units:  those of the residual stream.
    Error:  the sum of its steps'.
    Source: the model's definition, Block. Raises LanelockError where a tensor is missing.
    """
    eps = place.run.config.eps
    h = place.keep("norm1", rms_norm(x, place.vector("an"), eps))
    mixed, state = _attend(place, h, state) if isinstance(state, Cache) else _recur(place, h, state)
    x = place.keep("residual1", add(x, place.keep("mixer", place.project(mixed, "Wo"))))
    h = place.keep("norm2", rms_norm(x, place.vector("fn"), eps))
    hidden = place.keep("swiglu", swiglu(place.keep("gu", place.project(h, "gu"))))
    return place.keep("residual", add(x, place.keep("down", place.project(hidden, "Wd")))), state


def _recur(place: Place, h: F64, state: GdnState) -> tuple[F64, GdnState]:
    config, lane = place.run.config, place.run.lane
    qkvz = place.keep("qkvz", place.project(h, "qkvz"))
    # the small projection is float32 in every lane and reads the norm before it is quantised.
    ba = place.keep("ba", projection(h, place.vector("ba")))
    beta, g = gates(ba, place.vector("Al"), place.vector("Dt"))
    place.keep("beta", beta)
    place.keep("alpha", exp(place.keep("g", g)))
    mixed, ring = conv_silu_l2(qkvz[..., : config.conv_channels], state.ring, place.vector("Wc"), config.k_heads,
                               config.gdn_dim)
    q, k, v = _split_heads(config, place.keep("conv", mixed))
    rule = chunked if lane.state == "f64" else partial(sequential, store=lane.state)
    o, s = rule(q, k, v, g, beta, state.s)
    z = qkvz[..., config.conv_channels :].reshape(o.shape)
    gated = gated_norm(place.keep("scan", o), z, place.vector("Gn"), config.eps)
    place.run.record(place.buffers + "S", s)
    place.run.record(place.buffers + "ring", ring)
    return place.keep("gated", gated).reshape(*h.shape[:2], -1), GdnState(s, ring)


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
    cache = _append(cache, place.keep("k", k), v.reshape(k.shape), place.run.lane.cache)
    o = attention(place.keep("q", q), cache.k, cache.v, place.start)
    place.run.record(place.buffers + "K", cache.k)
    place.run.record(place.buffers + "V", cache.v)
    o = place.keep("attention", o).reshape(*lead, -1)
    return place.keep("gated", gate_mul(o, gate)), cache


def _append(cache: Cache, k: F64, v: F64, store: str) -> Cache:
    # keys and values are read as they are stored, those of this very chunk too.
    if store == "f16":
        k, v = f16_round(k), f16_round(v)
    return Cache(np.concatenate([cache.k, k], axis=1), np.concatenate([cache.v, v], axis=1))
