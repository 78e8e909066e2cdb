"""The host device: the kernels' own CUDA C++ compiled for this processor and run strictly, thread by thread."""

from harness.host.device import HostDevice
from harness.host.options import HostOptions

__all__ = ["HostDevice", "HostOptions"]
