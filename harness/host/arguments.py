"""Pack the arguments of a launch, each checked against the catalogue, by value as CUDA captures them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.device import Argument, DeviceError, Memory, Pointer
from kernels.entry import DTYPES, Buffer, Instance, buffer_dtype

_RANGES = {"int": (-(2**31), 2**31), "unsigned": (0, 2**32), "long long": (-(2**63), 2**63)}


class Packed:
    """The values of one launch, a word each, and the memories that its pointers lead into."""

    __slots__ = ("memories", "words")

    def __init__(self, words: bytes, memories: tuple[Memory, ...]) -> None:
        """Copied: what the caller does with the arguments later does not matter."""
        self.words, self.memories = words, memories


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter of a kernel: a pointer aligned to `align` bytes that may be null, or a number of type `ctype`."""

    name: str
    ctype: str  # empty for a pointer
    align: int = 0
    optional: bool = False


def slots(inst: Instance) -> tuple[Slot, ...]:
    """The parameters in catalogue order; made once a build, because a launch takes microseconds."""
    found = []
    for a in inst.kernel.args:
        if isinstance(a, Buffer):
            align = a.align or np.dtype(DTYPES[buffer_dtype(inst, a)][0]).itemsize
            found.append(Slot(a.name, "", align, a.optional))
        else:
            found.append(Slot(a.name, a.ctype))
    return tuple(found)


def _address(where: str, slot: Slot, memory: Memory, address: int) -> int:
    if not memory.handle.alive:
        raise DeviceError(f"{where} on the host device: argument {slot.name} is memory {memory.name}, which was freed")
    if address % slot.align:
        raise DeviceError(f"{where} on the host device: argument {slot.name} is not aligned to {slot.align} bytes")
    return address


def _number(where: str, slot: Slot, value: Argument) -> int:
    what = f"{where} on the host device: argument {slot.name}"
    if not isinstance(value, int | float | np.integer | np.floating):
        raise DeviceError(f"{what} must be {slot.ctype}, not {type(value).__name__}")
    if slot.ctype == "float":
        return int.from_bytes(np.float32(value).tobytes(), "little")
    low, high = _RANGES[slot.ctype]
    if int(value) != value or not low <= value < high:
        raise DeviceError(f"{what} = {value} does not fit {slot.ctype}")
    return int(value) & 0xFFFFFFFFFFFFFFFF


def pack(where: str, parameters: Sequence[Slot], args: Sequence[Argument]) -> Packed:
    """The packed arguments in catalogue order. Raises DeviceError that names the argument that does not fit."""
    if len(args) != len(parameters):
        raise DeviceError(f"{where} takes {len(parameters)} arguments, got {len(args)}")
    words: list[int] = []
    memories: list[Memory] = []
    for slot, value in zip(parameters, args, strict=True):
        if slot.ctype:
            words.append(_number(where, slot, value))
        elif isinstance(value, Memory | Pointer):
            memory = value.memory if isinstance(value, Pointer) else value
            memories.append(memory)
            words.append(_address(where, slot, memory, value.address))
        elif value is None and slot.optional:
            words.append(0)
        else:
            wrong = "is null" if value is None else f"must be memory, not {type(value).__name__}"
            raise DeviceError(f"{where} on the host device: argument {slot.name} {wrong}")
    return Packed(struct.pack(f"={len(words)}Q", *words), tuple(memories))
