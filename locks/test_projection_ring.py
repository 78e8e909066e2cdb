"""Locks of what makes lowerings fast and could make them wrong: rings of copies, work counts, instructions, Q4."""

import numpy as np
import pytest

from harness.cuda.compile import compile_instances
from harness.device import Device
from harness.ptx import census, most_threads
from harness.run import run_once
from kernels.entry import Instance, resolve
from kernels.projections import PANEL_BLOCKS, chunks_of_slice, panel_bytes
from kernels.rules import SHARED
from kernels.streaming import streams
from locks.far import assert_same_far_away
from locks.projections import FAMILY, LOWERINGS, Q4_LOWERINGS, Form, Operands, able, form, forms, operands, run, width
from locks.support import Case, assert_same_bits, watched
from locks.test_compile import compiled, instances
from oracle.bits import projection as contract
from oracle.errors import LanelockError

RINGS = [f for n in FAMILY for f in forms(n) if "STAGES" in f.template and f.words == 1]
#: One ring a kernel, and every chunk width and stage count of the tile that is built with several.
DISTINCT = [f for f in RINGS if f.template == form(f.name).template or f.name in ("gemm_tc_ring", "gemm_wg")]


class TestRing:
    """A ring of asynchronous copies hands over each chunk once it is there."""

    @pytest.mark.parametrize("f", [pytest.param(f, id=str(f)) for f in DISTINCT])
    def test_every_count_of_chunks_is_the_contract(self, device: Device, f: Form) -> None:
        """1 to 2S + 1 chunks a block, copies eager, late and random. Red: a wait one group short, one chunk primed."""
        blocks = int(f.template.get("CHUNK", 128)) // 32
        for chunks in range(1, 2 * int(f.template["STAGES"]) + 2):
            o = operands(1, 17, 8 * chunks * blocks * 32, 1)
            assert_same_bits(run(device, f, o, splits=8), f.expected(o), f"{f} {chunks} chunks")

    @pytest.mark.parametrize("f", [pytest.param(f, id=str(f)) for f in DISTINCT])
    def test_chunks_that_end_early_are_the_contract(self, device: Device, f: Form) -> None:
        """Slices of one block more or less than a chunk, at odd offsets. Red: blocks of the next slice multiplied."""
        blocks = int(f.template.get("CHUNK", 128)) // 32
        for KB in (8 * blocks - 1, 8 * blocks + 1, 8 * blocks + 4, 3):
            o = operands(2, 17, 32 * KB, 1)
            assert_same_bits(run(device, f, o), f.expected(o), f"{f} {KB} blocks")


    @pytest.mark.nightly
    @pytest.mark.gpu
    @pytest.mark.parametrize("name", [f.name for f in DISTINCT if f.name != "gemm_tc_ring"])
    def test_repeats_at_full_shape_are_the_same(self, device: Device, name: str) -> None:
        """300 launches at a shape of the 27B give the same bits (case 32). Red: a hazard that shows now and then."""
        f = form(name)
        case = f.case(operands(33, 5120, 6144, 1))
        first = run_once(device, f.instance, case.dims, case.inputs)["y"]
        for _ in range(299):
            assert_same_bits(run_once(device, f.instance, case.dims, case.inputs)["y"], first, name)


#: Bytes that a multiprocessor keeps of its shared memory for each block.
OF_A_BLOCK = 1024
STREAMS = [n for n in FAMILY if n.startswith("projection_stream")]
#: Layouts of a streaming projection of 5 panels on slices of 3 to 8 chunks, from one of everything to all at once.
LAYOUTS = (
    {"grid": 1, "warps": 1, "stages": 1, "span": 1, "held": 1},
    {"grid": 1, "warps": 5, "stages": 3, "span": 1, "held": 2, "part": 2},
    {"grid": 1, "warps": 2, "stages": 1, "span": 2, "held": 1},
    {"grid": 2, "warps": 4, "stages": 2, "span": 5, "held": 3, "part": 1},
    {"grid": 1, "warps": 3, "stages": 1, "span": 2, "held": 16},
    {"grid": 1, "warps": 2, "stages": 2, "span": 1, "held": 2, "splits": 3},
    {"grid": 5, "warps": 1, "stages": 2, "span": 3, "held": 16},
)


