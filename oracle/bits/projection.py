"""Projections: Q8_0 (and Q4) weights by quantised activations in slices, and the small float32 projection."""

import numpy as np
from numpy.typing import NDArray

from oracle.bits.add import sum_planes
from oracle.bits.fma import F32, fma
from oracle.bits.tree import dot

BLOCK, SLICES = 32, 8
I8 = NDArray[np.int8]


def projection(w_codes: I8, w_scales: NDArray[np.float16], x_codes: I8, x_scales: F32) -> F32:
    """Activations times weights.

    Shapes: w_codes [N, K] (Q8_0, or Q4's -8..7), w_scales [N, K/32], x_codes [rows, words, K] (words 1: A8; 2: A15, hi
            then lo), x_scales [rows, K/32] -> [rows, N].
    Units:  element = code * scale on both sides, A15's code = 128 * hi + lo.
    Error:  none against the contract.
    Source: ARITHMETIC.md, Q8_0 weights.
    """
    return sum_planes(slices(w_codes, w_scales, x_codes, x_scales))


def slices(w_codes: I8, w_scales: NDArray[np.float16], x_codes: I8, x_scales: F32) -> F32:
    """The eight slices of K, each summed from zero: what split-K stores as planes.

    Shapes: as `projection` -> [8, rows, N]; a slice without blocks is zero.
    Units:  as `projection`.
    Error:  none against the contract.
    Source: ARITHMETIC.md, Q8_0 weights.
    """
    w = w_codes.astype(np.int32).reshape(w_codes.shape[0], -1, BLOCK)
    x = x_codes.astype(np.int32)
    x = x[:, 0] if x.shape[1] == 1 else 128 * x[:, 0] + x[:, 1]
    x = x.reshape(x.shape[0], -1, BLOCK)
    ws = w_scales.astype(np.float32)
    blocks = w.shape[1]
    planes = np.zeros((SLICES, x.shape[0], w.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for s in range(SLICES):
            for b in range(s * blocks // SLICES, (s + 1) * blocks // SLICES):
                exact = (x[:, b] @ w[:, b].T).astype(np.float32)
                planes[s] = fma(exact * ws[None, :, b], x_scales[:, None, b], planes[s])
    return planes


def float_projection(w: F32, x: F32) -> F32:
    """Activations times float32 weights.

    Shapes: w [N, K], x [rows, K] -> [rows, N].
    Units:  those of w * x.
    Error:  none against the contract.
    Source: ARITHMETIC.md, small float32 projection.
    """
    return dot(w[None], x[:, None])
