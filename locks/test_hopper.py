"""Locks of Hopper's own instructions: where a product of a warpgroup finds its operand, and what it must wait for."""

import numpy as np
import pytest

from harness.device import Device, DeviceError, Divergence, OutOfBounds, Race
from harness.host import HostDevice
from harness.ptx import census, entries, functions
from harness.ptx_ways import FOR_THE_WARP, SET_UP, Order, breaches
from harness.run import run_kernel
from kernels.catalogue import ROOMS
from kernels.entry import instance
from locks.hopper_probes import ADDS, ARRIVAL_FAULTS, COPY_FAULTS, FAULTS, arrivals, copied, products
from locks.host_faults import once
from locks.support import assert_same_bits, rng
from locks.test_compile import compiled, instances
from oracle.errors import LanelockError

#: Bytes of the image of shared memory that holds the operand.
BYTES = 32768
ROWS, K = 128, 32

#: Layout -> swizzle, start, leading and stride offset: core matrices of 8 rows x 16 bytes side by side along K, one
#: group of rows after another, with gaps; and rows of 128, 64 and 32 bytes, from any block of 32 of a row on.
LAYOUTS: dict[str, tuple[int, int, int, int]] = {
    "core matrices along K": (0, 0, 128, 256),
    "core matrices along rows": (0, 4096, 2048, 128),
    "core matrices with gaps": (0, 16, 1024 + 128, 2048 - 128),
    **{f"rows of 128, block {b}": (1, 1024 + 32 * b, 16, 1024) for b in range(4)},
    "rows of 128, groups apart": (1, 0, 16, 2048),
    **{f"rows of 64, block {b}": (2, 32 * b, 16, 512) for b in range(2)},
    "rows of 32": (3, 512, 16, 256),
}


def dims(layout: str, chunks: int = 1) -> dict[str, int]:
    """The launch of a layout."""
    swizzle, start, leading, stride = LAYOUTS[layout]
    given = {"swizzle": swizzle, "start": start, "leading": leading, "stride": stride}
    return {"chunks": chunks, "bytes": BYTES, **given}


