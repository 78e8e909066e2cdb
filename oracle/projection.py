"""Matrix products of activations with weights."""

from collections.abc import Callable

import numpy as np

from oracle.arrays import F64
from oracle.embedding import dense
from oracle.model_weights import Tensor, take_rows

BLOCK_BYTES = 64 << 20  # of dequantised rows held at a time: beyond this the 27B's widest matrix would take 1.4 GB


def projection(x: F64, w: Tensor, values: Callable[[Tensor], F64] = dense) -> F64:
    """Multiply by the transpose of w, its rows dequantised a block at a time.

    Shapes: x [..., K], w [N, K] -> [..., N]; `values` gives the float64 values of a block of rows.
    Units:  those of x times those of w.
    Error:  K * 2**-53 * sum of |x||w| an element, in whatever order the BLAS adds.
    Source: the model's definition. Raises ValueError where the widths differ.
    """
    rows, width = w.shape
    if x.shape[-1] != width:
        raise ValueError(f"activations of width {x.shape[-1]} meet weights of width {width}")
    flat = x.reshape(-1, width)
    y = np.empty((flat.shape[0], rows))
    step = max(1, BLOCK_BYTES // (8 * width))
    for start in range(0, rows, step):
        block = take_rows(w, slice(start, start + step))
        y[:, start : start + step] = flat @ values(block).T
    return y.reshape(*x.shape[:-1], rows)
