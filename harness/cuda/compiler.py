"""NVRTC: one call compiles a program of several instantiations to machine code. It needs no driver and no GPU."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cuda.bindings import compiled, nvrtc
from harness.device import BuildError, NotRun

#: The contract on bits (kernels/ARITHMETIC.md): no contraction, no flushing, correctly rounded division and root.
CONTRACT_FLAGS = (
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-std=c++20",
)

_FIRST_ERROR = re.compile(r"^.*\berror\b.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Output:
    """What one compilation gave. names: C++ expression -> lowered name. The log holds the report of ptxas."""

    cubin: bytes
    ptx: str
    log: str
    names: dict[str, str]


def version() -> tuple[int, int]:
    """Major and minor version of the NVRTC that is loaded. Raises NotRun when it is not installed."""
    try:
        major, minor = compiled(nvrtc().nvrtcVersion(), "NVRTC version")
    except (RuntimeError, OSError) as error:
        # cuda-pathfinder raises a RuntimeError of its own when no wheel and no toolkit has the library
        raise NotRun(f"NVRTC cannot be loaded ({_sentence(error)}): install nvidia-cuda-nvrtc 13") from error
    return int(major), int(minor)


def version_text() -> str:
    """The version as one reads it, such as `NVRTC 13.0`."""
    return "NVRTC {}.{}".format(*version())


def supported() -> tuple[int, ...]:
    """Compute capabilities that this NVRTC compiles for, as 80, 90, 120."""
    version()
    return tuple(int(n) for n in compiled(nvrtc().nvrtcGetSupportedArchs(), "NVRTC architectures"))


def require_arch(arch: str) -> None:
    """Raise NotRun, naming compiler and architecture, when this NVRTC is too old or too new for it."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None:
        raise BuildError(f"{arch!r} is no real GPU architecture; write such as sm_90a")
    known = supported()
    if int(match[1]) not in known:
        have = ", ".join(f"sm_{n}" for n in known)
        raise NotRun(f"{version_text()} does not compile for {arch}; it knows {have}")


def compile_source(text: str, name: str, expressions: Sequence[str], arch: str, options: Sequence[str] = ()) -> Output:
    """Compile CUDA C++ for a real architecture: machine code, its PTX, the log, and the lowered names.

    name is what error messages call the source. Raises BuildError with the compiler's first error, and NotRun for
    an architecture that this NVRTC does not know.
    """
    require_arch(arch)
    api = nvrtc()
    what = f"{name} for {arch} with {version_text()}"
    program = compiled(api.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []), what)
    try:
        for expression in expressions:
            compiled(api.nvrtcAddNameExpression(program, expression.encode()), f"{what}: {expression}")
        # without NVRTC's own cache: an answer out of it comes with no report of ptxas (seen with 13.0 beside a driver)
        flags = [f"--gpu-architecture={arch}", *CONTRACT_FLAGS, "--ptxas-options=-v", "--no-cache", *options]
        code = api.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        log = _log(api, program)
        if int(code) != 0:
            raise BuildError(f"{what}: {first_error(log) or getattr(code, 'name', code)}\n{log}")
        return Output(
            cubin=_bytes(api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN, program, what),
            ptx=_bytes(api.nvrtcGetPTXSize, api.nvrtcGetPTX, program, what).rstrip(b"\0").decode(),
            log=log,
            names={e: compiled(api.nvrtcGetLoweredName(program, e.encode()), e).decode() for e in expressions},
        )
    finally:
        api.nvrtcDestroyProgram(program)


def first_error(log: str) -> str:
    """The first line of the log that says error, or an empty text."""
    match = _FIRST_ERROR.search(log)
    return match[0].strip() if match else ""


def _log(api: Any, program: Any) -> str:
    data = _bytes(api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog, program, "NVRTC log")
    return data.rstrip(b"\0 \n").decode(errors="replace")


def _bytes(size: Any, get: Any, program: Any, what: str) -> bytes:
    """A result that NVRTC writes into a buffer of ours."""
    buffer = bytearray(int(compiled(size(program), what)))
    compiled(get(program, buffer), what)
    return bytes(buffer)


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
