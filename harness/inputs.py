"""Seeded inputs for any catalogue kernel, from its argument list alone."""

import math
from collections.abc import Mapping

import numpy as np

from kernels.entry import DTYPES, Buffer, Kernel, Scalar, Value, buffer_dtype, buffer_shape, instance, resolve
from oracle.errors import LanelockError


class _Asked(dict[str, Value]):
    """Dims that note which of them a derivation, a geometry or a rule asks for."""

    def __init__(self, dims: Mapping[str, Value]) -> None:
        super().__init__(dims)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.names.add(name)
        return super().__getitem__(name)


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a dtype: normal floats, all int8 codes but -128, bytes below 60, small non-negative indices.

    Bytes are packed weights, whose scales are float16: two bytes below 60 are a positive one below one, never a NaN.
    Indices are zero, which every table has, because an entry does not say how long the table behind an index is.
    """
    if dtype in ("f32", "f64", "f16"):
        return rng.standard_normal(shape).astype(DTYPES[dtype][0])
    if dtype == "i8":
        return rng.integers(-127, 128, shape).astype(np.int8)
    if dtype == "u8":
        return rng.integers(0, 60, shape).astype(np.uint8)
    if dtype == "e4m3":
        return rng.integers(0, 0x7E, shape).astype(np.uint8)
    return np.zeros(shape, DTYPES[dtype][0])


def checked_dims(kernel: Kernel, dims: Mapping[str, Value], template: Mapping[str, Value]) -> dict[str, Value]:
    """All dims of a launch whose values a user typed.

    Raises LanelockError naming the dim or template parameter that is unknown, missing, no whole number where one is
    needed or not finite, and as `resolve` does.
    """
    for name, value in {**dims, **template}.items():
        _check_type(kernel, name, value)
    wanted = {name for argument in kernel.args for name in _names(argument)}
    try:
        full = resolve(instance(kernel, **template), dims)
        asked = _Asked(full)
        derived = kernel.derive(asked)
        kernel.geometry(asked)
        for rule in kernel.rules:
            rule.holds(asked)
        missing = sorted(wanted - set(full))
    except KeyError as error:
        missing = [error.args[0]]
    if missing:
        raise LanelockError(f"{kernel.name}: dim {missing[0]} is missing; give it with --dims")
    known = wanted | asked.names | set(derived) | {p.name for p in kernel.params}
    if unknown := sorted(set(dims) - known):
        raise LanelockError(f"{kernel.name}: has no dim {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return full


def _names(argument: Buffer | Scalar) -> set[str]:
    if isinstance(argument, Scalar):
        return {argument.name}
    return {axis for axis in (*argument.shape, argument.pitch) if isinstance(axis, str)}


def _check_type(kernel: Kernel, name: str, value: Value) -> None:
    fractional = any(isinstance(a, Scalar) and a.name == name and a.ctype == "float" for a in kernel.args)
    if any(p.name == name for p in kernel.params):
        if isinstance(value, float):
            raise LanelockError(f"{kernel.name}: template parameter {name} = {value} is no whole number")
    elif isinstance(value, bool | str) or not math.isfinite(value):
        raise LanelockError(f"{kernel.name}: dim {name} = {value} is not a finite number")
    elif isinstance(value, float) and not fractional:
        raise LanelockError(f"{kernel.name}: dim {name} = {value} is not a whole number")


def random_inputs(
    kernel: Kernel, dims: Mapping[str, Value], template: Mapping[str, Value], seed: int
) -> dict[str, np.ndarray]:
    """Every buffer the kernel reads, seeded. Raises LanelockError if a dim is missing or refused."""
    inst = instance(kernel, **template)
    full = checked_dims(kernel, dims, template)
    rng = np.random.default_rng(seed)
    return {
        b.name: random_array(rng, buffer_dtype(inst, b), buffer_shape(b, full))
        for b in kernel.buffers
        if isinstance(b, Buffer) and b.access != "w"
    }
