"""Locks of the projection_f32 room: the small float32 projection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.projection_f32 import PROJECTION_F32
from locks.support import (
    PROPERTY,
    Case,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_stands_alone,
    assert_within,
    normal,
    rng,
    wild,
)
from oracle.bits.add import sum_planes
from oracle.bits.projection_f32 import projection_f32
from oracle.bits.tree import tree
from oracle.errors import LanelockError
from oracle.projection_f32 import projection_f32 as truth

SHAPES = [(1, 1000, 32), (3, 5, 96), (9, 6, 608), (2, 96, 2560), pytest.param(33, 96, 5120, marks=pytest.mark.full)]
SEQS = pytest.mark.parametrize("seqs", [1, 2, 4, 8])


def case_of(x: np.ndarray, w: np.ndarray, seqs: int) -> Case:
    """Rows x [rows, K] and weights w [N, K]."""
    dims = {"rows": x.shape[0], "N": w.shape[0], "K": w.shape[1]}
    return Case(PROJECTION_F32, dims, {"x": x, "w": w}, {"SEQS": seqs})


def product(device: Device, case: Case) -> np.ndarray:
    """What a reader of the planes adds up."""
    return sum_planes(case.run(device)["y"])


def inputs(seed: int, rows: int, N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of another size each, and weights."""
    g = rng(seed, rows, N, K)
    size = np.exp2(np.arange(rows) % 20).astype(np.float32)[:, None]
    return normal(g, rows, K) * size, normal(g, N, K)


@pytest.mark.verify
class TestProduct:
    """The kernel is the contract, and near the truth."""

    @SEQS
    @pytest.mark.parametrize(("rows", "N", "K"), SHAPES)
    def test_every_output_is_the_contract(self, device: Device, seqs: int, rows: int, N: int, K: int) -> None:
        """Chunks of 256, a tree in each, ascending. Red: a warp's chunks summed before the others'."""
        x, w = inputs(1, rows, N, K)

        assert_same_bits(product(device, case_of(x, w, seqs)), projection_f32(x, w))

    @SEQS
    def test_a_plane_is_the_tree_of_its_chunk(self, device: Device, seqs: int) -> None:
        """Plane p is the tree of elements 256 p to 256 p + 255. Red: chunks of another width, planes exchanged."""
        x, w = inputs(8, 5, 6, 608)
        planes = case_of(x, w, seqs).run(device)["y"]

        left, right = (np.pad(v, [(0, 0), (0, 160)]).reshape(len(v), 3, 256).swapaxes(0, 1) for v in (x, w))
        assert_same_bits(planes, tree(left[:, :, None], right[:, None]))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 30), seqs=st.sampled_from([1, 2, 4, 8]))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, blocks: int, seqs: int) -> None:
        """Subnormal to largest, overflow included, any width. Red: a flushed subnormal."""
        g = rng(seed)
        x, w = wild(g, 2, 32 * blocks), wild(g, 5, 32 * blocks)

        assert_same_bits(product(device, case_of(x, w, seqs)), projection_f32(x, w))

    @SEQS
    def test_every_output_is_within_its_bound(self, device: Device, share: Share, seqs: int) -> None:
        """Each output lies within its longest chain of roundings of float64. Red: a chunk lost."""
        x, w = inputs(2, 3, 6, 608)

        rounded = 8 + 5 + 3  # fma of a lane, tree, chunks
        bound = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)).T * rounded * U * (1 + 2.0**-10)
        expected = truth(x.astype(np.float64), w.astype(np.float64))
        assert_within(share, f"{seqs} sequences", product(device, case_of(x, w, seqs)), expected, bound)


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    @SEQS
    @pytest.mark.parametrize("K", [32, 288, 2560])
    def test_ones_give_their_number(self, device: Device, seqs: int, K: int) -> None:
        """Rows of ones sum to K. Red: the last chunk dropped, or its missing elements read."""
        got = product(device, case_of(np.ones((3, K), np.float32), np.ones((5, K), np.float32), seqs))

        assert_same_bits(got, np.full((3, 5), K, np.float32))

    @SEQS
    def test_zeros_give_plus_zero(self, device: Device, seqs: int) -> None:
        """Rows of zeros of either sign sum to +0. Red: a sum that begins with anything else."""
        x = np.zeros((2, 288), np.float32)
        x[1] = -0.0

        assert_same_bits(product(device, case_of(x, normal(rng(8), 5, 288), seqs)), np.zeros((2, 5), np.float32))

    @SEQS
    def test_one_hot_rows_return_their_weight(self, device: Device, seqs: int) -> None:
        """A one at each of the last 256 positions returns that weight. Red: two elements exchanged."""
        w = normal(rng(3), 5, 288)
        x = np.eye(288, dtype=np.float32)[-256:]

        assert_same_bits(product(device, case_of(x, w, seqs)), w[:, -256:].T.copy())


