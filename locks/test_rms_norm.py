"""Locks of the rms_norm room: norm and quantise, with the residual add, from planes, in one block a row or many."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.rms_norm import (
    ADD_RMS_NORM_APPLY,
    ADD_RMS_NORM_PART,
    ADD_RMS_NORM_PART_PLANES,
    ADD_RMS_NORM_QUANTIZE,
    ADD_RMS_NORM_QUANTIZE_PLANES,
    ADD_RMS_NORM_SPREAD,
    ADD_RMS_NORM_SPREAD_PLANES,
    BLOCK_WARPS,
    CHUNK,
    RMS_NORM_QUANTIZE,
    parts_of,
    warps_of,
)
from locks.support import (
    BLOCK,
    OVERFLOWS,
    PROPERTY,
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
    overflowing_rows,
    quantiser_bound,
    rng,
    wild,
)
from oracle import rms_norm as truth
from oracle.bits.add import add, sum_planes
from oracle.bits.quantize import quantize
from oracle.bits.rms_norm import rms_norm
from oracle.bits.tree import tree
from oracle.errors import LanelockError

EPS = 1e-6
SHAPES = [(1, 32), (3, 96), (33, 160), (2, 2560), (1, 3584), (2, 5120)]
full = pytest.mark.full
ALL_SHAPES = [*SHAPES, pytest.param(33, 5120, marks=full), pytest.param(2, 8192, marks=full)]
WORDS = pytest.mark.parametrize("words", [1, 2])


def norm_case(x: np.ndarray, w: np.ndarray, words: int, eps: float = EPS) -> Case:
    """Rows to norm and quantise."""
    rows, K = x.shape
    return Case(RMS_NORM_QUANTIZE, {"rows": rows, "K": K, "eps": eps}, {"x": x, "w": w}, {"WORDS": words})


def add_case(
    x: np.ndarray, planes: np.ndarray, w: np.ndarray, words: int, eps: float = EPS, warps: int | None = None
) -> Case:
    """One plane goes to the kernel without planes."""
    rows, K = x.shape
    kernel = ADD_RMS_NORM_QUANTIZE if len(planes) == 1 else ADD_RMS_NORM_QUANTIZE_PLANES
    dims = {"rows": rows, "K": K, "planes": len(planes), "eps": eps}
    form = {"WARPS": warps or warps_of(K)} if len(planes) > 1 else {}
    return Case(kernel, dims, {"x": x, "y": planes, "w": w}, {"WORDS": words, **form})


def many_blocks(device: Device, x: np.ndarray, planes: np.ndarray, w: np.ndarray, words: int) -> dict[str, Any]:
    """The two launches of the many-block form, and together what the one-block form writes."""
    kernel = ADD_RMS_NORM_PART if len(planes) == 1 else ADD_RMS_NORM_PART_PLANES
    rows, K = x.shape
    part = Case(kernel, {"rows": rows, "K": K, "planes": len(planes)}, {"x": x, "y": planes}).run(device)
    inputs = {"x": part["x"], "chunk_sums": part["chunk_sums"], "w": w}
    done = Case(ADD_RMS_NORM_APPLY, {"rows": rows, "K": K, "eps": EPS}, inputs, {"WORDS": words}).run(device)
    return {**done, "x": part["x"]}


def spread_case(x: np.ndarray, planes: np.ndarray, w: np.ndarray, words: int, parts: int) -> Case:
    """The same, a row shared by the blocks of a cluster."""
    one = add_case(x, planes, w, words)
    kernel = ADD_RMS_NORM_SPREAD if len(planes) == 1 else ADD_RMS_NORM_SPREAD_PLANES
    return Case(kernel, {**one.dims, "parts": parts}, one.inputs, {"WORDS": words})


def contract(x: np.ndarray, w: np.ndarray, words: int, eps: float = EPS) -> dict[str, Any]:
    """What the contract writes for a norm of x."""
    normed = rms_norm(x, w, eps)
    codes, scales = quantize(normed, words)
    return {"codes": codes, "scales": scales, "normed": normed}


def bound(y: np.ndarray) -> np.ndarray:
    """Forward error of a normed element, first order, relative to it.

    Longest chain of the sum of squares: 8 fma, 5 tree adds, one add a chunk; all terms are positive, so nothing
    cancels. The division by K and the add of eps round once each; the root halves all that and rounds once; then one
    division and one product.
    """
    chunks = -(-y.shape[1] // CHUNK)
    mean = (8 + 5 + chunks) + 2
    return np.abs(y) * (mean / 2 + 3) * U * (1 + 2.0**-10)


def rows(seed: int, count: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with neighbours of another size each, and weights around one."""
    g = rng(seed, count, K)
    scale = np.exp2(np.arange(count) % 20).astype(np.float32)[:, None]
    return normal(g, count, K) * scale, 1 + normal(g, K) / 8


