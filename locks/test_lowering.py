"""Locks of the choice of a lowering: pure, total, within the machine, and forced where asked."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.record import RECORDS, ROOT
from kernels.entry import ALL_ARCHS
from kernels.lanes import lane
from kernels.lowering import Lowering, Machine, Projection, choose
from kernels.tuning import RANGES, Tuning, tuning
from locks.projections import FAMILY, Form, operands, run
from locks.support import PROPERTY, assert_same_bits
from oracle.config import preset
from oracle.errors import LanelockError
from reports.bench_buffers import step_projections
from reports.bench_projections import CASES, layout

#: Shared memory that a block can have, by architecture (CUDA C++ guide, technical specifications a compute capability).
SHARED = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90a": 232448, "sm_100a": 232448, "sm_120": 101376}
MACHINES = [Machine(arch, 132, SHARED[arch]) for arch in ALL_ARCHS] + [Machine("x86-64-v3", 2, 232448)]
H200 = Machine("sm_90a", 132, 232448)
PLAIN = Tuning(stream_rows=0)  # no streaming: weights as rows, and the lowerings that every GPU has
LANES = ("a15", "a8", "q4", "a8+s16+kv16")
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 264, 512, 4096)
SIZES = ("qwen3.8-27b", "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "mini", "tiny")


def projections(name: str) -> list[Projection]:
    """Every projection of a model."""
    c = preset(name)
    return [
        Projection("qkvz", c.gdn_proj, c.d),
        Projection("qgkv", c.attn_proj, c.d),
        Projection("Wo", c.d, c.gdn_v, planes=True),
        Projection("gu", 2 * c.ffn, c.d, planes=True),
        Projection("Wd", c.d, c.ffn, planes=True),
        Projection("Wout", c.vocab, c.d, q4=False),
        Projection("ehproj", c.d, 2 * c.d, q4=False),
    ]


def assert_fits(chosen: Lowering, machine: Machine, rows: int, name: str) -> None:
    """The launch is one that the machine can do, over all rows and outputs."""
    k = chosen.instance.kernel
    assert machine.is_host or machine.arch in k.archs, f"{name}: {k.name} is not built for {machine.arch}"
    assert chosen.geometry.smem <= machine.shared_per_block, f"{name}: {k.name} needs {chosen.geometry.smem} bytes"
    assert max(chosen.geometry.grid[1:]) <= 65535, f"{name}: grid {chosen.geometry.grid}"
    assert chosen.dims["rows"] == rows


class TestChoice:
    """A lowering exists for every projection, and only one that can run."""

    @pytest.mark.parametrize("size", SIZES)
    def test_every_projection_of_every_model_is_lowered_everywhere(self, size: str) -> None:
        """All lanes, rows, machines, tiled or not: a launch that fits. Red: a ring larger than a block may have."""
        chosen = 0
        for p, rows, name, machine, tiled in itertools.product(projections(size), ROWS, LANES, MACHINES, (False, True)):
            assert_fits(choose(p, rows, lane(name), machine, Tuning(tiled=tiled)), machine, rows, f"{size} {p.name}")
            chosen += 1

        assert chosen == 7 * len(ROWS) * len(LANES) * len(MACHINES) * 2

    @PROPERTY
    @given(N=st.integers(1, 2**20), blocks=st.integers(1, 2**12), rows=st.integers(1, 2**16), planes=st.booleans())
    def test_any_size_is_lowered(self, N: int, blocks: int, rows: int, planes: bool) -> None:
        """Any size that kernels take has a lowering. Red: a size between two rules."""
        p = Projection("p", N, 32 * blocks, planes)
        for machine in MACHINES:
            assert_fits(choose(p, rows, lane("a15"), machine, Tuning()), machine, rows, "p")

    def test_the_choice_is_a_function_of_its_arguments(self) -> None:
        """The same arguments give an equal lowering. Red: a choice that remembers."""
        p, knobs = Projection("Wo", 5120, 6144, planes=True), Tuning()

        assert choose(p, 32, lane("a8"), H200, knobs) == choose(p, 32, lane("a8"), H200, knobs)

    def test_planes_are_written_only_where_someone_adds_them(self) -> None:
        """A projection whose reader takes one plane is never split. Red: a split by size alone."""
        for rows in ROWS:
            assert choose(Projection("qkvz", 512, 5120), rows, lane("a8"), H200, Tuning()).planes == 1

    def test_a_narrow_projection_is_split(self) -> None:
        """5120 outputs leave an H200 short of work, so that K is split. Red: the split forgotten."""
        chosen = choose(Projection("Wo", 5120, 6144, planes=True), 32, lane("a8"), H200, PLAIN)

        assert chosen.planes == 8
        assert chosen.geometry.grid[0] * chosen.geometry.grid[1] >= 2 * H200.multiprocessors

    def test_q4_is_read_where_the_lane_has_it(self) -> None:
        """The q4 lane reads Q4 weights, but for what stays Q8_0. Red: the head converted."""
        body, head = Projection("gu", 1024, 512), Projection("Wout", 1024, 512, q4=False)
        knobs = [Tuning(stream_rows=0, tiled=t) for t in (False, True)]
        forms = [choose(p, 5, lane("q4"), H200, k).weights for p in (body, head) for k in knobs]

        assert forms == ["q4 rows", "q4 panels", "rows", "panels"]

    def test_lanes_with_other_states_choose_alike(self) -> None:
        """State and cache formats do not touch a projection. Red: a choice by the lane's name."""
        p = Projection("gu", 34816, 5120)

        assert choose(p, 8, lane("a8"), H200, Tuning()) == choose(p, 8, lane("a8+s16+kv16"), H200, Tuning())


