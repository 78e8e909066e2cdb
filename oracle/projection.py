"""Matrix products of activations with weights."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from oracle.arrays import F64
from oracle.embedding import dense
from oracle.model_weights import Tensor, take_rows

# of dequantised rows held at a time: what a cache holds; the fresh pages of larger blocks cost more than the products
BLOCK_BYTES = 8 << 20
# blocks go to threads of our own, because the BLAS's spin and take busy cores from each other
WORKERS = min(8, os.cpu_count() or 1)


def projection(x: F64, w: Tensor, values: Callable[[Tensor], F64] = dense) -> F64:
    """Multiply by the transpose of w, its rows dequantised a block at a time.

    Shapes: x [..., K], w [N, K] -> [..., N]; `values` gives the float64 values of a block of rows.
    Units:  those of x times those of w.
    Error:  K * 2**-53 * sum of |x||w| an element, in whatever order the BLAS adds; the blocks do not depend on the
            number of workers.
    Source: the model's definition. Raises ValueError where the widths differ.
    """
    rows, width = w.shape
    if x.shape[-1] != width:
        raise ValueError(f"activations of width {x.shape[-1]} meet weights of width {width}")
    flat = x.reshape(-1, width)
    y = np.empty((flat.shape[0], rows))
    step = max(1, BLOCK_BYTES // (8 * width))

    def fill(start: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a thread starts with NumPy's own settings
            y[:, start : start + step] = flat @ values(take_rows(w, slice(start, start + step))).T

    starts = range(0, rows, step)
    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(fill, starts))
    return y.reshape(*x.shape[:-1], rows)