@pytest.mark.verify
class TestValue:
    """The kernel computes the root mean square norm."""

    @pytest.mark.parametrize(("count", "K"), ALL_SHAPES)
    def test_normed_row_is_within_its_bound(self, device: Device, share: Share, count: int, K: int) -> None:
        """Every normed element lies within the derived bound of float64. Red: eps dropped, one element lost."""
        x, w = rows(1, count, K)
        got = norm_case(x, w, 2).run(device)["normed"]

        expected = truth.rms_norm(x.astype(np.float64), w.astype(np.float64), float(np.float32(EPS)))
        assert_within(share, f"normed {count}x{K}", got, expected, bound(expected))

    @WORDS
    def test_decoded_codes_are_within_their_bound(self, device: Device, share: Share, words: int) -> None:
        """The codes stand for the normed row to half a code. Red: a neighbour's scale, hi and lo swapped."""
        x, w = rows(2, 3, 2560)
        got = norm_case(x, w, words).run(device)

        expected = truth.rms_norm(x.astype(np.float64), w.astype(np.float64), float(np.float32(EPS)))
        allowed = bound(expected) + quantiser_bound(got["scales"], words)
        assert_within(share, f"codes of {words} words", decoded(got["codes"], got["scales"]), expected, allowed)


@pytest.mark.verify
class TestContract:
    """The kernels are the contract, bit for bit."""

    @WORDS
    @pytest.mark.parametrize(("count", "K"), ALL_SHAPES)
    def test_norm_is_the_contract(self, device: Device, words: int, count: int, K: int) -> None:
        """Codes, scales and float32 copy are the contract's. Red: two additions swapped, one fma split."""
        x, w = rows(3, count, K)

        assert_same_outputs(norm_case(x, w, words).run(device), contract(x, w, words))

    @WORDS
    @pytest.mark.parametrize("count_of_planes", [1, 3, 8])
    def test_add_and_norm_is_the_contract(self, device: Device, words: int, count_of_planes: int) -> None:
        """The residual takes the planes added ascending, then the norm reads it. Red: planes descending."""
        x, w = rows(4, 3, 2560)
        planes = normal(rng(4), count_of_planes, 3, 2560)

        residual = add(x, planes[0] if count_of_planes == 1 else sum_planes(planes))
        assert_same_outputs(add_case(x, planes, w, words).run(device), {"x": residual, **contract(residual, w, words)})

    @pytest.mark.parametrize("K", [32, 96, 2560])
    def test_chunk_sums_are_trees_of_256(self, device: Device, K: int) -> None:
        """The many-block form leaves one tree a chunk of 256 of the sum x + y. Red: a chunk of another width."""
        x, y = normal(rng(5, K), 2, K), normal(rng(6, K), 1, 2, K)
        got = Case(ADD_RMS_NORM_PART, {"rows": 2, "K": K}, {"x": x, "y": y}).run(device)

        residual = add(x, y[0])
        chunks = np.pad(residual, [(0, 0), (0, -K % CHUNK)]).reshape(2, -1, CHUNK)
        assert_same_outputs(got, {"x": residual, "chunk_sums": tree(chunks, chunks)})

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40), words=st.sampled_from([1, 2]))
    def test_any_values_of_any_width_are_the_contract(self, device: Device, seed: int, blocks: int, words: int) -> None:
        """Values of every size, subnormal to the largest, follow the contract at any width. Red: flushed subnormals."""
        x, w = wild(rng(seed), 2, 32 * blocks), wild(rng(seed, 1), 32 * blocks)

        assert_same_outputs(norm_case(x, w, words).run(device), contract(x, w, words))


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    @pytest.mark.parametrize("K", [32, 160, 2560, 5120])
    def test_every_element_enters_the_mean_once(self, device: Device, K: int) -> None:
        """Rows of one magnitude give exactly their signs times w. Red: one element dropped or doubled."""
        signs = rng(7, K).choice(np.float32([-1, 1]), (3, K))
        x = signs * np.exp2(np.arange(3)[:, None] * 9 - 9).astype(np.float32)
        w = (np.arange(K) % 127 + 1).astype(np.float32)
        w[::BLOCK] = 127  # every block's scale is then exactly one, and its codes are the values
        got = norm_case(x, w, 1, eps=0.0).run(device)

        assert_same_outputs(
            got,
            {"normed": signs * w, "codes": (signs * w)[:, None].astype(np.int8), "scales": np.ones_like(got["scales"])},
        )

    def test_residual_is_the_sum_of_planes(self, device: Device) -> None:
        """Integer planes add up exactly, each from its own place. Red: a plane stride of another width."""
        x = rng(8).integers(-1000, 1000, (3, 96)).astype(np.float32)
        planes = rng(9).integers(-(10**6), 10**6, (5, 3, 96)).astype(np.float32)
        got = add_case(x, planes, np.ones(96, np.float32), 1).run(device)["x"]

        assert_same_bits(got, (x.astype(np.int64) + planes.astype(np.int64).sum(axis=0)).astype(np.float32))


