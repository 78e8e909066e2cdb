"""Causal softmax attention with grouped heads."""

import numpy as np

from oracle.arrays import F64
from oracle.functions import exp

ROWS = 64  # queries at a time: 24 heads x 64 x 262144 positions of scores would still be 3 GB in float64


def attention(q: F64, k: F64, v: F64, start: int) -> F64:
    """Softmax of scaled scores times values; query head h reads key head h // (H/HK).

    Shapes: q [B, T, H, D], k and v [B, S, HK, D] with S >= start + T -> [B, T, H, D]. Query t stands at position
            start + t and sees positions 0..start + t; rows of k and v behind it are never read.
    Units:  scores are scaled by 1/sqrt(D); the result has the unit of v.
    Error:  (D + S + 20) * 2**-53 of the largest |v|, times 1 + the largest |score|.
    Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023, GQA. Raises ValueError where the heads do not divide or
    k and v are too short. A score that is not finite makes its row NaN: an overflowed key must not drop its position.
    """
    batch, length, heads, dim = q.shape
    if heads % k.shape[2] or k.shape[1] < start + length:
        raise ValueError(f"{heads} query heads at {start}..{start + length - 1} do not fit keys of shape {k.shape}")
    grouped = q.reshape(batch, length, k.shape[2], -1, dim) / np.sqrt(dim)
    o = np.empty(grouped.shape)
    # a later value that is not finite would spread backwards as 0 * inf; a single row has nothing to mask.
    rows = ROWS if np.isfinite(v[:, : start + length]).all() else 1
    for first in range(0, length, rows):
        piece = slice(first, min(first + rows, length))
        end = start + piece.stop
        # what is not finite becomes a NaN on purpose, so NumPy need not warn of it.
        with np.errstate(invalid="ignore", over="ignore"):
            o[:, piece] = _rows(grouped[:, piece], k[:, :end], v[:, :end], start + first)
    whole: F64 = o.reshape(q.shape)
    return whole


def _rows(q: F64, k: F64, v: F64, start: int) -> F64:
    scores = np.moveaxis(q, 1, 3) @ np.transpose(k, (0, 2, 3, 1))[:, :, None]
    own = start + np.arange(q.shape[1])[:, None]
    seen = np.arange(k.shape[1]) <= own
    broken = (~np.isfinite(scores) & seen).any(axis=-1, keepdims=True)
    scores = np.where(seen, scores, -np.inf)
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    weights = np.where(broken, np.nan, weights / weights.sum(axis=-1, keepdims=True))
    o: F64 = np.moveaxis(weights @ np.transpose(v, (0, 2, 1, 3))[:, :, None], 3, 1)
    return o
