"""Launches that must not pass on the host device: which error each raises, and what its message says."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.device import DeviceError, Divergence, OutOfBounds
from harness.host import HostDevice
from harness.run import run_once
from kernels.entry import Kernel, Value, instance
from locks import host_probes as probe

Dims = Mapping[str, Value]
Arrays = Mapping[str, Any]


def once(
    device: HostDevice, kernel: Kernel, dims: Dims | None = None, inputs: Arrays | None = None, **template: Value
) -> dict[str, np.ndarray]:
    """One launch of a probe under the device's own options."""
    return run_once(device, instance(kernel, **template), dims or {}, inputs or {})


@dataclass(frozen=True, slots=True)
class Fault:
    """One launch, under which options, and the error with the pattern of its message."""

    kernel: Kernel
    says: str
    error: type[DeviceError] = OutOfBounds
    dims: Dims = field(default_factory=dict)
    inputs: Arrays = field(default_factory=dict)
    template: Dims = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, host: HostDevice) -> None:
        """Launch it."""
        once(host.with_options(**self.options), self.kernel, self.dims, self.inputs, **self.template)


END, START = {"align": "end"}, {"align": "start"}
FIVE = {"f32": np.ones(5, np.float32), "i8": np.ones(5, np.int8)}
BYTES = np.zeros(64, np.uint8)
WORDS = np.arange(1, 5, dtype=np.uint32)


def _global(kind: str, dtype: str, at: int, align: Mapping[str, str]) -> Fault:
    """Element `at` of five."""
    size = FIVE[dtype].itemsize
    side = "before the start" if at < 0 else "past the end"
    kernel, name = (probe.READ_AT, "x") if kind == "read" else (probe.WRITE_AT, "y")
    says = rf"{kind} {side} of buffer {kernel.name}\.{name} \({5 * size} bytes\) at byte offset {at * size}\b"
    return Fault(
        kernel, says, dims={"at": at, "N": 5}, inputs={name: FIVE[dtype]}, template={"T": dtype}, options=align
    )


def _shared(kind: str, at: int, align: Mapping[str, str], *, dynamic: bool = False) -> Fault:
    """Element `at` of eight floats; a write that no guard page stops is found when the block ends."""
    kernel = probe.DYNAMIC_AT if dynamic else probe.SHARED_AT
    array = "dynamic shared memory" if dynamic else "first"
    side = "before" if at < 0 else "past"
    stopped = kind == "read" or (align is END) == (at >= 0)
    place = ", .*:[0-9]+" if stopped else ""
    behind = "by thread" if stopped else "in block"
    says = rf"{kind} {side} shared array {array} \(32 bytes{place}\) at byte offset {4 * at}, {behind} \(0, 0, 0\)"
    dims = {"at": at, "words": 8} if dynamic else {"at": at}
    return Fault(kernel, says, dims=dims, template={"WRITE": kind == "write"}, options=align)


def _copy(says: str, error: type[DeviceError] = OutOfBounds, *, shared: bool = True, **dims: int) -> Fault:
    full = {"to": 0, "from": 0, "filled": 16, **dims}
    return Fault(probe.COPY, says, error, full, {"x": BYTES}, {"SHARED_TARGET": shared}, {"copies": "late"})


def _stack(frame: int, depth: int, thread: int, schedule: str) -> Fault:
    says = rf"the stack of 65536 bytes of a thread overflowed, by thread \({thread}, 0, 0\)"
    dims = {"depth": depth, "threads": 64}
    return Fault(probe.STACK, says, dims=dims, template={"WORDS": frame}, options={"schedule": schedule})


def _pointer(says: str, address: int) -> Fault:
    return Fault(probe.READ_POINTER, says, dims={"address": address}, inputs={"x": None})


