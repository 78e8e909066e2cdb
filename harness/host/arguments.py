"""Pack the arguments of a launch, each checked against the catalogue, by value as CUDA captures them."""

import ctypes
import struct
from collections.abc import Sequence

import numpy as np

from harness.device import Argument, DeviceError, Memory, Pointer
from kernels.entry import DTYPES, Buffer, Instance, Scalar, buffer_dtype

_RANGES = {"int": (-(2**31), 2**31), "unsigned": (0, 2**32), "long long": (-(2**63), 2**63)}


class Packed:
    """The values of one launch and the array of their addresses that a thunk reads."""

    __slots__ = ("address", "pointers", "values")

    def __init__(self, words: Sequence[int]) -> None:
        """Copy the values: what the caller does with them later does not matter."""
        count = len(words)
        self.values = (ctypes.c_uint64 * max(count, 1))(*words)
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_uint64 * max(count, 1))(*range(first, first + 8 * count, 8))
        self.address = ctypes.addressof(self.pointers)


def _pointer(inst: Instance, buffer: Buffer, value: Argument) -> int:
    where = f"{inst.expression} on the host device: argument {buffer.name}"
    if value is None:
        if buffer.optional:
            return 0
        raise DeviceError(f"{where} is null")
    if not isinstance(value, Memory | Pointer):
        raise DeviceError(f"{where} must be memory, not {type(value).__name__}")
    memory = value.memory if isinstance(value, Pointer) else value
    if not memory.handle.alive:
        raise DeviceError(f"{where} is memory {memory.name}, which was freed")
    align = buffer.align or np.dtype(DTYPES[buffer_dtype(inst, buffer)][0]).itemsize
    if value.address % align:
        raise DeviceError(f"{where} is not aligned to {align} bytes")
    return value.address


def _scalar(inst: Instance, scalar: Scalar, value: Argument) -> int:
    where = f"{inst.expression} on the host device: argument {scalar.name}"
    if not isinstance(value, int | float | np.integer | np.floating):
        raise DeviceError(f"{where} must be {scalar.ctype}, not {type(value).__name__}")
    if scalar.ctype == "float":
        return int(struct.unpack("<I", np.float32(value).tobytes())[0])
    low, high = _RANGES[scalar.ctype]
    if int(value) != value or not low <= value < high:
        raise DeviceError(f"{where} = {value} does not fit {scalar.ctype}")
    return int(value) & 0xFFFFFFFFFFFFFFFF


def pack(inst: Instance, args: Sequence[Argument]) -> Packed:
    """The packed arguments in catalogue order. Raises DeviceError that names the argument that does not fit."""
    declared = inst.kernel.args
    if len(args) != len(declared):
        raise DeviceError(f"{inst.expression} takes {len(declared)} arguments, got {len(args)}")
    return Packed([
        _pointer(inst, a, value) if isinstance(a, Buffer) else _scalar(inst, a, value)
        for a, value in zip(declared, args, strict=True)
    ])
