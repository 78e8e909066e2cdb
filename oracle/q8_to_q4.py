"""Four-bit weights from Q8_0 weights, packed as kernels read them."""

import numpy as np
from numpy.typing import NDArray

from oracle.formats.q4 import q4_from_q8_0, q4_pack
from oracle.formats.q8_0 import Q8_0


def q8_to_q4(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Packed Q4 codes and their scales.

    Shapes: codes int8 [N, K], scales float16 [N, K/32] -> uint8 [N, K/2], float16 [N, K/32].
    Units:  element = (nibble - 8) * scale.
    Error:  at most half of the new scale an element; none where a block's codes all lie in -8..7.
    Source: the Q4 format. Raises LanelockError where a new scale is infinite in float16.
    """
    q = q4_from_q8_0(Q8_0(codes, scales))
    return q4_pack(q.codes), q.scales
