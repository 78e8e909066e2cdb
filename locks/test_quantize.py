"""Locks of the quantize room: float32 rows to activation codes A8 and A15."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import BuildError, Device
from kernels.entry import Instance
from kernels.quantize import QUANTIZE
from locks.support import (
    BLOCK,
    PROPERTY,
    TOPS,
    Case,
    Share,
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
from oracle.bits.quantize import quantize
from oracle.errors import LanelockError
from oracle.formats import a8_encode, a15_encode, a15_split
from oracle.quantize import quantize as truth

SHAPES = [(1, 32), (3, 96), (33, 160), (2, 2560), (1, 5120), pytest.param(33, 17408, marks=pytest.mark.full)]
WORDS = pytest.mark.parametrize("words", [1, 2])


def case_of(x: np.ndarray, words: int) -> Case:
    """Rows to quantise."""
    return Case(QUANTIZE, {"rows": x.shape[0], "K": x.shape[1]}, {"x": x}, {"WORDS": words})


def contract(x: np.ndarray, words: int) -> dict[str, np.ndarray]:
    """What the contract writes."""
    codes, scales = quantize(x, words)
    return {"codes": codes, "scales": scales}


def one_block(*values: float) -> np.ndarray:
    """One row of one block: these values, then zeros."""
    return np.array([[*values, *[0.0] * (BLOCK - len(values))]], np.float32)


@pytest.mark.verify
class TestValue:
    """Codes and scales stand for the values to half a code."""

    @WORDS
    def test_decoded_value_is_within_half_a_code(self, device: Device, share: Share, words: int) -> None:
        """Each decoded value lies within the derived bound. Red: truncation for rounding, a neighbour's scale."""
        x = normal(rng(1), 3, 5120) * np.exp2(rng(2).integers(-20, 20, (3, 5120))).astype(np.float32)
        got = case_of(x, words).run(device)

        allowed = quantiser_bound(got["scales"], words)
        assert_within(share, f"{words} words", decoded(got["codes"], got["scales"]), x, allowed)

    @pytest.mark.parametrize(("words", "name"), [(1, "a8"), (2, "a15")])
    def test_decoded_value_is_the_format(self, device: Device, words: int, name: str) -> None:
        """The decoded values are exactly those of the format. Red: another rounding of ties, another scale."""
        x = normal(rng(3), 3, 160)
        got = case_of(x, words).run(device)

        assert_same_bits(decoded(got["codes"], got["scales"]), truth(x.astype(np.float64), name))


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @WORDS
    @pytest.mark.parametrize(("count", "K"), SHAPES)
    def test_codes_and_scales_are_the_contract(self, device: Device, words: int, count: int, K: int) -> None:
        """Codes and scales are the contract's. Red: x times 1/s in place of x / s."""
        x = normal(rng(4, count, K), count, K)

        assert_same_outputs(case_of(x, words).run(device), contract(x, words))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40), words=st.sampled_from([1, 2]))
    def test_any_values_of_any_width_are_the_contract(self, device: Device, seed: int, blocks: int, words: int) -> None:
        """Values of every size follow the contract at any width. Red: flushed subnormals, an unclamped code."""
        x = wild(rng(seed), 2, 32 * blocks)

        assert_same_outputs(case_of(x, words).run(device), contract(x, words))

    def test_codes_are_those_of_the_formats(self, device: Device) -> None:
        """The oracle's encoders of A8 and A15 give the same codes. Red: the two words split elsewhere."""
        x = normal(rng(5), 2, 96)
        hi, lo = a15_split(a15_encode(x).codes)

        assert_same_bits(case_of(x, 1).run(device)["codes"], a8_encode(x).codes[:, None])
        assert_same_bits(case_of(x, 2).run(device)["codes"], np.stack([hi, lo], axis=1))


class TestExactIntegers:
    """Where the scale is exactly one, codes are the values."""

    @WORDS
    def test_integers_are_their_own_codes(self, device: Device, words: int) -> None:
        """Blocks whose largest magnitude is the top code keep their integers. Red: a column index off by one."""
        top = TOPS[words]
        x = rng(6).integers(-top, top + 1, (3, 1024))
        x[:, ::BLOCK] = top
        got = case_of(x.astype(np.float32), words).run(device)

        assert_same_bits(decoded(got["codes"], got["scales"]).astype(np.int64), x)

    def test_every_code_of_two_words_is_split_and_joined(self, device: Device) -> None:
        """All 32,513 codes of A15 survive as 128 hi + lo. Red: hi without the 64 that centres lo."""
        codes = np.pad(np.arange(-16256, 16257), (0, -32513 % 31)).reshape(-1, 31)
        x = np.concatenate([np.full((len(codes), 1), 16256), codes], axis=1).reshape(1, -1)
        got = case_of(x.astype(np.float32), 2).run(device)

        assert_same_bits(decoded(got["codes"], got["scales"]).astype(np.int64), x)


