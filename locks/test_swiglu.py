"""Locks of the swiglu room: silu(gate) * up, quantised at once, also from split-K planes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Kernel
from kernels.swiglu import SWIGLU_QUANTIZE, SWIGLU_QUANTIZE_PLANES
from locks.support import (
    BLOCK,
    PROPERTY,
    ULP,
    Case,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    assert_within,
    decoded,
    edge_rows,
    normal,
    quantiser_bound,
    rng,
    wild,
)
from oracle import swiglu as truth
from oracle.bits.add import sum_planes
from oracle.bits.quantize import quantize
from oracle.bits.swiglu import swiglu
from oracle.errors import LanelockError

SHAPES = [(1, 32), (3, 96), (33, 160), (1, 3584), (1, 17408), pytest.param(33, 17408, marks=pytest.mark.full)]
WORDS = pytest.mark.parametrize("words", [1, 2])
SILU_ULP = 4  # the contract's promise for a function whose result is normal


def case_of(planes: np.ndarray, words: int) -> Case:
    """Rows [planes, rows, 2 F]; one plane goes to the kernel without planes."""
    kernel = SWIGLU_QUANTIZE if len(planes) == 1 else SWIGLU_QUANTIZE_PLANES
    dims = {"planes": len(planes), "rows": planes.shape[1], "F": planes.shape[2] // 2}
    return Case(kernel, dims, {"x": planes}, {"WORDS": words})


def rows(seed: int, planes: int, count: int, F: int) -> np.ndarray:
    """Normal rows a few units wide."""
    return 3 * normal(rng(seed), planes, count, 2 * F)


def contract(planes: np.ndarray, words: int) -> dict[str, np.ndarray]:
    """What the contract writes: planes added ascending from zero, unless there is one."""
    row = planes[0] if len(planes) == 1 else sum_planes(planes)
    codes, scales = quantize(swiglu(row), words)
    return {"codes": codes, "scales": scales}


@pytest.mark.verify
class TestValue:
    """The kernel computes the gated unit."""

    @WORDS
    def test_decoded_codes_are_within_their_bound(self, device: Device, share: Share, words: int) -> None:
        """The codes stand for silu(gate) * up to half a code. Red: gate and up exchanged, sigmoid for silu."""
        x = rows(1, 1, 3, 3584)
        got = case_of(x, words).run(device)

        expected = truth.swiglu(x[0].astype(np.float64))
        allowed = np.abs(expected) * (SILU_ULP * ULP + U) + quantiser_bound(got["scales"], words)
        assert_within(share, f"codes of {words} words", decoded(got["codes"], got["scales"]), expected, allowed)


@pytest.mark.verify
class TestContract:
    """Both kernels are the contract, bit for bit."""

    @WORDS
    @pytest.mark.parametrize(("count", "F"), SHAPES)
    def test_codes_are_the_contract(self, device: Device, words: int, count: int, F: int) -> None:
        """Codes and scales are the contract's. Red: gate * (up * sigmoid), another order of products."""
        x = rows(2, 1, count, F)

        assert_same_outputs(case_of(x, words).run(device), contract(x, words))

    @pytest.mark.parametrize("planes", [2, 8, 17, 64])
    def test_planes_are_the_contract(self, device: Device, planes: int) -> None:
        """Gate and up each take their planes ascending from zero. Red: planes descending, or the first as start."""
        x = rows(3, planes, 3, 160)

        assert_same_outputs(case_of(x, 2).run(device), contract(x, 2))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 30), planes=st.sampled_from([1, 3]))
    def test_any_values_of_any_width_are_the_contract(
        self, device: Device, seed: int, blocks: int, planes: int
    ) -> None:
        """Values of every size follow the contract at any width. Red: a silu of a library."""
        x = wild(rng(seed), planes, 2, 64 * blocks)

        assert_same_outputs(case_of(x, 1).run(device), contract(x, 1))


