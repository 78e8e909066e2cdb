"""Run one catalogue kernel on a device with everything around it that a lock wants checked.

Buffers are poisoned, inputs are scattered into rows of any pitch, and afterwards guards and the padding between rows
must be untouched and read-only buffers unchanged. On the host one call runs several schedules,
copy orders and alignments and demands the same bits from all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness import reproduce
from harness.device import POISON, Argument, Device, DeviceError, Memory, OutOfBounds, Race
from kernels.entry import (
    DTYPES,
    Buffer,
    Instance,
    Kernel,
    Scalar,
    Value,
    buffer_dtype,
    buffer_extent,
    buffer_shape,
    buffer_strides,
    instance,
    resolve,
)
from oracle.errors import LanelockError

#: Host variants that every checked run goes through: warp and lane order, copy completion, alignment to a guard page.
#: Each value appears once, so a fault of one kind shows in at least one of the three.
HOST_VARIANTS: tuple[dict[str, str | int], ...] = (
    {"schedule": "ascending", "copies": "eager", "align": "end"},
    {"schedule": "descending", "copies": "late", "align": "start"},
    {"schedule": 7, "copies": 7, "align": "end"},
)


#: Every byte between the rows of an output: no NaN's, for what a kernel computes from poison may be its very bits.
GAP = 0xA5


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer argument of a run: its device memory and how its elements lie in it."""

    buffer: Buffer
    dtype: type
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extent: int
    memory: Memory

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return int(np.dtype(self.dtype).itemsize)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def used_mask(shape: tuple[int, ...], strides: tuple[int, ...], extent: int) -> np.ndarray:
    """True where an element of the extent belongs to the shape, false where it is padding between rows."""
    mask = np.zeros(extent, dtype=bool)
    if extent:
        np.lib.stride_tricks.as_strided(mask, shape, strides)[...] = True
    return mask


def scatter(binding: Binding, values: np.ndarray) -> np.ndarray:
    """Flat extent with the values in their rows, and what a kernel must not read, or must not write, between them."""
    between = GAP if binding.buffer.access == "w" else POISON
    flat: np.ndarray = np.full(binding.extent * binding.itemsize, between, np.uint8).view(binding.dtype)
    if binding.extent:
        byte_strides = tuple(s * binding.itemsize for s in binding.strides)
        np.lib.stride_tricks.as_strided(flat, binding.shape, byte_strides)[...] = values
    return flat


def gather(binding: Binding, flat: np.ndarray) -> np.ndarray:
    """The shaped elements of a flat extent, as a copy."""
    if not binding.extent:
        return np.zeros(binding.shape, binding.dtype)
    byte_strides = tuple(s * binding.itemsize for s in binding.strides)
    return np.array(np.lib.stride_tricks.as_strided(flat, binding.shape, byte_strides))


