"""`python -m reports.strength.object_code FILE`: a digest of all machine code that is made from a kernel source.

Every instantiation of every room whose sources include FILE is compiled by the host's compiler and by NVRTC; equal
digests with and without a mutant prove that both devices run the same code.
"""

import hashlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.cuda.compile import compile_instances
from harness.host.compilers import find, march_of_machine
from harness.host.library import RUNTIME
from harness.host.thunks import library_source
from harness.sources import KERNELS, closure
from kernels.catalogue import ROOMS, by_room
from kernels.entry import Instance, Kernel
from oracle.errors import LanelockError

ARCH = "sm_90a"


def instances(kernel: Kernel) -> Iterator[Instance]:
    """Every instantiation that the catalogue builds of a kernel."""
    for values in itertools.product(*(p.values for p in kernel.params)):
        yield Instance(kernel, values)


def host_code(source: Path, wanted: list[Instance], folder: Path) -> bytes:
    """The library that the host's compiler makes; it is made without build times, so equal code is equal bytes."""
    compiler = find()
    text, library = folder / "code.cpp", folder / "code.so"
    text.write_text(library_source(source, wanted))
    flags = (*compiler.flags(march_of_machine()), "-DLANELOCK_HOST", f"-I{RUNTIME}", f"-I{KERNELS}")
    compiler.compile([text], library, flags, source.name)
    return library.read_bytes()


def digest(file: Path) -> str:
    """SHA-256 over the machine code of all rooms that read the file. Raises LanelockError if no room does."""
    found = hashlib.sha256()
    rooms = [r for r in ROOMS if file in closure(KERNELS / f"{r}.cu")]
    if not rooms:
        raise LanelockError(f"{file.name} is in no kernel, so it makes no machine code that could be compared")
    # one folder for every run: a library names the file that it was compiled from
    folder = Path(tempfile.gettempdir()) / "lanelock-object-code"
    folder.mkdir(exist_ok=True)
    for room in rooms:
        every = [inst for kernel in by_room(room) for inst in instances(kernel)]
        found.update(host_code(KERNELS / f"{room}.cu", every, folder))
        fitting = [inst for inst in every if ARCH in inst.kernel.archs]
        if fitting:
            found.update(compile_instances(fitting, ARCH).cubin)
    return found.hexdigest()


if __name__ == "__main__":
    print(digest(Path(sys.argv[1]).resolve()))
