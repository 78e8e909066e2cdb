"""The command line that runs a kernel again as it was run, and the file of inputs that makes it the same run."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.cache import write_whole
from kernels import catalogue
from kernels.entry import Kernel, Value
from oracle.errors import LanelockError

#: The array of a file of inputs that names the buffers passed as null.
NULL = "null pointers"


def _spelled(value: Value) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value.item() if isinstance(value, np.generic) else value)


def command(
    device: str,
    kernel: Kernel,
    dims: Mapping[str, Value],
    template: Mapping[str, Value],
    variant: Mapping[str, str | int],
    inputs: Path | None = None,
) -> str:
    """`lanelock run KERNEL ...` with these choices; empty for a kernel that is not in the catalogue.

    An empty variant runs them all, which is what shows a race. Without a file of inputs the command makes seeded ones:
    enough for a fault of bounds, barriers or copies.
    """
    if not any(k is kernel for k in catalogue.KERNELS):
        return ""
    chosen = ",".join(f"{name}={_spelled(value)}" for name, value in {**dims, **template}.items())
    words = ["lanelock run", kernel.name, "--device", device, *(["--dims", chosen] if chosen else [])]
    if device == "host":
        words += [f"--{name} {value}" for name, value in variant.items()]
    if inputs is not None:
        words += ["--inputs", str(inputs)]
    return " ".join(words)


def hint(
    device: str,
    kernel: Kernel,
    dims: Mapping[str, Value],
    template: Mapping[str, Value],
    variant: Mapping[str, str | int],
) -> str:
    """What an error message ends with: `; reproduce: lanelock run ...`, or nothing for a kernel without a name."""
    again = command(device, kernel, dims, template, variant)
    return f"; reproduce: {again}" if again else ""


def save_inputs(inputs: Mapping[str, Any], path: Path) -> None:
    """Write a kernel's inputs, whole or not at all."""
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    arrays[NULL] = np.array([name for name, value in inputs.items() if value is None], np.str_)
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_whole(path, file.getvalue())


def load_inputs(path: Path) -> dict[str, Any]:
    """What save_inputs wrote. Raises LanelockError if the file is not there or is no such file."""
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise LanelockError(f"{path} holds no inputs of a kernel: it is not the .npz file that a red lock wrote")
        with np.load(path, allow_pickle=False) as file:
            inputs: dict[str, Any] = {name: file[name] for name in file.files}
    except OSError as error:
        raise LanelockError(f"{path} holds no inputs of a kernel: {error.strerror}") from error
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:  # NumPy's text advises to allow pickles
        raise LanelockError(f"{path} holds no inputs of a kernel: an array in it is damaged or no array") from error
    if NULL not in inputs:
        raise LanelockError(f"{path} holds no inputs of a kernel: it does not say which pointers are null")
    null = inputs.pop(NULL).tolist()
    return {**inputs, **dict.fromkeys(null)}