class TestRules:
    """Where one lowering takes over from another."""

    def test_few_rows_stream_the_weights(self) -> None:
        """Up to `gemv_rows` rows a GPU uses the row-parallel GEMV, the host never. Red: one row more or less."""
        p, host = Projection("qkvz", 16384, 5120), MACHINES[-1]
        chosen = [choose(p, rows, lane("a8"), m, PLAIN).kernel for m in (H200, host) for rows in (1, 4, 5)]

        assert chosen == ["gemv_rows", "gemv_rows", "gemm_tc", "gemm_tc", "gemm_tc", "gemm_tc"]

    def test_a_gemv_and_a_tile_are_as_wide_as_the_batch(self) -> None:
        """The least width that holds the rows, or the widest there is. Red: a width that is full passed over."""
        p, knobs = Projection("qkvz", 16384, 5120), Tuning(stream_rows=0, gemv_rows=8)
        seqs = [choose(p, rows, lane("a8"), H200, knobs).dims["SEQS"] for rows in range(1, 9)]
        cols = [choose(p, r, lane("a8"), MACHINES[-1], PLAIN).dims["COLS"] for r in (1, 8, 9, 16, 17, 32, 33, 64, 65)]

        assert seqs == [1, 2, 4, 4, 8, 8, 8, 8]
        assert cols == [8, 8, 16, 16, 32, 32, 64, 64, 64]

    @pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.arch)
    def test_weights_stay_in_rows_where_nothing_streams_them(self, machine: Machine) -> None:
        """Only Hopper reads panels unasked, and only while it streams. Red: weights tiled for nobody."""
        p = Projection("qkvz", 16384, 5120)
        forms = [choose(p, 5, lane("a8"), machine, k).weights for k in (Tuning(), PLAIN)]

        assert forms == ["panels" if machine.arch == "sm_90a" else "rows", "rows"]

    @pytest.mark.parametrize(
        ("name", "rows", "N", "splits"),
        [
            # tiles of 64 by 32: 8 * 2 of them, where 2 blocks for each of 132 SMs are wanted
            ("gemm_dp4a", 33, 512, 8), ("gemm_dp4a", 32, 64 * 132, 2), ("gemm_dp4a", 33, 64 * 132, 1),
            # tiles of 64 by 128, 4 blocks an SM
            ("gemm_rows", 128, 64 * 264, 2), ("gemm_rows", 129, 64 * 264, 1), ("gemm_rows", 128, 64 * 528, 1),
            ("gemm_rows_wide", 128, 128 * 264, 2), ("gemm_rows_wide", 128, 128 * 527, 2),
            ("gemm_rows_wide", 128, 128 * 528, 1),
            # tiles of 64 by 8, 16 or 64 rows
            ("gemm_tc", 64, 64 * 132, 2), ("gemm_tc", 65, 64 * 132, 1),
        ],
    )  # fmt: skip  # a table
    def test_a_split_counts_the_tiles_of_its_lowering(self, name: str, rows: int, N: int, splits: int) -> None:
        """Row tiles and weight tiles together are the work that a split multiplies. Red: one of the two left out."""
        chosen = choose(Projection("p", N, 512, planes=True), rows, lane("a8"), H200, Tuning(lowering=name))

        assert (chosen.kernel, chosen.dims["splits"]) == (name, splits)

    def test_many_rows_are_put_into_tiles_of_128(self) -> None:
        """From `prefill_rows` rows on the rows-in-M tile is used. Red: one row more or less."""
        p = Projection("qkvz", 16384, 5120)

        assert [choose(p, r, lane("a8"), H200, PLAIN).kernel for r in (127, 128)] == ["gemm_tc", "gemm_rows_wide"]

    def test_batches_too_large_to_stream_take_the_warpgroup_tile(self) -> None:
        """From `warpgroup_rows` rows on an H200 takes the warpgroup tile, no other GPU does. Red: one row more."""
        p, other = Projection("qkvz", 16384, 5120), Machine("sm_100a", 132, SHARED["sm_100a"])
        chosen = [choose(p, rows, lane(n), H200, Tuning()).kernel for n in ("a8", "q4") for rows in (64, 65, 4096)]

        assert chosen[1:3] + chosen[4:] == ["gemm_wg"] * 2 + ["gemm_wg_q4"] * 2
        assert all("stream" in name for name in (chosen[0], chosen[3]))
        assert choose(p, 512, lane("a8"), other, Tuning(tiled=True)).kernel == "gemm_rows_tiled_wide"

    @pytest.mark.parametrize(("panels", "rows", "planes", "split", "grid"), [
        (34, 128, False, 1, 34),  # a block a tile where those are few
        (34, 512, False, 1, 132),  # 34 x 4 tiles
        (40, 512, True, 4, 33), (40, 128, True, 8, 16),  # the machine is shared by the splits
    ])  # fmt: skip
    def test_warpgroup_blocks_are_one_a_tile_up_to_one_a_multiprocessor(
        self, panels: int, rows: int, planes: bool, split: int, grid: int
    ) -> None:
        """Tiles of 128 x 128; blocks along K share the multiprocessors. Red: fewer blocks, or one without work."""
        dims = choose(Projection("p", 128 * panels, 5120, planes=planes), rows, lane("a8"), H200, Tuning()).dims

        assert (dims["splits"], dims["grid"]) == (split, grid)

    def test_the_wide_tile_needs_three_quarters_of_the_machine(self) -> None:
        """99 tiles of 128 weights make an H200 take the wide form, 98 the narrow one. Red: a grid half empty."""
        chosen = [
            choose(Projection("p", 128 * n, 512), rows, lane("a8"), H200, PLAIN).kernel
            for n, rows in ((98, 128), (99, 128), (49, 256), (50, 256), (50, 129))
        ]

        assert chosen == ["gemm_rows", "gemm_rows_wide", "gemm_rows", "gemm_rows_wide", "gemm_rows_wide"]

    @pytest.mark.parametrize(("tiles", "most", "splits"), [(264, 8, 1), (263, 8, 2), (66, 8, 4), (1, 8, 8), (1, 3, 2)])
    def test_splits_double_until_the_machine_is_busy(self, tiles: int, most: int, splits: int) -> None:
        """Two blocks an SM are enough, and `max_splits` is the end. Red: one doubling too many."""
        p = Projection("p", 64 * tiles, 512, planes=True)

        assert choose(p, 8, lane("a8"), H200, Tuning(stream_rows=0, max_splits=most)).dims["splits"] == splits

    @pytest.mark.parametrize(("K", "splits"), [(224, 1), (256, 8)])
    def test_a_split_needs_a_block_in_every_slice(self, K: int, splits: int) -> None:
        """8 blocks are the least that are split. Red: planes that nobody writes."""
        assert choose(Projection("p", 64, K, planes=True), 8, lane("a8"), H200, PLAIN).dims["splits"] == splits

    def test_tiles_are_as_high_as_asked_and_fit(self) -> None:
        """`warps` panels, or fewer where their ring does not fit. Red: a height beside the one asked for."""
        p = Projection("qkvz", 16384, 5120)
        small = Machine("sm_86", 84, SHARED["sm_86"])
        cases = ((H200, 8), (H200, 1), (small, 4), (small, 8))

        chosen = [choose(p, 64, lane("a15"), m, Tuning(stream_rows=0, warps=w)) for m, w in cases]
        assert [c.dims["warps"] for c in chosen] == [8, 1, 4, 2]

    @pytest.mark.parametrize("name", ["gemv_register", "gemv_staged"])
    def test_a_gemv_for_one_row_holds_one(self, name: str) -> None:
        """One row takes the narrow form, more rows the form of 8. Red: the two exchanged."""
        p, knobs = Projection("p", 64, 512), Tuning(lowering=name)

        assert [choose(p, r, lane("a8"), H200, knobs).dims["SEQS"] for r in (1, 2)] == [1, 8]


