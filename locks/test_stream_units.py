"""Locks of how a streaming projection shares out its panels: all of them once, and as evenly as they can be."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.run import run_once
from kernels.entry import Buffer, Geometry, Kernel, Scalar, instance
from kernels.projection_stream import most_warps
from kernels.rules import ceil_div
from kernels.streaming import COLS, Work, layout, streams
from locks.support import PROPERTY

WARPS = most_warps(1, COLS[-1])
SCHEDULERS = 4  # of a multiprocessor: warp i is on scheduler i % 4
QUARTERS = 4  # of the columns of a panel: what two blocks share is given out in these
UNITS = Kernel(
    name="stream_units",
    room="../locks/kernels/stream_units",
    symbol="stream_units",
    args=(
        Buffer("units", "i32", ("grid", "most", 4), "w"),
        Buffer("counts", "i32", ("grid", 2), "w"),
        *(Scalar(n) for n in ("panels", "warps", "most")),
    ),
    geometry=lambda d: Geometry((int(d["grid"]), 1, 1), (32, 1, 1)),
    archs=("sm_90a",),
    doc="What each block of a streaming projection computes.",
)


@dataclass(frozen=True, slots=True)
class Shared:
    """A launch as its kernel shares it out: for each block the quarters of panels of its units."""

    warps: int
    blocks: list[list[set[tuple[int, int]]]]

    def holds_all(self, panels: int) -> bool:
        """Whether every quarter of so many panels is in one unit, and nothing else is."""
        given_out = sorted(q for units in self.blocks for unit in units for q in unit)
        return given_out == [(p, q) for p in range(panels) for q in range(QUARTERS)]

    def loads(self) -> list[int]:
        """Quarters of panels on each scheduler of the block that has most on one."""
        found = []
        for units in self.blocks:
            on = [0] * SCHEDULERS
            for i, unit in enumerate(units):
                on[i % self.warps % SCHEDULERS] += len(unit)
            found.append(on)
        return max(found, key=max)


def shared_out(device: Device, grid: int, panels: int, warps: int) -> Shared:
    """What the kernel's own order says."""
    most = 2 * ceil_div(panels, grid) + 2
    dims = {"grid": grid, "panels": panels, "warps": warps, "most": most}
    got = run_once(device, instance(UNITS), dims, {})
    blocks = []
    for rows, (count, bands) in zip(got["units"], got["counts"], strict=True):
        assert 0 <= count <= most, f"{dims}: {count} units"
        assert bands == ceil_div(int(count), warps), f"{dims}: {count} units in {bands} bands"
        panels_of = [[p for p in (row[0], row[1]) if p >= 0] for row in rows[:count].tolist()]
        columns = [range(row[2], row[2] + row[3]) for row in rows[:count].tolist()]
        blocks.append([{(p, q) for p in ps for q in qs} for ps, qs in zip(panels_of, columns, strict=True)])
    return Shared(warps, blocks)


