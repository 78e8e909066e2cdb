"""Repeats at the 27B's shapes: 300 launches beside another kernel, and an unoptimised build, give the same bits.

Handed case 32: a copy not waited for, shared memory used again too early and a barrier that not all reach show now and
then, with other flags, or beside other work. Every kernel that plans of the 27B launch is repeated, by each lowering.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pytest

from harness.cuda import CudaDevice
from harness.device import POISON, Device, Memory
from harness.run import Binding, arguments, as_bytes, scatter
from kernels.catalogue import KERNELS, ROOMS
from kernels.entry import DTYPES, Instance, Value, buffer_dtype, buffer_extent, buffer_shape, buffer_strides
from kernels.lanes import lane
from kernels.memory_read import MEMORY_READ
from kernels.plan import Launch, Plan
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from locks.launches import distinct, inputs_of, widest
from locks.support import assert_same_bits
from locks.test_coverage import SHAPES
from locks.test_plan import H200, PLANS
from oracle.errors import LanelockError

LANES = ("a15", "a8", "q4", "a8+s16+kv16", "a8+delta")
#: Lowerings that the rules prefer nowhere on an H200; the first is for few rows alone.
FORCED = ("gemv_rows", "gemv_register", "gemv_staged", "gemm_dp4a", "gemm_mma", "gemm_tc", "gemm_tc_q4",
          "gemm_tc_tiled", "gemm_tc_tiled_q4", "gemm_rows", "gemm_rows_wide", "gemm_rows_q4", "gemm_rows_q4_wide",
          "gemm_rows_tiled", "gemm_rows_tiled_q4")  # fmt: skip  # a list
REPEATS = 300
VECTORS = 1 << 24  # of 16 bytes: what the neighbour reads, so that it is at work beside many launches


@functools.cache
def launches() -> dict[str, Launch]:
    """The widest launch of each instantiation of the 27B's plans, by its C++ name."""
    plans = [_plan(name, 2 if lane(name).delta else 8, Tuning()) for name in LANES]
    for lowering, name in itertools.product(FORCED, ("a8", "q4")):
        with suppress(LanelockError):  # a form that this lane's weights do not have
            plans.append(_plan(name, 1 if lowering == FORCED[0] else 8, Tuning(lowering=lowering)))
    return {f"{i.instance.kernel.name} {i.instance.expression}": i for i in widest(distinct(plans))}


def _plan(name: str, B: int, tuning: Tuning) -> Plan:
    # 128 rows a pass reach every tile; the chunked rule has pieces of up to 64 tokens
    chunk = 128 // B if B > 1 else 4
    return make_plan(Setting(SHAPES, lane(name), B, B, 512, H200, tuning), chunk, 2)


@dataclass(frozen=True, slots=True)
class Resident:
    """A launch with its buffers on a device: inputs stay there, what it writes is set anew before each run."""

    device: Device
    item: Launch
    memory: dict[str, Memory | None]
    given: dict[str, np.ndarray | None]

    def run(self, before: Callable[[], None] = lambda: None) -> dict[str, np.ndarray]:
        """What the launch writes, by argument, in whole; `before` is called right before it, and not waited for."""
        kernel = self.item.instance.kernel
        written = [b for b in kernel.buffers if b.access != "r" and self.memory[b.name] is not None]
        for b in written:
            memory, start = self.memory[b.name], self.given.get(b.name)
            assert memory is not None
            if start is None:
                self.device.fill(memory, POISON)
            else:
                self.device.write(memory, as_bytes(start))
        built = self.device.build(self.item.instance)
        before()
        self.device.launch(built, self.item.geometry, arguments(kernel, self.item.dims, self.memory))
        found = {}
        for b in written:
            memory = self.memory[b.name]
            assert memory is not None
            found[b.name] = self.device.read(memory).view(DTYPES[buffer_dtype(self.item.instance, b)][0])
        return found