class TestMemory:
    """Rows are their own, outputs are written whole."""

    @SEQS
    def test_row_stands_alone(self, device: Device, seqs: int) -> None:
        """A row gives the same bits alone and in any slot among poison. Red: rows that share a chunk sum."""
        assert_stands_alone(device, case_of(*inputs(4, 3, 6, 288), seqs))

    @SEQS
    def test_pitch_does_not_matter(self, device: Device, seqs: int) -> None:
        """Wider rows of inputs and outputs keep their bits and their padding (case 35). Red: K for the pitch."""
        assert_pitch_free(device, case_of(*inputs(5, 3, 6, 288), seqs))

    @SEQS
    def test_outputs_are_fully_written(self, device: Device, seqs: int) -> None:
        """Nothing of what an output held shows behind it. Red: the last weight rows left out."""
        assert_fully_written(device, case_of(*inputs(6, 9, 7, 96), seqs))

    @SEQS
    def test_a_nan_stays_in_its_row(self, device: Device, seqs: int) -> None:
        """A NaN makes its own row NaN and no other. Red: a row read for its neighbour."""
        x, w = inputs(7, 3, 6, 288)
        x[1, 287] = np.nan
        got = product(device, case_of(x, w, seqs))

        assert np.isnan(got).all(axis=1).tolist() == [False, True, False]


class TestGeometry:
    """A launch is as large as its work."""

    @pytest.mark.parametrize(("N", "K", "grid", "threads"), [(97, 96, (1, 7, 3), 128), (6, 2560, (10, 1, 3), 64)])
    def test_a_block_is_sixteen_weight_rows(self, N: int, K: int, grid: tuple[int, int, int], threads: int) -> None:
        """One layer of blocks a chunk covers weight rows and eight sequences each. Red: a second layer."""
        full = resolve(instance(PROJECTION_F32, SEQS=8), {"rows": 17, "N": N, "K": K})

        assert PROJECTION_F32.geometry(full) == Geometry(grid, (threads, 1, 1))


class TestRefusals:
    """What cannot be is refused before anything runs."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 40}, "K = 40 must be a positive multiple of 32"),
            ({"rows": 2**20}, "rows = 1048576 must be between"),
            ({"N": 0}, "N = 0 must be between 1"),
            ({"N": 2**20}, "N = 1048576 must be between 1"),
            ({"x_pitch": 34}, "x_pitch = 34 must be a multiple of 4"),
            ({"y_pitch": 3}, "y_pitch = 3 is less than the row"),
        ],
    )
    def test_a_launch_that_cannot_be_is_refused(self, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and its limit. Red: a rule left out."""
        with pytest.raises(LanelockError, match=sentence):
            resolve(instance(PROJECTION_F32, SEQS=1), {"rows": 1, "N": 4, "K": 32, **dims})

    @pytest.mark.parametrize(("dim", "last"), [("rows", 65535 * 8), ("N", 65535 * 16)])
    def test_a_limit_is_the_last_that_is_taken(self, dim: str, last: int) -> None:
        """As many blocks of 8 sequences, or of 4 warps with 4 weight rows each, as an axis holds. Red: one fewer."""
        resolve(instance(PROJECTION_F32, SEQS=1), {"rows": 1, "N": 4, "K": 32, dim: last})
        with pytest.raises(LanelockError):
            resolve(instance(PROJECTION_F32, SEQS=1), {"rows": 1, "N": 4, "K": 32, dim: last + 1})

    def test_operands_of_other_widths_are_refused(self) -> None:
        """The truth says which width meets which. Red: a sentence of the library in its place."""
        with pytest.raises(ValueError, match="activations of width 32 meet weights of width 64"):
            truth(np.ones((1, 32)), np.ones((4, 64)))
