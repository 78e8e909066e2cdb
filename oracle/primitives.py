"""What the primitives of the device layer compute: exact sums of products, and the layouts that move no value."""

import numpy as np
from numpy.typing import NDArray

from oracle.arrays import F64

I64 = NDArray[np.int64]


def dot4(a: NDArray[np.int32], b: NDArray[np.int32], c: NDArray[np.int32]) -> I64:
    """Dot product of the four signed bytes of two words, added to c.

    Shapes: [n] each -> [n].
    Units:  pure numbers.
    Error:  none: int64 holds every sum; a device's int32 is this modulo 2**32.
    Source: PTX ISA, dp4a.s32.s32.
    """
    bytes_a, bytes_b = (np.ascontiguousarray(v).view(np.int8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    total: I64 = c.astype(np.int64) + (bytes_a * bytes_b).sum(axis=1)
    return total


def tile_product(a: F64, b: F64, c: F64) -> F64:
    """Product of small tiles added to c: c + a b, b given as its columns.

    Shapes: a [tiles, M, K], b [tiles, N, K], c [tiles, M, N] -> [tiles, M, N].
    Units:  those of c.
    Error:  (K + 1) * 2**-53 of the sum of magnitudes; none for integers below 2**53.
    Source: the definition of a matrix product.
    """
    product: F64 = c + np.einsum("tmk,tnk->tmn", a, b)
    return product
