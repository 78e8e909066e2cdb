"""Norm of query and key heads, then their rotation."""

import numpy as np

from oracle.bits.fma import F32, f32, fma
from oracle.bits.root import root
from oracle.bits.tree import tree


def head_norm(x: F32, w: F32, eps: float) -> F32:
    """Scale each head to unit root mean square, then by w.

    Shapes: x [..., D], D of 32, 64, 128, 256, w [D] -> [..., D].
    Units:  eps adds to the mean square.
    Error:  none against the contract.
    Source: ARITHMETIC.md, q/k norm.
    """
    with np.errstate(all="ignore"):
        mean = tree(x, x) / np.float32(x.shape[-1])
        return np.asarray((x / root(mean + f32(eps))[..., None]) * w)


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate the first R dims of each head, half-split: pairs (j, j + R/2).

    Shapes: x [..., H, D], cos and sin [..., R/2], the float32 table at each row's position -> [..., H, D].
    Units:  those of x.
    Error:  none against the contract.
    Source: ARITHMETIC.md, RoPE.
    """
    half = cos.shape[-1]
    lo, hi = x[..., :half], x[..., half : 2 * half]
    c, s = cos[..., None, :], sin[..., None, :]
    with np.errstate(all="ignore"):
        turned = [fma(lo, c, -(hi * s)), fma(hi, c, lo * s)]
    return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)


def qk_norm_rope(x: F32, w: F32, cos: F32, sin: F32, eps: float) -> F32:
    """The two in turn. Shapes, units, error and source as `head_norm` and `rope`; a cache stores the result once."""
    return rope(head_norm(x, w, eps), cos, sin)