class TestForms:
    """Every form of the operation writes the same bits."""

    @WORDS
    @pytest.mark.parametrize(("K", "planes"), [(96, 1), (2560, 4), (5120, 8)])
    def test_many_blocks_are_one_block(self, device: Device, words: int, K: int, planes: int) -> None:
        """Two launches of many blocks a row equal one launch of a block a row. Red: chunk sums added descending."""
        x, w = rows(10, 2, K)
        y = normal(rng(11, K), planes, 2, K)

        assert_same_outputs(many_blocks(device, x, y, w, words), add_case(x, y, w, words).run(device))

    @WORDS
    @pytest.mark.parametrize("parts", [2, 4, 8])
    @pytest.mark.parametrize(("K", "planes"), [(32, 1), (1312, 9), (3584, 8), (4096, 1), (5120, 8)])
    def test_a_cluster_is_one_block(self, device: Device, words: int, parts: int, K: int, planes: int) -> None:
        """Blocks that share a row equal one block, also where some have no chunk of it.

        Red: sums taken before they have come, posted to one block alone, or added as they come.
        """
        if parts * 8 * CHUNK < K:
            parts = 4
        x, w = rows(34, 2, K)
        y = normal(rng(35, K), planes, 2, K)

        shared = spread_case(x, y, w, words, parts).run(device)
        assert_same_outputs(shared, add_case(x, y, w, words).run(device))

    @pytest.mark.parametrize(("K", "planes"), [(96, 2), (2560, 9), (5120, 8)])
    def test_all_planes_in_flight_are_half_of_them(self, device: Device, K: int, planes: int) -> None:
        """Both instantiations for rows that either holds are the same bits. Red: planes of the second flight lost."""
        x, w = rows(40, 2, K)
        y = normal(rng(41, K), planes, 2, K)

        few, most = (add_case(x, y, w, 1, warps=warps).run(device) for warps in BLOCK_WARPS)
        assert_same_outputs(few, most)

    def test_planes_are_the_reduced_row(self, device: Device) -> None:
        """Adding planes inside equals reducing them first and adding the row. Red: the residual added first."""
        x, w = rows(12, 3, 160)
        planes = normal(rng(13), 8, 3, 160)

        reduced = add_case(x, sum_planes(planes)[None], w, 2).run(device)
        assert_same_outputs(add_case(x, planes, w, 2).run(device), reduced)

    def test_add_and_norm_is_norm_of_the_sum(self, device: Device) -> None:
        """The fused kernel equals the norm of the residual it wrote. Red: the norm reads the old residual."""
        x, w = rows(14, 3, 160)
        fused = add_case(x, normal(rng(15), 1, 3, 160), w, 1).run(device)

        alone = norm_case(fused["x"], w, 1).run(device)
        assert_same_outputs({n: fused[n] for n in alone}, alone)

    def test_codes_do_not_depend_on_the_copy(self, device: Device) -> None:
        """Without the float32 copy the codes are the same. Red: a null copy written, or codes read from it."""
        x, w = rows(16, 3, 160)
        with_copy, case = norm_case(x, w, 1).run(device), norm_case(x, w, 1)
        without = Case(case.kernel, case.dims, {**case.inputs, "normed": None}, case.template).run(device)

        assert_same_outputs(without, {n: with_copy[n] for n in ("codes", "scales")})


