"""Q8_0, Q4, A8 and A15 against exact rational arithmetic and the handed cases."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oracle.errors import LanelockError
from oracle.formats import (
    A8,
    A15,
    Q8_0,
    a8_decode,
    a8_encode,
    a15_decode,
    a15_encode,
    a15_join,
    a15_split,
    check_q4,
    q4_decode,
    q4_from_q8_0,
    q4_pack,
    q4_unpack,
    q8_0_decode,
    q8_0_encode,
    round_half_away,
)

F32 = np.float32
TIES = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5] + [0.0] * 24, F32)
BLOCKS = hnp.arrays(F32, (3, 64), elements=st.floats(-1e4, 1e4, width=32))
quick = settings(derandomize=True, deadline=None, max_examples=60)


def single(fraction: Fraction) -> Fraction:
    """The nearest float32, ties to even, of an exact value in float32's normal range."""
    if fraction == 0:
        return fraction
    exponent = max(int(np.frexp(float(abs(fraction)))[1]) - 24, -149)
    steps = fraction / Fraction(2) ** exponent
    return round(steps) * Fraction(2) ** exponent


def block_of(amax: float) -> np.ndarray:
    """One row of one block whose largest element is amax."""
    return np.array([[amax] + [0.0] * 31], F32)


class TestQ8:
    """Eight-bit weights."""

    def test_codes_follow_the_rule_in_exact_arithmetic(self) -> None:
        """Each code is half-away of x times the unrounded float32 reciprocal, each operation rounded to float32."""
        x = np.random.default_rng(1).standard_normal((16, 32)).astype(F32)
        x[0] = 0
        want = []
        for row in x:
            d = single(Fraction(float(np.abs(row).max())) / 127)
            inverse = single(1 / d) if d else Fraction(0)
            products = [single(Fraction(float(v)) * inverse) for v in row]
            want.append([int(abs(p) + Fraction(1, 2)) * (1 if p >= 0 else -1) for p in products])

        assert q8_0_encode(x).codes.tolist() == want

    def test_ties_go_away_from_zero(self) -> None:
        """Halves round away from zero, as in the published rule (handed case 24)."""
        assert q8_0_encode(TIES[None]).codes[0, :8].tolist() == [127, 1, 2, 3, -1, -2, -3, 64]

    def test_codes_use_the_scale_before_it_is_rounded(self) -> None:
        """Codes are made by the float32 scale: under amax 200 the fp16 scale is larger and 100.5 steps become 100."""
        x = block_of(200.0)
        x[0, 1] = F32(100.5 / 127 * 200) * F32(1 + 1e-6)
        q = q8_0_encode(x)
        by_half = np.rint(x[0, 1] / F32(q.scales[0, 0]))

        assert int(q.codes[0, 1]) == 101
        assert by_half == 100

    @pytest.mark.parametrize(("amax", "scale"), [(8319008.0, 65504.0), (4e-6, 2.0**-24), (3e-6, 0.0), (1e-5, 2.0**-24)])
    def test_scales_at_the_ends_of_fp16(self, amax: float, scale: float) -> None:
        """The scale is the nearest fp16, to the last subnormal and to nothing below it (handed case 27)."""
        assert float(q8_0_encode(block_of(amax)).scales[0, 0]) == scale

    @pytest.mark.parametrize("amax", [8.4e6, 8321040.0, np.inf, np.nan])
    def test_what_fp16_cannot_hold_is_refused_by_name(self, amax: float) -> None:
        """An infinite scale or an element that is not finite names the matrix, the row and the columns."""
        x = np.zeros((3, 96), F32)
        x[2, 40] = amax

        with pytest.raises(LanelockError, match=r"layers\.1\.Wd: row 2, columns 32 to 63"):
            q8_0_encode(x, "layers.1.Wd")

    def test_the_tiniest_blocks_are_zero(self) -> None:
        """A block whose scale has no float32 reciprocal becomes codes 0 rather than infinities or NaN."""
        assert not q8_0_decode(q8_0_encode(block_of(1e-40))).any()
        assert not q8_0_encode(block_of(1e-40)).codes.any()

    @pytest.mark.parametrize("shape", [(2, 31), (32,), (2, 2, 32)])
    def test_shapes_that_are_not_whole_blocks_are_refused(self, shape: tuple[int, ...]) -> None:
        """Only matrices of whole blocks are quantised."""
        with pytest.raises(LanelockError, match="multiple of 32"):
            q8_0_encode(np.ones(shape, F32))

    def test_each_block_has_its_own_scale(self) -> None:
        """Block b of row n decodes by scale [n, b] and by no other."""
        scales = np.array([[1, 2, 4], [8, 16, 32]], np.float16)
        values = q8_0_decode(Q8_0(np.full((2, 96), 3, np.int8), scales))

        assert values.tolist() == np.repeat(3.0 * scales, 32, axis=1).tolist()

    @quick
    @given(BLOCKS)
    def test_decoding_is_within_half_a_step(self, x: np.ndarray) -> None:
        """A decoded element differs by at most half a step, a few float32 roundings and the fp16 rounding."""
        q = q8_0_encode(x)
        amax = np.abs(x).reshape(3, 2, 32).max(axis=-1).repeat(32, axis=1)
        # half a step of amax/127; three roundings of a code of 127; the fp16 scale: relative, or its subnormal step.
        bound = amax / 254 + 4 * 2.0**-24 * amax + np.maximum(amax * 2.0**-11, 127 * 2.0**-25)

        assert (np.abs(q8_0_decode(q) - x) <= bound).all()