class TestInvariance:
    """A row's bits are its own."""

    @WORDS
    def test_codes_do_not_depend_on_the_batch(self, device: Device, words: int) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: codes of a row at another width."""
        assert_stands_alone(device, case_of(normal(rng(7), 3, 96), words))

    @WORDS
    def test_codes_do_not_depend_on_the_pitch(self, device: Device, words: int) -> None:
        """Rows further apart give the same bits. Red: the pitch taken as the width."""
        assert_pitch_free(device, case_of(normal(rng(8), 3, 96), words))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: a division that is not rounded correctly."""
        host, cuda = both_devices
        case = case_of(wild(rng(9), 33, 5120), 2)

        assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Ties, the ends of the range, and blocks that are not finite."""

    def test_ties_go_to_even(self, device: Device) -> None:
        """Exact ties at scale one become 127, 0, 2, 2, 0, -2, -2, 64. Red: rounding half away from zero."""
        got = case_of(one_block(127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5), 1).run(device)

        assert got["codes"][0, 0, :9].tolist() == [127, 0, 2, 2, 0, -2, -2, 64, 0]

    def test_negative_zero_is_code_zero(self, device: Device) -> None:
        """The code of -0.0 is 0 beside any value. Red: a sign carried into the code."""
        got = case_of(one_block(127, -0.0, -0.25), 1).run(device)

        assert got["codes"][0, 0, :3].tolist() == [127, 0, 0]

    def test_small_activations_keep_their_digits(self, device: Device) -> None:
        """A block with amax 0.5 holds 0.25 as code 64, that is 0.25196850. Red: a scale floor of 1."""
        got = case_of(one_block(0.5, 0.25), 1).run(device)

        assert got["codes"][0, 0, 1] == 64
        assert decoded(got["codes"], got["scales"])[0, 1] == pytest.approx(0.25196850, abs=1e-8)

    def test_scale_is_float32_and_not_f16(self, device: Device) -> None:
        """Blocks of 1e-7, 1e30 and 8.4e6, beyond f16's scales, decode to half a code. Red: a scale kept in f16."""
        x = np.concatenate([one_block(v, v / 2) for v in (1e-7, 1e30, 8.4e6)])
        got = case_of(x, 1).run(device)

        error = np.abs(decoded(got["codes"], got["scales"]) - x)
        assert (error <= quantiser_bound(got["scales"], 1)).all()

    @WORDS
    def test_scale_has_a_floor_of_the_smallest_normal(self, device: Device, words: int) -> None:
        """Zero and subnormal blocks have scale 2^-126. Red: a subnormal scale, or 0/0 in a zero block."""
        got = case_of(np.concatenate([one_block(), one_block(2.0**-149)]), words).run(device)

        assert_same_bits(got["scales"], np.full((2, 1), 2.0**-126, np.float32))

    @WORDS
    def test_edge_rows_are_the_contract(self, device: Device, words: int) -> None:
        """Zero, subnormal, largest, infinite and NaN rows follow the contract. Red: a maximum that swallows NaN."""
        x = edge_rows(96)

        assert_same_outputs(case_of(x, words).run(device), contract(x, words))

    @WORDS
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_block_that_is_not_finite_is_spoiled_as_a_whole(self, device: Device, words: int, value: float) -> None:
        """A NaN or infinity at any place of a block gives codes 0 and scale NaN, in no other block. Red: fmaxf."""
        x = np.tile(normal(rng(10), 64), (BLOCK, 1))
        x[np.arange(BLOCK), np.arange(BLOCK)] = value
        got = case_of(x, words).run(device)

        spoiled = np.isnan(got["scales"]) & (got["codes"].reshape(BLOCK, words, 2, BLOCK) == 0).all(axis=(1, 3))
        assert_same_bits(spoiled, np.tile([True, False], (BLOCK, 1)))


class TestMemory:
    """Codes and scales are written in full and nothing else is."""

    @WORDS
    @pytest.mark.parametrize("K", [32, 544])
    def test_outputs_are_fully_written(self, device: Device, words: int, K: int) -> None:
        """What the outputs held before shows nowhere. Red: the last block of a row skipped."""
        assert_fully_written(device, case_of(normal(rng(11), 2, K), words))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 48}, "K = 48 must be a positive multiple of 32, the elements that share one scale"),
            ({"K": -32}, "K = -32 must be a positive multiple of 32"),
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"x_pitch": 64}, "x_pitch = 64 is less than the row it has to hold, K = 96"),
            ({"x_pitch": 97}, "x_pitch = 97 must be a multiple of 4"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            case_of(normal(rng(12), 3, 96), 1).with_dims(**dims).run(device)

    def test_three_words_are_refused(self, device: Device) -> None:
        """A number of words that is not built is refused by the catalogue. Red: any template value accepted."""
        case = Case(QUANTIZE, {"rows": 1, "K": 32}, {"x": np.zeros((1, 32), np.float32)}, {"WORDS": 3})

        with pytest.raises(LanelockError, match=r"quantize: WORDS=3 is not built; choose from \(1, 2\)"):
            case.run(device)

    def test_three_words_do_not_compile(self, device: Device) -> None:
        """The source itself forbids three words. Red: the static_assert removed."""
        with pytest.raises(BuildError, match="activation codes are one int8 word"):
            device.build(Instance(QUANTIZE, (3,)))
