"""The GPUs of this machine, listed without raising: where there is none, the reason in plain words."""

import os
from dataclasses import dataclass
from typing import Any

from harness.cuda.bindings import core_device, describe, driver
from harness.device import NotRun

#: Compute capabilities whose own instructions need the architecture-specific target.
SPECIFIC_TARGETS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. memory and shared_per_block (with the opt-in) in bytes."""

    index: int
    name: str
    uuid: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_per_block: int
    memory: int

    @property
    def arch(self) -> str:
        """The real architecture that kernels are compiled for."""
        return target(*self.capability)


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the driver shows this process. reason is empty exactly when there is a GPU; driver is such as 13.0."""

    found: tuple[Gpu, ...]
    driver: tuple[int, int] | None
    reason: str

    def require(self, index: int) -> Gpu:
        """The GPU of that number among the visible ones. Raises NotRun with the reason when it is not there."""
        if not self.found:
            raise NotRun(f"cuda:{index}: {self.reason}")
        if not 0 <= index < len(self.found):
            raise NotRun(f"cuda:{index}: this process sees {len(self.found)} GPU(s), numbered from 0")
        return self.found[index]


def target(major: int, minor: int) -> str:
    """The architecture name of a compute capability: sm_90a for 9.0, sm_86 for 8.6."""
    return SPECIFIC_TARGETS.get((major, minor), f"sm_{major}{minor}")


def list_gpus() -> Gpus:
    """List the GPUs that CUDA_VISIBLE_DEVICES leaves to this process; starts CUDA."""
    try:
        api = driver()
        (code,) = api.cuInit(0)
    except NotRun as absent:
        return Gpus((), None, str(absent))
    except (RuntimeError, OSError):
        # cuda-bindings raises while it looks for the driver's library, before there is a result code
        return Gpus((), None, "no NVIDIA driver on this machine (libcuda was not found)")
    version = _driver_version(api)
    if int(code) != 0:
        return Gpus((), version, f"the NVIDIA driver shows no usable GPU: {describe(code)}{_visible()}")
    code, count = api.cuDeviceGetCount()
    if int(code) != 0 or count == 0:
        return Gpus((), version, f"the NVIDIA driver shows no GPU{_visible()}")
    try:
        return Gpus(tuple(_gpu(api, index) for index in range(count)), version, "")
    except NotRun as absent:
        return Gpus((), version, str(absent))


def _gpu(api: Any, index: int) -> Gpu:
    """One entry; identity and properties come from cuda.core, which reads them without a context."""
    device = core_device()(index)
    properties = device.properties
    capability = device.compute_capability
    code, memory = api.cuDeviceTotalMem(index)
    return Gpu(
        index=index,
        name=str(device.name),
        uuid=str(device.uuid),
        capability=(int(capability[0]), int(capability[1])),
        multiprocessors=int(properties.multiprocessor_count),
        shared_per_block=int(properties.max_shared_memory_per_block_optin),
        memory=int(memory) if int(code) == 0 else 0,
    )


def _driver_version(api: Any) -> tuple[int, int] | None:
    code, number = api.cuDriverGetVersion()
    return (number // 1000, number % 1000 // 10) if int(code) == 0 else None


def _visible() -> str:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (CUDA_VISIBLE_DEVICES is {chosen!r})"
