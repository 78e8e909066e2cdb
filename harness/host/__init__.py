"""The host device: CUDA sources on the processor, with CUDA's semantics and a stricter machine's checks."""

from harness.host.device import HostDevice
from harness.host.options import HostOptions

__all__ = ["HostDevice", "HostOptions"]
