"""fp8 e4m3: codes, and matrices scaled per row (or channel), per 128 along K, and as a pair of codes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

E4M3_MAX = 448.0
E4M3_NAN = 0x7F
GROUP = 128  # elements along K that share a scale
ROW_PAD = 4  # rows of the stored scales come in fours
SCALE_FLOOR = np.float32(2.0**-126)
ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class E4M3Rows:
    """Shapes: codes uint8 [N, K], scales float32 [N]. Units: element = e4m3(code) * scale of its row."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class E4M3Blocks:
    """Shapes: codes uint8 [N, K], scales float32 [ceil(K/128), N padded to 4], zero in the padding.

    Units: element [n, k] = e4m3(code) * scales[k // 128, n].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class E4M3Pair:
    """Shapes: hi and lo uint8 [N, K], scales as `E4M3Blocks`.

    Units: element [n, k] = (e4m3(hi) + e4m3(lo)/16) * scales[k // 128, n].
    """

    hi: NDArray[np.uint8]
    lo: NDArray[np.uint8]
    scales: NDArray[np.float32]


def e4m3_encode(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes of the nearest e4m3 values, ties to even, saturating.

    Shapes: any -> uint8.
    Units:  sign, four bits of exponent (bias 7), three of mantissa.
    Error:  2**-4 relative where normal, 2**-10 absolute below 2**-6; beyond +-448 saturates; NaN is 0x7F.
    Source: OCP OFP8, E4M3, saturating conversion.
    """
    wide = np.asarray(x, dtype=np.float64)
    size = np.minimum(np.abs(np.where(np.isnan(wide), 0.0, wide)), E4M3_MAX)
    # frexp calls the exponent of zero 0, which would make it a normal number.
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, -6), -6)
    # steps of an eighth of the leading bit: 8..15 where normal, 0..7 where not, and 16 carries to the next exponent.
    steps = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int64)
    codes = (exponent + 6) * 8 + steps
    signed = codes + np.where(np.signbit(wide), 128, 0)
    return np.where(np.isnan(wide), E4M3_NAN, signed).astype(np.uint8)


def e4m3_decode(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Values as float64. Shapes: any. Units: as `e4m3_encode`. Error: none; 0x7F and 0xFF are NaN. Source: OCP OFP8."""
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(8.0 + mantissa, exponent.astype(np.int64) - 10)
    size = np.where(exponent == 0, np.ldexp(mantissa.astype(np.float64), -9), normal)
    size = np.where((codes & 127) == E4M3_NAN, np.nan, size)
    return np.where(codes >= 128, -size, size)


def e4m3_rows_encode(x: NDArray[Any]) -> E4M3Rows:
    """Scale each row to 448 and round: weights per output channel, activations per token.

    Shapes: x [N, K], taken as float32.
    Units:  s = max(amax/448, 2**-126), 1 for a zero row; code = e4m3(x/s), each operation rounded to float32.
    Error:  2**-4 of an element, or 2**-10 * s where that is more; a row with a NaN or an infinity gets codes 0 and
            scale NaN.
    Source: the contract.
    """
    values = _float32(x)
    scales = _scales(values)
    return E4M3Rows(_codes(values, scales[..., None]), scales)


def e4m3_rows_decode(q: E4M3Rows) -> NDArray[np.float64]:
    """Values as float64. Shapes: [N, K]. Units: as `e4m3_rows_encode`. Error: none. Source: the contract."""
    return e4m3_decode(q.codes) * q.scales.astype(np.float64)[:, None]


def e4m3_blocks_encode(x: NDArray[Any]) -> E4M3Blocks:
    """Scale each row's groups of 128 to 448 and round; the last group may be shorter.

    Shapes: x [N, K], taken as float32.
    Units:  as `e4m3_rows_encode`, a group in place of a row.
    Error:  as `e4m3_rows_encode`, a group in place of a row.
    Source: the contract.
    """
    values = _float32(x)
    scales = _group_scales(values)
    return E4M3Blocks(_codes(values, _spread(scales, values.shape[1])), _stored(scales))


def e4m3_blocks_decode(q: E4M3Blocks) -> NDArray[np.float64]:
    """Values as float64. Shapes: [N, K]. Units: as `E4M3Blocks`. Error: none. Source: the contract."""
    rows, width = q.codes.shape
    values: NDArray[np.float64] = e4m3_decode(q.codes) * _spread(q.scales.T[:rows].astype(np.float64), width)
    return values


def e4m3_pair_encode(x: NDArray[Any]) -> E4M3Pair:
    """Two codes an element: the second holds sixteen times what the first lost, on the same scale.

    Shapes: x [N, K], taken as float32.
    Units:  hi = e4m3(x/s), r = x - hi*s rounded once to float32 (one fma), lo = e4m3((r/s) * 16).
    Error:  2**-8 of an element, or 2**-14 * s where that is more.
    Source: the contract.
    """
    values = _float32(x)
    hi = e4m3_blocks_encode(values)
    # the product has 28 bits and the difference fewer than 53, so float64 is exact and the cast is the one rounding.
    lost = (values.astype(np.float64) - e4m3_blocks_decode(hi)).astype(np.float32)
    scales = _spread(hi.scales.T[: values.shape[0]], values.shape[1])
    return E4M3Pair(hi.codes, _codes(lost, scales, np.float32(16)), hi.scales)


def e4m3_pair_decode(q: E4M3Pair) -> NDArray[np.float64]:
    """Values as float64. Shapes: [N, K]. Units: as `E4M3Pair`. Error: none. Source: the contract."""
    rows, width = q.hi.shape
    scales = _spread(q.scales.T[:rows].astype(np.float64), width)
    values: NDArray[np.float64] = (e4m3_decode(q.hi) + e4m3_decode(q.lo) / 16) * scales
    return values


def _float32(x: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _scales(values: NDArray[np.float32]) -> NDArray[np.float32]:
    bad: NDArray[np.bool_] = np.logical_not(np.isfinite(values).all(axis=-1))
    amax = np.abs(np.where(bad[..., None], np.float32(0), values)).max(axis=-1)
    scales = np.where(amax > 0, np.maximum(amax / np.float32(E4M3_MAX), SCALE_FLOOR), ONE)
    return np.where(bad, np.float32(np.nan), scales)


def _codes(
    values: NDArray[np.float32], scales: NDArray[np.float32], times: np.float32 = ONE
) -> NDArray[np.uint8]:
    bad = np.isnan(scales)
    scaled = np.where(bad, np.float32(0), values) / np.where(bad, ONE, scales)
    return e4m3_encode(scaled * times)


def _group_scales(values: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, width = values.shape
    groups = -(-width // GROUP)
    padded = np.zeros((rows, groups * GROUP), np.float32)
    padded[:, :width] = values
    return _scales(padded.reshape(rows, groups, GROUP))


def _spread(scales: NDArray[Any], width: int) -> NDArray[Any]:
    return np.repeat(scales, GROUP, axis=-1)[:, :width]


def _stored(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, groups = scales.shape
    stored = np.zeros((groups, -(-rows // ROW_PAD) * ROW_PAD), np.float32)
    stored[:, :rows] = scales.T
    return stored
