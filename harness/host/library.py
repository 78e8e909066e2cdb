"""The runtime as Python sees it: a shared library, compiled once and kept in the cache."""

import ctypes
import functools
import struct
from pathlib import Path

from harness.cache import cache_key, cached
from harness.host.compilers import Compiler

RUNTIME = Path(__file__).parent / "runtime"

#: harness.host.runtime machine.h, enum Failure
OUT_OF_BOUNDS, DIVERGENCE, MISUSE, FLOATING_POINT = 1, 2, 3, 4


#: struct Launch of runtime.h: thunk, grid, block, dynamic shared bytes, cluster, schedule, copies, both seeds, align.
LAUNCH = struct.Struct("@P3I3IIIiiQQi")


class Runtime:
    """The functions of the runtime. They are called with the interpreter's lock held: one launch at a time."""

    def __init__(self, path: Path) -> None:
        """Load the library and declare its functions."""
        self.library = library = ctypes.PyDLL(str(path))
        for name, result, *arguments in (
            ("launch", ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int),
            ("message", ctypes.c_char_p),
            ("machine", ctypes.c_void_p),
            ("counters", ctypes.POINTER(ctypes.c_ulonglong)),
            ("counter_names", ctypes.c_char_p),
            ("alloc", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int),
            ("free", None, ctypes.c_void_p),
            ("check", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
        ):
            function = getattr(library, f"lanelock_{name}")
            function.restype, function.argtypes = result, tuple(arguments)
            setattr(self, name, function)
        self.machine_address = library.lanelock_machine()
        self.names = tuple(library.lanelock_counter_names().decode().split())

    def message_text(self) -> str:
        """What the last launch that failed said."""
        return str(self.library.lanelock_message().decode(errors="replace"))

    def counts(self) -> dict[str, int]:
        """Work of the last launch by name."""
        values = self.library.lanelock_counters()
        return {name: values[i] for i, name in enumerate(self.names)}


@functools.cache
def runtime(compiler: Compiler, march: str) -> Runtime:
    """The runtime built by this compiler for this processor level; the process loads each once.

    Raises BuildError if it does not compile.
    """
    sources = sorted(RUNTIME.glob("*.cpp"))
    flags = compiler.flags(march)
    text = "".join(f"// {p.name}\n{p.read_text()}" for p in sorted(RUNTIME.iterdir()) if p.is_file())
    key = cache_key("host runtime", *compiler.command, compiler.version, *flags, text)
    # its functions are found by name, so they are visible
    flags = (*flags, "-fvisibility=default")
    return Runtime(cached(key, lambda path: compiler.compile(sources, path, flags, "host runtime")))
