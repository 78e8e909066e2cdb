"""Greedy pick of the next token."""

import numpy as np

from oracle.arrays import F64, I64, Bools
from oracle.errors import LanelockError


def greedy(logits: F64) -> tuple[I64, Bools]:
    """Token of the highest logit, the lowest index on a tie, and a flag where there is none.

    Shapes: logits [..., V] -> token int64 [...], fault bool [...].
    Units:  logits in any unit; +inf wins, -inf loses, zeros of both signs tie.
    Error:  none. A row with a NaN, or with every logit -inf, is a fault; its token is 0, valid but meaningless.
    Source: the contract.
    """
    fault: Bools = np.any(np.isnan(logits), axis=-1) | np.all(np.isneginf(logits), axis=-1)
    # argmax takes the first of equals, and a NaN before any number.
    return np.where(fault, 0, np.argmax(logits, axis=-1)), fault


def pick(logits: F64, step: int) -> I64:
    """Token of each sequence at a step of a decode.

    Shapes: logits [B, V] -> int64 [B].
    Units:  as `greedy`.
    Error:  none.
    Source: the contract. Raises LanelockError, naming sequence and step, where a row is a fault.
    """
    token, fault = greedy(logits)
    if fault.any():
        row = int(np.argmax(fault))
        what = "a NaN" if np.isnan(logits[row]).any() else "no logit above -inf"
        raise LanelockError(f"sequence {row}, step {step}: the logits hold {what}, so there is no next token.")
    return token
