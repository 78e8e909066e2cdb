"""The nouns of the catalogue: a kernel, its arguments, its launch geometry, its refusals.

A catalogue entry is data and pure functions. Both devices build from it: the host device generates a typed thunk
from `args`, the CUDA device packs the same list for the driver.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oracle.errors import LanelockError

Value = int | float | bool | str
Dims = Mapping[str, Value]

#: dtype name -> (NumPy type of the stored bits, C++ type in kernel sources)
DTYPES: Mapping[str, tuple[type, str]] = {
    "f32": (np.float32, "float"),
    "f64": (np.float64, "double"),
    "f16": (np.float16, "half_t"),
    "e4m3": (np.uint8, "e4m3_t"),
    "i8": (np.int8, "signed char"),
    "u8": (np.uint8, "unsigned char"),
    "i32": (np.int32, "int"),
    "u32": (np.uint32, "unsigned"),
    "i64": (np.int64, "long long"),
}

ALL_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer argument: `shape` names dims (or is a number), the last axis contiguous.

    dtype is a key of DTYPES or the name of a template parameter whose value is such a key.
    pitch names the dim that holds the stride, in elements, of the second-to-last axis (None: packed).
    access is "r", "w" (every element of `shape` is written) or "rw". align is the alignment in bytes that the kernel
    needs of the base pointer (0: one element). An optional buffer may be null.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    access: Literal["r", "w", "rw"]
    pitch: str | None = None
    align: int = 0
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument passed by value; its value is the dim of the same name."""

    name: str
    ctype: Literal["int", "unsigned", "long long", "float"] = "int"


@dataclass(frozen=True, slots=True)
class Param:
    """A C++ template parameter: an int, a bool or a type, with the values that are built and locked."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch: blocks, threads a block, dynamic shared memory in bytes, blocks a cluster."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int = 0
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """What a launch must satisfy; `sentence` is the refusal, formatted with the dims."""

    holds: Callable[[Dims], bool]
    sentence: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One catalogue entry. `room` is the stem that oracle, source, entry and lock share.

    family names the room whose oracle, contract and lock hold this kernel too, where it is one of several forms of one
    operation; source and entry are its own room's.
    derive adds the dims that follow from the given ones (KB = K // 32, default pitches).
    limits are upper bounds read from the ptxas report: registers, stack, spills, smem (bytes).
    dependent: the kernel itself waits for the launch ahead of it, and may start before that one has ended.
    early: arguments that it reads before it waits; no launch of a program may write them.
    """

    name: str
    room: str
    symbol: str
    args: tuple[Buffer | Scalar, ...]
    geometry: Callable[[Dims], Geometry]
    doc: str
    params: tuple[Param, ...] = ()
    derive: Callable[[Dims], Dims] = dict
    rules: tuple[Rule, ...] = ()
    archs: tuple[str, ...] = ALL_ARCHS
    limits: Mapping[str, int] | None = None
    exact: bool = True
    family: str = ""
    dependent: bool = False
    early: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """File name of the CUDA source below kernels/."""
        return f"{self.room}.cu"

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The pointer arguments, in order."""
        return tuple(a for a in self.args if isinstance(a, Buffer))


@dataclass(frozen=True, slots=True)
class Instance:
    """A kernel with its template values chosen, in the order of Kernel.params."""

    kernel: Kernel
    values: tuple[Value, ...] = ()

    @property
    def expression(self) -> str:
        """The C++ name of the instantiation, such as `rms_norm<2, true>`."""
        if not self.values:
            return self.kernel.symbol
        return f"{self.kernel.symbol}<{', '.join(spell(v) for v in self.values)}>"

    @property
    def template(self) -> dict[str, Value]:
        """Template parameter name -> value."""
        return dict(zip((p.name for p in self.kernel.params), self.values, strict=True))


def spell(value: Value) -> str:
    """C++ spelling of a template value: true/false, an integer, or the C++ type of a dtype name."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return DTYPES[value][1] if isinstance(value, str) else str(value)


def instance(kernel: Kernel, **template: Value) -> Instance:
    """Choose template values by name; a parameter with one value may be left out.

    Raises LanelockError if a parameter is unknown, missing, or not among the values that are built.
    """
    known = {p.name: p for p in kernel.params}
    for name in template:
        if name not in known:
            raise LanelockError(f"{kernel.name}: unknown template parameter {name!r}; it has {sorted(known)}")
    chosen = []
    for p in kernel.params:
        if p.name not in template and len(p.values) > 1:
            raise LanelockError(f"{kernel.name}: template parameter {p.name} must be chosen from {p.values}")
        value = template.get(p.name, p.values[0])
        if value not in p.values or isinstance(value, bool) != isinstance(p.values[0], bool):
            raise LanelockError(f"{kernel.name}: {p.name}={value!r} is not built; choose from {p.values}")
        chosen.append(value)
    return Instance(kernel, tuple(chosen))


def resolve(inst: Instance, dims: Dims) -> dict[str, Value]:
    """All dims of a launch (template values, given, derived); refuses a launch that a rule forbids.

    Raises LanelockError with the rule's sentence before anything touches a device.
    """
    full: dict[str, Value] = {**inst.template, **dims}
    full.update({k: v for k, v in inst.kernel.derive(full).items() if k not in dims})
    for rule in inst.kernel.rules:
        if not rule.holds(full):
            raise LanelockError(f"{inst.kernel.name}: {rule.sentence.format(**full)}")
    return full


def buffer_dtype(inst: Instance, buffer: Buffer) -> str:
    """The dtype name of a buffer, following a template parameter where it names one."""
    return str(inst.template.get(buffer.dtype, buffer.dtype))


def buffer_shape(buffer: Buffer, dims: Dims) -> tuple[int, ...]:
    """The shape of a buffer in elements."""
    return tuple(int(dims[s]) if isinstance(s, str) else s for s in buffer.shape)


def buffer_strides(buffer: Buffer, dims: Dims) -> tuple[int, ...]:
    """Strides in elements of each axis; the pitch replaces the packed stride of the second-to-last axis."""
    shape = buffer_shape(buffer, dims)
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
        if axis == len(shape) - 2 and buffer.pitch is not None:
            strides[axis] = int(dims[buffer.pitch])
    return tuple(strides)


def buffer_extent(buffer: Buffer, dims: Dims) -> int:
    """Elements from the first to one past the last that the kernel may touch."""
    shape = buffer_shape(buffer, dims)
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, buffer_strides(buffer, dims), strict=True))