#: Blocks, panels, warps and splits: pairs, and panels that two blocks share or that one has; panels alone; bands; one
#: warp; planes; a warp without a panel.
SHARES = (
    (2, 17, 6, 1), (2, 17, 8, 1), (3, 25, 7, 1), (4, 17, 3, 1), (1, 5, 4, 1), (1, 7, 2, 1), (1, 3, 1, 1), (1, 6, 4, 8),
    (1, 4, 5, 1), (1, 2, 1, 1), (4, 34, 6, 1),
)  # fmt: skip  # a list
#: Kernel, columns, rows, outputs, blocks of K and layout: pairs of Q4; pairs and single panels in a second group of
#: rows, in parts and stages of several chunks; a part without a block beside more rows; blocks with fewer slices; all
#: parts of more rows than a block's; blocks without a panel.
CORNERS = (
    ("projection_stream_q4", 64, 61, 75, 40, {"grid": 1, "warps": 4, "stages": 2, "held": 2}),
    ("projection_stream", 64, 69, 75, 40, {"grid": 1, "warps": 4, "stages": 2, "held": 2}),
    ("projection_stream", 64, 69, 75, 83, {"grid": 1, "warps": 5, "stages": 2, "span": 3, "held": 2, "part": 2}),
    ("projection_stream", 8, 11, 20, 36, {"grid": 1, "warps": 1, "stages": 1, "held": 2, "part": 1}),
    ("projection_stream", 8, 3, 112, 36, {"grid": 1, "warps": 6, "stages": 16, "held": 2, "part": 2, "splits": 3}),
    ("projection_stream", 32, 35, 75, 40, {"grid": 1, "warps": 4, "stages": 1, "held": 8}),
    ("projection_stream", 8, 3, 48, 36, {"grid": 5, "warps": 2, "stages": 2, "held": 2}),
    ("projection_stream_q4", 1, 3, 48, 36, {"grid": 5, "warps": 2, "stages": 2, "held": 8}),
)


def wide(name: str, cols: int) -> Form:
    """A streaming projection whose blocks hold so many rows."""
    return Form(name, {**form(name).template, "COLS": cols})


def counts_or_skip(device: Device) -> None:
    """Only the host device counts work: on another the lock is not run."""
    if device.properties.kind != "host":
        pytest.skip("not run: work is counted on the host device only")


def assert_admitted_behind_requests(device: Device, case: Case) -> None:
    """Every thread has admitted the next launch, and has asked for no weights after that."""
    counted = watched(device, case)
    assert (counted["admitted"], counted["streamed_late"]) == (counted["threads"], 0), str(case.dims)


