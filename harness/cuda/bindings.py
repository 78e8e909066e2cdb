"""The one place where cuda-python is imported, and where its result codes become exceptions."""

import importlib
import importlib.metadata
import warnings
from typing import Any

from harness.device import BuildError, DeviceError, NotRun

#: cuda.core was an experimental package first; the same class is looked for in both places, the newer first.
CORE_LOCATIONS = ("cuda.core", "cuda.core.experimental")


def driver() -> Any:
    """The module cuda.bindings.driver. Raises NotRun when cuda-bindings is not installed."""
    return _module("cuda.bindings.driver")


def nvrtc() -> Any:
    """The module cuda.bindings.nvrtc; it needs no driver. Raises NotRun when cuda-bindings is not installed."""
    return _module("cuda.bindings.nvrtc")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotRun(f"{name} cannot be imported ({error}): install cuda-bindings 13") from error


def core_device() -> Any:
    """The class Device of cuda.core, wherever this release keeps it. Raises NotRun when there is none."""
    for location in CORE_LOCATIONS:
        try:
            with warnings.catch_warnings():
                # the experimental location announces its own end; we look there only when the other is missing
                warnings.simplefilter("ignore")
                return importlib.import_module(location).Device
        except (ImportError, AttributeError):
            continue
    raise NotRun(f"cuda.core has no Device under {' or '.join(CORE_LOCATIONS)}: install cuda-core 0.3 or newer")


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(code: Any) -> str:
    """Name and sentence of a driver result, such as `CUDA_ERROR_INVALID_VALUE (invalid argument)`."""
    name = getattr(code, "name", str(code))
    try:
        error, text = driver().cuGetErrorString(code)
    except Exception:  # describing an error must never hide it behind another
        return str(name)
    return f"{name} ({text.decode()})" if int(error) == 0 and text else str(name)


def checked(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call's result tuple. Raises DeviceError, starting with `what`, unless it succeeded."""
    code, *values = result
    if int(code) != 0:
        raise DeviceError(f"{what}: {describe(code)}")
    return values[0] if len(values) == 1 else tuple(values)


def compiled(result: tuple[Any, ...], what: str) -> Any:
    """The same for a call of NVRTC; raises BuildError."""
    code, *values = result
    if int(code) != 0:
        raise BuildError(f"{what}: {getattr(code, 'name', code)}")
    return values[0] if len(values) == 1 else tuple(values)
