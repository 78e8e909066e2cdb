"""The transcription of the contract is itself held: fma to rationals, trees to plain loops, version to page."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.bits import ARITHMETIC_VERSION
from oracle.bits.fma import F32, f32, fma
from oracle.bits.tree import dot, tree

PAGE = Path(__file__).resolve().parents[1] / "kernels" / "ARITHMETIC.md"
BITS = st.integers(0, 2**32 - 1)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)


def from_bits(*bits: int) -> F32:
    """Float32 values of these bit patterns."""
    return np.array(bits, np.uint32).view(np.float32)


def nearest(exact: Fraction) -> float:
    """The float32 nearest a rational, ties to even, from integers alone; infinite from 2**128 - 2**103 on."""
    size, sign = abs(exact), -1.0 if exact < 0 else 1.0
    if size == 0:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    steps = round(size / quantum)  # round() of a Fraction is half-to-even
    value = steps * quantum
    return sign * (float("inf") if value >= Fraction(2) ** 128 else float(value))


def expected_fma(a: float, b: float, c: float) -> float:
    """A fused multiply-add by rationals where all is finite, by IEEE's rules for infinities and NaN where not."""
    if np.isfinite([a, b, c]).all():
        return nearest(Fraction(a) * Fraction(b) + Fraction(c))
    return a * b + c  # with an infinity or a NaN no rounding takes part, and float64 does not overflow here


def wrong_fma(a: F32, b: F32, c: F32) -> list[tuple[float, float, float]]:
    """The triples for which `fma` is not the expected value (zeros of either sign are one value, and NaN is NaN)."""
    got = fma(a, b, c)
    assert got.dtype == np.float32
    assert got.shape == a.shape
    wrong = []
    with np.errstate(invalid="ignore"):  # signalling NaN among random bits
        columns = [v.astype(np.float64).tolist() for v in (a, b, c, got)]
    for x, y, z, value in zip(*columns, strict=True):
        want = expected_fma(x, y, z)
        if value != want and not (np.isnan(value) and np.isnan(want)):
            wrong.append((x, y, z))
    return wrong


def adversarial() -> tuple[F32, F32, F32]:
    """Triples at which two roundings differ from one: the float64 sum falls on a tie that the exact sum is not."""
    rng = np.random.default_rng(1)
    count = 3000
    a = from_bits(*(rng.integers(0, 2**23, count) | 0x3F800000))
    b = from_bits(*(rng.integers(0, 2**23, count) | 0x3F800000))
    exact = a.astype(np.float64) * b.astype(np.float64)
    # c is a float32 tie's distance from the product, so that a * b + c lies within 2**-53 of half a unit
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    tie = (np.floor(exact / unit) + 0.5) * unit
    c = f32((tie - exact) * rng.choice([1.0, 1.0 + 2.0**-20, 2.0**-3], count))
    scale = 2.0 ** rng.choice([0, 0, -63, -74, -75, -70], count)
    return f32(a * scale), f32(b * scale), f32(c * scale * scale)


