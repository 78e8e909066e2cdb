"""The C++20 compiler of the host device: the system's g++ or clang++, else `zig c++` from the ziglang wheel."""

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device import BuildError, NotRun

#: Flags of the contract: no contraction, no fast math; the same for every compiler.
CONTRACT_FLAGS = ("-std=c++20", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared", "-w")
V3 = {"avx2", "fma", "bmi2", "f16c", "movbe"}


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that can build kernels. command is what starts it; family is gcc, clang or zig."""

    command: tuple[str, ...]
    family: str
    version: str

    def flags(self, march: str) -> tuple[str, ...]:
        """Flags for a -march level such as `x86-64-v3`; none for the compiler's own default."""
        if not march:
            return CONTRACT_FLAGS
        # zig spells the levels with underscores
        spelled = f"-mcpu={march.replace('-', '_')}" if self.family == "zig" else f"-march={march}"
        return (*CONTRACT_FLAGS, spelled)


def best_march() -> str:
    """`x86-64-v3` where the processor has it (without hardware fma, fmaf is right but slow), else the default."""
    if platform.machine() != "x86_64":
        return ""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return "x86-64-v3" if flags and set(flags[1].split()) >= V3 else ""


def version_of(command: Sequence[str]) -> str:
    """First line of --version, empty if the command does not work."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=120)
    except OSError:
        return ""
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""


def _system(name: str, family: str) -> Compiler | None:
    path = shutil.which(name)
    version = version_of((path,)) if path else ""
    match = re.search(r"(\d+)\.\d+", version)
    # C++20 as the kernels use it, and _Float16 on the host: gcc 12, clang 15
    oldest = 12 if family == "gcc" else 15
    return Compiler((path,), family, version) if path and match and int(match[1]) >= oldest else None


def _zig() -> Compiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "c++")
    version = version_of(command)
    return Compiler(command, "zig", version) if version else None


@functools.cache
def find_compiler(wanted: str = "") -> Compiler:
    """The compiler to use: `gcc`, `clang` or `zig` by name, else LANELOCK_CXX's choice, else the first that works.

    Raises NotRun when there is none.
    """
    wanted = wanted or os.environ.get("LANELOCK_CXX", "")
    finders = {"gcc": lambda: _system("g++", "gcc"), "clang": lambda: _system("clang++", "clang"), "zig": _zig}
    if wanted and wanted not in finders:
        raise BuildError(f"compiler {wanted!r} is not known; choose gcc, clang or zig")
    for name in (wanted,) if wanted else finders:
        if (found := finders[name]()) is not None:
            return found
    missing = wanted or "g++ 12, clang++ 15 or the ziglang wheel"
    raise NotRun(f"no C++20 compiler for the host device: {missing} not found")


def compile_library(compiler: Compiler, march: str, sources: Sequence[Path], includes: Sequence[Path], out: Path) -> None:
    """Compile sources into one shared library. Raises BuildError with the compiler's first error line."""
    flags = [*compiler.flags(march), *(f"-I{folder}" for folder in includes)]
    command = [*compiler.command, *flags, "-o", str(out), *(str(s) for s in sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise BuildError(f"{compiler.version}: {first}")
