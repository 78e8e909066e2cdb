"""Weights into a plan's buffers, in the forms that its lowerings read."""

from collections.abc import Callable

import numpy as np

from kernels.plan import Plan
from kernels.storage import STAGE
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Weights

Write = Callable[[str, np.ndarray], None]


def load_weights(plan: Plan, weights: Weights, write: Write, run: Callable[[str], None]) -> None:
    """Write every tensor that the plan reads, one at a time; conversions run on the device from staging buffers.

    Raises LanelockError if a tensor is missing, quantised where the plan wants floats, or the other way round.
    """
    for tensor in sorted({tensor_of(name) for name in plan.buffers if name.startswith("w.")}):
        value = weights.tensor(tensor)
        home = f"w.{tensor}"
        if home in plan.buffers:
            if isinstance(value, Q8_0):
                raise LanelockError(f"weights: {tensor} is quantised, the plan reads it as float32")
            write(home, np.asarray(value, np.float32))
            continue
        if not isinstance(value, Q8_0):
            raise LanelockError(f"weights: {tensor} is not quantised, the plan reads it as Q8_0")
        for part, array in (("codes", value.codes), ("scales", value.scales)):
            if f"{home}.{part}" in plan.buffers:
                write(f"{home}.{part}", array)
        if f"load.{tensor}" in plan.programs:
            _stage(plan, value, write)
            run(f"load.{tensor}")


def tensor_of(buffer: str) -> str:
    """The tensor that a weight buffer holds: `w.layers.3.gu.q4.codes` holds `layers.3.gu`."""
    name = buffer.removeprefix("w.")
    for form in (".q4.codes", ".q4.scales", ".q4.panels", ".codes", ".scales", ".panels"):
        if name.endswith(form):
            return name.removesuffix(form)
    return name


def _stage(plan: Plan, value: Q8_0, write: Write) -> None:
    staged = {"codes": value.codes, "scales": value.scales, "bytes": value.codes.view(np.uint8)}
    for part, array in staged.items():
        if STAGE + part in plan.buffers:
            write(STAGE + part, array)
