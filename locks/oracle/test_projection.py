"""Projections on integers, and their independence of blocks and threads."""

import numpy as np
import pytest

from oracle import projection as room
from oracle.formats import Q8_0, q8_0_decode
from oracle.model_weights import Tensor
from oracle.projection import projection


class TestProjection:
    """Products of activations and weights."""

    def test_it_is_exact_on_integers(self) -> None:
        """Every row meets its own codes and scales: integer products come back exactly."""
        rng = np.random.default_rng(51)
        codes = rng.integers(-127, 128, (70, 96)).astype(np.int8)
        scales = 2.0 ** rng.integers(-3, 4, (70, 3))
        x = rng.integers(-99, 100, (2, 3, 96)).astype(float)
        values = codes * np.repeat(scales, 32, axis=1)
        want = [[[sum(a * b for a, b in zip(row, w, strict=True)) for w in values.tolist()] for row in rows]
                for rows in x.tolist()]

        assert projection(x, Q8_0(codes, scales.astype(np.float16))).tolist() == want

    @pytest.mark.parametrize("rows", [1, 3, 70])
    def test_the_block_of_rows_does_not_matter(self, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Dequantising 1, 3 or all 70 rows at a time gives the same values to rounding, and misses no row."""
        rng = np.random.default_rng(52)
        q = Q8_0(rng.integers(-127, 128, (70, 64)).astype(np.int8), rng.random((70, 2)).astype(np.float16))
        x = rng.standard_normal((4, 64))
        monkeypatch.setattr(room, "BLOCK_BYTES", rows * 8 * 64)

        assert np.abs(projection(x, q) - x @ q8_0_decode(q).T).max() < 1e-12

    @pytest.mark.parametrize(("held", "rows"), [(1, 1), (8 * 64, 1), (3 * 8 * 64, 3), (70 * 8 * 64, 70)])
    def test_no_more_rows_are_held_than_asked(self, held: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks are as tall as the bytes allow, and one row where they allow none."""
        tall: list[int] = []

        def values(w: Tensor) -> np.ndarray:
            tall.append(w.shape[0])
            return np.asarray(w, np.float64)

        monkeypatch.setattr(room, "BLOCK_BYTES", held)
        projection(np.ones((1, 64)), np.ones((70, 64)), values)

        assert (max(tall), sum(tall)) == (rows, 70)

    def test_widths_that_differ_are_refused(self) -> None:
        """Activations of 32 do not meet weights of 64."""
        with pytest.raises(ValueError, match="width 32 meet weights of width 64"):
            projection(np.ones((1, 32)), np.ones((5, 64)))
