"""Causal convolution of four taps, silu, and the unit norm of query and key heads."""

import numpy as np

from oracle.bits.fma import F32, fma
from oracle.bits.functions import silu
from oracle.bits.root import root
from oracle.bits.tree import tree

L2_EPS = np.float32(1e-6)


def causal_conv(x: F32, ring: F32, w: F32) -> tuple[F32, F32]:
    """Convolve each channel with its taps, the oldest input first; no silu yet.

    Shapes: x [B, T, C], ring [B, 3, C] with the oldest input first, w [4, C] -> y [B, T, C], the next ring.
    Units:  those of w * x; the ring is zero before a sequence.
    Error:  none against the contract.
    Source: ARITHMETIC.md, conv.
    """
    taps, length = w.shape[0], x.shape[1]
    line = np.concatenate([ring, x], axis=1)
    acc = np.zeros(x.shape, np.float32)
    for tap in range(taps):
        acc = fma(w[tap], line[:, tap : tap + length], acc)
    return acc, line[:, line.shape[1] - (taps - 1) :].copy()


def l2_norm(x: F32) -> F32:
    """Scale each head to unit length.

    Shapes: x [..., D], D of 32, 64, 128, 256 -> [..., D].
    Units:  the epsilon adds to the sum of squares.
    Error:  none against the contract.
    Source: ARITHMETIC.md, q and k L2.
    """
    with np.errstate(all="ignore"):
        return np.asarray(x / root(tree(x, x) + L2_EPS)[..., None])


def conv_silu_l2(x: F32, ring: F32, w: F32, k_heads: int, dim: int) -> tuple[F32, F32]:
    """Convolution, silu, then unit length for each query and key head; values stay.

    Shapes: x [B, T, C] with channels Q | K | V, Q and K k_heads * dim wide; ring and w as `causal_conv` -> the same.
    Units:  queries and keys are directions.
    Error:  none against the contract.
    Source: ARITHMETIC.md, Gated DeltaNet.
    """
    y, ring = causal_conv(x, ring, w)
    y = silu(y)
    qk = 2 * k_heads * dim
    heads = y[..., :qk].reshape(*y.shape[:-1], 2 * k_heads, dim)
    return np.concatenate([l2_norm(heads).reshape(*y.shape[:-1], qk), y[..., qk:]], axis=-1), ring
