"""Greedy pick, and pick with advance of a sequence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32

I32 = NDArray[np.int32]
SAW_NAN, SAW_NOTHING, CACHE_FULL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Sequences:
    """State of B sequences. Shapes: tokens, flags, positions [B], history [B, limit + 1]. Units: indices."""

    tokens: I32
    flags: I32
    positions: I32
    history: I32


def pick(logits: F32) -> tuple[I32, I32]:
    """Token and flag of each row.

    Shapes: logits [B, V] -> tokens, flags, both int32 [B].
    Units:  indices; flag 0 a token, 1 a NaN in the row, 2 nothing above -inf. A flagged row has token 0.
    Error:  none against the contract.
    Source: ARITHMETIC.md, greedy pick.
    """
    nan = np.isnan(logits).any(axis=-1)
    flags = np.where(nan, SAW_NAN, np.where(np.isneginf(logits).all(axis=-1), SAW_NOTHING, 0)).astype(np.int32)
    return np.where(flags == 0, np.argmax(logits, axis=-1), 0).astype(np.int32), flags


def advance(logits: F32, sequences: Sequences, limit: int) -> Sequences:
    """Pick for every sequence that is not flagged, keep the token, move the position.

    Shapes: logits [B, V].
    Units:  limit is the number of rows of the cache; a sequence at its end keeps the token and is flagged 3.
    Error:  none against the contract.
    Source: ARITHMETIC.md, pick and advance.
    """
    tokens, flags = pick(logits)
    live = sequences.flags == 0
    good = live & (flags == 0)
    history = sequences.history.copy()
    rows = np.nonzero(good)[0]
    history[rows, sequences.positions[rows] + 1] = tokens[rows]
    room = sequences.positions + 1 < limit
    reason = np.where(flags != 0, flags, np.where(room, 0, CACHE_FULL))
    return Sequences(
        np.where(live, tokens, sequences.tokens).astype(np.int32),
        np.where(live, reason, sequences.flags).astype(np.int32),
        np.where(good & room, sequences.positions + 1, sequences.positions).astype(np.int32),
        history,
    )
