"""Locks of the split_sum room: the planes of a split projection, added up."""

import numpy as np
import pytest

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.split_sum import SPLIT_SUM
from locks.support import (
    Case,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_stands_alone,
    assert_within,
    normal,
    rng,
    wild,
)
from oracle.bits.split_sum import split_sum
from oracle.errors import LanelockError
from oracle.split_sum import split_sum as truth

SHAPES = [(1, 1, 1), (8, 3, 300), (3, 33, 256), (8, 2, 5120), pytest.param(8, 64, 5120, marks=pytest.mark.full)]


def case_of(planes: np.ndarray) -> Case:
    """Planes [planes, rows, N]."""
    count, rows, N = planes.shape
    return Case(SPLIT_SUM, {"planes": count, "rows": rows, "N": N}, {"x": planes})


@pytest.mark.verify
class TestSum:
    """The sum is the contract's, and near the truth."""

    @pytest.mark.parametrize(("planes", "rows", "N"), SHAPES)
    def test_planes_are_added_ascending_from_zero(self, device: Device, planes: int, rows: int, N: int) -> None:
        """Every element has the contract's bits. Red: descending, pairwise, or starting from the first plane."""
        x = wild(rng(1, planes, N), planes, rows, N)

        assert_same_bits(case_of(x).run(device)["y"], split_sum(x))

    def test_sum_is_within_its_bound(self, device: Device, share: Share) -> None:
        """Every element lies within one rounding a plane of float64. Red: a plane left out."""
        x = normal(rng(2), 8, 3, 300)

        bound = 8 * U * np.abs(x.astype(np.float64)).sum(axis=0) * (1 + 2.0**-10)
        assert_within(share, "split sum", case_of(x).run(device)["y"], truth(x.astype(np.float64)), bound)

    def test_integers_are_exact(self, device: Device) -> None:
        """Planes 1, 2, 4, ... sum to 2^planes - 1. Red: one plane twice."""
        x = np.broadcast_to(np.exp2(np.arange(8, dtype=np.float32))[:, None, None], (8, 2, 40)).copy()

        assert_same_bits(case_of(x).run(device)["y"], np.full((2, 40), 255, np.float32))

    def test_a_zero_of_either_sign_sums_to_plus_zero(self, device: Device) -> None:
        """One plane of -0 gives +0: the sum starts from zero. Red: the first plane taken as it is."""
        assert_same_bits(case_of(-np.zeros((1, 2, 3), np.float32)).run(device)["y"], np.zeros((2, 3), np.float32))


class TestMemory:
    """Rows are their own, outputs are written whole."""

    def test_row_stands_alone(self, device: Device) -> None:
        """A row gives the same bits alone and in any slot among poison. Red: a plane stride of one row."""
        assert_stands_alone(device, case_of(normal(rng(3), 3, 5, 40)))

    def test_pitch_does_not_matter(self, device: Device) -> None:
        """Wider rows of planes and outputs keep their bits and their padding (case 35). Red: N for the pitch."""
        assert_pitch_free(device, case_of(normal(rng(4), 8, 3, 300)))

    def test_outputs_are_fully_written(self, device: Device) -> None:
        """Nothing of what an output held shows behind it. Red: the last columns left out."""
        assert_fully_written(device, case_of(normal(rng(5), 2, 3, 257)))


class TestGeometry:
    """A launch is as large as its work."""

    def test_a_thread_is_an_output(self) -> None:
        """One layer of blocks of 256 covers rows and columns. Red: a second layer that does it all again."""
        full = resolve(instance(SPLIT_SUM), {"planes": 8, "rows": 3, "N": 300})

        assert SPLIT_SUM.geometry(full) == Geometry((3, 2, 1), (256, 1, 1))


class TestRefusals:
    """What cannot be is refused before anything runs."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"planes": 0}, "planes = 0 must be between 1 and 64"),
            ({"planes": 65}, "planes = 65 must be between"),
            ({"rows": 0}, "rows = 0 must be between"),
            ({"x_pitch": 7}, "x_pitch = 7 is less than the row"),
            ({"y_pitch": 7}, "y_pitch = 7 is less than the row"),
            ({"N": 2**24}, "N = 16777216 must be between"),
        ],
    )
    def test_a_launch_that_cannot_be_is_refused(self, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and its limit. Red: a rule left out."""
        with pytest.raises(LanelockError, match=sentence):
            resolve(instance(SPLIT_SUM), {"planes": 2, "rows": 1, "N": 8, **dims})

    def test_no_plane_is_refused(self) -> None:
        """A sum of nothing has no shape to return. Red: zeros in its place."""
        with pytest.raises(ValueError, match="at least one plane"):
            truth(np.zeros((0, 2, 3)))
