"""The input of the draft head."""

import numpy as np

from oracle.arrays import F64
from oracle.rms_norm import rms_norm


def mtp_cat(embedded: F64, hidden: F64, enorm: F64, hnorm: F64, eps: float) -> F64:
    """Normed embedding and normed hidden state side by side, the embedding half first.

    Shapes: embedded, hidden [..., d], enorm, hnorm [d] -> [..., 2d].
    Units:  eps adds to the mean square.
    Error:  that of the norm.
    Source: the model's definition, MTP.
    """
    return np.concatenate([rms_norm(embedded, enorm, eps), rms_norm(hidden, hnorm, eps)], axis=-1)
