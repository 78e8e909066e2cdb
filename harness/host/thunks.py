"""The C++ text that ties an instantiation to the runtime.

Typed from the catalogue, so a wrong list of arguments does not compile.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from harness.device import BuildError
from kernels.entry import DTYPES, Buffer, Instance, Scalar, buffer_dtype

_ASM = re.compile(r"\b(__asm__|asm)\b")
_BOUNDS = re.compile(
    r"(?P<header>template\s*<[^;{}]*>\s*)?__global__\s+void\s+__launch_bounds__\s*"
    r"\((?P<bounds>(?:[^()]|\([^()]*\))*)\)\s*(?P<symbol>\w+)\s*\("
)
#: The headers whose business PTX is; no other source may hold assembly.
DEVICE_HEADERS = ("device_ptx.cuh", "hopper_ptx.cuh", "wgmma_ptx.cuh")

BIND = (
    'extern "C" __attribute__((visibility("default"))) '
    "void lanelock_bind(lane_rt::Machine* m) { lane_rt::machine = m; }"
)


def argument_type(inst: Instance, argument: Buffer | Scalar) -> str:
    """The C++ type of a kernel's parameter."""
    if isinstance(argument, Scalar):
        return argument.ctype
    stored = DTYPES[buffer_dtype(inst, argument)][1]
    return f"const {stored}*" if argument.access == "r" else f"{stored}*"


def symbol(index: int) -> str:
    """The exported name of the library's thunk of that index."""
    return f"lanelock_thunk_{index}"


def thunk(inst: Instance, index: int) -> str:
    """One thunk: reads each argument through its address, as the driver's launch does."""
    types = [argument_type(inst, a) for a in inst.kernel.args]
    values = ", ".join(f"*static_cast<{t} const*>(a[{i}])" for i, t in enumerate(types))
    return (
        f"// {inst.expression}\n"
        f"static void (*const kernel_{index})({', '.join(types)}) = &{inst.expression};\n"
        f'extern "C" __attribute__((visibility("default"))) void {symbol(index)}(void* const* a) '
        f"{{ kernel_{index}({values}); }}\n"
    )


def library_source(source: Path, instances: Sequence[Instance]) -> str:
    """The text of a library that holds these instantiations of one source."""
    thunks = (thunk(inst, i) for i, inst in enumerate(instances))
    return "\n".join([f'#include "{source}"', *thunks, BIND, ""])


def bound(index: int) -> str:
    """The exported name of the function that says how many threads a block of that thunk may have."""
    return f"lanelock_bound_{index}"


def bounds_source(text: str, instances: Sequence[Instance]) -> str:
    """What the kernels of a source say in their launch bounds, as functions of its library.

    A GPU refuses a larger block, so the host device has to know the number; it may depend on template values, and so
    the compiler is asked.
    """
    declared = {match["symbol"]: match for match in _BOUNDS.finditer(text)}
    used = {inst.kernel.symbol for inst in instances} & declared.keys()
    lines = [
        f"{declared[name]['header'] or ''}struct lanelock_bounds_{name} "
        f"{{ static constexpr int values[] = {{{declared[name]['bounds']}}}; }};"
        for name in sorted(used)
    ]
    lines += [
        f'extern "C" __attribute__((visibility("default"))) int {bound(index)}() '
        f"{{ return lanelock_bounds_{inst.expression}::values[0]; }}"
        for index, inst in enumerate(instances)
        if inst.kernel.symbol in used
    ]
    return "\n".join([*lines, ""])


def refuse_assembly(sources: Sequence[Path]) -> None:
    """Raise BuildError for a source with assembly: the host device models only what the device header lists."""
    for path in sources:
        if path.name in DEVICE_HEADERS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if _ASM.search(line.partition("//")[0]):
                raise BuildError(f"{path.name}:{number}: the host device does not model inline assembly")
