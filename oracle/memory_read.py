"""The xor of a buffer: what a kernel that only reads proves to have read; and its complement, for one that updates."""

import numpy as np
from numpy.typing import NDArray


def memory_read(x: NDArray[np.uint32]) -> np.uint32:
    """Xor of all words.

    Shapes: x [..] uint32 -> one word.
    Units:  none.
    Error:  none; integers.
    Source: ours. Raises nothing.
    """
    return np.uint32(np.bitwise_xor.reduce(x, axis=None))


def memory_update(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Every word's complement.

    Shapes: x [..] uint32 -> the same.
    Units:  none.
    Error:  none; integers.
    Source: ours. Raises nothing.
    """
    return np.invert(x)
