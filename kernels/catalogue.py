"""Every kernel of the engine by name and by room."""

import importlib

from kernels.entry import Kernel
from oracle.errors import LanelockError

#: The rooms that hold kernels. A room is a stem shared by source, entry, oracle, contract and locks.
ROOMS = (
    "add",
    "attention",
    "attention_combine",
    "attention_prefill",
    "conv",
    "delta_chunk",
    "delta_rule",
    "embedding",
    "functions",
    "gate_mul",
    "gated_norm",
    "gates",
    "gemm_dp4a",
    "gemm_mma",
    "gemm_rows",
    "gemm_tc",
    "gemm_wg",
    "gemv_register",
    "gemv_rows",
    "gemv_staged",
    "greedy",
    "memory_read",
    "mtp_concat",
    "positions",
    "pretile",
    "primitives",
    "projection_f32",
    "projection_stream",
    "q8_to_q4",
    "qk_norm_rope",
    "quantize",
    "rms_norm",
    "speculation",
    "split_sum",
    "swiglu",
    "synthetic",
)


def by_room(room: str) -> tuple[Kernel, ...]:
    """The kernels of one room, in the order of its entry file. Raises LanelockError for an unknown room."""
    if room not in ROOMS:
        raise LanelockError(f"unknown room {room!r}; the rooms are {', '.join(ROOMS)}")
    kernels: tuple[Kernel, ...] = importlib.import_module(f"kernels.{room}").KERNELS
    return kernels


KERNELS: tuple[Kernel, ...] = tuple(k for room in ROOMS for k in by_room(room))


def kernel(name: str) -> Kernel:
    """The kernel of that name. Raises LanelockError with the names that exist."""
    for found in KERNELS:
        if found.name == name:
            return found
    raise LanelockError(f"unknown kernel {name!r}; the kernels are {', '.join(k.name for k in KERNELS)}")