COPIED = r"read past the end of buffer copy\.x \(64 bytes\) at byte offset 64"
#: The lowest thread of a descending schedule has the stacks of all others above its own, the highest below.
BOUNDS: Mapping[str, Fault] = {
    **{
        f"{kind} of {dtype} {at}": _global(kind, dtype, at, START if at < 0 else END)
        for kind in ("read", "write")
        for dtype in FIVE
        for at in (5, -1, 100_000, -100_000)
    },
    "write into the slack behind a buffer": _global("write", "i8", 7, START),
    "write into the slack before a buffer": _global("write", "i8", -9, END),
    **{
        f"{kind} of {'dynamic' if dynamic else 'static'} shared {at}": _shared(
            kind, at, START if at < 0 else END, dynamic=dynamic
        )
        for kind in ("read", "write")
        for dynamic in (False, True)
        for at in (8, -1)
    },
    "write into the slack behind shared": _shared("write", 10, START),
    "write into the slack before shared": _shared("write", -2, END),
    "write into the slack behind dynamic shared": _shared("write", 8, START, dynamic=True),
    "write into the slack of an alignment": Fault(
        probe.SHARED_SLACK, r"write past shared array word \(4 bytes\) at byte offset 8", dims={"at": 2}
    ),
    "copy reads past": _copy(COPIED, **{"from": 64}),
    "copy of one byte reads past": _copy(COPIED, **{"from": 64, "filled": 1}),
    "copy writes past": _copy(r"write past shared array stage \(64 bytes, .*\.cu:\d+\) at byte offset 64", to=64),
    "copy writes elsewhere": _copy("cp.async writes to an address that is not in shared memory", shared=False),
    "null": _pointer("read at address .*, which is a null pointer", 0),
    "an address of no buffer": _pointer("read at address 0x7000, which is in no buffer", 0x7000),
    "an address that no process has": _pointer("access through a wild pointer", -(2**62)),
    "deep stack": _stack(1, 10_000, 0, "ascending"),
    "wide stack": _stack(32768, 1, 63, "descending"),
}


def _access(kernel: Kernel, says: str, at: int, *, primitive: bool) -> Fault:
    inputs = {"x": BYTES} if kernel is probe.LOAD_AT else {"x": WORDS, "y": BYTES}
    return Fault(kernel, says, DeviceError, {"at": at}, inputs, {"PRIMITIVE": primitive})


_MISALIGNED, _VECTOR = "of a misaligned address", "vector access to a misaligned address"
_COPY_MISALIGNED = "cp.async of 16 bytes has a misaligned address"
ALIGNMENT: Mapping[str, Fault] = {
    "load16": _access(probe.LOAD_AT, f"load of 16 bytes {_MISALIGNED}", 4, primitive=True),
    "load of a vector": _access(probe.LOAD_AT, _VECTOR, 4, primitive=False),
    "store16": _access(probe.STORE_AT, f"store of 16 bytes {_MISALIGNED}", 8, primitive=True),
    "store of a vector": _access(probe.STORE_AT, _VECTOR, 8, primitive=False),
    "source of a copy": _copy(_COPY_MISALIGNED, DeviceError, **{"from": 8}),
    "target of a copy": _copy(_COPY_MISALIGNED, DeviceError, to=8),
    "size of a copy": _copy("cp.async reads 17 bytes into 16", DeviceError, filled=17),
}


def _space(number: int, name: str, copies: str) -> Fault:
    is_shared = name != "ldmatrix"  # the wrong space: all others take global addresses
    other = "in shared memory" if is_shared else "not there"
    says = rf"{name} reads {'global' if is_shared else 'shared'} memory, and its address is {other}"
    values = {"INSTRUCTION": number, "SHARED_ADDRESS": is_shared}
    inputs = {"x": np.zeros(64, np.uint32)}
    return Fault(probe.OF_SPACE, says, DeviceError, inputs=inputs, template=values, options={"copies": copies})


SPACES: Mapping[str, Fault] = {
    f"{name}, copies {copies}": _space(number, name, copies)
    for number, name in enumerate(probe.INSTRUCTIONS)
    for copies in ("eager", "late")
}