class TestForced:
    """A forced lowering is used, or refused."""

    @pytest.mark.parametrize("name", [n for n in FAMILY if n.startswith("gem") and n != "gemm_tc_ring"])
    def test_a_forced_lowering_is_the_one_chosen(self, name: str) -> None:
        """Every lowering that a lane can reach is chosen when it is named. Red: the knob ignored."""
        knobs = Tuning(lowering=name, tiled=any(w in name for w in ("tiled", "stream", "wg")))
        chosen = choose(Projection("gu", 1024, 512), 5, lane("q4" if "q4" in name else "a8"), H200, knobs)

        assert chosen.kernel == name

    def test_a_forced_lowering_that_cannot_be_is_refused(self) -> None:
        """The refusal names projection, size, lane, lowering and reason. Red: another lowering taken in silence."""
        sentence = (
            r"projection gu \(64 x 512, 9 rows, lane a8\) cannot be computed by gemv_rows on sm_90a: "
            r"gemv_rows: rows = 9 exceed the 8 sequences that this tile holds"
        )
        with pytest.raises(LanelockError, match=sentence):
            choose(Projection("gu", 64, 512), 9, lane("a8"), H200, Tuning(lowering="gemv_rows"))

    def test_what_no_lowering_can_do_is_refused(self) -> None:
        """A width that is not whole blocks is refused by name. Red: rounded up."""
        with pytest.raises(LanelockError, match=r"projection odd .* K = 48 must be a positive multiple of 32"):
            choose(Projection("odd", 64, 48), 1, lane("a8"), H200, Tuning())


