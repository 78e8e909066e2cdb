"""What a sequence carries from token to token."""

from dataclasses import dataclass

import numpy as np

from oracle.arrays import F64
from oracle.config import ModelConfig


@dataclass(frozen=True, slots=True)
class GdnState:
    """One GDN layer. Shapes: s [B, HV, V, K], ring [B, taps - 1, C] with the oldest input first."""

    s: F64
    ring: F64


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys (normed and rotated) and values of one attention layer. Shapes: k, v [B, S, HK, D], S rows so far."""

    k: F64
    v: F64


@dataclass(frozen=True, slots=True)
class State:
    """Everything the layers carry; the draft head's own cache is kept beside it, by whoever drafts.

    Units: position counts the tokens consumed, the same for every sequence of the batch.
    """

    position: int
    layers: tuple[GdnState | Cache, ...]


def empty_cache(config: ModelConfig, batch: int) -> Cache:
    """A cache of no rows. Shapes: [batch, 0, HK, D]."""
    rows = np.zeros((batch, 0, config.kv_heads, config.head_dim))
    return Cache(rows, rows)


def empty_state(config: ModelConfig, batch: int) -> State:
    """State before the first token: zeros, and caches of no rows."""
    s = np.zeros((batch, config.v_heads, config.gdn_dim, config.gdn_dim))
    ring = np.zeros((batch, config.conv_taps - 1, config.conv_channels))
    gdn, cache = GdnState(s, ring), empty_cache(config, batch)
    return State(0, tuple(cache if config.is_attention(i) else gdn for i in range(config.layers)))
