"""Positions of the rows of a chunk."""

import numpy as np
from numpy.typing import NDArray


def positions(start: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Row t * B + b of a chunk stands at start[b] + t.

    Shapes: start [B] -> [length * B].
    Units:  tokens.
    Error:  none.
    Source: ARITHMETIC.md, positions.
    """
    return (start[None, :] + np.arange(length, dtype=np.int32)[:, None]).reshape(-1)
