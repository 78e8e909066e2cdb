"""A plan as one CUDA C++ program: what a decode does on a device, recorded, and written as source."""

from harness.emit.program import program
from harness.emit.recording import Recording, recorded

__all__ = ["Recording", "program", "recorded"]
