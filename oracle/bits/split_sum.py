"""Split-K reduction."""

from oracle.bits.add import sum_planes
from oracle.bits.fma import F32


def split_sum(planes: F32) -> F32:
    """Planes added ascending, from zero.

    Shapes: planes [P, rows, N] -> [rows, N].
    Units:  those of the planes.
    Error:  none against the contract.
    Source: ARITHMETIC.md, planes.
    """
    return sum_planes(planes)
