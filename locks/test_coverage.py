"""Coverage, made from the plans: every kernel that a plan launches has its room, and every launch a run of its own."""

import dataclasses

import pytest

from harness.device import Device
from kernels.catalogue import ROOMS, by_room
from kernels.places import ROOT, places
from locks.launches import case_of, distinct, run, widest
from locks.support import assert_same_outputs, assert_stored_once
from locks.test_plan import H200, PLANS, SMALL, plan
from oracle.config import preset

LAUNCHED = distinct(SMALL)
KERNELS = sorted({item.instance.kernel.name for item in LAUNCHED})
#: The 27B's layer shapes, with one group of four layers and a head that a host multiplies in seconds.
SHAPES = dataclasses.replace(preset("qwen3.8-27b"), layers=4, vocab=16384)


class TestKernels:
    """Kernels that plans launch."""

    def test_have_a_room_with_a_lock(self) -> None:
        """Every launched kernel belongs to a room whose lock file exists and names it. Red: a kernel without a room."""
        missing = []
        for kernel in {item.instance.kernel.name: item.instance.kernel for item in distinct(PLANS)}.values():
            lock = ROOT / places(kernel.room)["locks"]
            if kernel.room not in ROOMS or kernel not in by_room(kernel.room) or not lock.is_file():
                missing.append((kernel.name, str(lock)))

        assert missing == []

    def test_are_all_in_some_plan_or_named_here(self) -> None:
        """What no plan launches by itself is reached by tuning, another machine, a bench or a lock; nothing is dead.

        Red: a kernel that nobody uses any more.
        """
        launched = {item.instance.kernel.room for item in distinct(PLANS)}
        forced = {"gemm_dp4a", "gemm_mma", "gemm_rows", "gemv_register", "gemv_rows", "gemv_staged"}
        elsewhere = {"functions", "primitives", "memory_read", "synthetic", "split_sum"}

        assert set(ROOMS) - launched - forced - elsewhere == {"add"}


@pytest.mark.parametrize("name", KERNELS)
class TestLaunches:
    """Launches of plans, each by itself: through every schedule and guard page on the host, twice on a GPU."""

    def test_keep_their_bounds_and_bits_where_they_are_widest(self, device: Device, name: str) -> None:
        """The widest launch of each instantiation of the small plans. Red: a shape that only a plan has."""
        items = [item for item in widest(LAUNCHED) if item.instance.kernel.name == name]

        for item in items:
            assert run(device, item), item.label

    def test_store_no_byte_twice(self, device: Device, name: str) -> None:
        """What the widest launch of each instantiation stores, one thread stores once, counted on the host.

        Red: work done twice that gives the same numbers.
        """
        if device.properties.kind != "host":
            pytest.skip("not run: stores are counted on the host device only")
        for item in widest(LAUNCHED):
            if item.instance.kernel.name == name:
                assert_stored_once(device, case_of(item))

    @pytest.mark.nightly
    def test_keep_their_bounds_and_bits_at_every_shape(self, device: Device, name: str) -> None:
        """Every launch of the small plans that differs in a dim."""
        for item in (i for i in LAUNCHED if i.instance.kernel.name == name):
            assert run(device, item), item.label


@pytest.mark.nightly
@pytest.mark.full
@pytest.mark.parametrize(("lane", "B", "drafts"), [("a15", 1, 1), ("a8", 8, 0), ("q4", 2, 4), ("a8+s16+kv16", 32, 1)])
def test_launches_of_the_27b_have_the_same_bits_on_both_devices(
    both_devices: tuple[Device, Device], lane: str, B: int, drafts: int
) -> None:
    """Every launch of the 27B's layers, at its own shape, on host and GPU. Red: a compiler, a width, an offset."""
    host, gpu = both_devices
    items = distinct([plan(SHAPES, lane, H200, B, 16, drafts)])

    assert len(items) > 20
    for item in items:
        assert_same_outputs(run(gpu, item), run(host, item))
