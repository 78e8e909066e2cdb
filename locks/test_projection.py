"""Locks of projections: every lowering computes one order, so that all of them give the same bits at any launch."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.catalogue import KERNELS
from kernels.entry import Geometry, instance, resolve
from locks.far import assert_same_far_away
from locks.projections import FAMILY, LOWERINGS, Form, Operands, able, form, forms, knobs, operands, run, width
from locks.support import (
    BLOCK,
    PROPERTY,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_stands_alone,
    assert_within,
    decoded,
    rng,
    wild,
)
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.projection import projection as truth

FULL = pytest.mark.full
#: Small products: a part of a tile, slices without a block, of one size and of two, a block that begins another chunk,
#: chunks that end early.
SHAPES = [(1, 20, 96), (3, 37, 160), (2, 21, 1056), (8, 24, 2560)]
WIDE = [(2, 5120, 6144), (8, 512, 17408), (1, 16384, 5120), (5, 136, 3584), (7, 136, 9216)]
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)
MANY = (*ROWS, 32, 63, 64, 65, 128, 264)
NAMES = pytest.mark.parametrize("name", LOWERINGS)
ALL_NAMES = pytest.mark.parametrize("name", FAMILY)


def every(*names: str) -> list[object]:
    """Instantiations of kernels as parameters; those that the quick tier leaves out are marked full."""
    quick = [f for n in names for f in forms(n, full=False)]
    more = [f for n in names for f in forms(n) if f not in quick]
    return [pytest.param(f, id=str(f)) for f in quick] + [pytest.param(f, id=str(f), marks=FULL) for f in more]


def holder(name: str, rows: int) -> Form:
    """The narrowest instantiation of a kernel that holds so many rows, or the widest there is."""
    found = sorted((f for f in forms(name) if f.words == 1), key=width)
    return next((f for f in found if width(f) >= rows), found[-1])


def first_rows(o: Operands, rows: int) -> Operands:
    """The same product of its first rows alone."""
    return Operands(o.codes[:rows], o.scales[:rows], o.w, o.ws)


def bound(o: Operands) -> np.ndarray:
    """Forward error of an output, first order: what is rounded, times the sum of magnitudes [rows, N].

    A block's product rounds once (and the dot of two words once more); then one fma a block of its slice, and 8 adds.
    """
    blocks = o.w.shape[1] // BLOCK
    rounded = 1 + (o.codes.shape[1] - 1) + -(-blocks // 8) + 8
    x = np.abs(decoded(o.codes, o.scales))
    w = np.abs(o.w * np.repeat(o.ws.astype(np.float64), BLOCK, axis=-1))
    return (x @ w.T) * rounded * U * (1 + 2.0**-10)


class TestFamily:
    """The lowerings that these locks hold."""

    def test_is_every_lowering_of_the_catalogue(self) -> None:
        """No kernel of the catalogue computes a projection unseen. Red: a lowering that names no family."""
        named = {
            *("gemv_register", "gemv_staged", "gemv_rows", "gemm_dp4a", "gemm_mma"),
            *("gemm_tc", "gemm_tc_ring", "gemm_tc_q4", "gemm_tc_tiled", "gemm_tc_tiled_q4"),
            *("gemm_rows", "gemm_rows_wide", "gemm_rows_q4", "gemm_rows_q4_wide"),
            *("gemm_rows_tiled", "gemm_rows_tiled_wide", "gemm_rows_tiled_q4", "gemm_rows_tiled_q4_wide"),
            *("gemm_wg", "gemm_wg_q4"),
            *("projection_stream", "projection_stream_q4"),
        }

        assert set(FAMILY) == named
        assert {k.name for k in KERNELS if k.name.startswith(("gemv_", "gemm_"))} <= named


@pytest.mark.verify
class TestValue:
    """A lowering computes the product."""

    @pytest.mark.parametrize("words", [1, 2])
    @NAMES
    def test_every_output_is_within_its_bound(self, device: Device, share: Share, name: str, words: int) -> None:
        """Each output lies within the derived bound of float64. Red: a neighbour's scale, one block lost."""
        f = form(name, words)
        o = operands(1, 20, 672, f.words, seed=1)

        expected = truth(decoded(o.codes, o.scales), Q8_0(o.w, o.ws))
        assert_within(share, str(f), run(device, f, o), expected, bound(o))


