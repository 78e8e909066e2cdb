"""Pre-tiled weights read back: what the panels of a matrix mean."""

import numpy as np
from numpy.typing import NDArray

ROWS, BLOCKS, BLOCK, SLICES = 16, 4, 32, 8  # of a panel; elements of a block; slices of K


def untile(tiles: NDArray[np.uint8], N: int, KB: int, bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Codes as stored in rows, and scales, of panels.

    Shapes: tiles uint8 [ceil(N/16), 8, chunks, panel bytes] -> uint8 [N, KB * 4 * bits], float16 [N, KB].
    Units:  bytes of Q8_0 codes (bits 8) or of packed Q4 codes (bits 4).
    Error:  none: a permutation; padding is left out.
    Source: the layout of the mma A operand, m16n8k32, PTX ISA.
    """
    unit = 4 * bits
    codes = np.zeros((N, KB, unit), np.uint8)
    scales = np.zeros((N, KB), np.float16)
    for row in range(N):
        for block in range(KB):
            s = next(i for i in range(SLICES) if (i + 1) * KB // SLICES > block)
            chunk, j = divmod(block - s * KB // SLICES, BLOCKS)
            panel = tiles[row // ROWS, s, chunk]
            codes[row, block] = _bytes_of(panel, row % ROWS, j, bits)
            at = ROWS * BLOCKS * unit + 2 * ((row % 8 * 2 + row % ROWS // 8) * BLOCKS + j)
            scales[row, block] = panel[at : at + 2].view(np.float16)[0]
    return codes.reshape(N, KB * unit), scales


def _bytes_of(panel: NDArray[np.uint8], row: int, j: int, bits: int) -> list[int]:
    """The bytes of block j of a row as they are stored in rows, element by element."""
    codes = [_element(panel, row, j, k, bits) for k in range(BLOCK)]
    if bits == 8:
        return codes
    return [codes[k] | codes[k + 1] << 4 for k in range(0, BLOCK, 2)]


def _element(panel: NDArray[np.uint8], row: int, j: int, k: int, bits: int) -> int:
    """Code k of block j of a row: lane (g, t) owns elements 4t .. 4t + 3 and 16 more of rows g and g + 8."""
    (high, within), g, half = divmod(k, 16), row % 8, row // 8
    lane, byte = 4 * g + within // 4, within % 4
    if bits == 8:
        return int(panel[(j * 32 + lane) * 16 + 4 * (half + 2 * high) + byte])
    both = int(panel[(j // 2 * 32 + lane) * 16 + 4 * (j % 2 * 2 + half) + byte])
    return both >> 4 if high else both & 15
