"""Tokens of Gated DeltaNet layers for benches: values that bf16 holds exactly, so that peers read the same ones."""

from dataclasses import dataclass

import numpy as np

from oracle.bits.functions import exp
from oracle.config import ModelConfig
from oracle.formats import bf16_round


@dataclass(frozen=True, slots=True)
class Tokens:
    """Queries, keys [B, T, HK, D], values [B, T, HV, D], log decays and beta [B, T, HV], all float32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray

    def rows(self) -> np.ndarray:
        """Queries, keys and values side by side, token-major [T * B, 2 HK D + HV D]."""
        B, T = self.g.shape[:2]
        return _token_major(np.concatenate([a.reshape(B, T, -1) for a in (self.q, self.k, self.v)], axis=-1))

    def gates(self) -> dict[str, np.ndarray]:
        """Decay, its logarithm and beta, token-major [T * B, HV]."""
        return {n: _token_major(a) for n, a in (("alpha", exp(self.g)), ("g", self.g), ("beta", self.beta))}

    def of_heads(self, b: int, heads: list[int]) -> tuple[np.ndarray, ...]:
        """Queries, keys, values [1, T, heads, D], g and beta [1, T, heads] of some value heads in float64."""
        keys = [h % self.q.shape[2] for h in heads]
        wide = (self.q[b : b + 1, :, keys], self.k[b : b + 1, :, keys], self.v[b : b + 1, :, heads])
        return tuple(a.astype(np.float64) for a in (*wide, self.g[b : b + 1, :, heads], self.beta[b : b + 1, :, heads]))

    def contract_head(self, b: int, h: int, T: int) -> tuple[np.ndarray, ...]:
        """Queries, keys, values, decay and beta of the first T tokens of one value head in float32."""
        q, k = (a[b : b + 1, :T, [h % a.shape[2]]] for a in (self.q, self.k))
        return q, k, self.v[b : b + 1, :T, [h]], exp(self.g[b : b + 1, :T, [h]]), self.beta[b : b + 1, :T, [h]]


def _token_major(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(x, 0, 1)).reshape(-1, x.shape[-1])


def tokens(c: ModelConfig, B: int, T: int) -> Tokens:
    """Random tokens of a model's kind: keys of about unit length, decays from nearly one down to a half.

    Shapes: as `Tokens`. Units: log decays are natural. Error: none. Source: ours. Raises nothing.
    """
    g = np.random.default_rng([B, T])
    q, k = (g.standard_normal((B, T, c.k_heads, c.gdn_dim)) for _ in range(2))
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    v = g.standard_normal((B, T, c.v_heads, c.gdn_dim))
    decay = (-0.7 * g.random((B, T, c.v_heads)) ** 3).astype(np.float32)
    beta = bf16_round(1 / (1 + np.exp(-g.standard_normal((B, T, c.v_heads)))))
    wide = [bf16_round(a).astype(np.float32) for a in (q, k, v)]
    return Tokens(wide[0], wide[1], wide[2], decay, beta.astype(np.float32))
