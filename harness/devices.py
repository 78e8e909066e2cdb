"""Open devices by name: `host`, `cuda`, `cuda:1`. A device that is not on this machine raises NotRun."""

import re

from harness.device import Device, NotRun
from oracle.errors import LanelockError


def check_choice(choice: str) -> None:
    """Raises LanelockError where a choice names no device: host, cuda, cuda:N, or all."""
    if not re.fullmatch(r"host|all|cuda(:\d+)?", choice):
        raise LanelockError(f"--device: unknown device {choice!r}; choose host, cuda, cuda:N or all")


def open_device(name: str) -> Device:
    """The device of that name. Raises NotRun when the machine has none, LanelockError for an unknown name."""
    if name == "host":
        from harness.host import HostDevice

        return HostDevice()
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise LanelockError(f"unknown device {name!r}; choose host, cuda or cuda:N")
    from harness.cuda import CudaDevice

    return CudaDevice(int(match[1] or 0))


def available(choice: str) -> tuple[dict[str, Device], dict[str, str]]:
    """Devices of a choice (`host`, `cuda`, `cuda:N`, `all`): the opened ones, and the reason for each not run."""
    opened: dict[str, Device] = {}
    missing: dict[str, str] = {}
    for name in ("host", "cuda") if choice == "all" else (choice,):
        try:
            opened[name] = open_device(name)
        except NotRun as absent:
            missing[name] = str(absent)
    return opened, missing
