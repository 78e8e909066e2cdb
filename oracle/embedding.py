"""Embedding rows of tokens."""

import numpy as np

from oracle.arrays import F64, I64
from oracle.formats import Q8_0, q8_0_decode
from oracle.model_weights import Tensor


def embedding(table: Tensor, tokens: I64) -> F64:
    """Row of each token, dequantised.

    Shapes: table [V, D], tokens [...] in 0..V-1 -> [..., D].
    Units:  element = code * scale.
    Error:  none.
    Source: the model's definition. Raises IndexError where a token lies outside 0..V-1.
    """
    rows = table.shape[0]
    if tokens.size and (tokens.min() < 0 or tokens.max() >= rows):
        raise IndexError(f"tokens {tokens.min()} to {tokens.max()} do not all lie in 0..{rows - 1}")
    return dense(table)[tokens] if not isinstance(table, Q8_0) else _quantised(table, tokens)


def dense(tensor: Tensor) -> F64:
    """A tensor's values as float64, exact. Shapes: any. Source: the formats' definitions."""
    return q8_0_decode(tensor) if isinstance(tensor, Q8_0) else np.asarray(tensor, dtype=np.float64)


def _quantised(table: Q8_0, tokens: I64) -> F64:
    flat = tokens.reshape(-1)
    return dense(Q8_0(table.codes[flat], table.scales[flat])).reshape(*tokens.shape, -1)
