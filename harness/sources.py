"""The text that a kernel is compiled from: its CUDA source and every header of ours below it."""

import re
from pathlib import Path

import kernels

#: The folder of the CUDA sources; a checkout copied elsewhere (an overlay with a planted fault) has its own.
KERNELS = Path(kernels.__file__).parent

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def closure(source: Path, include_dir: Path = KERNELS) -> tuple[Path, ...]:
    """The source and all headers it includes by quoted name, each once, in the order they are first met.

    A quoted header that is neither beside the including file nor in include_dir is left for the compiler to
    refuse.
    """
    found: list[Path] = []
    waiting = [source]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        for name in _INCLUDE.findall(path.read_text()):
            here = next((d / name for d in (path.parent, include_dir) if (d / name).is_file()), None)
            if here is not None:
                waiting.append(here)
    return tuple(found)


def closure_text(source: Path, include_dir: Path = KERNELS) -> str:
    """Names and contents of the closure as one text, for a cache key."""
    return "".join(f"// file {path.name}\n{path.read_text()}\n" for path in closure(source, include_dir))
