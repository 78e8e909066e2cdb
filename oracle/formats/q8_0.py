"""Q8_0: weights as int8 codes with one float16 scale per 32 elements along K."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Q8_0:  # noqa: N801 - the name that the format has everywhere
    """A matrix as one int8 code an element and one scale per 32 elements along K.

    Shapes: codes int8 [N, K], scales float16 [N, K/32].
    Units:  element = code * scale.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return self.codes.shape[0], self.codes.shape[1]


def q8_0_encode(x: NDArray[Any], name: str = "matrix") -> Q8_0:
    """Quantise by the published rule: codes by the float32 scale, which is stored rounded to float16.

    Shapes: x [N, K] float, K a multiple of 32.
    Units:  d = amax/127 and code = round-half-away(x * (1/d)), each operation rounded to float32; scale = fp16(d).
    Error:  |x - code * d| <= d/2 + 2 roundings of x; the fp16 scale adds 2**-11 relative where it is normal.
    Source: ggml, quantize_row_q8_0_ref. Raises LanelockError, naming the matrix and the row, where an element is
    not finite or a scale is infinite in fp16 (amax of 127 * 65520 = 8321040 or more).
    """
    blocks = _blocks(x, name)
    amax = np.abs(blocks).max(axis=-1, initial=np.float32(0))
    _refuse(~np.isfinite(amax), name, "holds a NaN or an infinity")
    d = amax / np.float32(127)
    with np.errstate(over="ignore", divide="ignore"):
        scales = d.astype(np.float16)
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
    _refuse(np.isinf(scales), name, "needs a Q8_0 scale that is infinite in fp16")
    # 1/d overflows only where d is below 2**-127: such a scale is 0 in fp16, and so is the block.
    inverse[np.isinf(inverse)] = 0
    codes = round_half_away(blocks * inverse[..., None]).astype(np.int8)
    return Q8_0(codes.reshape(x.shape), scales)


def q8_0_decode(q: Q8_0) -> NDArray[np.float64]:
    """Values as float64, exact (they are exact in float32 too: 8 and 11 significant bits).

    Shapes: codes [N, K], scales [N, K/32] -> [N, K].
    Units:  value = code * scale.
    Error:  none.
    Source: the format's definition.
    """
    blocks = q.codes.reshape(*q.scales.shape, BLOCK)
    values: NDArray[np.float64] = blocks * q.scales.astype(np.float64)[..., None]
    return values.reshape(q.codes.shape)


def round_half_away(x: NDArray[Any]) -> NDArray[Any]:
    """Nearest integer, ties away from zero: C's roundf.

    Shapes: any, same shape and type out.
    Units:  those of x.
    Error:  none: x - trunc(x) is exact, where adding 0.5 would round 0.49999997 up to 1.
    Source: C17 7.12.9.6.
    """
    whole = np.trunc(x)
    nearest: NDArray[Any] = np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(np.ones_like(x), x), whole)
    return nearest


def _blocks(x: NDArray[Any], name: str) -> NDArray[np.float32]:
    if x.ndim != 2 or x.shape[1] % BLOCK:
        raise LanelockError(f"{name}: Q8_0 takes a matrix with a multiple of 32 columns, not shape {x.shape}.")
    with np.errstate(over="ignore"):
        return x.astype(np.float32).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)


def _refuse(bad: NDArray[np.bool_], name: str, what: str) -> None:
    if bad.any():
        row, block = np.argwhere(bad)[0]
        raise LanelockError(f"{name}: row {row}, columns {BLOCK * block} to {BLOCK * block + BLOCK - 1} {what}.")
