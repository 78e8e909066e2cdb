"""Compile instantiations: all that are asked for together and share a source become one library."""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.cache import cache_key, cache_root, cached, write_whole
from harness.device import BuildError
from harness.host.arguments import Slot, slots
from harness.host.compilers import WATCH_FLAGS, Compiler
from harness.host.library import RUNTIME, Runtime
from harness.host.thunks import bound, bounds_source, library_source, refuse_assembly, symbol, thunk
from harness.sources import KERNELS, closure, closure_text
from kernels.entry import Instance, Kernel, Value

#: Threads of a block that any kernel may have.
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled instantiation: the address of its thunk and the library that holds it."""

    instance: Instance
    thunk: int
    library: Path
    slots: tuple[Slot, ...]
    threads: int  # the largest block that its launch bounds allow

    @property
    def name(self) -> str:
        """The C++ name of the instantiation."""
        return self.instance.expression


def _identity_of(inst: Instance) -> str:
    return f"{inst.kernel.source}\n{thunk(inst, 0)}"


class Builder:
    """Builds with one compiler for one processor level from one folder of sources; keeps what it has loaded."""

    def __init__(self, compiler: Compiler, march: str, root: Path, runtime: Runtime, *, watched: bool = False) -> None:
        """Nothing is compiled before it is asked for. A watched kernel reports what it stores."""
        self.watched = watched
        self.compiler, self.march, self.root, self.runtime = compiler, march, root, runtime
        self.flags = (*compiler.flags(march), "-DLANELOCK_HOST", f"-I{RUNTIME}", f"-I{root}", f"-I{KERNELS}")
        self._built: dict[str, Built] = {}
        # the same by the kernel's id, which stays its own while the entry keeps the kernel alive: nothing is hashed
        self._known: dict[tuple[int, tuple[Value, ...]], tuple[Kernel, Built]] = {}
        self._closures: dict[Path, str] = {}

    def find(self, instance: Instance) -> Built | None:
        """What is already built and loaded."""
        key = (id(instance.kernel), instance.values)
        if key not in self._known:
            built = self._built.get(_identity_of(instance))
            if built is None:
                return None
            self._known[key] = (instance.kernel, built)
        return self._known[key][1]

    def build(self, instances: Sequence[Instance]) -> list[Built]:
        """The instantiations in the order asked for. Raises BuildError with the compiler's first error."""
        # a kernel may hold a mapping and has no hash; what is compiled is its identity
        named = {_identity_of(inst): inst for inst in instances}
        missing = [inst for name, inst in named.items() if name not in self._built]
        groups: dict[Path, list[Instance]] = {}
        for inst in missing:
            groups.setdefault(self.root / inst.kernel.source, []).append(inst)
        if len(groups) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda item: self._build_group(*item), groups.items()))
        else:
            for source, group in groups.items():
                self._build_group(source, group)
        return [self._built[_identity_of(inst)] for inst in instances]

    def _identity(self, source: Path) -> str:
        if source not in self._closures:
            if not source.is_file():
                raise BuildError(f"host device: there is no kernel source {source.name}")
            files = closure(source)
            refuse_assembly(files)
            headers = "".join(p.read_text() for p in sorted(RUNTIME.glob("*.h")))
            # a library names its source by path only in debug output, so equal text in an overlay shares the entry
            self._closures[source] = cache_key(
                "host kernel 2", *self.compiler.command, self.compiler.version, *self.compiler.flags(self.march),
                *(WATCH_FLAGS if self.watched else ()), closure_text(source), headers,
            )
        return self._closures[source]

    def _build_group(self, source: Path, group: list[Instance]) -> None:
        # each instantiation has a small entry that says which library holds it, so that asking for it alone finds
        # what was compiled together with others
        waiting = []
        for inst in group:
            link = self._link(source, inst)
            if link.is_file():
                name, place = link.read_text().split()
                library = cache_root() / name[:2] / name
                if library.is_file():
                    self._load(inst, library, int(place))
                    continue
            waiting.append(inst)
        if not waiting:
            return
        key = cache_key(self._identity(source), *(library_source(Path(), [inst]) for inst in waiting))
        library = cached(key, lambda path: self._compile(source, waiting, path))
        for index, inst in enumerate(waiting):
            write_whole(self._link(source, inst), f"{key} {index}")
            self._load(inst, library, index)

    def _link(self, source: Path, inst: Instance) -> Path:
        key = cache_key("host link", self._identity(source), library_source(Path(), [inst]))
        return cache_root() / key[:2] / key

    def _compile(self, source: Path, group: list[Instance], output: Path) -> None:
        text = output.with_suffix(".cpp")
        text.write_text(library_source(source, group) + bounds_source(source.read_text(), group))
        names = ", ".join(inst.expression for inst in group)
        what = f"{source.name} ({names}) on the host device"
        if self.watched:
            self.compiler.compile_watched(text, output, self.flags, what)
        else:
            self.compiler.compile([text], output, self.flags, what)
        text.unlink()

    def _load(self, inst: Instance, library: Path, index: int) -> None:
        loaded = ctypes.PyDLL(str(library))
        loaded.lanelock_bind(ctypes.c_void_p(self.runtime.machine_address))
        address = ctypes.cast(getattr(loaded, symbol(index)), ctypes.c_void_p).value
        declared = getattr(loaded, bound(index), None)
        threads = MAX_THREADS if declared is None else int(declared())
        self._built[_identity_of(inst)] = Built(inst, int(address or 0), library, slots(inst), threads)