class TestStream:
    """The streaming projection is the contract for every layout."""

    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda d: "-".join(f"{k}{v}" for k, v in d.items()))
    @pytest.mark.parametrize(("name", "cols", "rows"), [("projection_stream_q4", 1, 1), *((n, 8, 3) for n in STREAMS)])
    def test_layouts_do_not_matter(
        self, device: Device, name: str, cols: int, rows: int, layout: dict[str, int]
    ) -> None:
        """Rings, copies, bands and buffers of any size, whole chunks or not. Red: a phase or a turn taken early."""
        f = wide(name, cols)
        for KB in (83, 230, 256):
            o = operands(rows, 75, 32 * KB, 1)
            assert_same_bits(run(device, f, o, **layout), f.expected(o), f"{f} {KB} blocks")


    @pytest.mark.parametrize("rows", [5, 8])
    def test_a_part_is_two_copies(self, device: Device, rows: int) -> None:
        """Codes and scales of eight parts, beside two chunks of three panels a slice. Red: a copy a line."""
        counts_or_skip(device)
        layout = {"grid": 1, "warps": 3, "stages": 2, "held": 8}
        counted = watched(device, wide("projection_stream", 8).case(operands(rows, 48, 32 * 36, 1), **layout))

        assert counted["bulk_copies"] == 8 * 2 + 8 * 2 * 3

    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda d: "-".join(f"{k}{v}" for k, v in d.items()))
    @pytest.mark.parametrize("name", STREAMS)
    def test_the_next_launch_comes_behind_the_last_request(
        self, device: Device, name: str, layout: dict[str, int]
    ) -> None:
        """Every thread admits it, and asks for no weights after that. Red: admitted at the start, or by nobody.

        Earlier, and the rings of the next launch would be full before this one ends; later, and nobody would read.
        """
        counts_or_skip(device)
        assert_admitted_behind_requests(device, form(name).case(operands(3, 75, 32 * 230, 1), **layout))

    def test_pairs_admit_the_next_launch_behind_the_last_request(self, device: Device) -> None:
        """The same of two panels a warp. Red: admitted with the first pair."""
        counts_or_skip(device)
        case = wide("projection_stream", 64).case(operands(61, 75, 32 * 40, 1), grid=1, warps=4, stages=1, held=1)

        assert_admitted_behind_requests(device, case)

    @pytest.mark.parametrize(
        ("name", "cols", "rows"),
        [("projection_stream_q4", 1, 18), *((n, c, 2 * c + 5) for n in STREAMS for c in (8, 16))],
    )
    def test_rows_beyond_a_block_are_the_contract(self, device: Device, name: str, cols: int, rows: int) -> None:
        """Several blocks of rows, the last one short, of slices whole and not. Red: scales of another block's rows."""
        f = wide(name, cols)
        for KB in (83, 256):
            o = operands(rows, 33, 32 * KB, 1)
            assert_same_bits(run(device, f, o, held=2), f.expected(o), f"{f} {KB} blocks")

    @pytest.mark.parametrize("words", [1, 2])
    @pytest.mark.parametrize("K", [5120, 6144, 17408])
    def test_layouts_of_an_h200_fit_the_sums_of_a_model(self, device: Device, K: int, words: int) -> None:
        """What is chosen for an H200, at its K, for some panels. Red: memory of one word asked for, other parts."""
        for rows in (2, 9):
            o = operands(rows, 50, K, words)
            chosen = streams(5120, K, rows, words, 8, 132, planes=False)[0]
            f = Form(chosen.kernel, chosen.template, {**chosen.dims, "grid": 1})
            assert_same_bits(run(device, f, o), f.expected(o), str(f))

    def test_the_layout_of_an_h200_for_one_row_has_all_its_memory(self, device: Device) -> None:
        """Nine panels of Q4, more than the floor of half a multiprocessor. Red: rings that end behind the memory."""
        chosen = streams(34816, 5120, 1, 1, 4, 132, planes=False)[0]
        f, o = Form(chosen.kernel, chosen.template, {**chosen.dims, "grid": 1}), operands(1, 144, 5120, 1)

        assert f.kernel.geometry(resolve(f.instance, {**o.dims, **f.dims})).smem > SHARED // 2 + 1024
        assert_same_bits(run(device, f, o), f.expected(o), str(f))

    @pytest.mark.parametrize("held", [17, 32])
    def test_every_buffer_may_be_held(self, device: Device, held: int) -> None:
        """Half of them and one more, and all. Red: barriers of the second half in the place of others."""
        f, o = form("projection_stream"), operands(2, 48, 17408, 1)
        dims = {"grid": 1, "warps": 3, "stages": 2, "span": 1, "held": held}

        assert_same_bits(run(device, f, o, **dims), f.expected(o), str(f))

    def test_no_two_blocks_share_a_multiprocessor(self) -> None:
        """The smallest launch asks for more than half of its memory. Red: two blocks on one, and none on another."""
        f, o = form("projection_stream"), operands(1, 16, 256, 1)
        smallest = resolve(f.instance, {**o.dims, "warps": 1, "stages": 1})

        assert 2 * (f.kernel.geometry(smallest).smem + OF_A_BLOCK) > SHARED + OF_A_BLOCK

    @pytest.mark.parametrize("inst", instances("projection_stream", "sm_90a"), ids=lambda i: i.expression)
    def test_the_most_warps_are_what_is_compiled(self, inst: Instance) -> None:
        """As many warps as the launch bounds say are admitted, one more is not. Red: a launch that no GPU takes."""
        program = compiled("projection_stream", "sm_90a")
        most = most_threads(program.ptx, program.lowered(inst.expression)) // 32
        sizes = {"rows": 1, "N": 16, "K": 256, "stages": 1, "held": 8}  # 8 parts: no warp feeds

        resolve(inst, {**sizes, "warps": most})
        with pytest.raises(LanelockError, match=f"warps = {most + 1} of a block"):
            resolve(inst, {**sizes, "warps": most + 1})

    def test_all_of_shared_memory_may_be_taken(self) -> None:
        """A layout of exactly what a block may have is admitted, one warp more is not. Red: a byte left over."""
        full = {"grid": 1, "held": 8, "warps": 8, "span": 3, "stages": 4}
        f, o = Form("projection_stream", {"WORDS": 1, "BITS": 8, "COLS": 16}, full), operands(12, 128, 256, 1)

        assert f.kernel.geometry(resolve(f.instance, {**o.dims, **full})).smem == SHARED
        assert f.admits(o)
        assert not Form(f.name, f.template, {**full, "warps": 9}).admits(o)

    def test_a_copy_may_be_a_whole_slice(self, device: Device) -> None:
        """Copies of 4 chunks, where a slice is 6 and one buffer, are the contract. Red: a limit of one chunk fewer."""
        f, o = form("projection_stream"), operands(3, 33, 8 * 6 * 128, 1)

        assert_same_bits(run(device, f, o, span=4, stages=2, grid=1), f.expected(o), str(f))

    @pytest.mark.parametrize(("cols", "words"), [(64, 1), (32, 2)])
    @pytest.mark.parametrize(("grid", "panels", "warps", "splits"), SHARES)
    def test_units_of_a_block_are_the_contract(
        self, device: Device, grid: int, panels: int, warps: int, splits: int, cols: int, words: int
    ) -> None:
        """Pairs, panels alone and shared ones, in bands or not. Red: a panel twice, columns of another quarter."""
        f = Form("projection_stream", {"WORDS": words, "BITS": 8, "COLS": cols})
        o = operands(cols - 3, 16 * panels - 5, 32 * 40, words)
        alone = panels <= grid * warps  # where no warp has a pair a stage may be longer
        for stages, span, held, part in ((1, 1, 1, 6), (2, 1 + alone, 2, 1)):
            dims = {"stages": stages, "span": span, "held": held, "part": part}
            got = run(device, f, o, grid=grid, warps=warps, splits=splits, **dims)
            assert_same_bits(got, f.expected(o), f"{f} {panels} panels {warps} warps")

    @pytest.mark.parametrize(("name", "cols", "rows", "N", "KB", "layout"), CORNERS)
    def test_corners_are_the_contract(
        self, device: Device, name: str, cols: int, rows: int, N: int, KB: int, layout: dict[str, int]
    ) -> None:
        """What no other shape of these locks has. Red: panels of a pair of Q4 in one place, rows of another group."""
        f, o = wide(name, cols), operands(rows, N, 32 * KB, 1)

        assert_same_bits(run(device, f, o, **layout), f.expected(o), f"{f} {layout}")

    @pytest.mark.parametrize(("cols", "rows", "splits", "pitch"), [(16, 9, 1, 2**29 + 8), (8, 3, 8, 2**28 + 8)])
    def test_outputs_far_apart_are_reached(
        self, device: Device, cols: int, rows: int, splits: int, pitch: int
    ) -> None:
        """Rows and planes more than 2^31 elements apart. Red: a step of seven rows, or a plane, in 32 bits."""
        case = wide("projection_stream", cols).case(operands(rows, 37, 288, 1), splits=splits)

        assert_same_far_away(device, case, y_pitch=pitch)

    def test_two_panels_come_a_chunk_a_stage(self) -> None:
        """Longer stages are refused where a warp takes two panels, and only there. Red: chunks that no warp reads."""
        f = wide("projection_stream", 64)
        dims = {"rows": 64, "K": 512, "grid": 1, "warps": 4, "stages": 1, "span": 2}

        resolve(f.instance, {**dims, "N": 16 * 4})
        with pytest.raises(LanelockError, match="span = 2 where a warp takes two panels together"):
            resolve(f.instance, {**dims, "N": 16 * 5})

    @pytest.mark.parametrize(("cols", "warps", "held"), [(8, 19, 1), (8, 20, 8), (64, 11, 1), (64, 12, 8)])
    def test_the_most_warps_are_taken(self, device: Device, cols: int, warps: int, held: int) -> None:
        """As many warps as the kernel is compiled for give the contract, one feeding. Red: one fewer at most."""
        f, o = Form("projection_stream", {"WORDS": 1, "BITS": 8, "COLS": cols}), operands(3, 330, 288, 1)

        assert_same_bits(run(device, f, o, warps=warps, stages=1, grid=1, held=held), f.expected(o), str(f))