class TestRoundHalfAway:
    """The rounding of the published rule."""

    @pytest.mark.parametrize(("x", "want"), [
        (0.49999997, 0), (0.5, 1), (-0.5, -1), (2.5, 3), (-126.5, -127), (8388609, 8388609)])
    def test_only_halves_and_more_move_away(self, x: float, want: float) -> None:
        """The largest float32 below a half rounds to 0, and integers stay."""
        assert round_half_away(np.array([x], F32))[0] == want


class TestQ4:
    """Four-bit weights."""

    def test_a_block_that_fits_is_kept(self) -> None:
        """Codes in -8..7 and their scale pass unchanged, -8 included."""
        q = Q8_0(np.array([[-8, 7] + [3] * 30], np.int8), np.array([[0.1]], np.float16))
        q4 = q4_from_q8_0(q)

        assert q4.codes.tolist() == q.codes.tolist()
        assert q4.scales.tolist() == q.scales.tolist()

    @pytest.mark.parametrize("odd", [8, -9])
    def test_one_code_outside_rescales_the_block(self, odd: int) -> None:
        """A code of 8 or of -9 makes s4 = fp16(s*m/7) and codes rint(c*s/s4), clamped to -8..7."""
        codes = np.array([[odd, 1, 4, -4] + [0] * 28], np.int8)
        s = float(np.float16(0.1))
        s4 = float(np.float16(F32(F32(s * abs(odd)) / F32(7))))
        q4 = q4_from_q8_0(Q8_0(codes, np.array([[0.1]], np.float16)))

        assert float(q4.scales[0, 0]) == s4
        assert q4.codes[0].tolist() == [max(-8, min(7, round(c * s / s4))) for c in codes[0].tolist()]

    def test_codes_follow_the_rule_in_exact_arithmetic(self) -> None:
        """Every code is c*s over the fp16 scale, the quotient rounded once to float32, then to even and clamped."""
        rng = np.random.default_rng(8)
        codes = rng.integers(-127, 128, (300, 32)).astype(np.int8)
        codes[:, 0] = rng.integers(9, 128, 300)
        scales = rng.uniform(0.01, 1, (300, 1)).astype(np.float16)
        q4 = q4_from_q8_0(Q8_0(codes, scales))
        want = []
        for row, s in zip(codes.tolist(), scales[:, 0].tolist(), strict=True):
            s4 = Fraction(float(np.float16(F32(float(single(Fraction(s) * max(map(abs, row)) / 7))))))
            want.append([max(-8, min(7, round(single(c * Fraction(s) / s4)))) for c in row])

        assert q4.codes.tolist() == want

    def test_codes_reach_both_ends(self) -> None:
        """Where s4 rounds down, -127 times s is just past -7 steps and stays within -8..7."""
        q4 = q4_from_q8_0(Q8_0(np.array([[-127, 127] + [0] * 30], np.int8), np.array([[1.0]], np.float16)))

        assert q4.codes[0, :3].tolist() == [-7, 7, 0]

    def test_a_zero_scale_gives_a_zero_block(self) -> None:
        """Codes under a zero scale become zero, never NaN."""
        q4 = q4_from_q8_0(Q8_0(np.full((1, 32), 100, np.int8), np.zeros((1, 1), np.float16)))

        assert not q4.codes.any()
        assert not q4.scales.any()

    def test_an_infinite_scale_is_refused_by_name(self) -> None:
        """A Q8_0 block near the top of fp16 has no Q4 scale, and the refusal names it."""
        q = Q8_0(np.full((1, 32), 127, np.int8), np.array([[60000]], np.float16))

        with pytest.raises(LanelockError, match=r"Wd: row 0, block 0 .* infinite"):
            q4_from_q8_0(q, "Wd")

    @pytest.mark.parametrize(
        ("scale", "code", "is_refused"),
        [(3582, -128, False), (3584, -128, True), (-3584, -128, True), (3610, 127, False), (3612, 127, True),
         (65504, 7, False), (65504, -8, False), (65504, 8, True), (np.inf, 1, True)],
    )  # fmt: skip  # a table
    def test_a_scale_is_refused_from_the_first_that_overflows(self, scale: float, code: int, is_refused: bool) -> None:
        """The check of a matrix finds each side of the limit, for kept blocks and others, and says where.

        Red: a limit of scales that some code still overflows below; the place of another block.
        """
        codes, scales = np.ones((3, 64), np.int8), np.full((3, 2), 3584, np.float16)
        codes[2, 40], scales[2, 1] = code, scale
        if not is_refused:
            check_q4(Q8_0(codes, scales), "Wd")
            return
        with pytest.raises(LanelockError, match=r"^Wd: row 2, block 1 needs a Q4 scale that is infinite in fp16"):
            check_q4(Q8_0(codes, scales), "Wd")

    def test_bytes_hold_pairs_low_first_biased_by_eight(self) -> None:
        """Byte i holds element 2i in its low and 2i + 1 in its high half."""
        codes = np.array([[-8, 7, 0, 1, -1, -2]], np.int8)

        assert q4_pack(codes).tolist() == [[0xF0, 0x98, 0x67]]

    def test_unpacking_inverts_packing(self) -> None:
        """All 256 bytes unpack and pack to themselves."""
        packed = np.arange(256, dtype=np.uint8).reshape(2, 128)

        assert q4_pack(q4_unpack(packed)).tolist() == packed.tolist()

    @pytest.mark.parametrize("code", [8, -9])
    def test_a_code_that_does_not_fit_is_refused(self, code: int) -> None:
        """Packing never wraps a code."""
        with pytest.raises(LanelockError, match=r"-8\.\.7"):
            q4_pack(np.array([[code, 0]], np.int8))

    def test_decoding_multiplies_by_the_blocks_own_scale(self) -> None:
        """A rescaled block's values are within half a step of the Q8_0 values, or a step where -8 clamps."""
        rng = np.random.default_rng(2)
        q = Q8_0(rng.integers(-127, 128, (8, 96)).astype(np.int8), rng.uniform(0.1, 4, (8, 3)).astype(np.float16))
        q4 = q4_from_q8_0(q)
        half_step = np.repeat(q4.scales.astype(float), 32, axis=1) / 2

        # s4 is rounded to fp16, so 7 steps can miss the largest code by 127/254 of 2**-11 of it.
        assert (np.abs(q4_decode(q4) - q8_0_decode(q)) <= half_step * (1 + 14 * 2.0**-11)).all()


