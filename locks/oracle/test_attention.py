"""Causal attention against mpmath, its grouping of heads, and what it may not read."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from locks.oracle.exact import DIGITS, U
from oracle.attention import ROWS, attention

RNG = np.random.default_rng(41)


def problem(length: int, start: int, extra: int = 0):
    """Queries of 6 heads keys and values of 2 heads of 8, two sequences."""
    q = RNG.standard_normal((2, length, 6, 8))
    k, v = RNG.standard_normal((2, 2, start + length + extra, 2, 8))
    return q, k, v


class TestValues:
    """Softmax of scaled scores times values."""

    def test_it_agrees_with_mpmath(self, share: Callable[[str, float, float], float]) -> None:
        """Every head is softmax(q k / sqrt(D)) v of its own kv head over the positions it may see."""
        q, k, v = problem(5, 3)
        q *= 4
        o = attention(q, k, v, 3)
        off, top = 0.0, 0.0
        with mpmath.workdps(DIGITS):
            for b, t, h in np.ndindex(2, 5, 6):
                kh, seen = h // 3, 3 + t + 1
                scores = [mpmath.fdot(map(float, q[b, t, h]), map(float, k[b, p, kh])) / mpmath.sqrt(8)
                          for p in range(seen)]
                weights = [mpmath.exp(s) for s in scores]
                total = mpmath.fsum(weights)
                for i in range(8):
                    want = mpmath.fdot(weights, map(float, v[b, :seen, kh, i])) / total
                    off = max(off, float(abs(mpmath.mpf(float(o[b, t, h, i])) - want)))
                top = max(top, float(max(map(abs, scores))))

        assert share("attention", off, (8 + 8 + 20) * U * float(np.abs(v).max()) * (1 + top)) <= 1

    def test_the_scale_is_that_of_the_head(self) -> None:
        """Two positions with scores 0 and 16 at D = 256 weigh 1 to e: the scale is 1/16."""
        q, k, v = np.ones((1, 1, 1, 256)), np.zeros((1, 2, 1, 256)), np.zeros((1, 2, 1, 256))
        k[0, 1, 0, :16], v[0, 1] = 1, 1

        assert abs(attention(q, k, v, 1)[0, 0, 0, 0] - np.e / (1 + np.e)) < 1e-15

    def test_large_scores_do_not_overflow(self) -> None:
        """Scores of 1e4 pick their own value exactly."""
        q = np.full((1, 1, 1, 4), 100.0)
        k, v = np.zeros((1, 3, 1, 4)), np.arange(12.0).reshape(1, 3, 1, 4)
        k[0, 1] = 50

        assert attention(q, k, v, 2)[0, 0, 0].tolist() == [4, 5, 6, 7]


class TestCausality:
    """What a query sees and what it never reads."""

    def test_chunks_equal_one_token_at_a_time(self) -> None:
        """A chunk longer than the block of queries equals single tokens to rounding."""
        length = ROWS + 9
        q, k, v = problem(length, 4)
        whole = attention(q, k, v, 4)
        single = [attention(q[:, t : t + 1], k[:, : 5 + t], v[:, : 5 + t], 4 + t) for t in range(length)]

        assert np.abs(np.concatenate(single, axis=1) - whole).max() < 1e-14

    def test_rows_behind_a_query_are_never_read(self) -> None:
        """NaN in every row past the chunk, and in each row past each query, changes nothing before it."""
        q, k, v = problem(6, 2, extra=3)
        want = attention(q, k, v, 2)
        k[:, 8:], v[:, 8:] = np.nan, np.nan
        assert (attention(q, k, v, 2) == want).all()
        k[:, 5:], v[:, 5:] = np.inf, np.nan

        assert np.abs(attention(q, k, v, 2)[:, :3] - want[:, :3]).max() < 1e-14

    @pytest.mark.parametrize("start", [0, 2, 9])
    def test_a_last_value_that_is_not_finite_is_its_own_querys_alone(self, start: int) -> None:
        """A NaN in the newest value reaches the last query and none before it."""
        q, k, v = problem(6, start)
        want = attention(q, k, v, start)
        v[:, -1] = np.nan
        o = attention(q, k, v, start)

        assert np.abs(o[:, :5] - want[:, :5]).max() < 1e-14
        assert np.isnan(o[:, 5]).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_value_that_is_not_finite_does_not_travel_back(self, bad: float) -> None:
        """A last value of the very first chunk reaches its own query alone, never the queries before it."""
        q, k, v = problem(6, 0)
        want = attention(q, k, v, 0)
        v[:, 5] = bad

        assert np.abs(attention(q, k, v, 0)[:, :5] - want[:, :5]).max() < 1e-14

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_score_that_is_not_finite_makes_its_rows_nan(self, bad: float) -> None:
        """An overflowed key is not dropped: every query that sees it is NaN, of its own kv head and sequence alone."""
        q, k, v = problem(4, 0)
        k[1, 2, 1, 0] = bad
        broken = np.isnan(attention(q, k, v, 0)).all(axis=-1)
        want = np.zeros((2, 4, 6), bool)
        want[1, 2:, 3:] = True

        assert (broken == want).all()


class TestRefusals:
    """Shapes that do not fit."""

    @pytest.mark.parametrize(("heads", "rows"), [(5, 4), (6, 3)])
    def test_heads_or_rows_that_do_not_fit(self, heads: int, rows: int) -> None:
        """Five query heads have no two kv heads, and four positions need four rows."""
        with pytest.raises(ValueError, match="do not fit"):
            attention(np.ones((1, 2, heads, 8)), np.ones((1, rows, 2, 8)), np.ones((1, rows, 2, 8)), 2)
