"""Pack, accept and pick rows: the integers of speculation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32

I32 = NDArray[np.int32]
CACHE_FULL = 3


@dataclass(frozen=True, slots=True)
class Lanes:
    """What an accept changes. Shapes: current, flags, position, began, pending [B], history [B, limit + 1],
    accepted [T, B]. Units: indices and counts.
    """

    current: I32
    flags: I32
    position: I32
    history: I32
    accepted: I32
    began: I32
    pending: I32


def pack(current: I32, drafts: I32, flags: I32, position: I32, end: I32) -> tuple[I32, I32]:
    """Rows of a verify and how many of them exist.

    Shapes: drafts [T - 1, B], the others [B] -> tokens [T, B], length [B].
    Units:  indices; a flagged sequence has no rows, one near its end fewer.
    Error:  none against the contract.
    Source: ARITHMETIC.md, pack.
    """
    tokens = np.concatenate([current[None], drafts])
    left = np.where(flags == 0, end.astype(np.int64) - position, 0)
    return tokens, np.clip(left, 0, len(tokens)).astype(np.int32)


def accept(tokens: I32, picks: I32, pick_flags: I32, length: I32, lanes: Lanes, limit: int) -> Lanes:
    """Walk the rows as plain decoding would.

    Shapes: tokens, picks, pick_flags [T, B], length [B].
    Units:  limit is the number of rows of the cache; a length below zero leaves its sequence alone.
    Error:  none against the contract.
    Source: ARITHMETIC.md, accept.
    """
    new = Lanes(*(getattr(lanes, n).copy() for n in Lanes.__dataclass_fields__))
    for b in range(tokens.shape[1]):
        if length[b] < 0:
            continue
        new.began[b] = lanes.position[b]
        new.pending[b] = 0
        for t in range(min(len(tokens), int(length[b]))):
            if t > 0 and tokens[t, b] != new.current[b]:
                break
            new.current[b], new.flags[b] = picks[t, b], pick_flags[t, b]
            if pick_flags[t, b] != 0:
                break
            new.pending[b] = t + 1
            new.accepted[t, b] = picks[t, b]
            new.history[b, new.position[b] + 1] = picks[t, b]
            if new.position[b] + 1 == limit:
                new.flags[b] = CACHE_FULL
                break
            new.position[b] += 1
    return new


def pick_rows(x: F32, count: I32, y: F32) -> F32:
    """Row count - 1 of each sequence; where count is not positive, what was there stays.

    Shapes: x [T, B, K], count [B], y [B, K] -> [B, K].
    Units:  those of x.
    Error:  none against the contract.
    Source: ARITHMETIC.md, pick rows.
    """
    picked = y.copy()
    for b in np.flatnonzero(count > 0):
        picked[b] = x[count[b] - 1, b]
    return picked