def _shuffle(says: str, **dims: int) -> Fault:
    full = {"mask": 0xFFFFFFFF, "source": 0, "lanes": 32, "threads": 32, **dims}
    return Fault(probe.SHUFFLE_OF, says, Divergence, full)


_HERE = r"\(host_threads\.cu:\d+\)"
THREADS: Mapping[str, Fault] = {
    "barrier of some threads": Fault(
        probe.BARRIER_OF_SOME,
        rf"7 threads of block \(0, 0, 0\), the first \(0, 0, 0\), wait at __syncthreads {_HERE}; "
        r"25 threads of block \(0, 0, 0\), the first \(7, 0, 0\), have exited \[--device",
        Divergence,
        {"limit": 7, "threads": 32},
    ),
    "barrier of some warps": Fault(
        probe.BARRIER_OF_SOME,
        rf"64 threads of block .* wait at __syncthreads {_HERE}; 64 threads .*, the first \(64, 0, 0\), have exited",
        Divergence,
        {"limit": 64, "threads": 128},
    ),
    "barrier and shuffle": Fault(
        probe.BARRIER_AND_SHUFFLE,
        rf"warp 0 waits in __shfl_sync {_HERE} .*; 16 threads of block .* wait at __syncthreads {_HERE}",
        Divergence,
        {"threads": 32},
    ),
    "barrier in two places": Fault(
        probe.BARRIER_OF_TWO_PLACES,
        r"threads of one block meet at different barriers: __syncthreads at .*host_threads\.cu:\d+ and __syncthreads",
        Divergence,
        {"limit": 32, "threads": 64},
    ),
    "barrier that does not exist": Fault(
        probe.BARRIER_BY_NAME, "barrier 16 does not exist", DeviceError, {"id": 15, "wrong": 0, "threads": 128}
    ),
    "barrier of two sizes": Fault(
        probe.BARRIER_BY_NAME,
        "barrier 1 expects 81 threads at .* but 80 at",
        Divergence,
        {"id": 1, "wrong": 1, "threads": 128},
    ),
    "inactive lane": _shuffle(
        rf"warp 0 waits in __shfl_sync {_HERE} with mask 0xffffffff, lanes 0xfffff000 of it have not come "
        r"\(0xfffff000 have exited\)",
        lanes=12,
    ),
    "lane missing from its own mask": _shuffle(
        rf"__shfl_sync {_HERE} is called by lane 0, which its mask 0xfffffffe does not name", mask=0xFFFFFFFE
    ),
    "source outside the mask": _shuffle(
        r"__shfl_sync .*host_threads\.cu:\d+\) reads lane 20, which is not in the mask 0x0000ffff",
        mask=0xFFFF,
        source=20,
        lanes=16,
    ),
    "mask of lanes that are not there": _shuffle(
        "has mask 0xffffffff, but the warp has only the lanes 0x000000ff", threads=40
    ),
    "empty mask": _shuffle("is called by lane 0, which its mask 0x00000000 does not name", mask=0),
    "two collectives": Fault(
        probe.TWO_COLLECTIVES,
        rf"lanes of one warp meet in different collectives: lane \d+ in vote {_HERE} .* in __shfl_sync {_HERE}",
        Divergence,
        {"threads": 32},
    ),
}

_TRAP = Fault(probe.QUOTIENT, "an instruction that .*, or a trap, by thread", DeviceError, {"by": -1, "threads": 32})
_DIVIDED = Fault(probe.QUOTIENT, "an integer divided by zero, .* by thread", DeviceError, {"by": 0, "threads": 32})
#: aarch64 divides by zero without a word, as a GPU does.
TRAPS: Mapping[str, Fault] = {
    "trap": _TRAP,
    **({"division by zero": _DIVIDED} if platform.machine() == "x86_64" else {}),
}

FAULTS: Mapping[str, Fault] = {**BOUNDS, **ALIGNMENT, **THREADS, **TRAPS}
