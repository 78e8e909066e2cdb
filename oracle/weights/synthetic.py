"""Weights made from a seed, exactly reproducible anywhere: integers, and conversions without rounding.

Bit by bit, all arithmetic on unsigned 64-bit integers that wrap:

    mix(z):   z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    fnv(s):   h = 0xCBF29CE484222325;  for each byte c of s in UTF-8: h = (h ^ c) * 0x00000100000001B3
    key(s):   mix(mix(seed) ^ fnv(s))
    word(s, i) = mix(key(s) + (i + 1) * 0x9E3779B97F4A7C15)

A Q8_0 tensor NAME of shape [N, K], element e = n*K + k:
    code  = byte (e mod 8), counted from the least significant, of word(NAME + ".codes", e div 8), read as int8,
            with -128 replaced by -127;
    scale of block b = n*(K/32) + k div 32 = the float16 whose bits are base + (word(NAME + ".scales", b) >> 57);
    base  = bits of float16(sigma / 80), where sigma = gain / sqrt(K) in float64 (80: the codes' deviation of 73.9
            times the mean of the 1 to 1.125 that the added bits multiply by). For `emb`, sigma is its gain.
A float32 tensor NAME, element i in row-major order, w = word(NAME, i), v = (w >> 52) - 2048:
    value = centre + v * 2^-shift;   `Al`: value = -(4096 + (w >> 52)) * 2^-(13 + (w & 7)).

The gains and centres are in the tables below: activations keep a unit scale through any depth, decays lie between 0.7
and 0.999, and the embedding is small so that a tied head does not just repeat its input.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.config import BLOCK, ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, specs
from oracle.weights.assemble import is_quantised

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
GAINS = {"emb": 0.0625, "Wout": 3.0, "qkvz": 1.0, "qgkv": 1.0, "gu": 1.0, "Wd": 0.75, "Wo": 0.75, "ehproj": 1.0}
CENTRE_SHIFT = {"Wc": (0.0, 11), "Dt": (-1.0, 11)}  # a norm is 1 + v * 2^-14; `ba` depends on d
WORDS = 1 << 15  # counters mixed at once: they and their temporaries stay in the second-level cache


@dataclass(frozen=True, slots=True)
class SyntheticWeights:
    """Weights of any config from a 64-bit seed; rows are made when they are asked for.

    Error:  none; equal on every machine.
    Source: this module's docstring; splitmix64 is Steele, Lea & Flood 2014, FNV-1a is Fowler, Noll & Vo.
    Raises LanelockError for an unknown tensor, or rows that a matrix does not have.
    """

    config: ModelConfig
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MASK:
            raise LanelockError(f"synthetic weights take a seed of 0 to 2^64 - 1, not {self.seed}.")

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        spec = self._shape(name)
        if is_quantised(name):
            return self.rows(name, np.arange(spec[0]))
        return self._floats(name, np.arange(math.prod(spec), dtype=np.uint64)).reshape(spec)

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix, in that order."""
        shape = self._shape(name)
        if len(shape) != 2 or (index < 0).any() or (index >= shape[0]).any():
            raise LanelockError(f"synthetic tensor {name!r} of shape {shape} has no such rows.")
        first = index.astype(np.uint64)
        if not is_quantised(name):
            return self._floats(name, counters(first, shape[1]).ravel()).reshape(len(index), shape[1])
        codes = np.empty((len(index), shape[1]), np.int8)
        scales = np.empty((len(index), shape[1] // BLOCK), np.float16)
        low_bits = scale_bits(name, shape[1])
        for part in _portions(len(index), shape[1] // 8):
            raw = words(key(self.seed, f"{name}.codes"), counters(first[part], shape[1] // 8))
            np.maximum(raw.astype("<u8", copy=False).view(np.int8), np.int8(-127), out=codes[part])
            high = words(key(self.seed, f"{name}.scales"), counters(first[part], shape[1] // BLOCK)) >> np.uint64(57)
            scales[part] = (high.astype(np.uint16) + low_bits).view(np.float16)
        return Q8_0(codes, scales)

    def _shape(self, name: str) -> tuple[int, ...]:
        table = specs(self.config)
        if name not in table:
            raise LanelockError(f"synthetic weights of {self.config.name} have no tensor {name!r}.")
        return table[name].shape

    def _floats(self, name: str, at: NDArray[np.uint64]) -> NDArray[np.float32]:
        raw = words(key(self.seed, name), at)
        top = (raw >> np.uint64(52)).astype(np.float64)
        part = name.rpartition(".")[2]
        if part == "Al":
            return np.ldexp(-(4096 + top), -13 - (raw & np.uint64(7)).astype(np.int32)).astype(np.float32)
        centre, shift = CENTRE_SHIFT.get(part, (1.0, 14))
        if part == "ba":
            centre, shift = 0.0, 11 + (self.config.d.bit_length() - 1) // 2
        return (centre + np.ldexp(top - 2048, -shift)).astype(np.float32)


def mix(z: int) -> int:
    """The finaliser of splitmix64.  Units: 64-bit integers."""
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def key(seed: int, name: str) -> int:
    """The counter's start for one stored tensor.  Units: 64-bit integers."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x00000100000001B3) & MASK
    return mix(mix(seed) ^ h)


def words(start: int, at: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """word(s, i) for counters i, given key(s).  Shapes: same in and out."""
    # in place, with one scratch array: fresh temporaries cost more in page faults than all of the arithmetic.
    z = np.add(at, np.uint64(1), dtype=np.uint64)
    scratch = np.empty_like(z)
    np.multiply(z, np.uint64(STEP), out=z)
    np.add(z, np.uint64(start), out=z)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.bitwise_xor(z, np.right_shift(z, np.uint64(shift), out=scratch), out=z)
        np.multiply(z, np.uint64(factor), out=z)
    return z


def counters(rows: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Counters of whole rows.  Shapes: rows [R] -> [R, width]."""
    inside: NDArray[np.uint64] = np.arange(width, dtype=np.uint64)
    out: NDArray[np.uint64] = np.add(rows[:, None] * np.uint64(width), inside, dtype=np.uint64)
    return out


def scale_bits(name: str, columns: int) -> np.uint16:
    """The smallest scale of a matrix, as float16 bits; up to 127 is added to them."""
    part = name.rpartition(".")[2]
    sigma = GAINS[part] if part == "emb" else GAINS[part] / math.sqrt(columns)
    return np.float16(sigma / 80).view(np.uint16)


def _portions(rows: int, width: int) -> Iterator[slice]:
    step = max(1, WORDS // width)
    return (slice(low, low + step) for low in range(0, rows, step))
