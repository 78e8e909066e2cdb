"""Locks of the add room: z = x + y."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.add import ADD
from locks.support import (
    PROPERTY,
    Case,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    assert_within,
    edge_rows,
    normal,
    rng,
    wild,
)
from oracle import add as truth
from oracle.bits.add import add
from oracle.errors import LanelockError

SHAPES = [(1, 32), (3, 100), (33, 160), (1, 5120), pytest.param(33, 17408, marks=pytest.mark.full)]


def case_of(x: np.ndarray, y: np.ndarray) -> Case:
    """Two arrays of rows to add."""
    return Case(ADD, {"rows": x.shape[0], "K": x.shape[1]}, {"x": x, "y": y})


def rows(seed: int, count: int, K: int) -> Case:
    """Normal rows."""
    return case_of(normal(rng(seed), count, K), normal(rng(seed, 1), count, K))


@pytest.mark.verify
class TestValue:
    """The kernel computes the sum."""

    def test_sum_is_within_one_rounding(self, device: Device, share: Share) -> None:
        """Each element lies within one rounding of float64. Red: an operand read from a neighbouring row."""
        case = rows(1, 3, 2560)

        expected = truth.add(case.inputs["x"].astype(np.float64), case.inputs["y"].astype(np.float64))
        assert_within(share, "sum", case.run(device)["z"], expected, np.abs(expected) * U)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @pytest.mark.parametrize(("count", "K"), SHAPES)
    def test_sum_is_the_contract(self, device: Device, count: int, K: int) -> None:
        """Each element is the one rounded sum. Red: the last tile of a row skipped."""
        case = rows(2, count, K)

        assert_same_bits(case.run(device)["z"], add(case.inputs["x"], case.inputs["y"]))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), fours=st.integers(1, 300))
    def test_any_values_of_any_width_are_the_contract(self, device: Device, seed: int, fours: int) -> None:
        """Values of every size follow the contract at any width. Red: flushed subnormals."""
        x, y = wild(rng(seed), 2, 4 * fours), wild(rng(seed, 1), 2, 4 * fours)

        assert_same_bits(case_of(x, y).run(device)["z"], add(x, y))


class TestExactIntegers:
    """Integers add exactly."""

    def test_integers_add_exactly(self, device: Device) -> None:
        """Every element is the sum of its own two integers. Red: an index off by one."""
        x, y = rng(3).integers(-(2**22), 2**22, (2, 3, 1000))
        got = case_of(x.astype(np.float32), y.astype(np.float32)).run(device)["z"]

        assert_same_bits(got.astype(np.int64), x + y)


class TestInvariance:
    """A row's bits are its own."""

    def test_sum_does_not_depend_on_the_batch(self, device: Device) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, rows(4, 3, 96))

    def test_sum_does_not_depend_on_pitches(self, device: Device) -> None:
        """Rows further apart give the same bits, and the padding stays. Red: one pitch used for all."""
        assert_pitch_free(device, rows(5, 3, 96))

    @pytest.mark.parametrize("pitch", ["x_pitch", "y_pitch", "z_pitch"])
    def test_each_buffer_has_its_own_pitch(self, device: Device, pitch: str) -> None:
        """Widening one buffer alone changes nothing. Red: x's pitch used for z."""
        case = rows(6, 3, 96)

        assert_same_outputs(case.with_dims(**{pitch: 104}).run(device), case.run(device))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: a flushing instruction."""
        host, cuda = both_devices
        case = case_of(wild(rng(7), 33, 5120), wild(rng(8), 33, 5120))

        assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Values at the end of the range follow IEEE addition."""

    def test_edge_rows_are_the_contract(self, device: Device) -> None:
        """Zero, subnormal, largest, infinite and NaN rows follow the contract. Red: inf - inf giving a number."""
        x = edge_rows(64)

        assert_same_bits(case_of(x, x[::-1].copy()).run(device)["z"], add(x, x[::-1]))


class TestMemory:
    """The output is written in full and nothing else is."""

    @pytest.mark.parametrize("K", [4, 516])
    def test_output_is_fully_written(self, device: Device, K: int) -> None:
        """What the output held before shows nowhere. Red: the last four elements skipped."""
        assert_fully_written(device, rows(9, 2, K))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 98}, "K = 98 must be a positive multiple of 4"),
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"x_pitch": 92}, "x_pitch = 92 is less than the row it has to hold, K = 96"),
            ({"y_pitch": 92}, "y_pitch = 92 is less than the row"),
            ({"z_pitch": 98}, "z_pitch = 98 must be a multiple of 4"),
            ({"K": 65535 * 512 + 4}, "exceeds 33553920, the elements that one launch can cover"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            rows(10, 3, 96).with_dims(**dims).run(device)
