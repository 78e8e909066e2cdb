"""The toolkit's headers, taken from their wheels and held against the compiler's version before anything compiles.

Our kernels need none of them. They are here for kernels of users that include cuda_fp16.h and its kin, and because a
header of one toolkit under the compiler of another fails with hundreds of lines that name neither. No environment
variable is read: a CUDA_PATH that points at another toolkit changes nothing.
"""

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cuda import compiler
from harness.device import BuildError, NotRun

#: Header -> the wheel that carries it.
WHEELS = {
    "cuda_fp16.h": "nvidia-cuda-runtime",
    "cuda_bf16.h": "nvidia-cuda-runtime",
    "cuda_fp8.h": "nvidia-cuda-runtime",
    "mma.h": "nvidia-cuda-runtime",
    "crt/mma.h": "nvidia-cuda-crt",
}

#: The file whose CUDART_VERSION says which toolkit a folder of headers belongs to, as 1000 * major + 10 * minor.
_VERSION_FILE = "cuda_runtime_api.h"

#: Uses every header, so that it compiles only with all of them in working order.
PROBE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <mma.h>
__global__ void probe(float* y, const __half* x) {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> tile;
  nvcuda::wmma::fill_fragment(tile, 1.0f);
  y[0] = float(x[0]) + float(__nv_bfloat16(2.0f)) + float(__nv_fp8_e4m3(3.0f)) + tile.x[0];
}
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of headers, whose it is, and the toolkit version it says it belongs to."""

    owner: str
    folder: Path
    version: tuple[int, int]


def from_wheels() -> tuple[Part, ...]:
    """The headers of the installed wheels. Raises NotRun naming the wheel that is missing."""
    parts: dict[str, Part] = {}
    for header, wheel in WHEELS.items():
        folder = _folder(wheel, header)
        if folder is None:
            raise NotRun(f"{header} is not installed: install {wheel} {_dotted(compiler.version())}")
        if wheel not in parts:
            parts[wheel] = Part(wheel, folder, _version(wheel, folder))
    return tuple(parts.values())


def check(parts: Sequence[Part]) -> None:
    """Raise BuildError, naming the part and both versions, when headers and compiler are of different toolkits."""
    have = compiler.version()
    for part in parts:
        if part.version != have:
            remedy = f"install {part.owner}" if part.owner in WHEELS.values() else "use headers of CUDA"
            raise BuildError(
                f"headers of {part.owner} are of CUDA {_dotted(part.version)}, the compiler is NVRTC {_dotted(have)}: "
                f"{remedy} {_dotted(have)}"
            )


def folder_part(folder: Path) -> Part:
    """A folder of headers that a caller names, with the version that its files state."""
    return Part(str(folder), folder, stated_version(folder))


def stated_version(folder: Path) -> tuple[int, int]:
    """The toolkit version that a folder's own header states. Raises BuildError if it states none."""
    file = folder / _VERSION_FILE
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", file.read_text(errors="replace")) if file.is_file() else None
    if match is None:
        raise BuildError(f"{folder} holds no {_VERSION_FILE} that states a version: these are no CUDA headers")
    number = int(match[1])
    return number // 1000, number % 1000 // 10


def compile_probe(arch: str, parts: Sequence[Part] | None = None) -> compiler.Output:
    """Compile a kernel that uses the fp16, bf16, fp8 and matrix headers.

    Raises BuildError when a part is stale, before compiling; NotRun when a wheel or the architecture is missing.
    """
    chosen = from_wheels() if parts is None else parts
    check(chosen)
    folders = dict.fromkeys(f"--include-path={part.folder}" for part in chosen)
    return compiler.compile_source(PROBE, "probe.cu", ["probe"], arch, tuple(folders))


def _folder(wheel: str, header: str) -> Path | None:
    """Where a wheel keeps a header, by its own list of files."""
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    depth = header.count("/") + 1
    for file in files:
        path = Path(str(file.locate()))
        if str(file).endswith(f"include/{header}") and path.is_file():
            return path.resolve().parents[depth - 1]
    return None


def _version(wheel: str, folder: Path) -> tuple[int, int]:
    """What the headers state, or for a wheel that states nothing its own number."""
    if WHEELS.get("cuda_fp16.h") == wheel:
        return stated_version(folder)
    major, minor = importlib.metadata.version(wheel).split(".")[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