@contextmanager
def resident(device: Device, item: Launch) -> Iterator[Resident]:
    """The launch with seeded inputs in rows of its own pitches; what lies between the rows is poison."""
    inputs = inputs_of(item, 1)
    given: dict[str, np.ndarray | None] = {}
    memory: dict[str, Memory | None] = {}
    for b in item.instance.kernel.buffers:
        if b.name in inputs and inputs[b.name] is None:
            memory[b.name] = given[b.name] = None
            continue
        dtype, extent = DTYPES[buffer_dtype(item.instance, b)][0], buffer_extent(b, item.dims)
        memory[b.name] = fresh = device.alloc(b.name, extent * np.dtype(dtype).itemsize, 256)
        value = inputs.get(b.name)
        if value is not None:
            shape, strides = buffer_shape(b, item.dims), buffer_strides(b, item.dims)
            given[b.name] = scatter(Binding(b, dtype, shape, strides, extent, fresh), value)
            device.write(fresh, as_bytes(given[b.name]))  # type: ignore[arg-type]  # just set
    try:
        yield Resident(device, item, memory, given)
    finally:
        for held in memory.values():
            if held is not None:
                device.free(held)


@contextmanager
def beside(device: Device) -> Iterator[Callable[[], None]]:
    """Something that starts other work on a stream of its own, which keeps memory and multiprocessors busy."""
    built, stream = device.build(Instance(MEMORY_READ)), device.stream()
    blocks = 2 * device.properties.multiprocessors
    source, sums = device.alloc("source", 16 * VECTORS), device.alloc("sums", 4 * blocks)
    dims: dict[str, Value] = {"vectors": VECTORS, "blocks": blocks}
    args = arguments(MEMORY_READ, dims, {"x": source, "y": sums})
    try:
        yield lambda: device.launch(built, MEMORY_READ.geometry(dims), args, stream)
    finally:
        device.free(source)
        device.free(sums)


def assert_same(found: dict[str, np.ndarray], first: dict[str, np.ndarray], what: str) -> None:
    """Every buffer that was written holds the same bits."""
    assert found
    for name, value in first.items():
        assert_same_bits(found[name], value, f"{what}: {name}")


@pytest.mark.nightly
class TestCases:
    """What is repeated."""

    def test_are_every_room_that_a_plan_launches_and_every_lowering(self) -> None:
        """Each room with a kernel in a plan has a case; so has each lowering. Red: a kernel left out of the repeats."""
        rooms = {item.instance.kernel.room for item in launches().values()}
        family = {k.room for k in KERNELS if k.family == "projection"}

        assert {item.instance.kernel.room for item in distinct(PLANS)} | family <= rooms


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.full
@pytest.mark.parametrize("room", ROOMS)
class TestRoom:
    """Every kernel of a room that plans of the 27B launch, at its widest."""

    def cases(self, device: Device, room: str) -> list[tuple[str, Launch]]:
        arch = device.properties.arch
        found = [(k, i) for k, i in launches().items() if i.instance.kernel.room == room]
        built = [(k, i) for k, i in found if arch in i.instance.kernel.archs]
        if not built:
            pytest.skip(f"not run: no plan of the 27B launches {room} on {arch}")
        return built

    def test_repeats_beside_other_work_are_the_same(self, device: Device, room: str) -> None:
        """Case 32: 300 launches, each beside a kernel that reads a quarter of a gigabyte. Red: a rare hazard."""
        cases = self.cases(device, room)
        with beside(device) as start_other:
            for name, item in cases:
                with resident(device, item) as case:
                    first = case.run()
                    for repeat in range(REPEATS):
                        assert_same(case.run(start_other), first, f"{name}, repeat {repeat}")

    def test_an_unoptimised_build_gives_the_same_bits(self, device: Device, room: str) -> None:
        """Case 32: machine code of ptxas -O1, which is other code, computes the same. Red: an order left to ptxas."""
        cases = self.cases(device, room)
        plain = CudaDevice(options=("--ptxas-options=-O1",))
        for name, item in cases:
            with resident(device, item) as case, resident(plain, item) as other:
                assert_same(other.run(), case.run(), f"{name} at -O1")