class TestTuning:
    """Knobs of speed, settable by one variable."""

    def test_nothing_given_is_the_defaults(self) -> None:
        """No variable, or an empty one, changes nothing. Red: an error for an unset variable."""
        assert tuning(None) == tuning("") == Tuning()

    def test_fields_are_changed_by_name(self) -> None:
        """A JSON object changes the fields it names. Red: the others reset to zero."""
        assert tuning(json.dumps({"warps": 8, "lowering": "gemm_mma"})) == Tuning(warps=8, lowering="gemm_mma")

    @pytest.mark.parametrize(
        ("name", "low", "high"),
        [("gemv_rows", 0, 8), ("blocks_per_sm", 1, 16), ("prefill_blocks_per_sm", 1, 16), ("max_splits", 1, 8),
         ("warps", 1, 8), ("attention_blocks", 1, 8), ("attention_heads", 0, 64), ("attention_units", 1, 64),
         ("attention_prefill", 1, 2**31), ("stream_rows", 0, 2**31), ("prefill_rows", 1, 2**31),
         ("warpgroup_rows", 1, 2**31)],
    )  # fmt: skip  # a table
    def test_ranges_end_where_they_say(self, name: str, low: int, high: int) -> None:
        """Both ends of a range are taken, and nothing beyond. Red: a range one too wide."""
        assert RANGES[name] == (low, high)
        assert [getattr(Tuning(**{name: v}), name) for v in (low, high)] == [low, high]
        for beyond in (low - 1, high + 1):
            with pytest.raises(LanelockError, match=f"{name} = {beyond} must be between {low} and {high}"):
                Tuning(**{name: beyond})

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("{", "LANELOCK_TUNING is not JSON"),
            ("[1]", "must be one JSON object"),
            ('{"warp": 8}', "unknown field 'warp'; the fields are lowering, "),
            ('{"warps": "8"}', "warps = '8' must be of type int"),
            ('{"lowering": "nope"}', "there is no lowering 'nope'; they are .*gemm_dp4a, .*projection_stream_q4"),
            ('{"lowering": "rms_norm"}', "there is no lowering 'rms_norm'"),
            ('{"tiled": 1}', "tiled = 1 must be of type bool"),
            ('{"warps": 9}', "warps = 9 must be between 1 and 8"),
            ('{"gemv_rows": 9}', "gemv_rows = 9 must be between 0 and 8"),
        ],
    )
    def test_a_value_that_cannot_be_is_refused(self, text: str, sentence: str) -> None:
        """The refusal names field and value. Red: a knob misspelt and silently ignored."""
        with pytest.raises(LanelockError, match=sentence):
            tuning(text)


