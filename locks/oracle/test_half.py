"""f16, bf16 and e4m3 against tables of every value."""

import numpy as np
import pytest

from oracle.formats import (
    bf16_decode,
    bf16_encode,
    bf16_round,
    e4m3_blocks_decode,
    e4m3_blocks_encode,
    e4m3_decode,
    e4m3_encode,
    e4m3_pair_decode,
    e4m3_pair_encode,
    e4m3_rows_decode,
    e4m3_rows_encode,
    f16_decode,
    f16_encode,
    f16_round,
)

F32 = np.float32


def by_definition(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """Value of a sign-magnitude float by its definition, specials apart."""
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = code & (2**mantissa_bits - 1)
    leading = 0 if exponent == 0 else 2**mantissa_bits
    return sign * float(np.ldexp(float(leading + mantissa), max(exponent, 1) - bias - mantissa_bits))


def midpoints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halfway between neighbours of an ascending table, and the neighbour whose place in it is even."""
    lower, upper = values[:-1], values[1:]
    even = np.where(np.arange(len(lower)) % 2 == 0, lower, upper)
    return (lower + upper) / 2, even


E4M3 = np.array([by_definition(c, 4, 3) for c in range(127)])
F16 = np.array([by_definition(c, 5, 10) for c in range(0x7C00)])
BF16 = np.array([by_definition(c, 8, 7) for c in range(0x7F80)])


@pytest.mark.parametrize(("rounded", "values"), [
    (f16_round, F16), (bf16_round, BF16), (lambda x: e4m3_decode(e4m3_encode(x)), E4M3)], ids=["f16", "bf16", "e4m3"])
class TestRounding:
    """One rounding, nearest even, in every format."""

    def test_every_value_is_kept(self, rounded, values) -> None:
        """A value of the format, of either sign, rounds to itself."""
        assert (rounded(values) == values).all()
        assert (rounded(-values) == -values).all()

    def test_halves_go_to_even(self, rounded, values) -> None:
        """Halfway between two neighbours the one with the even code is taken."""
        middle, even = midpoints(values)

        assert (rounded(middle) == even).all()

    def test_beside_a_half_the_nearer_is_taken(self, rounded, values) -> None:
        """One float64 step off a half the nearer neighbour is taken: there is one rounding, not two."""
        middle, _ = midpoints(values)

        assert (rounded(np.nextafter(middle, 0)) == values[:-1]).all()
        assert (rounded(np.nextafter(middle, np.inf)) == values[1:]).all()

    def test_nan_stays_nan(self, rounded, values) -> None:
        """NaN in, NaN out, whatever stands beside it."""
        assert np.isnan(rounded(np.append(values, np.nan))).tolist() == [False] * len(values) + [True]


class TestHalf:
    """The two half-width floats."""

    def test_beyond_the_largest_is_infinite(self) -> None:
        """From half a step above the largest value on, both half formats are infinite, and just below they are not."""
        top16, top_b = 65520.0, (2 - 2.0**-8) * 2.0**127

        assert f16_round(np.array([top16, -top16, np.inf])).tolist() == [np.inf, -np.inf, np.inf]
        assert f16_round(np.nextafter([top16], 0)).tolist() == [65504.0]
        assert bf16_round(np.array([top_b, -top_b, -np.inf])).tolist() == [np.inf, -np.inf, -np.inf]
        assert bf16_round(np.nextafter([top_b], 0)).tolist() == [BF16[-1]]

    def test_bits_are_the_published_ones(self) -> None:
        """f16 codes are IEEE binary16 and bf16 codes the upper half of binary32, for every finite code."""
        codes = np.arange(0x7C00, dtype=np.uint16)
        wide = np.arange(0x7F80, dtype=np.uint16)

        assert (f16_encode(F16).view(np.uint16) == codes).all()
        assert (f16_decode(codes.view(np.float16)) == F16).all()
        assert (bf16_encode(BF16) == wide).all()
        assert (bf16_encode(-BF16) == wide + 0x8000).all()
        assert (bf16_decode(wide) == BF16).all()

    def test_bf16_has_codes_for_the_specials(self) -> None:
        """Infinities and NaN encode to 7F80, FF80 and 7FC0."""
        assert bf16_encode(np.array([np.inf, -np.inf, np.nan])).tolist() == [0x7F80, 0xFF80, 0x7FC0]


class TestE4M3:
    """Codes of one byte."""

    def test_codes_decode_by_definition(self) -> None:
        """Every code but the two NaN has the value of its sign, exponent and mantissa."""
        codes = np.arange(256, dtype=np.uint8)
        values = e4m3_decode(codes)

        assert np.isnan(values[[127, 255]]).all()
        assert (values[:127] == E4M3).all()
        assert (values[128:255] == -E4M3).all()
        assert E4M3.max() == 448

    def test_codes_encode_back(self) -> None:
        """Encoding every value gives its code; NaN of any sign gives 7F."""
        codes = np.arange(256, dtype=np.uint8)
        want = np.where(codes == 255, 127, codes)

        assert (e4m3_encode(e4m3_decode(codes)) == want).all()

    @pytest.mark.parametrize("big", [448.1, 464.0, 480.0, 1e30, np.inf])
    def test_beyond_448_saturates(self, big: float) -> None:
        """Anything above the largest value, infinity too, is 448 of its sign."""
        assert e4m3_encode(np.array([big, -big])).tolist() == [0x7E, 0xFE]


class TestRows:
    """One scale a row."""

    def test_each_row_is_scaled_to_448(self) -> None:
        """The largest element of a row becomes code 7E; a zero row has scale 1."""
        x = np.zeros((3, 5), F32)
        x[0, 2], x[2, 1] = 7, -1e-3
        q = e4m3_rows_encode(x)

        assert q.scales.tolist() == [F32(7) / F32(448), 1.0, F32(1e-3) / F32(448)]
        assert (q.codes[0, 2], q.codes[2, 1]) == (0x7E, 0xFE)

    def test_values_are_within_half_a_step(self) -> None:
        """A decoded element differs by 2**-4 of itself, or by half the smallest step."""
        x = np.random.default_rng(4).standard_normal((16, 300)).astype(F32)
        q = e4m3_rows_encode(x)
        bound = np.maximum(np.abs(x) * 2.0**-4, q.scales[:, None] * 2.0**-10) * (1 + 2.0**-20)

        assert (np.abs(e4m3_rows_decode(q) - x) <= bound).all()

    def test_a_row_that_is_not_finite_is_nan_alone(self) -> None:
        """Codes 0 and scale NaN for that row; the others keep theirs."""
        x = np.ones((3, 8), F32)
        x[1, 3] = np.inf
        q = e4m3_rows_encode(x)

        assert np.isnan(q.scales).tolist() == [False, True, False]
        assert not q.codes[1].any()

    def test_the_scale_has_a_floor(self) -> None:
        """A row of subnormals has scale 2**-126 rather than a quotient that would divide to infinity."""
        assert e4m3_rows_encode(np.full((1, 4), 2.0**-140)).scales.tolist() == [2.0**-126]


class TestBlocks:
    """One scale per 128 along K."""

    def test_scales_are_stored_k_major_in_fours(self) -> None:
        """Scale of row r, group b lies at [b, r]; rows are padded to a multiple of four with zeros."""
        x = np.repeat(448 * 2.0 ** (3 * np.arange(3)[:, None] + np.arange(3)), 128, axis=1)
        q = e4m3_blocks_encode(x)

        assert q.scales.tolist() == [[2.0**b, 2.0 ** (3 + b), 2.0 ** (6 + b), 0.0] for b in range(3)]
        assert (e4m3_blocks_decode(q) == x).all()

    @pytest.mark.parametrize("rows", [1, 4, 5, 129])
    def test_padding_follows_the_rows(self, rows: int) -> None:
        """Rows 1, 4, 5 and 129 are stored as 4, 4, 8 and 132."""
        q = e4m3_blocks_encode(np.ones((rows, 256)))

        assert q.scales.shape == (2, {1: 4, 4: 4, 5: 8, 129: 132}[rows])

    def test_a_last_group_may_be_shorter(self) -> None:
        """A width of 320 has groups of 128, 128 and 64."""
        x = np.random.default_rng(5).standard_normal((2, 320)).astype(F32)
        q = e4m3_blocks_encode(x)
        tail = np.abs(x[:, 256:]).max(axis=1) / F32(448)

        assert q.scales.shape == (3, 4)
        assert q.scales[2, :2].tolist() == tail.tolist()

    def test_scales_are_no_powers_of_two(self) -> None:
        """A scale of 0.75 is kept whole: 336 over 448, not its exponent."""
        q = e4m3_blocks_encode(np.full((1, 128), 336.0))

        assert q.scales[0, 0] == 0.75
        assert (e4m3_blocks_decode(q) == 336.0).all()


class TestPair:
    """Two codes an element."""

    def test_the_second_code_holds_what_the_first_lost(self) -> None:
        """A pair is within 2**-8 of an element, or half the smallest step of its second code, sixteen times finer."""
        x = np.random.default_rng(6).standard_normal((16, 320)).astype(F32)
        q = e4m3_pair_encode(x)
        scales = np.repeat(q.scales.T[:16], 128, axis=1)[:, :320]
        bound = np.maximum(np.abs(x) * 2.0**-8, scales * 2.0**-14) * (1 + 2.0**-14)

        assert (np.abs(e4m3_pair_decode(q) - x) <= bound).all()

    def test_the_first_code_is_the_single_one(self) -> None:
        """First code and scales are those of one code an element; the second is e4m3 of 16 times the loss over s."""
        x = np.random.default_rng(7).standard_normal((3, 256)).astype(F32)
        q, single = e4m3_pair_encode(x), e4m3_blocks_encode(x)
        scales = np.repeat(single.scales.T[:3], 128, axis=1)
        lost = (x - e4m3_blocks_decode(single)).astype(F32)

        assert (q.hi == single.codes).all()
        assert (q.scales == single.scales).all()
        assert (q.lo == e4m3_encode((lost / scales) * F32(16))).all()

    def test_a_group_that_is_not_finite_is_nan(self) -> None:
        """A NaN makes its own group NaN and leaves the next."""
        x = np.full((1, 256), 448.0)
        x[0, 5] = np.nan
        values = e4m3_pair_decode(e4m3_pair_encode(x))

        assert np.isnan(values[0, :128]).all()
        assert (values[0, 128:] == 448).all()
