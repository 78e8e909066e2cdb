"""A GPU's primary context: every driver call goes through it, and an error names the launches that may have made it."""

from collections import deque
from typing import Any

import numpy as np

from harness.cuda.bindings import checked, describe, driver
from harness.device import DeviceError

#: Results after which the context is lost: every later call fails with the same code, whatever it does.
_FATAL = frozenset((214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719))

#: How many launches an asynchronous error names; the culprit is among those since the last synchronisation.
_REMEMBERED = 8

#: CU_STREAM_NON_BLOCKING: work does not wait for the null stream, which cannot be captured.
_NON_BLOCKING = 1


class Context:
    """The primary context of one GPU, made current before every call so that one process can use several GPUs."""

    def __init__(self, index: int) -> None:
        self.api = driver()
        self.label = f"cuda:{index}"
        self.fault = ""  # what made the context unusable
        self.capturing = False
        self.last = ""  # the kernels of the last launch or replay
        self._pending: deque[str] = deque(maxlen=_REMEMBERED)
        device = checked(self.api.cuDeviceGet(index), self.label)
        self._handle = checked(self.api.cuDevicePrimaryCtxRetain(device), self.label)
        self.enter("open")
        self.stream = self.new_stream()

    def enter(self, what: str) -> None:
        """Make the context current. Raises DeviceError after a fault, with the fault."""
        if self.fault:
            raise DeviceError(f"{self.label}: no {what} any more, the context is lost since: {self.fault}")
        checked(self.api.cuCtxSetCurrent(self._handle), f"{self.label}: {what}")

    def ok(self, result: tuple[Any, ...], what: str) -> Any:
        """The value of a driver call. Raises DeviceError naming the launches since the last synchronisation."""
        code = result[0]
        if int(code) == 0:
            return result[1] if len(result) == 2 else result[1:]
        message = f"{what}: {describe(code)}"
        if self._pending:
            message += f", after {', '.join(dict.fromkeys(reversed(self._pending)))}"
        if int(code) in _FATAL:
            self.fault = message
        raise DeviceError(f"{self.label}: {message}")

    def ran(self, *names: str) -> None:
        """Remember launches, for the message of an error that shows later."""
        self._pending.extend(names)
        self.last = ", ".join(dict.fromkeys(names)) or self.last

    def synchronize(self) -> None:
        """Wait for all launches. Raises DeviceError for a fault in any of them, and inside a capture."""
        self.enter("synchronize")
        if self.capturing:
            raise DeviceError(f"{self.label}: cannot wait for the device while launches are captured")
        self.ok(self.api.cuCtxSynchronize(), "synchronize")
        self._pending.clear()

    def new_stream(self) -> Any:
        """A stream that does not wait for the null stream."""
        return self.ok(self.api.cuStreamCreate(_NON_BLOCKING), "stream")

    def settle(self, what: str) -> None:
        """Wait for the device's own stream."""
        self.ok(self.api.cuStreamSynchronize(self.stream), what)

    def set_bytes(self, address: int, byte: int, count: int, what: str) -> None:
        """Set bytes on the device's own stream."""
        if count:
            self.ok(self.api.cuMemsetD8Async(address, byte, count, self.stream), what)

    def store(self, address: int, data: np.ndarray, what: str) -> None:
        """Copy contiguous bytes to the device; they have arrived when this returns."""
        if data.nbytes:
            self.ok(self.api.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self.stream), what)
            self.settle(what)

    def fetch(self, address: int, count: int, what: str) -> np.ndarray:
        """Copy bytes back."""
        data = np.empty(count, np.uint8)
        if count:
            self.ok(self.api.cuMemcpyDtoHAsync(data.ctypes.data, address, count, self.stream), what)
            self.settle(what)
        return data
