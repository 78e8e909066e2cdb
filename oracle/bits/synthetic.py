"""Synthetic Q8_0 weights by whole arrays of words (NumPy uint64, which wraps)."""

import numpy as np
from numpy.typing import NDArray

STEP, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(key: int, count: int) -> NDArray[np.uint64]:
    """The first words of a stream. Shapes: -> [count]."""
    z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * STEP
    z = (z ^ z >> np.uint64(30)) * FIRST
    z = (z ^ z >> np.uint64(27)) * SECOND
    return np.asarray(z ^ z >> np.uint64(31))


def synthetic(
    code_key: int, scale_key: int, lowest: int, blocks: int
) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes and scales of the first blocks of a tensor. Shapes: -> [blocks, 32], [blocks]."""
    codes = np.maximum(words(code_key, 4 * blocks).astype("<u8").view(np.int8), np.int8(-127))
    scales = (words(scale_key, blocks) >> np.uint64(57)).astype(np.uint16) + np.uint16(lowest)
    return codes.reshape(blocks, 32), scales.view(np.float16)
