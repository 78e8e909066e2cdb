"""Causal depthwise convolution of four taps, SiLU, and the unit norm of query and key heads."""

import numpy as np

from oracle.arrays import F64
from oracle.functions import silu

L2_EPS = 1e-6  # of the model, whatever its norm epsilon is


def causal_conv(x: F64, ring: F64, w: F64) -> tuple[F64, F64]:
    """Convolve each channel with its taps; the last tap is the current token's, the first the oldest's.

    Shapes: x [B, T, C], ring [B, taps - 1, C] with the oldest input first, w [taps, C] -> y [B, T, C], the next ring.
    Units:  those of x; the ring holds raw inputs and is zero before a sequence.
    Error:  taps * 2**-53 * sum of |w||x| an element; the ring is exact.
    Source: the model's definition, GDN step 2.
    """
    taps, length = w.shape[0], x.shape[1]
    line = np.concatenate([ring, x], axis=1)
    y = np.zeros(x.shape)
    for tap in range(taps):
        y += w[tap] * line[:, tap : tap + length]
    return y, line[:, line.shape[1] - (taps - 1) :].copy()


def l2_norm(x: F64) -> F64:
    """Scale each head to unit length.

    Shapes: x [..., D] -> [..., D].
    Units:  the epsilon adds to the sum of squares, inside the root; zeros stay zero.
    Error:  (D + 6) * 2**-53 relative an element.
    Source: the model's definition, GDN step 3.
    """
    y: F64 = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)
    return y


def conv_silu_l2(x: F64, ring: F64, w: F64, k_heads: int, dim: int) -> tuple[F64, F64]:
    """Convolution, SiLU, then unit length for each query and key head; values are left as they are.

    Shapes: x [B, T, C] with channels Q | K | V, Q and K k_heads * dim wide; ring and w as `causal_conv` -> the same.
    Units:  queries and keys are directions, values have the unit of x.
    Error:  that of the three steps one after another.
    Source: the model's definition, GDN steps 2 and 3.
    """
    y, ring = causal_conv(x, ring, w)
    y = silu(y)
    qk = 2 * k_heads * dim
    heads = y[..., :qk].reshape(*y.shape[:-1], 2 * k_heads, dim)
    return np.concatenate([l2_norm(heads).reshape(*y.shape[:-1], qk), y[..., qk:]], axis=-1), ring