class TestLongRows:
    """Rows longer than one block holds take the many-block form."""

    @pytest.mark.parametrize("K", [8224, 17408, 65536])
    def test_long_row_is_the_contract(self, device: Device, K: int) -> None:
        """Up to 65536 elements follow the contract. Red: chunk sums of a row beyond 32 left out."""
        x, w = rows(30, 1, K)
        y = normal(rng(31, K), 1, 1, K)

        residual = add(x, y[0])
        assert_same_outputs(many_blocks(device, x, y, w, 2), {"x": residual, **contract(residual, w, 2)})


class TestInvariance:
    """A row's bits are its own."""

    @WORDS
    def test_norm_does_not_depend_on_the_batch(self, device: Device, words: int) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, norm_case(*rows(17, 3, 96), words))

    def test_add_does_not_depend_on_the_batch(self, device: Device) -> None:
        """The same with residual and planes. Red: the plane stride taken from another batch."""
        x, w = rows(18, 3, 96)
        assert_stands_alone(device, add_case(x, normal(rng(19), 3, 3, 96), w, 1))

    def test_norm_does_not_depend_on_pitches(self, device: Device) -> None:
        """Rows further apart give the same bits, and the padding stays. Red: a pitch taken as the width."""
        assert_pitch_free(device, norm_case(*rows(20, 3, 96), 2))

    def test_add_does_not_depend_on_pitches(self, device: Device) -> None:
        """The same with residual and planes. Red: the planes' pitch taken as the residual's."""
        x, w = rows(21, 3, 96)
        assert_pitch_free(device, add_case(x, normal(rng(22), 3, 3, 96), w, 1))

    @pytest.mark.parametrize("planes", [1, 3])
    def test_a_cluster_does_not_depend_on_batch_or_pitch(self, device: Device, planes: int) -> None:
        """The same for rows shared by blocks. Red: the row taken from the block, not from its cluster."""
        x, w = rows(36, 3, 544)
        case = spread_case(x, normal(rng(37), planes, 3, 544), w, 2, 2)

        assert_stands_alone(device, case, batch=8)
        assert_pitch_free(device, case)

    @pytest.mark.parametrize("planes", [1, 3])
    def test_many_blocks_do_not_depend_on_batch_or_pitch(self, device: Device, planes: int) -> None:
        """The same for both launches of the many-block form. Red: chunk sums of a neighbouring row."""
        x, w = rows(32, 3, 1312)
        kernel = ADD_RMS_NORM_PART if planes == 1 else ADD_RMS_NORM_PART_PLANES
        dims = {"rows": 3, "K": 1312}
        part = Case(kernel, {**dims, "planes": planes}, {"x": x, "y": normal(rng(33), planes, 3, 1312)})
        sums = part.run(device)["chunk_sums"]
        apply = Case(ADD_RMS_NORM_APPLY, {**dims, "eps": EPS}, {"x": x, "chunk_sums": sums, "w": w}, {"WORDS": 2})

        for case in (part, apply):
            assert_stands_alone(device, case, batch=8)
            assert_pitch_free(device, case)

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate or a flushing instruction."""
        host, cuda = both_devices
        case = norm_case(wild(rng(23), 33, 2560), wild(rng(24), 2560), 2)

        assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Rows at the end of the range follow the contract and hide no fault."""

    @WORDS
    @pytest.mark.parametrize("K", [32, 96, 288])
    def test_edge_rows_are_the_contract(self, device: Device, words: int, K: int) -> None:
        """Zero, subnormal, largest, infinite and NaN rows follow the contract. Red: a maximum that swallows NaN."""
        x, w = edge_rows(K), np.ones(K, np.float32)

        assert_same_outputs(norm_case(x, w, words).run(device), contract(x, w, words))

    def test_zero_row_is_zero(self, device: Device) -> None:
        """A row of zeros with eps gives zeros, codes 0 and the smallest scale. Red: 0/0 where eps is forgotten."""
        got = norm_case(np.zeros((1, 96), np.float32), np.ones(96, np.float32), 1).run(device)

        assert_same_bits(got["scales"], np.full((1, 3), 2.0**-126, np.float32))

    def test_a_nan_spoils_its_whole_row(self, device: Device) -> None:
        """One NaN in any chunk makes every scale of its row NaN, and of no other row. Red: NaN dropped in a tree."""
        x = normal(rng(25), 3, 544)
        x[1, 540] = np.nan
        got = norm_case(x, np.ones(544, np.float32), 1).run(device)["scales"]

        assert_same_bits(np.isnan(got).all(axis=1), np.array([False, True, False]))

    @pytest.mark.parametrize("K", [32, 160, 1312])
    def test_a_sum_of_squares_that_overflows_is_loud(self, device: Device, K: int) -> None:
        """A finite row whose squares add up beyond float32 is NaN throughout; one a step below is a row of ones.

        Red: a row divided by an infinite root, which is zeros: a fault that nothing later sees. Chunks of 1312 elements
        are finite each; only their total is not.
        """
        x, w, zero = overflowing_rows(K), np.ones(K, np.float32), np.zeros((1, 3, K), np.float32)

        forms = [norm_case(x, w, 1).run(device), many_blocks(device, x, zero, w, 1)]
        forms.append(spread_case(x, zero[:1], w, 1, 4).run(device))
        for got in forms:
            for name in ("scales", "normed"):
                bad = np.isnan(got[name])
                assert_same_bits(bad.all(axis=1), OVERFLOWS, name)
                assert_same_bits(bad.any(axis=1), OVERFLOWS, name)
            np.testing.assert_allclose(np.abs(got["normed"][1]), 1, rtol=1e-6)


