"""Which words each block of the read kernel owns."""

import numpy as np
from numpy.typing import NDArray


def memory_read(x: NDArray[np.uint32], blocks: int, threads: int = 512) -> NDArray[np.uint32]:
    """Xor of the words of each block: vector i of 4 words belongs to block (i / threads) mod blocks.

    Shapes: x [vectors, 4] uint32 -> y [blocks] uint32.
    Units:  none.
    Error:  none; integers.
    Source: ours. Raises nothing.
    """
    owner = np.arange(len(x)) // threads % blocks
    y: NDArray[np.uint32] = np.zeros(blocks, np.uint32)
    np.bitwise_xor.at(y, owner, np.bitwise_xor.reduce(x, axis=1))
    return y
