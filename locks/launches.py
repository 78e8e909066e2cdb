"""Launches of plans as cases of their own: each kernel at the shapes it is launched with, on seeded inputs."""

from collections.abc import Iterable

import numpy as np

from harness.device import Device
from harness.inputs import random_array
from kernels.entry import Buffer, buffer_dtype, buffer_shape
from kernels.plan import Launch, Plan
from locks.support import Case, rng

#: Positions that sequences of a case stand at: not the first, so that rings, caches and rotations are all in play.
POSITION = 5


def distinct(plans: Iterable[Plan]) -> list[Launch]:
    """One launch of each instantiation with each set of dims, in the order of the plans."""
    found: dict[tuple[str, ...], Launch] = {}
    for plan in plans:
        for items in plan.programs.values():
            for item in items:
                dims = (f"{name}={value}" for name, value in sorted(item.dims.items()))
                null = (str(i) for i, arg in enumerate(item.args) if arg is None)
                found.setdefault((item.instance.expression, *dims, *null), item)
    return list(found.values())


def widest(items: Iterable[Launch]) -> list[Launch]:
    """Of each instantiation the launch with the most blocks."""
    best: dict[str, Launch] = {}
    for item in sorted(items, key=lambda i: -int(np.prod(i.geometry.grid))):
        best.setdefault(item.instance.expression, item)
    return list(best.values())


def inputs_of(item: Launch, seed: int) -> dict[str, np.ndarray | None]:
    """What a launch reads, seeded: every sequence in a slot of its own, with all its rows, at POSITION."""
    given = {a.name: arg for a, arg in zip(item.instance.kernel.args, item.args, strict=True)}
    inputs: dict[str, np.ndarray | None] = {}
    for i, buffer in enumerate(item.instance.kernel.buffers):
        if given[buffer.name] is None:
            inputs[buffer.name] = None
        elif buffer.access != "w":
            inputs[buffer.name] = _values(item, buffer, rng(seed, i))
    return inputs


def _values(item: Launch, buffer: Buffer, generator: np.random.Generator) -> np.ndarray:
    shape, dtype = buffer_shape(buffer, item.dims), buffer_dtype(item.instance, buffer)
    if dtype != "i32":
        return random_array(generator, dtype, shape)
    if buffer.name == "slot":
        return np.arange(shape[0], dtype=np.int32)
    constants = {"length": item.dims.get("T", 1), "position": POSITION, "end": 2 * POSITION, "replay": -1, "count": 1}
    return np.full(shape, int(constants.get(buffer.name, 0)), np.int32)


def case_of(item: Launch, seed: int = 1) -> Case:
    """The launch with seeded inputs."""
    dims = {k: v for k, v in item.dims.items() if k not in item.instance.template}
    return Case(item.instance.kernel, dims, inputs_of(item, seed), item.instance.template)


def run(device: Device, item: Launch, seed: int = 1) -> dict[str, np.ndarray]:
    """What the launch writes, by argument; on the host through several schedules, copy orders and guard pages."""
    return case_of(item, seed).run(device)