class TestExactIntegers:
    """Gates of 32 and more pass exactly: silu(g) = g."""

    def test_integers_are_their_own_codes(self, device: Device) -> None:
        """Products of integers with a largest magnitude of 127 are the codes. Red: up read F - 1 behind gate."""
        gate, up = rng(4).integers(32, 43, (3, 544)), rng(5).integers(-2, 3, (3, 544))
        gate[:, ::BLOCK], up[:, ::BLOCK] = 127, 1
        x = np.concatenate([gate, up], axis=1).astype(np.float32)[None]

        assert_same_bits(case_of(x, 1).run(device)["codes"][:, 0].astype(np.int64), gate * up)


class TestForms:
    """Planes inside equal the reduced row."""

    @WORDS
    def test_planes_are_the_reduced_row(self, device: Device, words: int) -> None:
        """Adding planes in the kernel equals adding them first. Red: a plane stride that forgets the pitch."""
        x = rows(6, 5, 3, 160)

        reduced = case_of(sum_planes(x)[None], words).run(device)
        assert_same_outputs(case_of(x, words).run(device), reduced)


class TestInvariance:
    """A row's bits are its own."""

    def test_codes_do_not_depend_on_the_batch(self, device: Device) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, case_of(rows(7, 1, 3, 96), 2))

    def test_planes_do_not_depend_on_the_batch(self, device: Device) -> None:
        """The same from planes. Red: the plane stride taken from another batch."""
        assert_stands_alone(device, case_of(rows(8, 3, 3, 96), 1))

    def test_codes_do_not_depend_on_the_pitch(self, device: Device) -> None:
        """Rows further apart give the same bits, with and without planes. Red: up sought half a pitch behind."""
        assert_pitch_free(device, case_of(rows(9, 1, 3, 96), 1))
        assert_pitch_free(device, case_of(rows(10, 3, 3, 96), 1))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate exponential."""
        host, cuda = both_devices
        case = case_of(wild(rng(11), 1, 33, 2 * 3584), 2)

        assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Values at the end of the range follow the contract and hide no fault."""

    @WORDS
    def test_edge_rows_are_the_contract(self, device: Device, words: int) -> None:
        """Edge gates against edge ups follow the contract. Red: -inf gate times an infinite up giving a number."""
        x = edge_rows(192)[None]

        assert_same_outputs(case_of(x, words).run(device), contract(x, words))

    def test_a_nan_spoils_its_block(self, device: Device) -> None:
        """A NaN in a gate or an up makes the scale of its own block NaN, no other. Red: a NaN lost in the planes."""
        x = rows(12, 2, 2, 96)
        x[1, 0, 40] = x[0, 1, 96 + 95] = np.nan
        got = case_of(x, 1).run(device)["scales"]

        assert_same_bits(np.isnan(got), np.array([[False, True, False], [False, False, True]]))


class TestMemory:
    """Outputs are written in full and nothing else is."""

    @pytest.mark.parametrize("F", [32, 544])
    def test_outputs_are_fully_written(self, device: Device, F: int) -> None:
        """What the outputs held before shows nowhere. Red: the last block of a row skipped."""
        assert_fully_written(device, case_of(rows(13, 1, 2, F), 2))


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (SWIGLU_QUANTIZE, {"F": 48}, "F = 48 must be a positive multiple of 32"),
            (SWIGLU_QUANTIZE, {"rows": 0}, "rows = 0 must be between 1 and"),
            (SWIGLU_QUANTIZE, {"x_pitch": 96}, "x_pitch = 96 is less than the row it has to hold, both = 192"),
            (SWIGLU_QUANTIZE_PLANES, {"x_pitch": 194}, "x_pitch = 194 must be a multiple of 4"),
            (SWIGLU_QUANTIZE, {"both": 96}, "both = 96 is not 2 F, F = 96"),
            (SWIGLU_QUANTIZE, {"planes": 2}, "planes = 2 must be between 1 and 1"),
            (SWIGLU_QUANTIZE_PLANES, {"planes": 65}, "planes = 65 must be between 1 and 64"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: Kernel, dims: dict[str, int], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, {"rows": 3, "F": 96, **dims}, {}, {"WORDS": 1}).run(device)
