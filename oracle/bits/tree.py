"""The named reduction of the contract: 32 leaves of contiguous elements, then pairs 16, 8, 4, 2, 1 apart."""

import numpy as np

from oracle.bits.fma import F32, fma

LEAVES = 32
CHUNK = 256  # elements of a long row that one tree takes


def tree(x: F32, y: F32 | None = None) -> F32:
    """Sum of x, or of the products x * y, in the contract's order.

    Shapes: x and y [..., 32 * per], broadcast together -> [...].
    Units:  those of x, or of x * y.
    Error:  none against the contract.
    Source: ARITHMETIC.md, tree(per).
    """
    per = x.shape[-1] // LEAVES
    with np.errstate(all="ignore"):
        if y is None:
            leaves = _leaves(x, per)
            v = np.zeros(leaves.shape[:-1], np.float32)
            for i in range(per):
                v = v + leaves[..., i]
        else:
            left, right = _leaves(x, per), _leaves(y, per)
            v = np.zeros(np.broadcast_shapes(left.shape, right.shape)[:-1], np.float32)
            for i in range(per):
                v = fma(left[..., i], right[..., i], v)
        # every leaf adds its partner; a + b and b + a are the same bits, so the lower half alone says it all.
        for apart in (16, 8, 4, 2, 1):
            v = v[..., :apart] + v[..., apart : 2 * apart]
    return np.asarray(v[..., 0])


def dot(x: F32, y: F32) -> F32:
    """Dot product of long rows: chunks of 256 through `tree`, added ascending from zero.

    Shapes: x and y [..., K], any K, broadcast together -> [...].
    Units:  those of x * y.
    Error:  none against the contract.
    Source: ARITHMETIC.md, dot.
    """
    x, y = _padded(x), _padded(y)
    total = np.zeros(np.broadcast_shapes(x.shape, y.shape)[:-1], np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[-1], CHUNK):
            part = slice(start, start + CHUNK)
            total = total + tree(x[..., part], y[..., part])
    return np.asarray(total)


def _leaves(x: F32, per: int) -> F32:
    return x.reshape(*x.shape[:-1], LEAVES, per)


def _padded(x: F32) -> F32:
    missing = -x.shape[-1] % CHUNK
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
