"""Positions of the rows of a chunk, which are token-major."""

import numpy as np

from oracle.arrays import I64
from oracle.errors import LanelockError


def positions(start: I64, length: int, context: int) -> I64:
    """Position of every row of a chunk: row t*B + b is token t of sequence b.

    Shapes: start [B] -> [length * B].
    Units:  tokens from the start of the sequence.
    Error:  none.
    Source: the contract. Raises LanelockError, naming the sequence, where the chunk overruns the context.
    """
    over = start + length > context
    if over.any():
        row = int(np.argmax(over))
        raise LanelockError(f"sequence {row}: {length} tokens from position {start[row]} overrun the context of "
                            f"{context}.")
    return (start[None, :] + np.arange(length)[:, None]).reshape(-1)
