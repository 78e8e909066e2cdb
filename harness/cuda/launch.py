"""Arguments and configuration of one launch, as the driver wants them; every refusal happens before the launch."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cuda.bindings import driver
from harness.cuda.report import Report
from harness.device import Argument, DeviceError, Memory, OutOfBounds, Pointer
from kernels.entry import Buffer, Geometry, Instance, Scalar

#: Dynamic shared memory that needs no opt-in.
DEFAULT_SHARED = 48 * 1024

_CTYPES: dict[str, type[Any]] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "long long": ctypes.c_longlong,
    "float": ctypes.c_float,
}


@dataclass(frozen=True, slots=True)
class Built:
    """An instantiation loaded on one device. function is the driver's handle; module keeps it alive."""

    instance: Instance
    function: Any
    module: Any
    report: Report
    max_threads: int


@dataclass(frozen=True, slots=True)
class Packed:
    """The array of argument addresses that the driver reads, and the values it points to."""

    addresses: Any
    values: tuple[Any, ...]

    @property
    def pointer(self) -> int:
        """Address of the array."""
        return ctypes.addressof(self.addresses)


def pack(instance: Instance, args: Sequence[Argument]) -> Packed:
    """Arguments in catalogue order. Raises DeviceError naming kernel and argument for one that does not fit."""
    declared = instance.kernel.args
    if len(args) != len(declared):
        raise DeviceError(f"{instance.expression} takes {len(declared)} arguments, got {len(args)}")
    values = tuple(_value(instance, d, a) for d, a in zip(declared, args, strict=True))
    array = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(v) for v in values])
    return Packed(array, values)


def _value(instance: Instance, declared: Buffer | Scalar, given: Argument) -> Any:
    what = f"{instance.expression}: argument {declared.name}"
    if isinstance(declared, Scalar):
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise DeviceError(f"{what} is a scalar of type {declared.ctype}, got {type(given).__name__}")
        if declared.ctype != "float" and not isinstance(given, int):
            raise DeviceError(f"{what} is of type {declared.ctype}, got {given!r}")
        return _CTYPES[declared.ctype](given)
    if given is None:
        if not declared.optional:
            raise DeviceError(f"{what} must not be null")
        return ctypes.c_void_p(None)
    pointer = Pointer(given) if isinstance(given, Memory) else given
    if not isinstance(pointer, Pointer):
        raise DeviceError(f"{what} is a pointer, got {type(given).__name__}")
    if not 0 <= pointer.offset <= pointer.memory.nbytes:
        raise OutOfBounds(f"{what} points to byte {pointer.offset} of {pointer.memory.name}")
    if declared.align and pointer.address % declared.align:
        raise DeviceError(f"{what} must be aligned to {declared.align} bytes, is at {pointer.address:#x}")
    return ctypes.c_void_p(pointer.address)


def check_geometry(built: Built, geometry: Geometry, shared_per_block: int, clusters: bool) -> None:
    """Refuse a launch that the device cannot make. Raises DeviceError naming the kernel and the number."""
    name = built.instance.expression
    threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
    if min(geometry.grid) < 1 or min(geometry.block) < 1:
        raise DeviceError(f"{name}: grid {geometry.grid} and block {geometry.block} must be at least 1")
    if geometry.grid[1] > 65535 or geometry.grid[2] > 65535:
        raise DeviceError(f"{name}: grid {geometry.grid} exceeds 65535 in its second or third size")
    if threads > built.max_threads:
        raise DeviceError(f"{name}: {threads} threads a block, but the kernel allows {built.max_threads}")
    shared = built.report.smem + geometry.smem
    if shared > shared_per_block:
        raise DeviceError(f"{name}: {shared} bytes of shared memory a block, the device has {shared_per_block}")
    if geometry.cluster > 1 and not clusters:
        raise DeviceError(f"{name}: clusters of {geometry.cluster} blocks need compute capability 9.0")
    if geometry.grid[0] % geometry.cluster:
        raise DeviceError(f"{name}: grid {geometry.grid[0]} is no multiple of the cluster of {geometry.cluster}")


def configuration(geometry: Geometry, stream: Any, *, dependent: bool) -> Any:
    """The driver's launch configuration; `dependent` lets the kernel start before the one ahead of it has ended."""
    api = driver()
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = geometry.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = geometry.block
    config.sharedMemBytes = geometry.smem
    config.hStream = stream
    attributes = []
    if geometry.cluster > 1:
        cluster = api.CUlaunchAttribute()
        cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = cluster.value.clusterDim
        size.x, size.y, size.z = geometry.cluster, 1, 1
        attributes.append(cluster)
    if dependent:
        early = api.CUlaunchAttribute()
        early.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