def units(swizzle: int, start: int, leading: int, stride: int) -> np.ndarray:
    """Offset of the two 16-byte units of each row [128, 2]: the PTX ISA's figures of K-major layouts, by tables."""
    row, unit = np.arange(ROWS)[:, None], np.arange(2)[None]
    if swizzle == 0:
        return start + row // 8 * stride + unit * leading + row % 8 * 16
    width = {1: 128, 2: 64, 3: 32}[swizzle]
    inside = start % width // 16 + unit
    exchanged = {1: row % 8, 2: row % 8 // 2, 3: row % 8 // 4}[swizzle]
    return start // width * width + row // 8 * stride + row % 8 * width + (inside ^ exchanged) * 16


def operands(chunks: int = 1) -> dict[str, np.ndarray]:
    """Random registers of A and images of shared memory."""
    g = rng(chunks)
    return {
        "codes": g.integers(0, 2**32, (chunks, 128, 4), dtype=np.uint32),
        "images": g.integers(0, 256, (chunks, BYTES), dtype=np.uint8),
    }


def a_of(codes: np.ndarray) -> np.ndarray:
    """A [64, 32] of registers [128, 4]: number i of thread (warp, g, t) is of row g + 8 (i % 2), word t + 4 (i / 2)."""
    words = codes.reshape(4, 8, 4, 2, 2)  # warp, g, t, high or low half of K, row half
    return words.transpose(0, 4, 1, 3, 2).reshape(64, 8).copy().view(np.int8).astype(np.int64)


def product(codes: np.ndarray, image: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A B of one chunk [64, 128], B read unit by unit."""
    b = image[at[..., None] + np.arange(16)].reshape(ROWS, K).view(np.int8).astype(np.int64)
    return (a_of(codes) @ b.T).astype(np.int32)


def expected(x: dict[str, np.ndarray], layout: str) -> np.ndarray:
    """What the chain of products gives."""
    at = units(*LAYOUTS[layout])
    return np.stack([product(c, i, at) for c, i in zip(x["codes"], x["images"], strict=True)])


def on_hopper(device: Device) -> None:
    """Skip by name where the device has no such instructions."""
    if device.properties.kind == "cuda" and device.properties.arch != "sm_90a":
        pytest.skip(f"not run: {device.properties.arch} has no products of a warpgroup")


@pytest.fixture(scope="module")
def host() -> HostDevice:
    """A host device with every fault built."""
    made = HostDevice()
    made.build_many([instance(products(f)) for f in FAULTS])
    return made


class TestDescriptor:
    """A descriptor says where the operand lies."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_layout_is_read_as_described(self, device: Device, layout: str) -> None:
        """Core matrices by their offsets, rows by their swizzle. Red: leading and stride exchanged, another swizzle."""
        on_hopper(device)
        x = operands()
        assert_same_bits(run_kernel(device, products(), dims(layout), x)["y"], expected(x, layout), layout)

    @pytest.mark.parametrize("block", range(4))
    def test_the_operand_of_kernels_is_rows_of_128_bytes(self, device: Device, block: int) -> None:
        """Every block of a chunk is found from its own start. Red: a stride of 8 rows of another length."""
        on_hopper(device)
        x, layout = operands(), f"rows of 128, block {block}"
        got = run_kernel(device, products(), dims(layout) | {"swizzle": 4}, x)["y"]

        assert_same_bits(got, expected(x, layout), layout)

    def test_a_product_adds_to_what_is_there(self, device: Device) -> None:
        """Two products add up onto their registers. Red: the sum begun anew."""
        on_hopper(device)
        x = {k: v[0] for k, v in operands().items()}
        x["images"] = x["images"][:16384]
        y = rng(3).integers(-(2**20), 2**20, (64, 128)).astype(np.int32)
        both = sum(product(x["codes"], x["images"], units(1, 32 * b, 16, 1024)) for b in range(2))

        assert_same_bits(run_kernel(device, ADDS, {}, {**x, "y": y})["y"], (y + both).astype(np.int32))

    @pytest.mark.parametrize(
        ("extra", "sentence"),
        [(1 << 49, "has a base offset"), (1 << 14, "bits that mean nothing"), (1 << 52, "bits that mean nothing")],
    )
    def test_what_is_not_modelled_is_refused(self, host: HostDevice, extra: int, sentence: str) -> None:
        """Bits that the host device gives no meaning are an error, not ignored. Red: a field cut to its width."""
        with pytest.raises(DeviceError, match=sentence):
            once(host, products(), dims("rows of 32") | {"extra": extra}, operands())

    @pytest.mark.parametrize("align", ["end", "start"])
    def test_an_operand_past_shared_memory_is_out_of_bounds(self, host: HostDevice, align: str) -> None:
        """The last row of an operand that does not fit is named. Red: rows read from wherever they would lie."""
        past = dims("rows of 32") | {"start": BYTES - 15 * 256}
        with pytest.raises(OutOfBounds, match=r"reads row 120 of an operand at byte 32768"):
            once(host.with_options(align=align), products(), past, operands())


#: Fault -> what a checked run says of it.
SAYS: dict[str, tuple[type[LanelockError], str]] = {
    "no fence": (DeviceError, "without a wgmma_fence"),
    "one fence": (DeviceError, "without a wgmma_fence"),
    "no wait": (DeviceError, "the kernel ends with 1 products that warp 0 has not waited for"),
    "no commit": (DeviceError, "may stay in flight"),
    "short wait": (DeviceError, "may stay in flight"),
    "read before the wait": (Race, "'copies': 'late'"),
    "A changed before the wait": (Race, "'copies': 'late'"),
    "B changed before the wait": (Race, "'copies': 'late'"),
    "another operand in one warp": (Divergence, "gives product 0 another operand"),
    "three warps of four": (Divergence, "warp 3 issued 0 products and another warp of its group 3"),
}


class TestAsynchrony:
    """A product is as late as the program allows, and sees what the program has shown it."""

    @pytest.mark.parametrize("copies", ["eager", "late", 1, 2, 3])
    def test_a_right_chain_is_right_in_every_order(self, host: HostDevice, copies: str | int) -> None:
        """Products made at once, when waited for or in between give the same. Red: a product of the chunk before."""
        x = operands(3)
        got = once(host.with_options(copies=copies), products(), dims("core matrices along K", 3), x)["y"]

        assert_same_bits(got, expected(x, "core matrices along K"))

    @pytest.mark.parametrize("fault", SAYS)
    def test_a_wrong_chain_is_named(self, host: HostDevice, fault: str) -> None:
        """A fence, a commit or a wait that is missing fails a checked run. Red: products made at issue only."""
        error, sentence = SAYS[fault]
        chunks = 1 if fault == "no wait" else 3
        with pytest.raises(error, match=sentence):
            run_kernel(host, products(fault), dims("core matrices along K", chunks), operands(chunks))

    def test_registers_of_a_product_in_flight_are_poison(self, host: HostDevice) -> None:
        """What is read before the wait is poison in every register. Red: the values that were there before."""
        x = operands(2)
        got = once(host.with_options(copies="late"), products("read before the wait"), dims("rows of 32", 2), x)["y"]

        assert (got == -1).all()

    @pytest.mark.parametrize("copies", ["eager", "late", 1])
    def test_stores_that_no_proxy_fence_shows_are_not_seen(self, host: HostDevice, copies: str | int) -> None:
        """Without fence_proxy a product reads poison, whatever was stored. Red: one view of memory for all."""
        x = operands()
        got = once(host.with_options(copies=copies), products("no proxy fence"), dims("rows of 32"), x)["y"]

        minus_one = -a_of(x["codes"][0]).sum(axis=1, dtype=np.int32)
        assert_same_bits(got, np.repeat(minus_one[None, :, None], ROWS, axis=2))

    def test_every_fault_is_held(self) -> None:
        """Each way to be wrong has its lock. Red: a fault added to the probe alone."""
        assert {*SAYS, "no proxy fence", "right"} == set(FAULTS)


class TestArrivals:
    """A barrier can count a thread when its copies are there."""

    @pytest.mark.parametrize("copies", ["eager", "late", 1, 2, 3])
    def test_whoever_waits_finds_the_copies(self, host: HostDevice, copies: str | int) -> None:
        """Rows in either stage, twice around, come as they are. Red: an arrival that leaves its copies behind."""
        x = {"x": rng(4).integers(0, 2**31, (5, 32, 4), dtype=np.int32)}

        assert_same_bits(once(host.with_options(copies=copies), arrivals(), {"chunks": 5}, x)["y"], x["x"])

    def test_a_right_kernel_passes_every_schedule(self, host: HostDevice) -> None:
        """Readers that come first find what comes after them. Red: a wait that nobody wakes."""
        x = {"x": rng(6).integers(0, 2**31, (3, 32, 4), dtype=np.int32)}

        assert_same_bits(run_kernel(host, arrivals(), {"chunks": 3}, x)["y"], x["x"])

    @pytest.mark.parametrize(
        ("fault", "error", "sentence"),
        [
            ("at once", Race, "'copies': 'late'"),
            ("nobody waits", DeviceError, "ends with 64 arrivals of copies that nobody waited for"),
            ("one lane short", DeviceError, "ends with 2 arrivals of copies that nobody waited for"),
            ("copy behind", Race, "'copies': 'late'"),
        ],
    )
    def test_a_wrong_count_is_named(
        self, host: HostDevice, fault: str, error: type[LanelockError], sentence: str
    ) -> None:
        """An arrival before its copies, a wait or a count too few fail a checked run. Red: copies done at issue."""
        x = {"x": rng(5).integers(0, 2**31, (2, 32, 4), dtype=np.int32)}
        with pytest.raises(error, match=sentence):
            run_kernel(host, arrivals(fault), {"chunks": 2}, x)

    def test_every_fault_is_held(self) -> None:
        """Each way to be wrong has its lock. Red: a fault added to the probe alone."""
        assert ARRIVAL_FAULTS == ("right", "at once", "nobody waits", "one lane short", "copy behind")


class TestCopies:
    """A bulk copy and the stores of threads reach shared memory by two ways."""

    @pytest.mark.parametrize("copies", ["eager", "late", 1])
    def test_a_copy_over_stores_that_a_fence_has_shown_is_right(self, host: HostDevice, copies: str | int) -> None:
        """What was stored is gone, and each thread has admitted the next launch. Red: any store refused."""
        x = {"x": rng(7).integers(0, 2**31, (32, 4), dtype=np.int32)}
        device = host.with_options(copies=copies)

        assert_same_bits(once(device, copied(), {}, x)["y"], x["x"])
        assert (device.counters["admitted"], device.counters["streamed_late"]) == (32, 0)

    @pytest.mark.parametrize("copies", ["eager", "late", 1])
    @pytest.mark.parametrize(
        ("fault", "sentence"),
        [("not shown", "over what a thread stored, without a fence"), ("set up twice", "a barrier is set up twice")],
    )
    def test_a_fault_is_named(self, host: HostDevice, fault: str, sentence: str, copies: str | int) -> None:
        """A store that may come after the copy, and a barrier that one thread resets under another, are errors.

        Red: one view of memory for all; a count that begins anew.
        """
        x = {"x": np.zeros((32, 4), np.int32)}
        with pytest.raises(DeviceError, match=sentence):
            once(host.with_options(copies=copies), copied(fault), {}, x)

    def test_a_request_behind_an_admission_is_counted(self, host: HostDevice) -> None:
        """One copy asked for by a thread that had admitted the next launch. Red: admissions that nobody remembers."""
        once(host, copied("admitted early"), {}, {"x": np.zeros((32, 4), np.int32)})

        assert (host.counters["admitted"], host.counters["streamed_late"]) == (32, 1)

    def test_every_fault_is_held(self) -> None:
        """Each way to be wrong has its lock. Red: a fault added to the probe alone."""
        assert COPY_FAULTS == ("right", "not shown", "set up twice", "admitted early")


ARCH = "sm_90a"
ORDERS = {"one lane for its warp": FOR_THE_WARP, "barriers set up": SET_UP}
SKETCH = """
 @%p1 bra $L1;
 mbarrier.init.shared::cta.b64 [%r1], 1;
 fence.mbarrier_init.release.cluster;
 $L1:
 bar.sync 0;
 $L2:
 {
 again:
 mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], %r2;
 @done bra.uni over;
 bra.uni again;
 over:
 }
 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];
 st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
 bar.warp.sync -1;
 @%p2 bra $L3;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r8;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], %r8, [%r1];
 $L3:
 @%p3 bra $L2;
 ret;
"""


class TestOrder:
    """Machine code of kernels with barriers in shared memory, on every way that its jumps allow."""

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("room", [r for r in ROOMS if instances(r, ARCH)])
    def test_no_way_breaks_an_order(self, room: str, order: str) -> None:
        """Who arrives or copies for a warp has met it; who waits has met whoever set up, and that was shown.

        Red: a stage filled again while another lane reads it, right most of the time; a barrier in use too early.
        """
        broken = {}
        for inst in instances(room, ARCH):
            program = compiled(room, ARCH)
            name = program.lowered(inst.expression)
            if census(program.ptx, name).count("mbarrier"):
                assert not functions(program.ptx), "a call, which is not followed"
                broken[inst.expression] = breaches(entries(program.ptx)[name], ORDERS[order])

        assert not any(broken.values()), broken

    @pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
    def test_a_right_kernel_passes(self, order: Order) -> None:
        """A ring of one stage, set up by one thread. Red: an order that nothing keeps."""
        assert breaches(SKETCH, order) == ()

    @pytest.mark.parametrize(
        ("left_out", "order", "opcode"),
        [
            ("bar.warp.sync -1;", "one lane for its warp", "mbarrier.arrive"),
            ("fence.mbarrier_init.release.cluster;", "barriers set up", "mbarrier.try_wait"),
            ("bar.sync 0;", "barriers set up", "mbarrier.try_wait"),
        ],
    )
    @pytest.mark.parametrize("instead", ["", "@%p9 {}", "@%p9 bra $L9;\n {}\n $L9:"])
    def test_what_some_threads_pass_by_is_missing(self, left_out: str, order: str, opcode: str, instead: str) -> None:
        """Left out, under a predicate, or jumped over. Red: the order of the text taken."""
        found = breaches(SKETCH.replace(left_out, instead.format(left_out)), ORDERS[order])

        assert any(opcode in line for line in found), found

    def test_a_way_back_is_followed(self) -> None:
        """A load behind the copy meets the next round's. Red: each loop read once, or a jump to an earlier label."""
        sketch = SKETCH.replace(" bar.warp.sync -1;\n", "").replace(" $L2:", " bar.sync 0;\n $L2:")
        behind = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];"
        sketch = sketch.replace(f" {behind}\n st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};\n", "")

        assert breaches(sketch, FOR_THE_WARP) == ()
        assert breaches(sketch.replace(" $L3:", f" $L3:\n {behind}"), FOR_THE_WARP) != ()
