"""SwiGLU."""

import numpy as np

from oracle.bits.fma import F32
from oracle.bits.functions import silu


def swiglu(gate_up: F32) -> F32:
    """silu(gate) * up.

    Shapes: gate_up [..., 2F], gate first -> [..., F]. Planes are summed before (`add.sum_planes`).
    Units:  gate a pure number, those of up out.
    Error:  none against the contract.
    Source: ARITHMETIC.md, SwiGLU.
    """
    gate, up = np.split(gate_up, 2, axis=-1)
    with np.errstate(all="ignore"):
        return np.asarray(silu(gate) * up)
