"""The planted faults of `lanelock sanitize`: `python -m locks.sanitizer_probes TOOL` launches one on the GPU."""

import sys

from harness.cuda import CudaDevice
from harness.device import DeviceError
from kernels.entry import Buffer, Dims, Geometry, Instance, Kernel, Scalar
from reports.sanitizer import PLANTED

ROOM = "../locks/kernels/sanitizer"
N = 64


def _one_block(_dims: Dims) -> Geometry:
    return Geometry((1, 1, 1), (N, 1, 1))


def _probe(name: str, *more: Buffer | Scalar) -> Kernel:
    args = (Buffer("y", "f32", (N,), "w"), *more)
    return Kernel(name, ROOM, name, args, _one_block, "A planted fault.")


#: Tool -> what its planted kernel takes beside y.
MORE: dict[str, tuple[Buffer | Scalar, ...]] = {
    "memcheck": (Scalar("N"),),
    "racecheck": (Scalar("N"),),
    "initcheck": (Buffer("x", "f32", (N,), "r"),),
    "synccheck": (),
}
PROBES = {tool: _probe(symbol, *MORE[tool]) for tool, symbol in PLANTED.items()}
CLEAN = _probe("planted_nothing", Scalar("N"))


def launch(kernel: Kernel) -> None:
    """One launch on the first GPU, in memory of its own."""
    device = CudaDevice()
    built = device.build(Instance(kernel))
    args = [device.alloc(a.name, 4 * N) if isinstance(a, Buffer) else N for a in kernel.args]
    device.launch(built, _one_block({}), args)
    device.synchronize()


if __name__ == "__main__":
    for probe in (CLEAN, PROBES[sys.argv[1]]):
        try:
            launch(probe)
        except DeviceError as error:  # what a fault does to the process is not asked here
            print(error)
