"""What the exact primitives of the device layer return, lane by lane (PTX ISA)."""

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
LANES = np.arange(32)


def shuffle(x: U32, distance: int) -> tuple[U32, NDArray[np.int64]]:
    """What each lane gets from another one.

    Shapes: x [warps, 32] -> [warps, 4, 32] (xor, down, up, lane 7 - l), and the xor of the 64-bit words x << 20.
    Units:  words. A source outside the warp gives the lane its own word.
    Error:  none.
    Source: PTX ISA, shfl.sync.
    """
    down, up = LANES + distance, LANES - distance
    sources = [LANES ^ distance, np.where(down < 32, down, LANES), np.where(up >= 0, up, LANES), (7 - LANES) % 32]
    return np.stack([x[:, s] for s in sources], axis=1), x[:, LANES ^ distance].astype(np.int64) << 20


def and_xor(x: U32, kept: U32, turned: U32) -> U32:
    """The bits of x that are kept, some of them turned over.

    Shapes: [n] each -> [n].
    Units:  bits.
    Error:  none.
    Source: PTX ISA, lop3.b32, immLut (0xF0 & 0xCC) ^ 0xAA.
    """
    return (x & kept) ^ turned


def vote(x: NDArray[np.int32]) -> U32:
    """Ballot, any and all of x > 0, and the ballot of each half of the warp by itself.

    Shapes: x [warps, 32] -> [warps, 4, 32].
    Units:  bit l of a ballot belongs to lane l.
    Error:  none.
    Source: PTX ISA, vote.sync.
    """
    p = x > 0
    ballot = (p.astype(np.uint64) << LANES.astype(np.uint64)).sum(axis=1).astype(np.uint32)[:, None]
    halves = ballot & np.where(LANES < 16, np.uint32(0x0000FFFF), np.uint32(0xFFFF0000))
    rows = [ballot, p.any(axis=1, keepdims=True), p.all(axis=1, keepdims=True), halves]
    return np.stack([np.broadcast_to(r, x.shape).astype(np.uint32) for r in rows], axis=1)


def ldmatrix(x: NDArray[np.uint8]) -> U32:
    """Registers of every lane after loading 8 x 8 matrices of 16 bits.

    Shapes: x [tiles, 32, 16] (row r of matrix m is row 8 m + r) -> [tiles, 14, 32]: x1, x2, x4, then transposed.
    Units:  a register holds two neighbours of a row (transposed: of a column), the first in its low half.
    Error:  none.
    Source: PTX ISA, ldmatrix: lane l holds elements 2 (l % 4) and the next of row l / 4.
    """
    matrices = np.ascontiguousarray(x).view(np.uint16).reshape(len(x), 4, 8, 8)

    def registers(m: NDArray[np.uint16]) -> U32:
        return np.ascontiguousarray(m).reshape(len(x), 4, 64).view(np.uint32)

    loaded = [registers(matrices), registers(matrices.transpose(0, 1, 3, 2))]
    return np.concatenate([r[:, :count] for r in loaded for count in (1, 2, 4)], axis=1)


def staged_copy(x: NDArray[np.uint8], tail: int) -> NDArray[np.uint8]:
    """Chunks after 16-byte copies whose last `tail` bytes are zeros.

    Shapes: x [chunks, 512] -> the same.
    Units:  bytes.
    Error:  none.
    Source: PTX ISA, cp.async with a source size.
    """
    pieces = x.reshape(-1, 16).copy()
    pieces[:, 16 - tail :] = 0
    return pieces.reshape(x.shape)