def checked_input(kernel: Kernel, buffer: Buffer, dtype: type, shape: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    """The input array, refused unless it has exactly the dtype and shape of the argument."""
    array = np.asarray(value)
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise LanelockError(
            f"{kernel.name}: argument {buffer.name} needs {np.dtype(dtype).name} {shape}, "
            f"got {array.dtype.name} {array.shape}"
        )
    return array


def _bind(device: Device, inst: Instance, dims: Mapping[str, Value], inputs: Mapping[str, np.ndarray]) -> list[Binding]:
    bindings = []
    for buffer in inst.kernel.buffers:
        if buffer.optional and buffer.name in inputs and inputs[buffer.name] is None:
            continue
        dtype = DTYPES[buffer_dtype(inst, buffer)][0]
        extent = buffer_extent(buffer, dims)
        item = np.dtype(dtype).itemsize
        memory = device.alloc(f"{inst.kernel.name}.{buffer.name}", extent * item, max(buffer.align, item))
        bindings.append(
            Binding(buffer, dtype, buffer_shape(buffer, dims), buffer_strides(buffer, dims), extent, memory)
        )
    return bindings


def _check_after(kernel: Kernel, binding: Binding, before: np.ndarray, after: np.ndarray) -> None:
    """Padding unchanged always; a read-only buffer unchanged everywhere."""
    changed = before.view(np.uint8).reshape(-1, binding.itemsize) != after.view(np.uint8).reshape(-1, binding.itemsize)
    element_changed = changed.any(axis=1)
    if binding.buffer.access != "r":
        element_changed &= ~used_mask(binding.shape, binding.strides, binding.extent)
    if element_changed.any():
        where = int(np.flatnonzero(element_changed)[0])
        what = "read-only buffer" if binding.buffer.access == "r" else "padding between rows of"
        raise OutOfBounds(f"{kernel.name}: wrote element {where} of {what} {binding.buffer.name}")


def run_once(
    device: Device, inst: Instance, dims: Mapping[str, Value], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Launch once; returns the written buffers by name. See `run_kernel` for arguments and errors."""
    full = resolve(inst, dims)
    names = {b.name for b in inst.kernel.buffers}
    if unknown := sorted(set(inputs) - names):
        raise LanelockError(f"{inst.kernel.name}: has no argument {unknown[0]!r}; it has {sorted(names)}")
    built = device.build(inst)
    bindings = _bind(device, inst, full, inputs)
    try:
        before: dict[str, np.ndarray] = {}
        for b in bindings:
            name = b.buffer.name
            if name in inputs:
                value = checked_input(inst.kernel, b.buffer, b.dtype, b.shape, inputs[name])
                before[name] = scatter(b, value)
            elif b.buffer.access == "w":
                before[name] = scatter(b, np.full(b.itemsize, POISON, np.uint8).view(b.dtype))
            else:
                raise LanelockError(f"{inst.kernel.name}: input {name} is missing")
            if name in inputs or device.properties.poisons:
                device.write(b.memory, as_bytes(before[name]))
        memory: dict[str, Memory | None] = {b.buffer.name: b.memory for b in bindings}
        args = arguments(inst.kernel, full, memory)
        device.launch(built, inst.kernel.geometry(full), args)
        device.synchronize()
        outputs = {}
        for b in bindings:
            device.check(b.memory)
            after: np.ndarray = device.read(b.memory, b.extent * b.itemsize).view(b.dtype)
            if b.buffer.name in inputs or device.properties.poisons:
                _check_after(inst.kernel, b, before[b.buffer.name], after)
            if b.buffer.access != "r":
                outputs[b.buffer.name] = gather(b, after)
        return outputs
    finally:
        for b in bindings:
            device.free(b.memory)


def arguments(kernel: Kernel, dims: Mapping[str, Value], memory: Mapping[str, Memory | None]) -> list[Argument]:
    """The arguments of a launch in catalogue order: scalars from dims, pointers from memory.

    An optional buffer that memory lacks is null. Raises LanelockError for any other, or a scalar that does not fit.
    """
    for buffer in kernel.buffers:
        if buffer.name not in memory and not buffer.optional:
            raise LanelockError(f"{kernel.name}: argument {buffer.name} has no memory")
    return [scalar_value(dims, a) if isinstance(a, Scalar) else memory.get(a.name) for a in kernel.args]


def scalar_value(dims: Mapping[str, Value], scalar: Scalar) -> int | float:
    """The value of a scalar argument, refused if it is missing or does not fit its C type."""
    if scalar.name not in dims:
        raise LanelockError(f"argument {scalar.name} is missing; dims have {', '.join(dims)}")
    value = dims[scalar.name]
    if scalar.ctype == "float":
        return float(value)
    low, high = {"int": (-(2**31), 2**31), "unsigned": (0, 2**32), "long long": (-(2**63), 2**63)}[scalar.ctype]
    if not low <= int(value) < high:
        raise LanelockError(f"argument {scalar.name} = {value} does not fit {scalar.ctype}")
    return int(value)


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Element-wise: equal bits, where any NaN equals any NaN (payloads differ between devices by nature)."""
    if a.dtype.kind == "f":
        width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
        return np.asarray((a.view(width) == b.view(width)) | (np.isnan(a) & np.isnan(b)))
    return np.asarray(a == b)


def run_kernel(
    device: Device,
    kernel: Kernel,
    dims: Mapping[str, Value],
    inputs: Mapping[str, np.ndarray],
    template: Mapping[str, Value] | None = None,
    variants: Sequence[Mapping[str, str | int]] = HOST_VARIANTS,
) -> dict[str, np.ndarray]:
    """Run a kernel and return what it wrote, by argument name, with exactly the argument's dtype and shape.

    Shapes: inputs[name] must have the dtype and shape of the catalogue entry for these dims; a buffer of access "w"
    may be given too (to check what survives) and is poisoned otherwise; None passes null to an optional buffer.
    Raises LanelockError before any launch for a refused size or a wrong input; OutOfBounds for a guard, a padding or
    a read-only buffer that changed; Divergence; Race when host variants (or two runs on a GPU) differ.
    """
    inst = instance(kernel, **(template or {}))
    kind = device.properties.kind
    if kind == "host":
        runs = [(str(dict(v)), v, device.with_options(**v)) for v in variants]  # type: ignore[attr-defined]  # host only
    else:
        runs = [("first run", {}, device), ("second run", {}, device)]
    first: dict[str, np.ndarray] | None = None
    for label, variant, dev in runs:
        try:
            outputs = run_once(dev, inst, dims, inputs)
        except DeviceError as error:
            again = reproduce.hint(kind, kernel, dims, template or {}, variant)
            raise type(error)(f"{error}{again}") from error
        if first is None:
            first = outputs
            continue
        for name, value in outputs.items():
            if not (equal := same_bits(first[name], value)).all():
                where = tuple(int(i) for i in np.argwhere(~equal)[0])
                again = reproduce.hint(kind, kernel, dims, template or {}, {})
                raise Race(
                    f"{inst.expression} on {dev.properties.name}: {name}{list(where)} is {first[name][where]} under "
                    f"{runs[0][0]} and {value[where]} under {label}: a missing barrier or a race, "
                    f"or bytes that belong to no buffer{again}"
                )
    if first is None:
        raise LanelockError(f"{kernel.name}: no variant to run")
    return first
