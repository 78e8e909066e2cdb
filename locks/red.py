"""What a red lock of a kernel prints so that it can be run again without pytest: one command line."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.reproduce import command, save_inputs
from locks.support import Case

#: Where inputs of red locks lie, below the root; git ignores it.
FOLDER = ".lanelock/red"


def cases(error: pytest.ExceptionInfo[BaseException]) -> Iterator[Case]:
    """The cases that the failed lock and its helpers held, the innermost first."""
    for entry in reversed(error.traceback):
        yield from (value for value in entry.frame.f_locals.values() if isinstance(value, Case))


def reproduction(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> str:
    """The line that runs the failed lock's kernel again, with its inputs in a file; empty where there is no case."""
    case = next(cases(error), None)
    device: Any = getattr(item, "funcargs", {}).get("device")
    if case is None or device is None:
        return ""
    kind = device.properties.kind
    if not command(kind, case.kernel, case.dims, case.template, {}):
        return ""
    name = f"{case.kernel.name}-{hashlib.sha256(item.nodeid.encode()).hexdigest()[:12]}.npz"
    target = Path(FOLDER) / name
    save_inputs(case.inputs, item.config.rootpath / target)
    return command(kind, case.kernel, case.dims, case.template, {}, target)
