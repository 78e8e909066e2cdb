"""Embedding rows out of a Q8_0 table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32

BLOCK = 32


def embedding(codes: NDArray[np.int8], scales: NDArray[np.float16], tokens: NDArray[Any]) -> F32:
    """The rows of the table that the tokens name.

    Shapes: codes [V, K], scales [V, K/32], tokens [...] -> [..., K].
    Units:  element = code * scale.
    Error:  none against the contract; the product is exact.
    Source: ARITHMETIC.md, embedding.
    """
    scale = np.repeat(scales[tokens].astype(np.float32), BLOCK, axis=-1)
    with np.errstate(all="ignore"):
        return np.asarray(codes[tokens].astype(np.float32) * scale)