@pytest.mark.verify
class TestContract:
    """Every lowering is the contract, bit for bit, and therefore every other lowering."""

    @pytest.mark.parametrize("f", every(*FAMILY))
    def test_every_instantiation_is_the_contract(self, device: Device, f: Form) -> None:
        """Each shape that it admits gives the contract's bits. Red: a product hoisted, slices added descending."""
        shapes = [s for s in SHAPES if f.admits(operands(*s, f.words))]

        assert shapes
        for shape in shapes:
            o = operands(*shape, f.words)
            assert_same_bits(run(device, f, o), f.expected(o), f"{f} {shape}")

    @pytest.mark.parametrize("every_row", [False, pytest.param(True, marks=FULL)])
    @ALL_NAMES
    def test_any_number_of_rows_is_the_contract(self, device: Device, name: str, every_row: bool) -> None:
        """1 to 64 rows, and on both sides of a tile of 64 and 128. Red: the last row tile skipped or stored in part."""
        o = operands(264, 9, 288, 1)
        expected = form(name).expected(o)
        for rows in range(1, 65) if every_row else MANY:
            f, part = holder(name, rows), first_rows(o, rows)
            if f.admits(part):
                assert_same_bits(run(device, f, part), expected[:rows], f"{f} {rows} rows")

    @pytest.mark.parametrize("name", [n for n in FAMILY if "gemm_rows" in n or "wg" in n])
    def test_tiles_of_many_rows_are_the_contract(self, device: Device, name: str) -> None:
        """Rows on both sides of a tile of 128, by any number of blocks. Red: rows and outputs of a tile exchanged."""
        f = form(name)
        o = operands(130, 72, 288, f.words)
        for grid in (1, 2, 3):
            assert_same_bits(run(device, f, o, grid=grid), f.expected(o), f"{f} {grid}")

    @FULL
    @pytest.mark.parametrize(("rows", "N", "K"), WIDE)
    @ALL_NAMES
    def test_the_shapes_of_the_model_are_the_contract(
        self, device: Device, name: str, rows: int, N: int, K: int
    ) -> None:
        """Widths of the 27B and of its smaller siblings give the contract's bits. Red: an offset cut to 32 bits."""
        o = operands(rows, N, K, 1)
        for f in forms(name):
            if f.words == 1 and f.admits(o):
                assert_same_bits(run(device, f, o), f.expected(o), str(f))

    @PROPERTY
    @given(
        seed=st.integers(0, 2**32 - 1),
        blocks=st.integers(1, 40),
        words=st.sampled_from([1, 2]),
        name=st.sampled_from(LOWERINGS),
    )
    def test_any_scale_is_the_contract(self, device: Device, seed: int, blocks: int, words: int, name: str) -> None:
        """Scales of every size, subnormal to the largest, follow the contract. Red: a scale or product flushed."""
        f = form(name, words)
        g, o = rng(seed, blocks), operands(1, 18, 32 * blocks, f.words)
        ws = np.abs(wild(g, 18, blocks)).clip(0, 65504).astype(np.float16)
        o = Operands(o.codes, np.abs(wild(g, 1, blocks)), o.w, ws)

        assert_same_bits(run(device, f, o), f.expected(o), str(f))


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    @ALL_NAMES
    @pytest.mark.parametrize(("words", "K"), [(1, 96), (1, 1184), (2, 1184)])
    def test_ones_give_their_number(self, device: Device, name: str, words: int, K: int) -> None:
        """Codes and scales of one sum to K in every output. Red: an element dropped or doubled, a K step of 48."""
        f = form(name, words)
        ones = operands(1, 33, K, f.words)
        codes = np.zeros_like(ones.codes)
        codes[:, -1] = 1
        o = Operands(codes, np.ones_like(ones.scales), np.ones_like(ones.w), np.ones_like(ones.ws))

        assert_same_bits(run(device, f, o), np.full((1, 33), K, np.float32), str(f))

    @pytest.mark.parametrize("words", [1, 2])
    @NAMES
    def test_one_hot_rows_return_the_last_weights(self, device: Device, name: str, words: int) -> None:
        """A one at each of the last 256 positions returns that weight. Red: the last chunk skipped, two K swapped."""
        f = form(name, words) if name != "gemv_rows" else Form(name, {"WORDS": words, "SEQS": 8})
        K, per = 384, 8 if name == "gemv_rows" else 64
        o = operands(1, 20, K, f.words, seed=2)
        for start in range(0, 256, per):
            where = K - 256 + start + np.arange(per)
            codes = np.zeros((per, f.words, K), np.int8)
            codes[np.arange(per), -1, where] = 1
            hot = Operands(codes, np.ones((per, K // BLOCK), np.float32), o.w, np.ones_like(o.ws))

            assert_same_bits(run(device, f, hot), hot.w[:, where].T.astype(np.float32), f"{f} {start}")

    @pytest.mark.parametrize("sign", [-1, 1])
    @NAMES
    def test_the_largest_codes_are_exact(self, device: Device, name: str, sign: int) -> None:
        """Blocks of 16256 * 127, the largest there are, keep every bit of their dot. Red: a dot cut to 2^22."""
        f = form(name, 2)
        o = operands(1, 17, 256, f.words)
        codes = np.zeros_like(o.codes)
        codes[:, 0] = sign * 127
        size = 127 * (128 if f.words == 2 else 1)
        hot = Operands(codes, np.ones_like(o.scales), np.full_like(o.w, 127), np.ones_like(o.ws))

        assert_same_bits(run(device, f, hot), np.full((1, 17), sign * 256 * 127 * size, np.float32), str(f))


class TestInvariance:
    """A launch is a matter of speed."""

    @ALL_NAMES
    def test_row_stands_alone(self, device: Device, name: str) -> None:
        """A row gives the same bits alone, in its batch and in any slot among poison. Red: rows that share a sum."""
        f = form(name) if name != "gemv_rows" else Form(name, {"WORDS": 1, "SEQS": 8})

        assert_stands_alone(device, f.case(operands(3, 18, 288, 1)), batch=8 if name == "gemv_rows" else 70)

    @pytest.mark.parametrize("grid", [1, 2, 7, 66, 131, 132])
    @ALL_NAMES
    def test_blocks_do_not_matter(self, device: Device, name: str, grid: int) -> None:
        """Any number of blocks gives the bits of one a tile. Red: tiles past the first of a block skipped (case 33)."""
        f = form(name)
        o = operands(1, 150, 96, 1)

        assert_same_bits(run(device, f, o, grid=grid), f.expected(o), str(f))

    @pytest.mark.parametrize("splits", range(2, 9))
    @pytest.mark.parametrize("name", able(splits=2))
    def test_splits_do_not_matter(self, device: Device, name: str, splits: int) -> None:
        """Planes of any split add up to the bits of no split. Red: a slice in two planes, planes by split."""
        f = form(name)
        o = operands(3, 20, 672, 1)

        assert_same_bits(run(device, f, o, splits=splits), f.expected(o), str(f))

    @pytest.mark.parametrize("warps", range(1, 9))
    @pytest.mark.parametrize("name", knobs("warps"))
    def test_tile_height_does_not_matter(self, device: Device, name: str, warps: int) -> None:
        """Tiles of any number of panels give the same bits. Red: a panel taken from the neighbour's tile."""
        f = form(name)
        o = operands(3, 150, 160, 1)

        assert_same_bits(run(device, f, o, warps=warps), f.expected(o), str(f))

    @pytest.mark.parametrize("K", [544, *(pytest.param(K, marks=FULL) for K in (5120, 6144, 17408))])
    @ALL_NAMES
    def test_width_of_the_batch_does_not_matter(self, device: Device, name: str, K: int) -> None:
        """Row 0 of 1 to 33 rows has the bits that it has alone (case 18). Red: a form or an order chosen by rows."""
        o = operands(33, 4, K, 1)
        alone = form(name).expected(first_rows(o, 1))
        able_to = [(holder(name, n), first_rows(o, n)) for n in ROWS]
        able_to = [(f, part) for f, part in able_to if f.admits(part)]
        if not able_to:
            pytest.skip(f"not run: {name} refuses K = {K}")
        for f, part in able_to:
            assert_same_bits(run(device, f, part)[:1], alone, f"{f} {len(part.codes)} rows")


class TestEdges:
    """What is at the end of a range, or is no number."""

    @ALL_NAMES
    def test_a_scale_that_is_no_number_makes_its_row_no_number(self, device: Device, name: str) -> None:
        """A NaN scale gives NaN in its own row and nowhere else. Red: a fault quantised away."""
        f = form(name) if name != "gemv_rows" else Form(name, {"WORDS": 1, "SEQS": 8})
        o = operands(3, 18, 288, 1)
        scales = o.scales.copy()
        scales[1, -1] = np.nan
        got = run(device, f, Operands(o.codes, scales, o.w, o.ws))

        assert np.isnan(got).all(axis=1).tolist() == [False, True, False]
        assert np.isfinite(got[[0, 2]]).all()

    @ALL_NAMES
    def test_zero_scales_give_zero(self, device: Device, name: str) -> None:
        """Weights of scale zero give +0 in every output. Red: the shift of the magic number left in."""
        f = form(name)
        o = operands(1, 18, 288, 1)
        got = run(device, f, Operands(o.codes, o.scales, o.w, np.zeros_like(o.ws)))

        assert_same_bits(got, np.zeros((1, 18), np.float32))

    @pytest.mark.parametrize(("name", "splits"), [*((n, 1) for n in FAMILY), *((n, 8) for n in able(splits=8))])
    def test_a_sum_that_vanishes_is_plus_zero(self, device: Device, name: str, splits: int) -> None:
        """Products that vanish round to -0; outputs and planes are +0. Red: 0 + the sum left out."""
        codes = np.zeros((1, 1, 1024), np.int8)
        codes[..., ::32] = -1
        tiny = np.full((1, 32), 2.0**-126, np.float32), np.full((16, 32), 2.0**-24, np.float16)
        f, o = form(name), Operands(codes, tiny[0], np.ones((16, 1024), np.int8), tiny[1])
        case = f.case(o) if splits == 1 else f.case(o, splits=splits)
        got = case.run(device)["y"]

        assert_same_bits(got, np.zeros_like(got))


class TestMemory:
    """Outputs are written whole, and nothing beside them."""

    @ALL_NAMES
    def test_outputs_are_fully_written(self, device: Device, name: str) -> None:
        """Nothing of what an output held shows behind it. Red: the last rows of a batch keep old values."""
        assert_fully_written(device, form(name).case(operands(1, 37, 96, 1)))

    @ALL_NAMES
    def test_pitch_does_not_matter(self, device: Device, name: str) -> None:
        """Rows of outputs further apart than wide keep their bits, their padding is untouched (case 35)."""
        f = form(name) if name != "gemv_rows" else Form(name, {"WORDS": 1, "SEQS": 8})
        assert_pitch_free(device, f.case(operands(3, 37, 96, 1)))

    @pytest.mark.parametrize("name", [pytest.param(n, marks=() if "stream" in n else pytest.mark.full) for n in FAMILY])
    def test_rows_behind_2_to_the_31_are_reached(self, device: Device, name: str) -> None:
        """The third row of outputs lies further than 32 bits count. Red: a row times its pitch in 32 bits."""
        # the first instantiation, and the narrowest that has the three rows in one block
        for f in {str(f): f for f in (form(name), holder(name, 3))}.values():
            if f.admits(operands(3, 37, 96, 1)):
                assert_same_far_away(device, f.case(operands(3, 37, 96, 1)), y_pitch=2**30 + 8)

    @pytest.mark.parametrize("name", able(splits=8))
    def test_planes_are_exactly_their_size(self, device: Device, name: str) -> None:
        """8 planes of rows * pitch between guards are written whole, also by a second call (case 33)."""
        case = form(name).case(operands(9, 37, 288, 1), splits=8, grid=2, y_pitch=45)

        assert_fully_written(device, case)

    @FULL
    @pytest.mark.parametrize(("rows", "N"), [(264, 136), (136, 264)])
    @pytest.mark.parametrize("name", [n for n in FAMILY if n != "gemv_rows"])
    def test_odd_tiles_of_many_blocks(self, device: Device, name: str, rows: int, N: int) -> None:
        """Rows and outputs that fill no tile, by any number of blocks, are the contract (case 33)."""
        f, o = form(name), operands(rows, N, 288, 1)
        for grid, splits in itertools.product((1, 2, 7, 66, 131, 132), (1, 8) if name in able(splits=8) else (1,)):
            assert_same_bits(run(device, f, o, grid=grid, splits=splits), f.expected(o), f"{f} {grid} {splits}")


#: Lowering -> weight rows and activation rows of a block (or the parameter that says so), threads, bytes of its stages.
BLOCKS_OF = {
    "gemv_register": (16, "SEQS", 128, 0),
    "gemv_staged": (16, "SEQS", 128, 0),
    "gemm_dp4a": (64, 32, 128, 0),
    "gemm_mma": (64, 16, 128, 0),
    # 3 stages of 4 blocks: 8 rows of 36 bytes a block, and 4 panels of 16 weight rows of 34 (Q4: 18)
    "gemm_tc": (64, "COLS", 128, 3 * 4 * (8 * 36 + 64 * 34)),
    "gemm_tc_q4": (64, "COLS", 128, 3 * 4 * (8 * 36 + 64 * 18)),
    "gemm_tc_tiled": (64, "COLS", 128, 3 * 4 * (8 * 36 + 64 * 34)),
    "gemm_tc_tiled_q4": (64, "COLS", 128, 3 * 4 * (8 * 36 + 64 * 18)),
    # 128 rows, and 4 panels or 8; the wide ones keep 128 x 128 float32 totals beside their stages
    "gemm_rows": (64, 128, 256, 3 * 4 * (128 * 36 + 64 * 34)),
    "gemm_rows_wide": (128, 128, 256, 3 * 4 * (128 * 36 + 128 * 34) + 65536),
    "gemm_rows_q4": (64, 128, 256, 3 * 4 * (128 * 36 + 64 * 18)),
    "gemm_rows_q4_wide": (128, 128, 256, 3 * 4 * (128 * 36 + 128 * 18) + 65536),
    "gemm_rows_tiled": (64, 128, 256, 3 * 4 * (128 * 36 + 64 * 34)),
    "gemm_rows_tiled_wide": (128, 128, 256, 3 * 4 * (128 * 36 + 128 * 34) + 65536),
    "gemm_rows_tiled_q4": (64, 128, 256, 3 * 4 * (128 * 36 + 64 * 18)),
    "gemm_rows_tiled_q4_wide": (128, 128, 256, 3 * 4 * (128 * 36 + 128 * 18) + 65536),
}


class TestGeometry:
    """A launch is as large as its work."""

    @pytest.mark.parametrize(("rows", "N"), [(1, 1), (128, 128), (130, 150)])
    @pytest.mark.parametrize("name", BLOCKS_OF)
    def test_one_layer_of_blocks_covers_the_product(self, name: str, rows: int, N: int) -> None:
        """As many blocks as tiles, of the threads and stages that a tile has. Red: a layer more, a tile narrower."""
        tall, wide, threads, smem = BLOCKS_OF[name]
        splits = 8 if name in able(splits=8) else 1
        f = form(name)
        wide = int(f.template[wide]) if isinstance(wide, str) else wide
        across, down = -(-N // tall), -(-rows // wide)
        grid = {
            "gemm_rows": (across * down, splits, 1),
            "gemv": (across, down, 1),
            "gemm_mma": (across, down, 1),
        }
        expected = next((g for start, g in grid.items() if name.startswith(start)), (across, splits, down))
        full = resolve(f.instance, {"rows": rows, "N": N, "K": 512, "splits": splits})

        assert f.kernel.geometry(full) == Geometry(expected, (threads, 1, 1), smem)

    @pytest.mark.parametrize("name", ["gemm_wg", "gemm_wg_q4"])
    def test_a_warpgroup_tile_is_128_by_128(self, name: str) -> None:
        """Left to itself a launch has a block a tile. Red: tiles of one side alone."""
        full = resolve(form(name).instance, {"rows": 300, "N": 200, "K": 512})

        assert form(name).kernel.geometry(full).grid == (2 * 3, 1, 1)

    @pytest.mark.parametrize(("K", "threads"), [(32, 32), (1024, 32), (1056, 64), (8192, 256), (9216, 256)])
    def test_a_block_of_the_row_parallel_gemv_is_as_wide_as_a_row(self, K: int, threads: int) -> None:
        """A lane a block of 32, 8 warps at most, products of 2 rows for each sequence. Red: lanes without a block."""
        f = Form("gemv_rows", {"WORDS": 1, "SEQS": 4})
        full = resolve(f.instance, {"rows": 3, "N": 5, "K": K})

        assert f.kernel.geometry(full) == Geometry((3, 1, 1), (threads, 1, 1), K // 32 * 9 * 4)


class TestRefusals:
    """What a lowering cannot do is refused before anything runs."""

    @pytest.mark.parametrize(
        ("name", "dims", "sentence"),
        [
            ("gemv_rows", {"rows": 2}, "rows = 2 exceed the 1 sequences that this tile holds"),
            ("gemv_rows", {"K": 2**20}, "exceed the shared memory of a block"),
            ("gemv_register", {"splits": 2}, "this kernel does not split K"),
            ("gemm_mma", {"planes": 8}, "this kernel does not split K"),
            ("gemm_tc", {"K": 48}, "K = 48 must be a positive multiple of 32"),
            ("gemm_tc", {"K": 2**24 + 32}, "must be between 32 and"),
            ("gemm_tc", {"N": 0}, "N = 0 must be between 1"),
            ("gemm_tc", {"rows": 0}, "rows = 0 must be between 1"),
            ("gemm_tc", {"rows": 2**23}, "exceed 524280, 8 a block along grid axis z"),
            ("gemm_tc", {"splits": 9}, "splits = 9 must be between 1 and 8"),
            ("gemm_tc", {"K": 224, "splits": 2}, "has no block in some of the 8 slices"),
            ("gemm_tc", {"splits": 2, "planes": 2}, "1 block along K writes 1 plane, 2 write 8"),
            ("gemm_tc", {"warps": 9}, "warps = 9 must be between 1 and 8"),
            ("gemm_tc", {"grid": 0}, "grid = 0 must be between 1"),
            ("gemm_dp4a", {"y_pitch": 15}, "y_pitch = 15 is less than the row it has to hold"),
            ("gemm_rows", {"KB": 2}, "KB = 2 is not K / 32"),
            ("projection_stream", {"held": 33}, "held = 33 must be between 1 and 32"),
            ("projection_stream", {"part": 33}, "part = 33 must be between 1 and 32"),
            ("projection_stream", {"part": 0}, "part = 0 must be between 1 and 32"),
            ("projection_stream", {"chunks": 3}, "chunks = 3 and panels = 1 do not follow from 16 rows of K = 512"),
            ("gemm_tc_tiled", {"panels": 2}, "chunks = 1 and panels = 2 do not follow from 16 rows of K = 512"),
            ("gemm_tc_tiled", {"panel_bytes": 16}, "panel_bytes = 16 is not that of 16 rows of a chunk"),
            ("gemm_tc_tiled", {"panel_bytes": 1152}, "panel_bytes = 1152 is not that of 16 rows of a chunk"),
            ("gemm_tc_q4", {"half": 1}, "half = 1 is not K / 2, K = 512"),
            ("projection_stream", {"warps": 21}, "warps = 21 of a block of 8 sequences"),
            ("projection_stream", {"N": 2**24, "K": 2**20}, "exceed what an int can count"),
            ("projection_stream", {"scale_rows": 32}, "scale_rows = 32 and units = 32 do not follow from 1 rows"),
            ("projection_stream", {"units": 33}, "scale_rows = 16 and units = 33 do not follow from 1 rows"),
            ("projection_stream", {"stages": 16, "span": 6}, "exceed 232448 bytes of shared memory"),
        ],
    )
    def test_a_launch_that_cannot_be_is_refused(self, name: str, dims: dict[str, int], sentence: str) -> None:
        """The refusal says what and why in one sentence. Red: a tile narrower than the batch computed in part."""
        f = form(name)
        with pytest.raises(LanelockError, match=sentence):
            resolve(instance(f.kernel, **f.template), {"rows": 1, "N": 16, "K": 512, **dims})

    @pytest.mark.parametrize(
        ("name", "dim", "last", "step"),
        [
            ("gemv_rows", "rows", 1, 1),
            # 19,365 blocks of 3 floats and 8 slices of 2 sums are the most that 227 KiB hold
            ("gemv_rows", "K", 19365 * 32, 32),
            ("gemv_register", "rows", 65535, 1),
            ("gemv_staged", "rows", 65535, 1),
            ("gemm_dp4a", "rows", 65535 * 32, 1),
            ("gemm_mma", "rows", 65535 * 16, 1),
            ("gemm_tc", "rows", 65535 * 8, 1),
            ("gemm_rows", "rows", 2**24, 1),
            ("gemm_rows", "N", 2**30, 1),
            ("gemm_rows", "K", 2**24, 32),
            ("gemm_tc", "splits", 8, 1),
            ("gemm_tc", "warps", 8, 1),
            ("gemm_tc", "grid", 2**31 - 1, 1),
            ("projection_stream", "rows", 65535 * 8, 1),
        ],
    )
    def test_a_limit_is_the_last_that_is_taken(self, name: str, dim: str, last: int, step: int) -> None:
        """The largest size is launched and the next is not. Red: a limit one too low, or one too high."""
        f, sizes = form(name), {"rows": 1, "N": 16, "K": 512}
        resolve(f.instance, {**sizes, dim: last})
        with pytest.raises(LanelockError):
            resolve(f.instance, {**sizes, dim: last + step})

    def test_an_int_counts_the_chunks_of_a_stream(self) -> None:
        """2^18 panels of 8 slices of 1,024 chunks are one chunk too many. Red: the number of the last one negative."""
        f, sizes = form("projection_stream"), {"rows": 1, "K": 2**20}
        resolve(f.instance, {**sizes, "N": 2**22 - 16})
        with pytest.raises(LanelockError, match="exceed what an int can count"):
            resolve(f.instance, {**sizes, "N": 2**22})

    @pytest.mark.parametrize(("dim", "least", "step"), [("K", 256, 32), ("y_pitch", 16, 1), ("splits", 1, 1)])
    def test_the_least_is_taken(self, dim: str, least: int, step: int) -> None:
        """The smallest size is launched and the one before is not: a block in every slice of a split, a whole row."""
        sizes = {"rows": 1, "N": 16, "K": 512, "splits": 2}
        resolve(form("gemm_tc").instance, {**sizes, dim: least})
        with pytest.raises(LanelockError):
            resolve(form("gemm_tc").instance, {**sizes, dim: least - step})