class TestUnits:
    """Every quarter of every panel of a launch is one unit's, and schedulers have as much of them as each other."""

    @PROPERTY
    @given(grid=st.integers(1, 9), panels=st.integers(1, 360), warps=st.integers(1, WARPS))
    def test_every_panel_is_computed_once(self, device: Device, grid: int, panels: int, warps: int) -> None:
        """Any blocks, panels and warps. Red: a panel twice, a leftover one forgotten, a quarter of another panel."""
        assert shared_out(device, grid, panels, warps).holds_all(panels), f"{grid} {panels} {warps}"

    @pytest.mark.parametrize("panels", range(1, 2 * WARPS + 1))
    def test_one_band_is_as_even_as_whole_panels_can_be(self, device: Device, panels: int) -> None:
        """The warps that are chosen for up to two panels each. Red: pairs on one scheduler, a second band."""
        warps = int(layout(Work(panels, 5, 64, 1, 8, 64), 1, 8, WARPS)["warps"])
        shared = shared_out(device, 1, panels, warps)

        assert max(shared.loads()) == QUARTERS * ceil_div(panels, SCHEDULERS), shared.loads()
        assert len(shared.blocks[0]) <= warps, f"{len(shared.blocks[0])} units of {warps} warps"

    @pytest.mark.parametrize("panels", range(1, WARPS + 1))
    def test_a_panel_a_warp_is_not_doubled(self, device: Device, panels: int) -> None:
        """As many warps as panels have one each, in every block. Red: a pair, and a warp that has nothing."""
        for grid, more in ((1, 0), (3, 0), (3, 1)):
            if panels * grid - more < grid:
                continue
            units = [len(u) for b in shared_out(device, grid, panels * grid - more, panels).blocks for u in b]
            assert units == [QUARTERS] * (panels * grid - more), f"{grid} {more}"

    def test_as_many_panels_as_warps_have_one_each(self) -> None:
        """Nine of nine: no pair. Red: six warps, and three that are not there."""
        assert layout(Work(9, 5, 64, 1, 8, 64), 1, 1, 9)["warps"] == 9

    def test_one_buffer_of_activations_is_held_before_warps_are_given_up(self) -> None:
        """64 rows of two words beside 118 panels leave room for one. Red: two, or longer rings, of fewer warps."""
        dims = streams(248320, 5120, 64, 2, 8, 132, planes=False)[0].dims

        assert (dims["warps"], dims["held"], dims["stages"]) == (11, 1, 1)

    def test_one_panel_more_than_warps_makes_no_second_band(self, device: Device) -> None:
        """Three blocks of 8 warps and 25 panels: two share the last. Red: seven warps that wait for a ninth panel."""
        shared = shared_out(device, 3, 25, 8)

        assert max(len(units) for units in shared.blocks) <= 8
        assert max(shared.loads()) == 2 * QUARTERS + 1

    @pytest.mark.parametrize("panels", range(2 * 8 + 1, 6 * 11))
    def test_bands_are_as_few_as_pairs_allow(self, device: Device, panels: int) -> None:
        """Eleven warps of up to two panels each. Red: a band more, in which most warps have nothing."""
        (units,) = shared_out(device, 1, panels, 11).blocks

        assert ceil_div(len(units), 11) == ceil_div(panels, 2 * 11)

    @pytest.mark.parametrize(
        ("panels", "K", "splits"), [(4 * 132 - 1, 5120, 8), (4 * 132, 5120, 1), (100, 256, 8), (100, 224, 1)]
    )
    def test_k_is_split_where_panels_are_few(self, panels: int, K: int, splits: int) -> None:
        """Fewer than four a multiprocessor, and no slice of K empty. Red: a limit moved, a slice of nothing."""
        assert streams(16 * panels, K, 3, 1, 8, 132, planes=True)[0].dims["splits"] == splits

    @pytest.mark.parametrize(
        ("panels", "warps", "most"), [(8 * 132 + 60, 8, 9), (8 * 132 + 66, 8, 9), (16 * 132 + 64, 10, 17)]
    )
    def test_two_blocks_share_what_is_left_over(self, device: Device, panels: int, warps: int, most: int) -> None:
        """8.5 and 16.5 panels a block, of four schedulers. Red: a whole panel more for half of the blocks."""
        assert max(shared_out(device, 132, panels, warps).loads()) == most

    @pytest.mark.parametrize(
        ("N", "K", "planes", "most"),
        [(16384, 5120, False, 8), (14336, 5120, False, 8), (34816, 5120, False, 17), (5120, 6144, True, 20),
         (5120, 17408, True, 20)],
    )  # fmt: skip  # a list
    @pytest.mark.parametrize(("rows", "words"), [(64, 1), (32, 2)])
    def test_a_model_on_an_h200_is_as_even_as_can_be(
        self, device: Device, N: int, K: int, planes: bool, most: int, rows: int, words: int
    ) -> None:
        """Quarters of the busiest scheduler: 16.5 panels are 16.5 each. Red: leftover panels not shared by two."""
        dims = streams(N, K, rows, words, 8, 132, planes=planes)[0].dims
        shared = shared_out(device, int(dims["grid"]), N // 16, int(dims["warps"]))

        assert max(shared.loads()) == most, shared.loads()
        assert shared.holds_all(N // 16), f"{N} x {K}"