class TestBits:
    """The choice is a matter of speed."""

    @pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 16, 17, 33])
    def test_row_0_has_the_same_bits_whatever_is_chosen(self, device: Device, rows: int) -> None:
        """The lowering for each number of rows gives row 0 the bits it has alone (case 18). Red: an order by rows."""
        o = operands(33, 24, 1024, 1)
        p = Projection("p", 24, 1024, planes=True)
        got = []
        for machine, tiled in itertools.product((H200, MACHINES[-1]), (False, True)):
            chosen = choose(p, rows, lane("a8"), machine, Tuning(tiled=tiled))
            dims = {k: chosen.dims[k] for k in ("splits", "warps") if k in chosen.dims}
            f = Form(chosen.kernel, chosen.instance.template, dims)
            part = type(o)(o.codes[:rows], o.scales[:rows], o.w, o.ws)
            got.append(run(device, f, part)[0])

        alone = Form("gemm_mma", {"WORDS": 1}).expected(type(o)(o.codes[:1], o.scales[:1], o.w, o.ws))[0]
        assert_same_bits(np.stack(got), np.stack([alone] * len(got)))


class TestMeasured:
    """What is said of speed was measured in the layouts that are launched."""

    def test_layouts_are_those_of_the_record_that_the_readme_names(self) -> None:
        """Kernel, template and dims of every case and shape on an H200. Red: a layout changed behind its speed."""
        name = re.search(r"reports/records/(bench-projections-\w+\.json)", (ROOT / "README.md").read_text())
        assert name, "README.md names no record of the projections"
        rows = json.loads((RECORDS / name[1]).read_text())["figures"]["rows"]
        shapes = {f"{p.N} x {p.K}": p for p in step_projections(preset("qwen3.8-27b"))}

        assert [row["name"] for row in rows] == [f"{c.lane} {c.rows} rows" for c in CASES]
        for row, case in zip(rows, CASES, strict=True):
            for timed in row["shapes"]:
                p = shapes[timed["shape"]]
                chosen = layout(choose(p, case.rows, lane(case.lane), H200, Tuning(tiled=True)))
                assert chosen == {key: timed.get(key) for key in chosen}, f"{row['name']} {timed['shape']}"
