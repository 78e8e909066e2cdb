"""Seeded inputs for any catalogue kernel, from its argument list alone."""

from collections.abc import Mapping

import numpy as np

from kernels.entry import DTYPES, Buffer, Kernel, Value, buffer_dtype, buffer_shape, instance, resolve
from oracle.errors import LanelockError


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a dtype: normal floats, all int8 codes but -128, small non-negative indices.

    Indices are zero, which every table has, because an entry does not say how long the table behind an index is.
    """
    if dtype in ("f32", "f64", "f16"):
        return rng.standard_normal(shape).astype(DTYPES[dtype][0])
    if dtype == "i8":
        return rng.integers(-127, 128, shape).astype(np.int8)
    if dtype == "e4m3":
        return rng.integers(0, 0x7E, shape).astype(np.uint8)
    return np.zeros(shape, DTYPES[dtype][0])


def random_inputs(
    kernel: Kernel, dims: Mapping[str, Value], template: Mapping[str, Value], seed: int
) -> dict[str, np.ndarray]:
    """Every buffer the kernel reads, seeded. Raises LanelockError if a dim is missing or refused."""
    inst = instance(kernel, **template)
    try:
        full = resolve(inst, dims)
        rng = np.random.default_rng(seed)
        return {
            b.name: random_array(rng, buffer_dtype(inst, b), buffer_shape(b, full))
            for b in kernel.buffers
            if isinstance(b, Buffer) and b.access != "w"
        }
    except KeyError as missing:
        raise LanelockError(f"{kernel.name}: dim {missing.args[0]} is missing; give it with --dims") from None
