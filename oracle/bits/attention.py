"""Causal softmax attention in chunks of 256 positions."""

import numpy as np

from oracle.bits.fma import F32, f32, fma
from oracle.bits.functions import exp
from oracle.bits.tree import CHUNK, tree


def attention(q: F32, k: F32, v: F32, start: int) -> F32:
    """Attention of each query head to its KV head, query head h to h // (H/HK).

    Shapes: q [B, T, H, D], k and v [B, S, HK, D] as the cache stores them (float32 or f16), S >= start + T ->
            [B, T, H, D]. Query t stands at position start + t and sees positions 0..start + t.
    Units:  scores are scaled by 1/sqrt(D); the result has the unit of v.
    Error:  none against the contract. A score that is not finite makes its row NaN.
    Source: ARITHMETIC.md, attention.
    """
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x.astype(np.float32), group, axis=2) for x in (k, v))
    last = start + np.arange(q.shape[1])
    top, total, out = _chunk(q, k, v, last, 0)
    broken = np.isnan(top)
    with np.errstate(all="ignore"):
        for first in range(CHUNK, start + q.shape[1], CHUNK):
            reached = (last >= first)[None, :, None]
            m, part, o = _chunk(q, k, v, last, first)
            broken |= np.isnan(m) & reached
            new = np.where(m > top, m, top)
            a, b = exp(top - new), exp(m - new)
            total = np.where(reached, fma(total, a, part * b), total)
            out = np.where(reached[..., None], fma(out, a[..., None], o * b[..., None]), out)
            top = np.where(reached, new, top)
        return np.where(broken[..., None], np.float32(np.nan), out / total[..., None])


def _chunk(q: F32, k: F32, v: F32, last: np.ndarray, first: int) -> tuple[F32, F32, F32]:
    """Maximum, sum and weighted V of one chunk, each [B, T, H(, D)]; the maximum is NaN if a score is not finite.

    Rows that do not reach the chunk hold values that the caller leaves unused.
    """
    dim = q.shape[-1]
    width = min(CHUNK, k.shape[1] - first)
    seen = (first + np.arange(width) <= last[:, None])[None, :, None, :]
    with np.errstate(all="ignore"):
        keys = np.moveaxis(k[:, first : first + width], 1, 2)[:, None]  # [B, 1, H, width, D]
        score = tree(q[..., None, :], keys) * f32(1.0 / np.sqrt(dim))
        broken = (~np.isfinite(score) & seen).any(axis=-1)
        top = np.max(np.where(seen, score, -np.float32(np.inf)), axis=-1)
        e = np.where(seen, exp(score - top[..., None]), np.float32(0.0))
        total = tree(np.pad(e, [(0, 0)] * 3 + [(0, CHUNK - width)]))
        out = np.zeros(q.shape, np.float32)
        for p in range(width):
            out = np.where(seen[..., p, None], fma(e[..., p, None], v[:, None, first + p], out), out)
    return np.where(broken, np.float32(np.nan), top), total, out
