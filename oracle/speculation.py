"""Greedy speculation: how many drafts plain decoding would have made itself."""

import numpy as np

from oracle.arrays import F64, I64


def accept(drafts: I64, picks: I64) -> tuple[I64, I64]:
    """Rows of a verify that plain decoding would have consumed, and the token behind the last of them.

    Shapes: drafts [B, k], picks [B, k + 1], the greedy token behind the current token and behind each draft ->
            kept [B], 1 to k + 1, and next [B].
    Units:  tokens; row 0 is the current token and is always kept.
    Error:  none.
    Source: Leviathan et al. 2023, for greedy decoding: a draft stands if it is the token picked before it. Raises
    ValueError where there is not one pick more than drafts.
    """
    if picks.shape != (drafts.shape[0], drafts.shape[1] + 1):
        raise ValueError(f"{drafts.shape} drafts do not fit picks of shape {picks.shape}")
    agreed = np.cumprod(drafts == picks[:, :-1], axis=1).sum(axis=1)
    return 1 + agreed, np.take_along_axis(picks, agreed[:, None], axis=1)[:, 0]


def rows(end: I64, position: I64, drafts: int) -> I64:
    """Rows a verify may have, so that speculation ends where plain decoding does.

    Shapes: end, position [B] -> [B], 0 to drafts + 1.
    Units:  tokens; a sequence may consume tokens at positions below its end.
    Error:  none.
    Source: the model's definition: a token consumed at position p fills row p of the cache.
    """
    return np.asarray(np.clip(end - position, 0, drafts + 1))


def pick_rows(x: F64, count: I64) -> F64:
    """Row count - 1 of each sequence, the last one kept.

    Shapes: x [T, B, K], count [B] from 1 to T -> [B, K].
    Units:  those of x.
    Error:  none.
    Source: the model's definition, MTP: the next draft starts from the last accepted hidden state.
    """
    return x[count - 1, np.arange(x.shape[1])]
