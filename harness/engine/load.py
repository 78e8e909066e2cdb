"""Weights into a plan's buffers, in the forms that its lowerings read."""

from collections.abc import Callable

import numpy as np

from kernels.plan import Plan
from kernels.storage import STAGE
from oracle.errors import LanelockError
from oracle.formats import Q8_0, check_q4
from oracle.model_weights import Weights
from oracle.weights.synthetic import SyntheticWeights

Write = Callable[[str, np.ndarray], None]
#: Makes a tensor on the device: (tensor, codes buffer, scales buffer).
Make = Callable[[str, str, str], None]


def load_weights(
    plan: Plan, weights: Weights, write: Write, run: Callable[[str], None], make: Make | None = None
) -> None:
    """Write every tensor that the plan reads, one at a time; conversions run on the device from staging buffers.

    make, where there is one, makes quantised tensors on the device instead of copying them there.

    Raises LanelockError if a tensor is missing, quantised where the plan wants floats, or the other way round.
    """
    for tensor in sorted({tensor_of(name) for name in plan.buffers if name.startswith("w.")}):
        home = f"w.{tensor}"
        if make is not None and home not in plan.buffers:
            _make(plan, tensor, run, make)
            continue
        value = weights.tensor(tensor)
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
            _stage(plan, tensor, value, write)
            run(f"load.{tensor}")


def check_weights(plan: Plan, weights: Weights) -> None:
    """Refuse weights that a form of the plan cannot hold, before anything is made for them.

    Raises LanelockError naming tensor, row and block.
    """
    # synthetic scales lie near 1 / sqrt(K) by their rule, and 27 GB of them would take minutes to make here
    if isinstance(weights, SyntheticWeights):
        return
    for program, items in plan.programs.items():
        if any(item.instance.kernel.name == "q8_to_q4" for item in items):
            value = weights.tensor(program.removeprefix("load."))
            if isinstance(value, Q8_0):
                check_q4(value, f"weights: {program.removeprefix('load.')}")


def _make(plan: Plan, tensor: str, run: Callable[[str], None], make: Make) -> None:
    home = f"w.{tensor}"
    if f"{home}.codes" in plan.buffers:
        make(tensor, f"{home}.codes", f"{home}.scales")
    if f"load.{tensor}" in plan.programs:
        make(tensor, STAGE + ("bytes" if STAGE + "bytes" in _read(plan, tensor) else "codes"), STAGE + "scales")
        run(f"load.{tensor}")


def tensor_of(buffer: str) -> str:
    """The tensor that a weight buffer holds: `w.layers.3.gu.q4.codes` holds `layers.3.gu`."""
    name = buffer.removeprefix("w.")
    for form in (".q4.codes", ".q4.scales", ".q4.panels", ".codes", ".scales", ".panels"):
        if name.endswith(form):
            return name.removesuffix(form)
    return name


def _stage(plan: Plan, tensor: str, value: Q8_0, write: Write) -> None:
    staged: dict[str, np.ndarray] = {"codes": value.codes, "scales": value.scales, "bytes": value.codes.view(np.uint8)}
    read = _read(plan, tensor)
    for part, array in staged.items():
        if STAGE + part in read:
            write(STAGE + part, array)


def _read(plan: Plan, tensor: str) -> set[str]:
    """Buffers that the conversion of a tensor reads."""
    return {name for item in plan.programs[f"load.{tensor}"] for name in item.reads}
