"""The runtime library: compiled once, loaded once a process, called through ctypes."""

import ctypes
import functools
from pathlib import Path

from harness.cache import cache_key, cached
from harness.host.compilers import Compiler, compile_library

RUNTIME = Path(__file__).parent / "runtime"


class CLaunch(ctypes.Structure):
    """struct Launch of runtime.h."""

    _fields_ = (
        ("thunk", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("schedule", ctypes.c_int),
        ("copies", ctypes.c_int),
        ("schedule_seed", ctypes.c_uint64),
        ("copies_seed", ctypes.c_uint64),
        ("align_end", ctypes.c_int),
    )


def runtime_text() -> str:
    """All sources of the runtime, for cache keys."""
    return "".join(f"// {p.name}\n{p.read_text()}" for p in sorted(RUNTIME.iterdir()) if p.suffix in (".h", ".cpp"))


@functools.cache
def load_runtime(compiler: Compiler, march: str) -> ctypes.CDLL:
    """The runtime, built if it is not in the cache. Kernel libraries of other compilers share it."""
    key = cache_key("host runtime", runtime_text(), compiler.version, " ".join(compiler.flags(march)))
    sources = sorted(RUNTIME.glob("*.cpp"))
    library = ctypes.CDLL(str(cached(key, lambda out: compile_library(compiler, march, sources, (RUNTIME,), out))))
    library.lanelock_alloc.restype = ctypes.c_void_p
    library.lanelock_alloc.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    library.lanelock_free.argtypes = (ctypes.c_void_p,)
    library.lanelock_free.restype = None
    library.lanelock_check.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    library.lanelock_launch.argtypes = (ctypes.POINTER(CLaunch),)
    library.lanelock_message.restype = ctypes.c_char_p
    library.lanelock_machine.restype = ctypes.c_void_p
    library.lanelock_counters.restype = ctypes.POINTER(ctypes.c_uint64)
    library.lanelock_counter_names.restype = ctypes.c_char_p
    return library