@dataclass(frozen=True, slots=True)
class Form:
    """An activation format and its largest code."""

    encode: Callable[[np.ndarray], A8 | A15]
    decode: Callable[[object], np.ndarray]
    top: int


@pytest.mark.parametrize(
    "form", [Form(a8_encode, a8_decode, 127), Form(a15_encode, a15_decode, 16256)], ids=["a8", "a15"])
class TestActivations:
    """What A8 and A15 have in common."""

    def test_codes_follow_the_rule_in_exact_arithmetic(self, form: Form) -> None:
        """Scale is amax/top and code rint(x/s), each rounded once to float32, ties of the code to even."""
        x = np.random.default_rng(3).standard_normal((8, 32)).astype(F32)
        want_codes, want_scales = [], []
        for row in x:
            s = single(Fraction(float(np.abs(row).max())) / form.top)
            want_scales.append(float(s))
            want_codes.append([round(single(Fraction(float(v)) / s)) for v in row])
        got = form.encode(x)

        assert got.codes.tolist() == want_codes
        assert got.scales[:, 0].tolist() == want_scales

    def test_the_scale_has_a_floor_that_keeps_zero_zero(self, form: Form) -> None:
        """A zero block has scale 2**-126, and so has one whose quotient would be subnormal; small blocks have none."""
        x = np.zeros((3, 32), F32)
        x[1, 0], x[2, 0] = 2.0**-126, 1e-30
        got = form.encode(x)

        assert got.scales[:2, 0].tolist() == [2.0**-126, 2.0**-126]
        assert got.codes[:2, 0].tolist() == [0, 1]
        assert got.codes[2, 0] == form.top

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
    def test_a_block_that_is_not_finite_is_nan_and_its_neighbours_are_not(self, form: Form, bad: float) -> None:
        """Codes 0 and scale NaN for that block alone: a fault is not quantised away."""
        x = np.ones((2, 64))
        x[1, 40] = bad
        got = form.encode(x)

        assert np.isnan(got.scales).tolist() == [[False, False], [False, True]]
        assert not got.codes[1, 32:].any()
        assert np.isnan(form.decode(got)[1, 32:]).all()

    def test_blocks_are_contiguous_and_scaled_apart(self, form: Form) -> None:
        """Each 32 neighbours share a scale: powers of two across blocks come back exactly."""
        x = np.repeat(2.0 ** np.arange(12).reshape(2, 2, 3), 32, axis=2)
        got = form.encode(x * form.top)

        assert (form.decode(got) == x * form.top).all()
        assert got.scales.shape == (2, 2, 3)

    def test_a_row_that_is_not_whole_blocks_is_refused(self, form: Form) -> None:
        """A width of 33 is refused."""
        with pytest.raises(LanelockError, match="33"):
            form.encode(np.ones((2, 33)))


