"""Locks of the q8_to_q4 room: four-bit weights from Q8_0 weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.q8_to_q4 import Q8_TO_Q4
from locks.support import BLOCK, PROPERTY, Case, Share, assert_fully_written, assert_same_bits, assert_within, rng
from oracle import q8_to_q4 as truth
from oracle.bits.q8_to_q4 import q8_to_q4
from oracle.errors import LanelockError
from oracle.formats import Q8_0, q8_0_decode
from oracle.formats.q4 import q4_unpack

SHAPES = [(1, 32), (3, 96), (7, 160), (2, 2560), pytest.param(512, 5120, marks=pytest.mark.full)]


def weights(seed: int, N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Q8_0 codes of every range, from blocks that fit in four bits to whole int8, and scales of every size."""
    g = rng(seed, N, K)
    top = g.integers(1, 129, (N, K // BLOCK, 1))
    codes = g.integers(-top, np.minimum(top, 127) + 1, (N, K // BLOCK, BLOCK)).astype(np.int8).reshape(N, K)
    return codes, np.exp2(g.uniform(-24, 11, (N, K // BLOCK))).astype(np.float16)


def convert(device: Device, codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed codes and scales by the kernel."""
    case = Case(Q8_TO_Q4, {"N": codes.shape[0], "K": codes.shape[1]}, {"codes": codes, "scales": scales})
    got = case.run(device)
    return got["packed"], got["packed_scales"]


def assert_contract(device: Device, codes: np.ndarray, scales: np.ndarray) -> None:
    """Packed codes and scales are the contract's."""
    for got, expected in zip(convert(device, codes, scales), q8_to_q4(codes, scales), strict=True):
        assert_same_bits(got, expected)


@pytest.mark.verify
class TestConversion:
    """The kernel is the format's rule."""

    @pytest.mark.parametrize(("N", "K"), SHAPES)
    def test_codes_and_scales_are_the_contract(self, device: Device, N: int, K: int) -> None:
        """Every nibble and scale has the contract's bits. Red: nibbles exchanged, ties away from zero."""
        assert_contract(device, *weights(1, N, K))

    @PROPERTY
    @given(bits=st.integers(0, 0x7BFF), low=st.integers(-128, 127), high=st.integers(-128, 127))
    def test_any_scale_is_the_contract(self, device: Device, bits: int, low: int, high: int) -> None:
        """Every finite scale, zero and subnormal too, follows the contract. Red: a division by the scale zero."""
        codes = np.linspace(low, high, 64).astype(np.int8).reshape(1, 64)

        assert_contract(device, codes, np.array([[bits, bits // 3]], np.uint16).view(np.float16))

    def test_codes_and_scales_are_the_truth(self, device: Device) -> None:
        """The oracle's conversion, by another route, gives the same. Red: contract and kernel wrong alike."""
        codes, scales = weights(2, 5, 320)

        for got, expected in zip(convert(device, codes, scales), truth.q8_to_q4(codes, scales), strict=True):
            assert_same_bits(got, expected)

    def test_a_block_that_fits_is_kept(self, device: Device) -> None:
        """Codes in -8..7 keep their scale and every bit of their value. Red: -8 taken for too large."""
        g = rng(3)
        codes = g.integers(-8, 8, (4, 128)).astype(np.int8)
        scales = g.random((4, 4)).astype(np.float16)
        packed, kept = convert(device, codes, scales)

        assert_same_bits(q4_unpack(packed), codes)
        assert_same_bits(kept, scales)
        assert_contract(device, codes, scales)

    @pytest.mark.parametrize("code", [8, -9])
    def test_one_code_outside_converts_its_block_only(self, device: Device, code: int) -> None:
        """8 and -9 do not fit: their block gets a new scale, the next keeps its own. Red: a neighbour's maximum."""
        codes = np.ones((1, 64), np.int8)
        codes[0, 31] = code
        _, scales = convert(device, codes, np.ones((1, 2), np.float16))

        assert scales.tolist() == [[float(np.float16(np.float32(abs(code)) / np.float32(7))), 1.0]]

    def test_ties_go_to_even(self, device: Device) -> None:
        """Half of the largest code, at scale 7, is 3.5 new codes exactly: 4. Red: the scales divided first."""
        most = np.arange(10, 127, 2)
        codes = np.zeros((len(most), BLOCK), np.int8)
        codes[:, 0], codes[:, 1], codes[:, 2] = most, most // 2, -most // 2
        packed, scales = convert(device, codes, np.full((len(most), 1), 7, np.float16))

        assert scales[:, 0].tolist() == most.tolist()
        assert q4_unpack(packed)[:, :3].tolist() == [[7, 4, -4]] * len(most)

    def test_values_are_within_half_a_scale(self, device: Device, share: Share) -> None:
        """A value moves by half of the new scale at most. Red: a code rounded towards zero."""
        codes, scales = weights(4, 3, 640)
        codes = np.maximum(codes, -127)
        scales = np.maximum(scales, np.float16(2.0**-10))
        packed, s4 = convert(device, codes, scales)

        step = np.repeat(s4.astype(np.float64), BLOCK, axis=-1)
        # s4 itself is rounded to float16, so that seven of it may fall short of the largest code by 7 * 2**-11
        allowed = step * (0.5 + 7 * 2.0**-11) * (1 + 2.0**-10)
        assert_within(share, "Q4", q4_unpack(packed) * step, q8_0_decode(Q8_0(codes, scales)), allowed)


class TestMemory:
    """Outputs are written whole."""

    def test_outputs_are_fully_written(self, device: Device) -> None:
        """Nothing of what an output held shows behind it. Red: the last blocks left out."""
        codes, scales = weights(5, 3, 96)
        assert_fully_written(device, Case(Q8_TO_Q4, {"N": 3, "K": 96}, {"codes": codes, "scales": scales}))


class TestGeometry:
    """A launch is as large as its work."""

    def test_eight_lanes_are_a_block_of_codes(self) -> None:
        """One layer of 256 threads covers 32 blocks. Red: a second layer that does it all again."""
        full = resolve(instance(Q8_TO_Q4), {"N": 3, "K": 352})

        assert Q8_TO_Q4.geometry(full) == Geometry((2, 1, 1), (256, 1, 1))


class TestRefusals:
    """What cannot be is refused before anything runs."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 40}, "K = 40 must be a positive multiple of 32"),
            ({"N": 0}, "N = 0 must be between 1"),
            ({"N": 2**30, "K": 2**24}, "has more blocks than one grid can hold"),
        ],
    )
    def test_a_launch_that_cannot_be_is_refused(self, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and its limit. Red: a rule left out."""
        with pytest.raises(LanelockError, match=sentence):
            resolve(instance(Q8_TO_Q4), {"N": 1, "K": 32, **dims})

    def test_the_largest_matrix_is_taken(self) -> None:
        """As many blocks as one grid can hold are launched, and one row more is not. Red: a limit one too low."""
        largest = {"N": 687194767, "K": 3200}

        assert Q8_TO_Q4.geometry(resolve(instance(Q8_TO_Q4), largest)).grid == (2**31 - 1, 1, 1)
        with pytest.raises(LanelockError):
            resolve(instance(Q8_TO_Q4), {**largest, "N": largest["N"] + 1})
