"""Rotary positions against mpmath's exact angles, to the last position of the context."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from locks.oracle.exact import DIGITS, U
from oracle.config import preset
from oracle.qk_norm_rope import qk_norm_rope
from oracle.rms_norm import rms_norm
from oracle.rope import frequencies, rope, rope_table, table

THETA = 1e7
POSITIONS = np.array([0, 1, 2, 3, 5, 1000, 65535, 131071, 196607, 262142, 262143])


def angle(position: int, j: int, dim: int) -> mpmath.mpf:
    """The exact angle of pair j."""
    return position * mpmath.mpf(THETA) ** (mpmath.mpf(-2 * j) / dim)


class TestTable:
    """Cosines and sines."""

    @pytest.mark.parametrize("dim", [64, 8])
    def test_it_is_exact_at_every_position(self, dim: int, share: Callable[[str, float, float], float]) -> None:
        """Cosines and sines are within 1e-12 of the exact angle's up to 262143, and in truth within 4 roundings."""
        cos, sin = table(POSITIONS, dim, THETA)
        with mpmath.workdps(DIGITS):
            off = max(
                float(max(abs(cos[i, j] - mpmath.cos(a)), abs(sin[i, j] - mpmath.sin(a))))
                for i, p in enumerate(POSITIONS.tolist()) for j in range(dim // 2) for a in [angle(p, j, dim)])

        assert cos.shape == sin.shape == (len(POSITIONS), dim // 2)
        assert off < 1e-12
        assert share("table", off, 4 * U) <= 1

    def test_it_is_exact_at_random_positions(self) -> None:
        """The fastest pair, whose angle needs most reduction, is right at 300 positions in all quadrants."""
        positions = np.random.default_rng(31).integers(0, 262144, 300)
        cos, sin = table(positions, 64, THETA)
        with mpmath.workdps(DIGITS):
            off = max(float(max(abs(c - mpmath.cos(int(p))), abs(s - mpmath.sin(int(p)))))
                      for p, c, s in zip(positions, cos[:, 0], sin[:, 0], strict=True))

        assert off < 4 * U

    def test_plain_float64_would_not_be_enough(self) -> None:
        """The naive angle in float64 misses the bound of 1e-12 that this table keeps."""
        position, j = 262143, np.arange(32)
        naive = np.cos(position * THETA ** (-2.0 * j / 64))

        assert np.abs(naive - table(np.array([position]), 64, THETA)[0][0]).max() > 1e-12

    def test_it_does_not_depend_on_what_else_is_asked(self) -> None:
        """A position gives the same bits alone, in any order and in any shape."""
        whole = np.array(table(POSITIONS, 64, THETA))
        alone = np.array([table(p.reshape(1, 1), 64, THETA) for p in POSITIONS]).reshape(len(POSITIONS), 2, 32)

        assert (np.swapaxes(alone, 0, 1) == whole).all()

    def test_frequencies_are_double_doubles(self) -> None:
        """The sum hi + lo is the exact power to 2**-104, and hi alone its nearest float64."""
        hi, lo = frequencies(64, THETA)
        with mpmath.workdps(DIGITS):
            exact = [angle(1, j, 64) for j in range(32)]
            off = max(abs((mpmath.mpf(h) + mpmath.mpf(low)) / e - 1) for h, low, e in zip(hi, lo, exact, strict=True))

        assert off < 2.0**-104
        assert hi.tolist() == [float(e) for e in exact]


    def test_devices_read_it_rounded_once(self) -> None:
        """The device's table is the nearest float32 of each entry, a row a position."""
        config = preset("tiny")
        exact = table(np.arange(70), config.rope_dim, config.rope_theta)

        for rounded, truth in zip(rope_table(config, 70), exact, strict=True):
            assert rounded.dtype == np.float32
            assert (rounded == truth.astype(np.float32)).all()


class TestRotation:
    """Heads turned by them."""

    def one_hot(self, index: int, position: int) -> np.ndarray:
        """A head of 256 with a single 1, rotated as the 27B does."""
        cos, sin = table(np.array([[position]]), 64, THETA)
        return rope(np.eye(256)[None, None, index : index + 1], cos, sin)[0, 0, 0]

    @pytest.mark.parametrize(("position", "c", "s"), [
        (0, 1.0, 0.0), (1, 0.82290208, 0.56818322), (1000, 0.44412335, 0.89596565)])
    def test_pairs_are_half_the_rotated_width_apart(self, position: int, c: float, s: float) -> None:
        """A 1 at index 1 turns into indices 1 and 33 by the handed values, the rest 0 (handed case 21)."""
        y = self.one_hot(1, position)

        assert abs(y[1] - c) < 1e-8
        assert abs(y[33] - s) < 1e-8
        assert not np.delete(y, [1, 33]).any()

    def test_the_upper_half_turns_the_other_way(self) -> None:
        """A 1 at index 63 turns to minus the sine at 31 and the cosine at 63."""
        y = self.one_hot(63, 1000)
        cos, sin = table(np.array([1000]), 64, THETA)

        assert (y[31], y[63]) == (-sin[0, 31], cos[0, 31])

    @pytest.mark.parametrize("index", [64, 100, 255])
    def test_dims_past_the_rotated_ones_are_untouched(self, index: int) -> None:
        """Indices 64 to 255 pass bit for bit (handed case 21)."""
        assert (self.one_hot(index, 1000) == np.eye(256)[index]).all()

    def test_scores_depend_on_distance_alone(self) -> None:
        """The product of a rotated query and key depends on how far apart they stand, not on where."""
        q, k = np.random.default_rng(32).standard_normal((2, 1, 1, 1, 64))

        def score(i: int, j: int) -> float:
            tables = [table(np.array([[p]]), 64, THETA) for p in (i, j)]
            return float((rope(q, *tables[0]) * rope(k, *tables[1])).sum())

        assert abs(score(7, 3) - score(262143, 262139)) < 1e-13

    def test_heads_and_tokens_have_their_own_angles(self) -> None:
        """Token t of every head turns by position t, norm first and its weights before the rotation."""
        x, w = np.random.default_rng(33).standard_normal((2, 3, 4, 16)), np.linspace(0.5, 1.5, 16)
        cos, sin = table(np.array([5, 9, 2]), 8, THETA)
        y = qk_norm_rope(x, w, cos, sin, 1e-6)
        for t in range(3):
            normed = rms_norm(x[:, t], w, 1e-6)
            turned = (normed[..., :4] + 1j * normed[..., 4:8]) * (cos[t] + 1j * sin[t])
            want = np.concatenate([turned.real, turned.imag, normed[..., 8:]], axis=-1)
            assert np.abs(y[:, t] - want).max() < 4 * U * np.abs(x).max() * 4

    def test_more_rotated_dims_than_the_head_has_are_refused(self) -> None:
        """A table of 8 pairs does not rotate a head of 12."""
        with pytest.raises(ValueError, match="16 rotated dims"):
            rope(np.ones((1, 1, 12)), np.ones((1, 8)), np.ones((1, 8)))