class TestA8:
    """Eight-bit activations."""

    def test_ties_go_to_even(self) -> None:
        """Halves round to even (handed case 24)."""
        assert a8_encode(TIES).codes[:8].tolist() == [127, 0, 2, 2, 0, -2, -2, 64]

    def test_a_quarter_is_not_lost(self) -> None:
        """With amax 0.5, 0.25 becomes code 64, value 0.25196850: the scale has no floor of 1 (handed case 27)."""
        x = np.array([0.5, 0.25] + [0.0] * 30, F32)
        a = a8_encode(x)

        assert a.codes[1] == 64
        assert abs(a8_decode(a)[1] - 0.25196850) < 1e-8

    def test_codes_are_bytes(self) -> None:
        """Codes are int8, scales float32."""
        a = a8_encode(np.ones(32))

        assert (a.codes.dtype, a.scales.dtype, type(a)) == (np.int8, np.float32, A8)


class TestA15:
    """Fifteen-bit activations and their two words."""

    def test_words_join_to_every_code(self) -> None:
        """All 32513 codes split into hi in -127..127 and lo in -64..63 with 128*hi + lo the code."""
        codes = np.arange(-16256, 16257).astype(np.int16)
        hi, lo = a15_split(codes)

        assert (128 * hi.astype(int) + lo.astype(int) == codes).all()
        assert (hi.min(), hi.max(), lo.min(), lo.max()) == (-127, 127, -64, 63)
        assert (a15_join(hi, lo) == codes).all()

    def test_codes_are_sixteen_bits(self) -> None:
        """Codes are int16, words int8."""
        a = a15_encode(np.ones(32))
        hi, lo = a15_split(a.codes)

        assert (a.codes.dtype, hi.dtype, lo.dtype, type(a)) == (np.int16, np.int8, np.int8, A15)
