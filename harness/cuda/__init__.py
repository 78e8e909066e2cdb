"""The CUDA device. cuda-python is imported when a device or the compiler is first used, not by this package."""

from harness.cuda.device import CudaDevice
from harness.cuda.gpus import Gpu, Gpus, list_gpus

__all__ = ["CudaDevice", "Gpu", "Gpus", "list_gpus"]
