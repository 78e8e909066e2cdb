"""The input of the draft head: two normed rows side by side."""

import numpy as np

from oracle.bits.fma import F32
from oracle.bits.rms_norm import rms_norm


def mtp_concat(embedded: F32, hidden: F32, enorm: F32, hnorm: F32, eps: float) -> F32:
    """Normed embedding and normed hidden state side by side, the embedding half first, each with a norm of its own.

    Shapes: embedded, hidden [..., K], enorm, hnorm [K] -> [..., 2K].
    Units:  eps adds to each mean square.
    Error:  none against the contract.
    Source: ARITHMETIC.md, MTP concatenation.
    """
    return np.concatenate([rms_norm(embedded, enorm, eps), rms_norm(hidden, hnorm, eps)], axis=-1)
