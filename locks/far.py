"""The same launch with its data at the far end of buffers of full size: what 32-bit offsets would not reach.

On the host a buffer is a file without contents, of which only the pages that are touched exist; on a GPU it is memory.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from harness.device import Device, Memory
from harness.host.device import Mapping as HostMapping
from harness.run import arguments, as_bytes
from kernels.entry import (
    DTYPES,
    Buffer,
    Instance,
    Value,
    buffer_dtype,
    buffer_extent,
    buffer_strides,
    instance,
)
from kernels.entry import resolve as resolved
from locks.support import Case, assert_same_outputs

#: Bytes from which a buffer on the host is a file without contents.
LARGE = 64 << 20


@contextmanager
def far_memory(device: Device, name: str, nbytes: int) -> Iterator[Memory]:
    """Memory of any size, zero on the host where it is large."""
    if device.properties.kind != "host" or nbytes < LARGE:
        memory = device.alloc(name, nbytes)
        try:
            yield memory
        finally:
            device.free(memory)
        return
    with tempfile.TemporaryFile() as file:
        file.truncate(nbytes)  # a file with no contents yet: pages come into being when they are touched
        space = np.memmap(file, np.uint8, "r+", shape=(nbytes,))
        yield Memory(name, space.ctypes.data, nbytes, HostMapping())


def assert_same_far_away(device: Device, case: Case, kept: Sequence[str] = (), **grown: int) -> None:
    """A case gives the same bits where these dims are as large as said and everything lies at their far end.

    `slots` moves the slots, `context` the positions; a pitch moves all rows but the first. What is kept grows, and
    its contents stay where they are.
    """
    near = case.run(device)
    moved = [name for name in grown if "pitch" not in name and name not in kept]
    shift = {name: grown[name] - int(case.dims[name]) for name in moved} | dict.fromkeys(kept, 0)
    inputs = dict(case.inputs)
    for name, axis in (("slot", "slots"), ("position", "context")):
        if name in inputs:
            inputs[name] = (inputs[name] + shift.get(axis, 0) * (inputs[name] >= 0)).astype(np.int32)
    inst = instance(case.kernel, **case.template)
    dims = resolved(inst, {**case.dims, **grown})
    require_memory(device, sum(_bytes(inst, b, dims) for b in case.kernel.buffers))
    with ExitStack() as stack:
        memory: dict[str, Memory] = {}
        for b in case.kernel.buffers:
            item = np.dtype(DTYPES[buffer_dtype(inst, b)][0]).itemsize
            held = far_memory(device, b.name, _bytes(inst, b, dims))
            memory[b.name] = stack.enter_context(held)
            for offset, part in _parts(b, dims, shift, inputs.get(b.name)):
                device.write(memory[b.name], as_bytes(part), offset * item)
        device.launch(device.build(inst), case.kernel.geometry(dims), arguments(case.kernel, dims, memory))
        device.synchronize()
        far = {}
        for name, value in near.items():
            b = next(b for b in case.kernel.buffers if b.name == name)
            far[name] = value.copy()
            for offset, part in _parts(b, dims, shift, far[name]):
                raw = device.read(memory[name], part.nbytes, offset * part.itemsize)
                part[...] = raw.view(part.dtype).reshape(part.shape)
    assert_same_outputs(far, near)


def _bytes(inst: Instance, b: Buffer, dims: Mapping[str, Value]) -> int:
    return buffer_extent(b, dims) * np.dtype(DTYPES[buffer_dtype(inst, b)][0]).itemsize


def require_memory(device: Device, total: int) -> None:
    """Not run, by name, where this worker may not take so much of a GPU: fewer workers may."""
    allowed = getattr(device, "budget", None)
    if allowed is not None and total + (64 << 20) > allowed:
        pytest.skip(f"not run: takes {total} bytes of device memory, and this worker of several may have {allowed}")


def _parts(
    buffer: Buffer, dims: Mapping[str, Value], shift: Mapping[str, int], value: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray]]:
    """Contiguous parts of a value, each with the element at which it lies in the grown buffer."""
    if value is None:
        return
    axes = [_source(str(axis)) for axis in buffer.shape]
    # behind an axis that grew parts are no longer neighbours; along one that is kept they are
    grown = [i + (shift[axis] > 0) for i, axis in enumerate(axes) if axis in shift]
    depth = max([*grown, len(buffer.shape) - 1 if buffer.pitch else 0])
    strides = buffer_strides(buffer, dims)
    moved = [shift.get(axis, 0) for axis in axes[:depth]]
    for index in itertools.product(*(range(n) for n in value.shape[:depth])):
        yield sum((i + m) * s for i, m, s in zip(index, moved, strides, strict=False)), value[index]


def _source(axis: str) -> str:
    """The given dim that an axis follows: the table of angles is as long as the context."""
    return "context" if axis == "table" else axis
