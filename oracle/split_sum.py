"""Sum of the planes of a split product."""

from oracle.arrays import F64


def split_sum(planes: F64) -> F64:
    """Sum over planes.

    Shapes: planes [P, ...] -> [...].
    Units:  those of the planes.
    Error:  P * 2**-53 * sum of |plane| an element.
    Source: the definition of a split sum. Raises ValueError where there is no plane.
    """
    if not len(planes):
        raise ValueError("a split product has at least one plane")
    total: F64 = planes.sum(axis=0)
    return total
