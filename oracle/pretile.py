"""Pre-tiled weights read back: what the panels of a matrix mean."""

import numpy as np
from numpy.typing import NDArray

ROWS, BLOCKS, BLOCK, SLICES = 16, 4, 32, 8  # of a panel; elements of a block; slices of K


def untile(tiles: NDArray[np.uint8], N: int, KB: int, bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Codes as stored in rows, and scales, of panels.

    Shapes: tiles uint8 [ceil(N/16), 8, chunks, panel bytes] -> uint8 [N, KB * 4 * bits], float16 [N, KB].
    Units:  bytes of Q8_0 codes (bits 8) or of packed Q4 codes (bits 4).
    Error:  none: a permutation; padding is left out.
    Source: the layout of the mma A operand, m16n8k32, PTX ISA; lane (g, t) owns elements 8t .. 8t + 7.
    """
    unit = 4 * bits
    codes = np.zeros((N, KB, unit), np.uint8)
    scales = np.zeros((N, KB), np.float16)
    for row in range(N):
        for block in range(KB):
            s = next(i for i in range(SLICES) if (i + 1) * KB // SLICES > block)
            chunk, j = divmod(block - s * KB // SLICES, BLOCKS)
            panel = tiles[row // ROWS, s, chunk]
            codes[row, block] = panel[_positions(row % ROWS, j, bits)]
            at = ROWS * BLOCKS * unit + 2 * ((row % 8 * 2 + row % ROWS // 8) * BLOCKS + j)
            scales[row, block] = panel[at : at + 2].view(np.float16)[0]
    return codes.reshape(N, KB * unit), scales


def _positions(row: int, j: int, bits: int) -> list[int]:
    """Byte of the panel that holds each byte of the codes of block j of a row."""
    g, half = row % 8, row // 8
    places = []
    for byte in range(4 * bits):
        if bits == 8:
            t, within = divmod(byte, 8)
            word = half + (2 if within >= 4 else 0)
            places.append((j * 32 + 4 * g + t) * 16 + 4 * word + within % 4)
        else:
            t, within = divmod(byte, 4)
            places.append((j // 2 * 32 + 4 * g + t) * 16 + 4 * (j % 2 * 2 + half) + within)
    return places
