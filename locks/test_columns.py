"""Locks of codes by columns: the same codes in another order, written where the next projection reads them so."""

import math

import numpy as np
import pytest

from harness.device import Device
from harness.inputs import random_array
from kernels.catalogue import KERNELS, kernel
from kernels.columns import by_columns, by_rows, ordered, reads_columns, scales_by_columns, scales_by_rows
from kernels.entry import Kernel, Scalar, Value, buffer_dtype, buffer_shape, instance, resolve
from kernels.lanes import lane
from kernels.plan import Launch
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from locks.support import Case, assert_same_bits, rng
from locks.test_coverage import SHAPES
from locks.test_plan import H200
from oracle.errors import LanelockError

WRITERS = tuple(k for k in KERNELS if Scalar("columns") in k.args)
#: Sizes that every writer takes: rows of six blocks, or three heads of 64.
SIZES: dict[str, Value] = {"K": 192, "F": 192, "HV": 3, "eps": 1e-6}


def case_of(k: Kernel, rows: int, words: int, columns: int) -> Case:
    """Seeded rows, to be written by columns or by rows."""
    template: dict[str, Value] = {p.name: p.values[-1] for p in k.params} | {"WORDS": words}
    if "D" in template:
        template["D"] = 64
    inst = instance(k, **template)
    # a row of two planes where planes are added, of a cluster of two blocks where there is one
    given: dict[str, Value] = {"planes": 2 if template.get("PLANED") else 1, "parts": 2} if "PLANED" in template else {}
    dims = {**SIZES, **given, "rows": rows, "columns": columns}
    full, g = resolve(inst, dims), rng(rows, words)
    read = [b for b in k.buffers if b.access != "w"]
    inputs = {b.name: random_array(g, buffer_dtype(inst, b), buffer_shape(b, full)) for b in read}
    if "chunk_sums" in inputs:
        inputs["chunk_sums"] = abs(inputs["chunk_sums"])
    return Case(k, dims, inputs, template)