def far_addends() -> tuple[F32, F32, F32]:
    """Products of about half a unit of c, or far below one, for c in normal, subnormal and overflowing ranges."""
    mantissas = (2**23, 2**23 + 1, 2**23 + 2, 2**24 - 2, 2**24 - 1)
    addends = [(m, e) for e in (-126, -125, -100, -1, 0, 24, 126, 127) for m in mantissas]
    addends += [(m, -126) for m in (0, 1, 2, 3, 2**22, 2**22 + 1, 2**23 - 2, 2**23 - 1)]  # subnormal
    a, b, c = [], [], []
    for mantissa, exponent in addends:
        unit = 2.0 ** (exponent - 23)
        root = 2.0 ** ((exponent - 23) // 2)
        for nudge in (0.5, 0.5 * (1 + 2.0**-23), 0.5 * (1 - 2.0**-24), 1.5, 2.0**-30, 2.0**-60):
            for sign in (1, -1):
                a.append(sign * root)
                b.append(unit / root * nudge)
                c.append(mantissa * unit)
                # half a unit less 2**-46 of itself: float64 has no room for the difference beside c
                a.append(sign * root * (1 + 2.0**-23))
                b.append(unit / root * nudge * (1 - 2.0**-23))
                c.append(mantissa * unit)
    return f32(a), f32(b), f32(c)


class TestFma:
    """`oracle.bits.fma`: red if round-to-odd is left out, or if the long way misses ties or subnormals."""

    def test_is_one_rounding_where_two_would_differ(self) -> None:
        """Where rounding to float64 and then to float32 gives another value, fma gives the nearest of the exact sum."""
        a, b, c = adversarial()
        twice = (a.astype(np.float64) * b + c).astype(np.float32)

        assert np.any(twice != fma(a, b, c)), "the cases do not tell one rounding from two"
        assert not wrong_fma(a, b, c)

    def test_is_exact_at_ties_broken_by_far_products(self) -> None:
        """A product far below half a unit decides a tie, also among subnormals and at the overflow threshold."""
        assert not wrong_fma(*far_addends())

    def test_is_exact_on_random_bits(self) -> None:
        """Any three bit patterns, subnormals, infinities and NaN among them, give the rational's nearest float32."""
        rng = np.random.default_rng(2)
        a, b, c = (from_bits(*rng.integers(0, 2**32, 4000)) for _ in range(3))

        assert not wrong_fma(a, b, c)

    def test_is_exact_near_cancellation(self) -> None:
        """An addend near -a * b leaves the low half of the product, and nothing of it is lost."""
        rng = np.random.default_rng(3)
        a, b = (f32(rng.standard_normal(3000) * 2.0 ** rng.integers(-70, 60, 3000)) for _ in range(2))
        with np.errstate(over="ignore", under="ignore"):
            c = f32(-(a * b))

        assert not wrong_fma(a, b, c)

    @SETTINGS
    @given(st.lists(st.tuples(BITS, BITS, BITS), min_size=1, max_size=40))
    def test_is_exact_on_found_bits(self, triples: list[tuple[int, int, int]]) -> None:
        """No triple that hypothesis tries is rounded otherwise."""
        a, b, c = (from_bits(*column) for column in zip(*triples, strict=True))

        assert not wrong_fma(a, b, c)

    def test_keeps_subnormals(self) -> None:
        """The processor does not flush: float32 products and sums below 2**-126 keep their digits in this process."""
        small = f32(2.0**-126) * f32(0.5)

        assert small > 0
        assert fma(small, 1.0, small) == f32(2.0**-126)


def slow_tree(x: list[float], y: list[float] | None) -> np.float32:
    """The page's tree in its own words, one float32 at a time, all 32 lanes in the xor steps."""
    per = len(x) // 32
    v = [np.float32(0)] * 32
    for leaf in range(32):
        for i in range(per * leaf, per * leaf + per):
            v[leaf] = fma(x[i], y[i], v[leaf])[()] if y is not None else np.float32(v[leaf] + np.float32(x[i]))
    for m in (16, 8, 4, 2, 1):
        v = [np.float32(v[leaf] + v[leaf ^ m]) for leaf in range(32)]
    assert len({value.tobytes() for value in v}) == 1, "the lanes of an xor tree must agree"
    return v[0]


class TestTree:
    """The named reduction: red if leaves are strided, pairs are adjacent, or products are not fused."""

    @pytest.mark.parametrize("per", [1, 2, 4, 8])
    def test_equals_the_page_one_element_at_a_time(self, per: int) -> None:
        """32 leaves of contiguous elements and xor pairs 16, 8, 4, 2, 1, for products and for sums."""
        rng = np.random.default_rng(per)
        x, y = (f32(rng.standard_normal(32 * per) * 10.0 ** rng.integers(-3, 4, 32 * per)) for _ in range(2))

        assert tree(x, y) == slow_tree(x.tolist(), y.tolist())
        assert tree(x) == slow_tree(x.tolist(), None)

    @pytest.mark.parametrize("K", [32, 96, 256, 257, 2560])
    def test_long_rows_add_chunk_trees_ascending(self, K: int) -> None:
        """A row of K is chunks of 256 with zeros behind its end, added ascending from zero."""
        rng = np.random.default_rng(K)
        x, y = (f32(rng.standard_normal(K)) for _ in range(2))
        padded_x, padded_y = (np.pad(v, (0, -K % 256)).tolist() for v in (x, y))
        total = np.float32(0)
        for start in range(0, K, 256):
            total = np.float32(total + slow_tree(padded_x[start : start + 256], padded_y[start : start + 256]))

        assert dot(x, y) == total

    def test_rows_are_independent(self) -> None:
        """A row gives the same bits alone and in a batch."""
        x = f32(np.random.default_rng(4).standard_normal((5, 300)))

        assert dot(x, x).tobytes() == b"".join(dot(row, row).tobytes() for row in x)

    def test_the_order_can_be_seen(self) -> None:
        """On such inputs adjacent pairs give other bits, so the locks above can fail."""
        x = f32(np.random.default_rng(5).standard_normal(256))
        pairs = x.reshape(32, 8).sum(axis=1, dtype=np.float32)
        while pairs.size > 1:
            pairs = pairs[0::2] + pairs[1::2]

        assert tree(x) != pairs[0]


class TestVersion:
    """One arithmetic version."""

    def test_page_and_code_agree(self) -> None:
        """kernels/ARITHMETIC.md states the version that oracle.bits transcribes."""
        stated = re.match(r"# Arithmetic version (\d+)\n", PAGE.read_text(encoding="utf-8"))

        assert stated
        assert int(stated[1]) == ARITHMETIC_VERSION


class TestFigures:
    """What the page says was measured."""

    def test_errors_of_functions_are_those_of_the_record_it_names(self) -> None:
        """Each figure is the record's largest error over all inputs, rounded up to two digits; it covers 2^32 inputs.

        Red: a figure of another run, or of a part of the inputs.
        """
        page = PAGE.read_text(encoding="utf-8")
        name = re.search(r"`(reports/records/exhaustive-\w+\.json)`", page)
        assert name
        found = json.loads((PAGE.parents[1] / name[1]).read_text())["figures"]["functions"]
        errors = {function: row["largest_error"] for function, row in found.items()}
        quoted = re.search(r"exp [\d.]+,[^;]*? ulp", page)
        below = re.search(r"at most ([\d.]+) steps of 2\^-149", page)

        assert quoted
        assert below
        assert {row["inputs"] for row in found.values()} == {2**32}
        assert dict(re.findall(r"(\w+) (\d\.\d+)", quoted[0])) == {f: rounded_up(e["ulp"]) for f, e in errors.items()}
        assert below[1] == rounded_up(max(e["steps_below_normal"] for e in errors.values()))


def rounded_up(value: float) -> str:
    """Two digits behind the point, never below the value."""
    return f"{math.ceil(value * 100) / 100:.2f}"