def ceil_to(a: int, step: int) -> int:
    """The least multiple of a step that is not below a."""
    return -(-a // step) * step


def work(f: Form, rows: int, N: int, K: int, warps: int = 4) -> dict[str, int]:
    """What a lowering must do: 4-element dots of threads or products of warps, 16-byte loads, bytes of copies."""
    words, blocks, t = f.words, K // 32, f.template
    if f.name == "gemv_rows":
        tall, seqs = ceil_to(N, 2), int(t["SEQS"])
        # two rows of weights share each load of activations
        return {"dp4a": tall * seqs * words * blocks * 8, "load16": tall * (2 + seqs * words) * blocks}
    if f.name.startswith("gemv"):
        tall, seqs = ceil_to(N, 16) if f.name == "gemv_staged" else ceil_to(N, 4), int(t["SEQS"])
        wide = ceil_to(rows, seqs)
        staged = tall // 16 * wide * words * 2 if f.name == "gemv_staged" else 0
        loads = tall * (wide // seqs + wide * words) * 2 + staged
        return {"dp4a": tall * wide * words * blocks * 8, "load16": loads * blocks}
    if f.name == "gemm_dp4a":
        tall, wide = ceil_to(N, 64), ceil_to(rows, 32)
        tiles = tall // 64 * (wide // 32)
        return {"dp4a": tall * wide * words * blocks * 8, "load16": tiles * (64 + 32 * words) * 2 * blocks}
    if f.name == "gemm_mma":
        return {"mma_s8": ceil_to(N, 16) * ceil_to(rows, 16) * words * blocks // 128, "dp4a": 0}
    if "stream" in f.name:
        # every block (one a panel and a group of rows here) stages its activations once, and each chunk comes once
        tall, cols = ceil_to(N, 16), int(t["COLS"])
        groups, bits = ceil_to(rows, cols) // cols, 4 if f.is_q4 else 8
        staged = rows * K * words + groups * ceil_to(min(rows, cols), 16) * 4 * blocks
        return {
            "mma_s8": tall * groups * max(8, cols) * words * blocks // 128,
            "dp4a": 0,
            "bulk_bytes": tall // 16 * (groups * panel_bytes(bits) * blocks // 4 + staged),
            "cp_async_bytes": 0,
        }
    tall = ceil_to(N, 16 * warps if "tc" in f.name else 64 * int(t["PANELS"]))
    wide = ceil_to(rows, int(t["COLS"]) if "tc" in f.name else 128)
    copied = wide * K * words * (tall // (16 * warps) if "tc" in f.name else tall // (64 * int(t["PANELS"])))
    bits = 4 if f.is_q4 else 8
    weights = tall // 16 * (panel_bytes(bits) * blocks // 4 if f.is_tiled else K * bits * 2)
    scales = wide * blocks * 4 * (copied // (wide * K * words)) + (0 if f.is_tiled else tall * blocks * 2)
    row_tiles = 1 if "tc" in f.name else wide // 128
    return {
        "mma_s8": tall * wide * words * blocks // 128,
        "dp4a": 0,
        "cp_async_bytes": copied + scales + weights * row_tiles,
    }


def work_of_warpgroups(f: Form, rows: int, N: int, K: int) -> dict[str, int]:
    """Products of 64 weight rows by 64 activation rows; a tile is 128 by 128, and copies all that it reads."""
    tall, wide, blocks = ceil_to(N, 128), ceil_to(rows, 128), K // 32
    return {
        "wgmma": tall * wide * f.words * blocks // (64 * 64),
        "mma_s8": 0,
        "dp4a": 0,
        "bulk_bytes": tall // 16 * panel_bytes(4 if f.is_q4 else 8) * blocks // 4 * (wide // 128),
        "cp_async_bytes": tall // 128 * wide * (K * f.words + 4 * blocks),
    }


class TestWork:
    """The work of a launch is what its formula says: no output is computed twice (counted on the host device)."""

    @pytest.mark.parametrize("f", [pytest.param(form(n, w), id=f"{n}-{w}") for n in LOWERINGS for w in (1, 2)]
                             + [pytest.param(form(n), id=n) for n in Q4_LOWERINGS]
                             + [pytest.param(wide("projection_stream_q4", 8), id="q4-8")])  # fmt: skip  # lists
    def test_counts_are_the_formula(self, device: Device, f: Form) -> None:
        """Dots, products, loads and copied bytes equal the formula, and outputs are stored once each.

        Red: more threads than outputs, wrapping (fault 13); the same number stored by two threads.
        """
        counts_or_skip(device)
        # a part of a tile, and tiles that are full: a tile more would store nothing and still be work
        formula = work_of_warpgroups if "wg" in f.name else work
        for rows, N in ((1 if f.name == "gemv_rows" else 5, 70), (width(f), 128)):
            counted = watched(device, f.case(operands(rows, N, 1024, f.words)))
            expected = {**formula(f, rows, N, 1024), "store_bytes": rows * N * 4, "stored_again": 0}

            assert {k: counted[k] for k in expected} == expected, f"{f} {rows} rows, {N} outputs"

    @pytest.mark.parametrize(("cols", "words"), [(64, 1), (32, 2)])
    def test_a_shared_panel_is_computed_once(self, device: Device, cols: int, words: int) -> None:
        """Two blocks have 8 panels each, in pairs, and half of one. Red: the same columns by both of its warps."""
        counts_or_skip(device)
        rows, N, KB = cols - 3, 16 * 17 - 5, 40
        f = Form("projection_stream", {"WORDS": words, "BITS": 8, "COLS": cols})
        counted = watched(device, f.case(operands(rows, N, 32 * KB, words), grid=2, warps=6, stages=1, held=1))
        padded = 8 * PANEL_BLOCKS * chunks_of_slice(KB)  # blocks of K as they are stored

        assert (counted["store_bytes"], counted["stored_again"]) == (rows * N * 4, 0)
        assert counted["mma_s8"] == ceil_to(N, 16) * cols * words * padded // 128

    @pytest.mark.parametrize("span", [2, 5])
    @pytest.mark.parametrize("name", STREAMS)
    def test_products_do_not_depend_on_the_stage(self, device: Device, name: str, span: int) -> None:
        """Stages of some chunks of a slice, or of all 6: as many products. Red: a chunk multiplied that nobody adds."""
        counts_or_skip(device)
        f = form(name)
        counted = watched(device, f.case(operands(1, 48, 8 * 6 * 128, f.words), span=span, stages=2))

        assert counted["mma_s8"] == work(f, 1, 48, 8 * 6 * 128)["mma_s8"], f"{f} {span} chunks a stage"

    @pytest.mark.parametrize("name", able(splits=8))
    def test_planes_are_stored_once(self, device: Device, name: str) -> None:
        """A split stores 8 planes, each element once, whatever the split. Red: a slice stored by two blocks."""
        counts_or_skip(device)
        f = form(name)
        for splits in (2, 5, 8):
            counted = watched(device, f.case(operands(3, 70, 288, f.words), splits=splits))

            assert (counted["store_bytes"], counted["stored_again"]) == (8 * 3 * 70 * 4, 0), f"{f} {splits}"


#: Families of instructions that a kernel must hold, and those of its neighbours that it must not.
_TILE = ({"mma", "cp.async", "cp.async.wait", "ldmatrix", "barrier"}, {"dp4a", "shuffle", "wgmma", "bulk"})
_WARPGROUP = ({"wgmma", "bulk", "mbarrier", "cp.async", "cp.async.wait", "barrier"}, {"mma", "dp4a", "ldmatrix"})
_STREAM = ({"mma", "bulk", "mbarrier", "ldmatrix"}, {"dp4a", "wgmma", "cp.async", "cp.async.wait"})
HOLDS = {
    "gemv_register": ({"dp4a", "shuffle"}, {"mma", "cp.async", "barrier"}),
    "gemv_staged": ({"dp4a", "shuffle", "barrier"}, {"mma", "cp.async"}),
    "gemv_rows": ({"dp4a", "barrier"}, {"mma", "cp.async", "shuffle"}),
    "gemm_dp4a": ({"dp4a", "barrier"}, {"mma", "cp.async"}),
    "gemm_mma": ({"mma"}, {"dp4a", "cp.async", "barrier"}),
    **dict.fromkeys((n for n in FAMILY if n.startswith(("gemm_tc", "gemm_rows"))), _TILE),
    **dict.fromkeys((n for n in FAMILY if n.startswith("gemm_wg")), _WARPGROUP),
    **dict.fromkeys((n for n in FAMILY if n.startswith("projection_stream")), _STREAM),
}


class TestInstructions:
    """A lowering is made of the instructions it is named for."""

    @pytest.mark.parametrize("name", FAMILY)
    def test_holds_its_own_and_not_its_neighbours(self, name: str) -> None:
        """The PTX holds each family that the lowering is for and none of another. Red: a lowering that is a copy."""
        f = form(name)
        program = compile_instances((f.instance,), "sm_90a")
        found = census(program.ptx, program.lowered(f.instance.expression))
        own, other = HOLDS[name]

        assert {k for k in own | other if found.count(k)} == own


class TestQ4:
    """Four-bit weights are the same product of other codes."""

    @pytest.mark.parametrize("name", Q4_LOWERINGS)
    def test_codes_that_fit_equal_the_int8_lane(self, device: Device, name: str) -> None:
        """Weights whose codes all lie in -8..7 give exactly the A8 bits. Red: a nibble that borrows."""
        o = operands(3, 40, 1056, 1)
        small = Operands(o.codes, o.scales, (o.w % 16 - 8).astype(np.int8), o.ws)

        expected = contract.projection(small.w, small.ws, small.codes, small.scales)
        assert_same_bits(run(device, form(name), small), expected, name)

    @pytest.mark.parametrize("name", Q4_LOWERINGS)
    def test_every_code_is_returned_by_a_one(self, device: Device, name: str) -> None:
        """One-hot activations return each of the 16 codes at each place of a word. Red: elements out of order."""
        K, N = 64, 32
        codes = np.zeros((K, 1, K), np.int8)
        codes[np.arange(K), 0, np.arange(K)] = 1
        w = ((np.arange(N)[:, None] + np.arange(K)[None]) % 16 - 8).astype(np.int8)
        hot = Operands(codes, np.ones((K, 2), np.float32), w, np.ones((N, 2), np.float16))

        assert_same_bits(run(device, form(name), hot), w.T.astype(np.float32), name)
