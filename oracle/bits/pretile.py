"""Weight pre-tiling: rows of codes and scales as panels, in whole-array steps."""

import numpy as np
from numpy.typing import NDArray

ROWS, BLOCKS, SLICES = 16, 4, 8  # weight rows and blocks of a panel; slices of K


def pretile(codes: NDArray[np.uint8], scales: NDArray[np.float16], bits: int) -> NDArray[np.uint8]:
    """Panels of 16 rows by 4 blocks in the order of mma fragments, scales behind the codes, padded by values of zero.

    Shapes: codes uint8 [N, K * bits / 8], scales float16 [N, K/32] -> [ceil(N/16), 8, chunks, 64 * (4 * bits + 2)].
    Units:  bytes.
    Error:  none: a permutation.
    Source: kernels/pretile.cu's page, which is the format; the oracle reads it back by another route.
    """
    unit = 4 * bits
    N, KB = scales.shape
    longest = -(-KB // SLICES)
    chunks = -(-longest // BLOCKS)
    panels = -(-N // ROWS)
    c = np.full((panels * ROWS, SLICES, chunks * BLOCKS, unit), 0 if bits == 8 else 0x88, np.uint8)
    s = np.zeros((panels * ROWS, SLICES, chunks * BLOCKS), np.float16)
    for i in range(SLICES):
        begin, end = i * KB // SLICES, (i + 1) * KB // SLICES
        c[:N, i, : end - begin] = codes.reshape(N, KB, unit)[:, begin:end]
        s[:N, i, : end - begin] = scales[:, begin:end]
    shape = (panels, 2, 8, SLICES, chunks)  # panel, half, g, slice, chunk
    if bits == 8:
        # then block, low or high, t, byte
        c = c.reshape(*shape, 4, 2, 4, 4).transpose(0, 3, 4, 5, 2, 7, 6, 1, 8)
    else:
        nibbles = np.stack([c & 15, c >> 4], axis=-1).reshape(*shape, 4, 2, 16)
        both = nibbles[..., 0, :] | nibbles[..., 1, :] << np.uint8(4)
        # then pair of blocks, block, t, byte
        c = both.reshape(*shape, 2, 2, 4, 4).transpose(0, 3, 4, 5, 2, 7, 6, 1, 8)
    s = s.reshape(panels, 2, 8, SLICES, chunks, BLOCKS).transpose(0, 3, 4, 2, 1, 5)
    parts = (np.ascontiguousarray(c).reshape(panels, SLICES, chunks, -1), _bytes(s).reshape(panels, SLICES, chunks, -1))
    return np.concatenate(parts, axis=-1)


def _bytes(s: NDArray[np.float16]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(s).view(np.uint8)
