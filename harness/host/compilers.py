"""The host's C++20 compiler: the system's g++ or clang++, else `zig c++` from the ziglang wheel."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.device import BuildError, NotRun

#: No contraction, no fast math, the GPU's wrapping integers, no aliasing rule that reinterpreted vectors would break;
#: a frame wider than a page touches each of its pages, so that it cannot step over the guard below a stack.
CONTRACT_FLAGS = (
    "-std=c++20",
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fstack-clash-protection",
    "-fvisibility=hidden",
    "-fPIC",
)
#: A loop that leaves a local array is undefined and may still look right; g++ proves some of them. Each release proves
#: other things, also of code that never runs (13.3 of an empty array in delta_chunk), so only releases whose verdict on
#: every kernel is known refuse.
PROOFS = {"12": ("-Werror=aggressive-loop-optimizations", "-Werror=array-bounds")}
#: The accesses of a kernel that is watched call the hooks of watch.h. Without optimisation every store of the source is
#: a store, and compilation is short.
WATCH_FLAGS = ("-fsanitize=thread", "-O0", "-include", "watch.h")
NAMES = ("g++", "clang++", "zig")
ALIASES = {"gcc": "g++", "clang": "clang++"}
_ERROR = re.compile(r"^(?P<where>[^\s:][^:\n]*:\d+)(?::\d+)?: (?:fatal )?error: (?P<what>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that speaks C++20: the words of its command, its first version line, and whether it is zig."""

    command: tuple[str, ...]
    version: str

    @property
    def is_zig(self) -> bool:
        """Zig spells -march differently and makes checks of undefined behaviour unless told not to."""
        return self.command[-1] == "c++"

    @property
    def release(self) -> str:
        """Major release in the version line, such as `12`; empty where there is none."""
        found = re.search(r"\b(\d+)\.\d+", self.version)
        return found[1] if found else ""

    def flags(self, march: str) -> tuple[str, ...]:
        """All flags of a kernel's or the runtime's compilation for a processor level ('' for the compiler's own)."""
        if not self.is_zig:
            proofs = PROOFS.get(self.release, ()) if "g++" in Path(self.command[0]).name else ()
            return (*CONTRACT_FLAGS, *proofs, *((f"-march={march}",) if march else ()))
        level = (f"-mcpu={march.replace('-', '_')}",) if march else ()
        return (*CONTRACT_FLAGS, "-fno-sanitize=undefined", *level)

    def compile(self, sources: Sequence[Path], output: Path, flags: Sequence[str], what: str) -> None:
        """Make a shared library. Raises BuildError with the compiler's first error, its file and line."""
        self._run([*flags, "-shared", "-o", str(output), *map(str, sources)], what)

    def compile_watched(self, source: Path, output: Path, flags: Sequence[str], what: str) -> None:
        """Make a shared library that calls a hook at every access to memory. Raises as `compile`."""
        # linked by itself: with the flag the compiler would add its own checker behind the hooks
        made = output.with_suffix(".o")
        self._run([*flags, *WATCH_FLAGS, "-c", "-o", str(made), str(source)], what)
        self._run(["-shared", "-o", str(output), str(made)], what)
        made.unlink()

    def _run(self, arguments: Sequence[str], what: str) -> None:
        command = [*self.command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise BuildError(f"{what}: {first_error(done.stderr)} ({self.version})")


def first_error(log: str) -> str:
    """The first error of a compiler's output with file name and line, else its first line."""
    match = _ERROR.search(log)
    if match is None:
        return next((line for line in log.splitlines() if line.strip()), "the compiler said nothing")
    return f"{Path(match['where']).name}: {match['what']}"


def march_of_machine() -> str:
    """The level this processor is used at: x86-64-v3 where it has AVX2, FMA and F16C, else the compiler's own."""
    if os.uname().machine != "x86_64":
        return ""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().partition("flags")[2].partition("\n")[0].split()) if info.is_file() else set()
    return "x86-64-v3" if {"avx2", "fma", "f16c", "bmi2", "movbe"} <= words else "x86-64"


def zig_command() -> tuple[str, ...] | None:
    """`zig c++` of the ziglang wheel, or of the system."""
    spec = importlib.util.find_spec("ziglang")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).with_name("zig")
        if binary.is_file():
            return (str(binary), "c++")
    found = shutil.which("zig")
    return (found, "c++") if found else None


def _command(name: str) -> tuple[str, ...] | None:
    if Path(name).name == "zig":
        return zig_command() if name == "zig" else (name, "c++")
    found = shutil.which(name)
    return (found,) if found else None


def _speaks_cxx20(command: tuple[str, ...]) -> bool:
    # concepts are what every kernel header needs of C++20 first; g++ 9 takes the flag and lacks them
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("template <class T> concept C = sizeof(T) == 4; static_assert(C<int>);\n")
        done = subprocess.run([*command, "-std=c++20", "-fsyntax-only", str(source)], capture_output=True, check=False)
        return done.returncode == 0


@functools.cache
def find(name: str | None = None) -> Compiler:
    """The compiler of that name or path (or LANELOCK_CXX's), else the first of g++, clang++, zig that speaks C++20.

    Raises NotRun when there is none.
    """
    name = name or os.environ.get("LANELOCK_CXX") or None
    for candidate in (name,) if name else NAMES:
        command = _command(ALIASES.get(candidate, candidate))
        if command is None or not (command[-1] == "c++" or _speaks_cxx20(command)):
            continue
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        line = version.stdout.partition("\n")[0].strip()
        return Compiler(command, f"zig {line}" if command[-1] == "c++" else line)
    wanted = name or "g++, clang++ or zig (pip install ziglang)"
    raise NotRun(f"host device: no C++20 compiler on this machine; looked for {wanted}")
