"""A plan as data: an ordered list of launches over named buffers, made without a device.

A launch holds everything both devices need; a buffer's size is the widest use that any launch makes of it, so scratch
cannot be sized before its widest user is known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.catalogue import kernel
from kernels.entry import (
    DTYPES,
    Geometry,
    Instance,
    Scalar,
    Value,
    buffer_dtype,
    buffer_extent,
    instance,
    resolve,
)
from oracle.errors import LanelockError

Kind = Literal["weights", "table", "state", "control", "scratch"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A buffer by name, from `offset` elements on."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """One buffer argument of a launch: how much of the buffer it may touch, in elements of its dtype."""

    argument: str
    ref: Ref
    dtype: str
    extent: int
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. args are in catalogue order; label says what it computes, such as `layers.3.qkvz`."""

    label: str
    instance: Instance
    geometry: Geometry
    args: tuple[Ref | int | float | None, ...]
    uses: tuple[Use, ...]
    dims: Mapping[str, Value]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers it reads."""
        return tuple(dict.fromkeys(u.ref.buffer for u in self.uses if u.reads))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the buffers it writes."""
        return tuple(dict.fromkeys(u.ref.buffer for u in self.uses if u.writes))


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """A named buffer: dtype, elements, and what it is for."""

    name: str
    dtype: str
    elements: int
    kind: Kind

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * int(np.dtype(DTYPES[self.dtype][0]).itemsize)


@dataclass(frozen=True, slots=True)
class Plan:
    """Buffers and programs. Every buffer that a program touches is listed, with the size its widest user needs."""

    buffers: Mapping[str, PlanBuffer]
    programs: Mapping[str, tuple[Launch, ...]]


def launch(
    label: str,
    name: str,
    refs: Mapping[str, Ref | None],
    dims: Mapping[str, Value],
    **template: Value,
) -> Launch:
    """One launch of a catalogue kernel. Raises LanelockError for a refused size or a missing argument."""
    inst = instance(kernel(name), **template)
    full = resolve(inst, dims)
    args: list[Ref | int | float | None] = []
    uses: list[Use] = []
    for arg in inst.kernel.args:
        if isinstance(arg, Scalar):
            value = full[arg.name]
            args.append(float(value) if arg.ctype == "float" else int(value))
            continue
        if arg.name not in refs or (refs[arg.name] is None and not arg.optional):
            raise LanelockError(f"plan: {label}: {name} needs a buffer for its argument {arg.name}")
        ref = refs[arg.name]
        args.append(ref)
        if ref is not None:
            reads, writes = "r" in arg.access, "w" in arg.access
            uses.append(Use(arg.name, ref, buffer_dtype(inst, arg), buffer_extent(arg, full), reads, writes))
    if unknown := sorted(set(refs) - {a.name for a in inst.kernel.args}):
        raise LanelockError(f"plan: {label}: {name} has no argument {unknown[0]}")
    return Launch(label, inst, inst.kernel.geometry(full), tuple(args), tuple(uses), full)


def sized(programs: Mapping[str, Iterable[Launch]], declared: Iterable[PlanBuffer]) -> Plan:
    """Give every buffer the size of its widest use; declared buffers keep theirs, and every use must fit.

    Raises LanelockError if two uses disagree on a dtype or a use exceeds a declared buffer.
    """
    buffers = {b.name: b for b in declared}
    fixed = set(buffers)
    listed = {name: tuple(launches) for name, launches in programs.items()}
    for program, launches in listed.items():
        for item in launches:
            for use in item.uses:
                name, need = use.ref.buffer, use.ref.offset + use.extent
                have = buffers.get(name) or PlanBuffer(name, use.dtype, 0, "scratch")
                if have.dtype != use.dtype:
                    wanted = f"takes {name} as {use.dtype}, it is {have.dtype}"
                    raise LanelockError(f"plan: {program}: {item.label} {wanted}")
                if name in fixed and need > have.elements:
                    raise LanelockError(
                        f"plan: {program}: {item.label} touches {need} elements of {name}, which has {have.elements}"
                    )
                buffers[name] = PlanBuffer(name, have.dtype, max(have.elements, need), have.kind)
    return Plan(buffers, listed)