class TestMemory:
    """Outputs are written in full and nothing else is."""

    @pytest.mark.parametrize("K", [32, 160, 288])
    def test_outputs_are_fully_written(self, device: Device, K: int) -> None:
        """What outputs held before shows nowhere. Red: the last block of a row skipped."""
        assert_fully_written(device, norm_case(*rows(26, 3, K), 2))

    def test_outputs_of_a_cluster_are_fully_written(self, device: Device) -> None:
        """The same where blocks share a row. Red: the last block's chunks left out."""
        x, w = rows(38, 2, 1312)
        assert_fully_written(device, spread_case(x, normal(rng(39), 2, 2, 1312), w, 2, 4))

    def test_many_block_outputs_are_fully_written(self, device: Device) -> None:
        """The same for the chunk sums. Red: the last chunk's sum not stored."""
        x, y = normal(rng(27), 2, 1312), normal(rng(28), 1, 2, 1312)
        assert_fully_written(device, Case(ADD_RMS_NORM_PART, {"rows": 2, "K": 1312}, {"x": x, "y": y}))


class TestChoice:
    """Which form a plan takes."""

    @pytest.mark.parametrize(
        ("K", "count", "arch", "parts"),
        [
            (5120, 1, "sm_90a", 8),
            (5120, 16, "sm_90a", 8),
            (5120, 17, "sm_90a", 1),
            (5120, 1, "sm_80", 1),
            (16384, 1, "sm_90a", 8),
            (16416, 1, "sm_90a", 1),
        ],
    )
    def test_few_rows_are_shared_where_there_are_clusters(self, K: int, count: int, arch: str, parts: int) -> None:
        """Eight blocks a row, where each has a multiprocessor of 132 and a cluster holds the row.

        Red: a cluster on a device that has none, or of more chunks than its warps.
        """
        assert parts_of(K, count, arch, 132) == parts

    @pytest.mark.parametrize(("K", "warps"), [(32, 20), (5120, 20), (5152, 32), (8192, 32), (8224, 32)])
    def test_a_row_takes_the_narrowest_block_that_holds_it(self, K: int, warps: int) -> None:
        """Up to 20 chunks leave registers for all planes. Red: a block of fewer warps than chunks."""
        assert warps_of(K) == warps


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 48}, "K = 48 must be a positive multiple of 32"),
            ({"K": 0}, "K = 0 must be a positive multiple of 32"),
            ({"K": 8224, "normed_pitch": 8224}, "K = 8224 must be between 32 and 8192, the chunks of one block"),
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"x_pitch": 92}, "x_pitch = 92 is less than the row it has to hold, K = 96"),
            ({"x_pitch": 98}, "x_pitch = 98 must be a multiple of 4"),
            ({"normed_pitch": 64}, "normed_pitch = 64 is less than the row"),
            ({"normed_pitch": 97}, "normed_pitch = 97 must be a multiple of 4"),
        ],
    )
    def test_unsupported_norm_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        case = norm_case(*rows(29, 3, 96), 1).with_dims(**dims)

        with pytest.raises(LanelockError, match=sentence):
            case.run(device)

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (ADD_RMS_NORM_QUANTIZE, {"planes": 2}, "planes = 2 must be between 1 and 1"),
            (ADD_RMS_NORM_PART, {"planes": 2}, "planes = 2 must be between 1 and 1"),
            (ADD_RMS_NORM_QUANTIZE_PLANES, {"planes": 0}, "planes = 0 must be between 1 and 64"),
            (ADD_RMS_NORM_QUANTIZE_PLANES, {"K": 5152, "WARPS": 20}, "K = 5152 has more chunks than the 20 warps"),
            (ADD_RMS_NORM_PART_PLANES, {"planes": 65}, "planes = 65 must be between 1 and 64"),
            (ADD_RMS_NORM_QUANTIZE, {"y_pitch": 64}, "y_pitch = 64 is less than the row"),
            (ADD_RMS_NORM_PART, {"y_pitch": 98}, "y_pitch = 98 must be a multiple of 4"),
            (ADD_RMS_NORM_APPLY, {"x_pitch": 64}, "x_pitch = 64 is less than the row"),
            (ADD_RMS_NORM_QUANTIZE, {"K": 8224}, "K = 8224 must be between 32 and 8192"),
            (ADD_RMS_NORM_PART, {"K": 65568}, "K = 65568 must be between 32 and 65536"),
            (ADD_RMS_NORM_SPREAD, {"parts": 3}, "parts = 3 blocks of a cluster must be 2, 4 or 8"),
            (ADD_RMS_NORM_SPREAD, {"parts": 2, "K": 4128}, "K = 4128 has more chunks than 2 blocks of 8 warps"),
            (ADD_RMS_NORM_SPREAD, {"parts": 2, "planes": 2}, "planes = 2 must be between 1 and 1"),
            (ADD_RMS_NORM_SPREAD_PLANES, {"parts": 2, "planes": 65}, "planes = 65 must be between 1 and 64"),
            (ADD_RMS_NORM_APPLY, {"K": 65568}, "K = 65568 must be between 32 and 65536"),
        ],
    )
    def test_unsupported_add_is_refused(self, device: Device, kernel: Any, dims: dict[str, int], sentence: str) -> None:
        """The same for planes and their pitch. Red: planes accepted by the kernel that reads one."""
        template = {p.name: p.values[-1] if p.name == "WARPS" else 1 for p in kernel.params if len(p.values) > 1}
        template |= {n: v for n, v in dims.items() if n == "WARPS"}
        case = Case(kernel, {"rows": 3, "K": 96, "eps": EPS, **dims}, {}, template)

        with pytest.raises(LanelockError, match=sentence):
            case.run(device)
