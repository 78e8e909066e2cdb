"""Kernel libraries: a room's source and a typed thunk for each instantiation, compiled once a content.

A thunk assigns the instantiation to a pointer of exactly the catalogue's argument types, so an argument list that does
not match its kernel does not compile.
"""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cache import cache_key, cached
from harness.host.compilers import Compiler, compile_library
from harness.host.library import RUNTIME, runtime_text
from harness.sources import closure_text
from kernels.entry import DTYPES, Instance, Kernel, Scalar, buffer_dtype

#: A room with at most this many instantiations is built as one library: one start of the compiler instead of many.
BUNDLE = 16


@dataclass(frozen=True, slots=True)
class Built:
    """An instantiation that can be launched. scalars: the ctypes type of each scalar argument, None for a pointer."""

    instance: Instance
    thunk: int
    scalars: tuple[type[Any] | None, ...]
    library: ctypes.CDLL


CTYPES: dict[str, type[Any]] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "long long": ctypes.c_longlong,
    "float": ctypes.c_float,
}


def argument_types(inst: Instance) -> list[str]:
    """C++ types of the arguments, from the catalogue alone."""
    types = []
    for arg in inst.kernel.args:
        if isinstance(arg, Scalar):
            types.append(arg.ctype)
        else:
            const = "const " if arg.access == "r" else ""
            types.append(f"{const}{DTYPES[buffer_dtype(inst, arg)][1]}*")
    return types


def thunk_text(inst: Instance, index: int) -> str:
    """C++ of one thunk: unpacks an array of pointers to argument values."""
    types = argument_types(inst)
    values = ", ".join(f"*static_cast<{t} const*>(a[{i}])" for i, t in enumerate(types))
    return (
        f'extern "C" void lanelock_thunk_{index}(void* const* a) {{\n'
        f"  void (*kernel)({', '.join(types)}) = &{inst.expression};\n"
        f"  kernel({values});\n}}\n"
    )


def unit_text(source: Path, instances: Sequence[Instance]) -> str:
    """The translation unit of a library."""
    thunks = "".join(thunk_text(inst, i) for i, inst in enumerate(instances))
    attach = 'extern "C" void lanelock_attach(lane_rt::Machine* m) { lane_rt::machine = m; }\n'
    return f'#define LANELOCK_HOST 1\n#include "{source}"\n{attach}{thunks}'


def room_instances(kernels: Sequence[Kernel]) -> list[Instance]:
    """Every instantiation that the entries of a room allow."""
    return [Instance(k, values) for k in kernels for values in itertools.product(*(p.values for p in k.params))]


def compile_kernels(
    compiler: Compiler, march: str, source: Path, instances: Sequence[Instance], machine: int
) -> list[Built]:
    """Build instantiations of one source as one library and load it. Raises BuildError."""
    unit = unit_text(Path(source.name), instances)
    flags = " ".join(compiler.flags(march))
    text = closure_text(source, source.parent)
    key = cache_key("host kernel", text, unit, runtime_text(), compiler.version, flags)

    def produce(out: Path) -> None:
        main = out.with_suffix(".cpp")
        main.write_text(unit)
        compile_library(compiler, march, (main,), (source.parent, RUNTIME), out)

    library = ctypes.CDLL(str(cached(key, produce)))
    library.lanelock_attach.argtypes = (ctypes.c_void_p,)
    library.lanelock_attach(machine)
    return [_built(library, inst, i) for i, inst in enumerate(instances)]


def _built(library: ctypes.CDLL, inst: Instance, index: int) -> Built:
    thunk = ctypes.cast(getattr(library, f"lanelock_thunk_{index}"), ctypes.c_void_p).value
    scalars = tuple(CTYPES[a.ctype] if isinstance(a, Scalar) else None for a in inst.kernel.args)
    return Built(inst, int(thunk or 0), scalars, library)
