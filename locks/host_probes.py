"""Catalogue entries of the probe kernels of locks/data/host_device, for the locks of the host device."""

from pathlib import Path
from typing import Any

import numpy as np

from harness.device import Argument, Memory
from harness.host import HostDevice
from kernels.entry import Buffer, Geometry, Instance, Kernel, Param, Scalar, Value

#: Where the probes' CUDA source lies.
SOURCES = Path(__file__).parent / "data" / "host_device"

X = Buffer("x", "f32", ("n",), "r")
Y = Buffer("y", "f32", ("n",), "rw")
XI = Buffer("x", "i32", ("n",), "r")
YI = Buffer("y", "i32", ("n",), "rw")
PARAMS = {
    "partial_barrier": (Param("REACH", (16, 32)), Param("RETURN", (False, True))),
    "reverse": (Param("BARRIER", (False, True)),),
    "reverse_warp": (Param("BARRIER", (False, True)),),
    "pipeline": (Param("STAGES", (3,)), Param("WAIT", (1, 2)), Param("LAST", (0, 1)), Param("PRIMED", (1, 2))),
}
ARGS: dict[str, tuple[Buffer | Scalar, ...]] = {
    "copy_element": (X, Y, Scalar("at")),
    "write_element": (Y, Scalar("at")),
    "shared_element": (Y, Scalar("read"), Scalar("write")),
    "unwritten_shared": (Buffer("y", "u32", ("n",), "w"),),
    "partial_barrier": (Y,),
    "two_barriers": (Y,),
    "shuffle": (Y, Scalar("lanes"), Scalar("mask"), Scalar("source")),
    "mixed_collectives": (Y,),
    "halves": (YI,),
    "reverse": (XI, YI),
    "reverse_warp": (XI, YI),
    "order": (YI, YI),
    "pipeline": (XI, YI, Scalar("chunks")),
    "multiply": (X, Y),
    "deep": (YI, Scalar("depth")),
    "load_vector": (Buffer("x", "i8", ("n",), "r"), YI, Scalar("at")),
    "counted": (Buffer("x", "i32", ("n",), "r", align=16), YI),
}
#: The instantiations that locks use, built together as one library.
VALUES: dict[str, tuple[tuple[Value, ...], ...]] = {
    "partial_barrier": ((16, False), (16, True), (32, True)),
    "reverse": ((False,), (True,)),
    "reverse_warp": ((False,), (True,)),
    "pipeline": ((3, 1, 0, 2), (3, 2, 0, 2), (3, 1, 1, 2), (3, 1, 0, 1)),
}


def probe(symbol: str, *values: Value, args: tuple[Buffer | Scalar, ...] | None = None) -> Instance:
    """An instantiation of a probe; other args than its own make one that must not compile."""
    one_warp = Geometry((1, 1, 1), (32, 1, 1))
    kernel = Kernel(
        symbol, "probes", symbol, args or ARGS[symbol], lambda _: one_warp, "a probe", PARAMS.get(symbol, ())
    )
    return Instance(kernel, values)


def probe_device(**options: Any) -> HostDevice:
    """A host device with the probes' sources and all probes built."""
    device = HostDevice(source_root=SOURCES, **options)
    device.build_many([probe(symbol, *values) for symbol in ARGS for values in VALUES.get(symbol, ((),))])
    return device


def run(device: HostDevice, inst: Instance, *args: Argument, threads: int = 32, blocks: int = 1, smem: int = 0) -> None:
    """Launch a probe on a one-dimensional grid."""
    device.launch(device.build(inst), Geometry((blocks, 1, 1), (threads, 1, 1), smem), args)


def floats(device: HostDevice, name: str, count: int) -> Memory:
    """A buffer of that many float32 (or int32), with no byte to spare on its guarded side."""
    return device.alloc(name, 4 * count, 4)


def ints(device: HostDevice, name: str, values: np.ndarray) -> Memory:
    """A buffer with these int32, aligned for 16-byte copies."""
    memory = device.alloc(name, 4 * values.size, 16)
    device.write(memory, values.astype(np.int32))
    return memory