class TestOrder:
    """By columns is a permutation that keeps 16 neighbours of a row together."""

    @pytest.mark.parametrize("shape", [(1, 1, 32), (3, 2, 96), (64, 1, 160)])
    def test_every_code_comes_back(self, shape: tuple[int, int, int]) -> None:
        """Rows to columns and back is nothing at all. Red: words and rows exchanged."""
        codes = np.arange(math.prod(shape)).reshape(shape)

        assert_same_bits(by_rows(by_columns(codes).reshape(-1), shape[0], shape[1]), codes)

    def test_a_unit_stands_where_it_should(self) -> None:
        """Element k of word w of row r is the 16ths unit's row, at k modulo 16. Red: units of another length."""
        codes = rng(1).integers(-127, 128, (5, 2, 64)).astype(np.int8)
        columns = by_columns(codes)

        assert columns.shape == (4, 2, 5, 16)
        for r, w, k in np.ndindex(codes.shape):
            assert columns[k // 16, w, r, k % 16] == codes[r, w, k]


    @pytest.mark.parametrize("rows", [1, 7, 16, 37])
    def test_every_scale_comes_back(self, rows: int) -> None:
        """Scales to columns and back are nothing at all; places without a row are NaN. Red: two rows in one place."""
        scales = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        columns = scales_by_columns(scales)

        assert_same_bits(scales_by_rows(columns.reshape(-1), rows), scales)
        assert np.isnan(columns).sum() == columns.size - scales.size

    def test_a_lanes_scales_lie_together(self) -> None:
        """Columns 2t, 2t + 1 of two fragments of 8 are neighbours, four by four. Red: fragments side by side."""
        place = scales_by_columns(np.arange(32, dtype=np.float32)[:, None])[0].reshape(2, 4, 4)

        for pair, t in np.ndindex(2, 4):
            first = 16 * pair + 2 * t
            assert place[pair, t].tolist() == [first, first + 1, first + 8, first + 9]


class TestWriters:
    """Every kernel that quantises writes the same codes by columns as by rows."""

    def test_are_all_that_quantise(self) -> None:
        """Every kernel with codes to write can write them by columns. Red: a writer that a stream cannot follow."""
        codes = [(k, b) for k in KERNELS for b in k.buffers if b.name == "codes" and "WORDS" in b.shape]
        writing = {k.name for k, b in codes if b.access == "w"}

        assert {k.name for k in WRITERS} == writing

    @pytest.mark.parametrize("words", [1, 2])
    @pytest.mark.parametrize("k", WRITERS, ids=lambda k: k.name)
    def test_codes_are_the_same_in_both_orders(self, device: Device, k: Kernel, words: int) -> None:
        """Codes and scales by columns, put back, are those by rows, and nothing else moves. Red: a low word astray."""
        for rows in (1, 5, 16, 37):
            plain = case_of(k, rows, words, 0).run(device)
            moved = case_of(k, rows, words, rows).run(device)

            assert_same_bits(by_rows(moved.pop("codes"), rows, words), plain.pop("codes"), f"{k.name} {rows} rows")
            assert_same_bits(scales_by_rows(moved.pop("scales"), rows), plain.pop("scales"), f"{k.name} {rows} rows")
            assert set(moved) == set(plain)
            for name, value in moved.items():
                assert_same_bits(value, plain[name], f"{k.name} {rows} rows: {name}")

    @pytest.mark.parametrize("words", [1, 2])
    def test_a_row_that_is_no_number_says_so_in_both_orders(self, device: Device, words: int) -> None:
        """A block with a NaN or an infinity has codes 0 and scale NaN wherever it lies. Red: a fault quantised away."""
        for k in WRITERS:
            case = case_of(k, 5, words, 5)
            rows = case.inputs["x" if "x" in case.inputs else "o" if "o" in case.inputs else "hidden"]
            rows[..., 1, 40], rows[..., 3, 70] = np.nan, np.inf
            plain = Case(k, {**case.dims, "columns": 0}, case.inputs, case.template).run(device)
            moved = case.run(device)

            scales = scales_by_rows(moved["scales"], 5)
            assert np.isnan(scales).any(axis=1).tolist() == [False, True, False, True, False], k.name
            assert_same_bits(by_rows(moved["codes"], 5, words), plain["codes"], k.name)
            assert_same_bits(np.isnan(scales), np.isnan(plain["scales"]), k.name)

    def test_other_counts_are_refused(self) -> None:
        """Columns of other than all rows are refused before a launch. Red: rows written over each other."""
        with pytest.raises(LanelockError, match="columns = 3 is neither 0 nor the 4 rows"):
            resolve(instance(kernel("quantize"), WORDS=1), {"rows": 4, "K": 64, "columns": 3})


def handed_on(launches: tuple[Launch, ...]) -> list[tuple[bool, bool]]:
    """For every launch that reads codes: whether it reads columns, and whether the last writer wrote them."""
    found, written = [], False
    for item in launches:
        for use in item.uses:
            if use.ref.buffer == "codes" and use.reads:
                found.append((reads_columns(item.instance.kernel), written))
            if use.ref.buffer == "codes" and use.writes:
                written = bool(item.dims["columns"])
    return found


class TestReaders:
    """Only the streaming projections read codes by columns."""

    def test_are_the_streams(self) -> None:
        """Every other kernel with codes reads them by rows. Red: a reader known by the wrong buffer."""
        assert {k.name for k in KERNELS if reads_columns(k)} == {"projection_stream", "projection_stream_q4"}


class TestPlans:
    """In a plan every projection finds its codes in the order in which it reads them."""

    @pytest.mark.parametrize("tuning", [Tuning(), Tuning(stream_rows=8), Tuning(lowering="gemm_dp4a")], ids=str)
    def test_every_reader_finds_its_order(self, tuning: Tuning) -> None:
        """All programs, batches either side of what streams. Red: a writer whose reader changed its lowering."""
        for B in (1, 32, 96):
            plan = make_plan(Setting(SHAPES, lane("a15"), B, B, 512, H200, tuning), 4, 2)
            for program, launches in plan.programs.items():
                wrong = [i for i, (wanted, have) in enumerate(handed_on(launches)) if wanted != have]

                assert not wrong, f"{program} of {B}: readers {wrong}"

    def test_a_plan_streams(self) -> None:
        """On an H200 a step of one sequence hands on columns. Red: a lock over plans that have none."""
        plan = make_plan(Setting(SHAPES, lane("a8"), 1, 1, 512, H200, Tuning()), 4)

        assert any(wanted for wanted, _ in handed_on(plan.programs["step"]))
        assert ordered(plan.programs["step"]) == plan.programs["step"]
