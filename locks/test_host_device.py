"""The host device is stricter than a GPU: what a GPU may get away with is an error here, and names its cause."""

import ctypes
import mmap
import multiprocessing
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from harness.device import BuildError, DeviceError, Divergence, OutOfBounds
from harness.host import HostDevice
from harness.host.thunks import argument_type
from kernels.entry import Buffer, Geometry, Scalar
from locks.host_probes import ARGS, SOURCES, X, Y, floats, ints, probe, probe_device, run

# template values of the probes
STAYING, RETURNING, WITH_BARRIER = (16, False), (True,), (True,)


@pytest.fixture(scope="module")
def host() -> HostDevice:
    """One device for the module; other options share its builds."""
    return probe_device()


class TestBuffers:
    """Global memory lies between guards."""

    @pytest.mark.parametrize(("align", "at", "side"), [("end", 5, "past the end"), ("start", -1, "before the start")])
    def test_read_of_one_element_outside_is_named(self, host: HostDevice, align: str, at: int, side: str) -> None:
        """Reading one element past (before) a buffer is an error with kernel, buffer, byte offset, thread and block.

        Red: guard pages left out, or a buffer not laid against the guard.
        """
        device = host.with_options(align=align)
        x, y = floats(device, "weights", 5), floats(device, "out", 1)
        with pytest.raises(OutOfBounds) as caught:
            run(device, probe("copy_element"), x, y, at)
        message = str(caught.value)
        expected = f"read {side} of buffer weights (20 bytes) at byte offset {4 * at}, by thread (3, 0, 0)"
        assert message.startswith(f"copy_element on the host device: {expected}")

    @pytest.mark.parametrize(("align", "at"), [("end", 5), ("start", -1)])
    def test_write_of_one_element_outside_is_named(self, host: HostDevice, align: str, at: int) -> None:
        """Writing one element outside is an error and is told from reading. Red: the access kind not read."""
        device = host.with_options(align=align)
        with pytest.raises(OutOfBounds, match=rf"write .* of buffer out \(20 bytes\) at byte offset {4 * at},"):
            run(device, probe("write_element"), floats(device, "out", 5), at)

    @pytest.mark.parametrize(("align", "at"), [("end", -1), ("start", 5)])
    def test_write_on_the_open_side_is_found_by_its_canary(self, host: HostDevice, align: str, at: int) -> None:
        """A write between the buffer and the edge of its pages is found when the buffer is checked.

        Red: the canary not compared.
        """
        device = host.with_options(align=align)
        y = floats(device, "out", 5)
        run(device, probe("write_element"), y, at)
        with pytest.raises(OutOfBounds, match=rf"write .* of buffer out \(20 bytes\) at byte offset {4 * at}$"):
            device.check(y)

    def test_far_access_still_hits_the_guard(self, host: HostDevice) -> None:
        """A row a megabyte past the end is inside the guard. Red: a guard of one page."""
        y = floats(host, "out", 5)
        with pytest.raises(OutOfBounds, match="past the end of buffer out"):
            run(host, probe("write_element"), y, 1 << 18)

    def test_new_memory_is_poison(self, host: HostDevice) -> None:
        """Memory that nobody wrote reads as 0xFF. Red: zeroed memory."""
        assert (host.read(host.alloc("fresh", 100)) == 0xFF).all()

    def test_copy_outside_is_refused(self, host: HostDevice) -> None:
        """The host's own copies stay inside the buffer."""
        with pytest.raises(DeviceError, match="do not lie in buffer out"):
            host.write(floats(host, "out", 2), np.zeros(3, np.float32))

    def test_freed_memory_is_refused(self, host: HostDevice) -> None:
        """A launch with memory that was freed is refused before it starts."""
        x, y = floats(host, "gone", 2), floats(host, "out", 2)
        host.free(x)
        with pytest.raises(DeviceError, match="gone, which was freed"):
            run(host, probe("copy_element"), x, y, 0)


class TestShared:
    """Shared memory: every array on its own, poisoned before each block."""

    @pytest.mark.parametrize(("align", "at", "side"), [("end", 8, "past"), ("start", -1, "before")])
    @pytest.mark.parametrize("kind", ["read", "write"])
    def test_access_outside_an_array_is_named(
        self, host: HostDevice, align: str, at: int, side: str, kind: str
    ) -> None:
        """Reading or writing one element outside a shared array names array, declaration and offset.

        Red: shared arrays laid out side by side, where the neighbour hides the fault.
        """
        device = host.with_options(align=align)
        places = {"read": (at, 0), "write": (0, at)}[kind]
        sentence = rf"{kind} {side} shared array tile \(32 bytes, probes.cu:\d+\) at byte offset {4 * at},"
        with pytest.raises(OutOfBounds, match=sentence):
            run(device, probe("shared_element"), floats(device, "out", 1), *places)

    @pytest.mark.parametrize(("align", "at"), [("end", -1), ("start", 8)])
    def test_write_on_the_open_side_is_found_by_its_canary(self, host: HostDevice, align: str, at: int) -> None:
        """The block's end finds a changed canary. Red: canaries of shared arrays not checked."""
        device = host.with_options(align=align)
        sentence = rf"shared array tile \(32 bytes\) at byte offset {4 * at}, in block \(0, 0, 0\)"
        with pytest.raises(OutOfBounds, match=sentence):
            run(device, probe("shared_element"), floats(device, "out", 1), 0, at)

    def test_unwritten_memory_is_poison_in_every_block(self, host: HostDevice) -> None:
        """Static and dynamic shared memory read as 0xFF where nothing was written. Red: memory kept from a launch."""
        y = floats(host, "out", 32)
        run(host, probe("unwritten_shared"), y, blocks=2, smem=128)
        assert (host.read(y) == 0xFF).all()

    def test_dynamic_memory_ends_where_the_launch_says(self, host: HostDevice) -> None:
        """Reading past the dynamic bytes of the launch is an error. Red: the whole mapping left accessible."""
        with pytest.raises(OutOfBounds, match=r"read past shared array dynamic shared memory \(112 bytes"):
            run(host, probe("unwritten_shared"), floats(host, "out", 32), smem=112)


class TestBarriers:
    """A barrier is for every thread of the block."""

    def test_threads_that_wait_elsewhere_are_named(self, host: HostDevice) -> None:
        """A barrier that half a warp reaches while the rest waits in a shuffle says who waits where.

        Red: a barrier that counts warps instead of threads.
        """
        with pytest.raises(Divergence, match=r"__shfl_sync \(probes.cu:\d+\).*16 threads.*wait at __syncthreads"):
            run(host, probe("partial_barrier", *STAYING), floats(host, "out", 2))

    @pytest.mark.parametrize("reach", [16, 32])
    def test_exited_threads_do_not_count(self, host: HostDevice, reach: int) -> None:
        """A barrier is never reached for a thread that has returned, be it of the same warp or another."""
        with pytest.raises(Divergence, match=rf"{reach} threads .* wait at __syncthreads .*, have exited"):
            run(host, probe("partial_barrier", reach, *RETURNING), floats(host, "out", 2), threads=64)

    def test_two_places_are_two_barriers(self, host: HostDevice) -> None:
        """Threads of one block that meet at different __syncthreads are an error. Red: sites not compared."""
        with pytest.raises(Divergence, match="different barriers"):
            run(host, probe("two_barriers"), floats(host, "out", 2))


class TestCollectives:
    """A warp collective is for every lane of its mask."""

    @pytest.mark.parametrize(
        ("lanes", "mask", "source", "sentence"),
        [
            (16, -1, 0, "lanes 0xffff0000 of it have"),
            (32, 0xFFFF, 0, "which its mask 0x0000ffff does not name"),
            (16, 0xFFFF, 20, "reads lane 20, which is not in the mask"),
        ],
        ids=["inactive lane", "lane outside its mask", "source outside the mask"],
    )
    def test_wrong_mask_is_an_error(self, host: HostDevice, lanes: int, mask: int, source: int, sentence: str) -> None:
        """A shuffle needs every lane of its mask, the caller in it, and a source in it. Red: masks not checked."""
        with pytest.raises(Divergence, match=sentence):
            run(host, probe("shuffle"), floats(host, "out", 32), lanes, mask, source)

    def test_partial_warp_has_no_full_mask(self, host: HostDevice) -> None:
        """A full mask in a warp of 24 threads is an error."""
        with pytest.raises(Divergence, match="the warp has only the lanes 0x00ffffff"):
            run(host, probe("shuffle"), floats(host, "out", 32), 24, -1, 0, threads=24)

    def test_different_collectives_do_not_meet(self, host: HostDevice) -> None:
        """Half a warp in a shuffle and half in a vote is an error. Red: operation and place not compared."""
        with pytest.raises(Divergence, match="lanes of one warp meet in different collectives"):
            run(host, probe("mixed_collectives"), floats(host, "out", 2))

    @pytest.mark.parametrize("schedule", ["ascending", "descending", 1, 2, 3])
    def test_groups_of_lanes_exchange_apart(self, host: HostDevice, schedule: str | int) -> None:
        """Halves of a warp with their own masks, then the whole warp, give what CUDA defines under every schedule."""
        lane = np.arange(32)
        low = np.full(16, np.arange(16).sum())
        down = np.append(lane[17:], 31)
        up = np.where(lane[16:] % 8 >= 2, lane[16:] - 2, lane[16:])
        both = np.concatenate([low, down + up])
        y = floats(host, "out", 32)
        run(host.with_options(schedule=schedule), probe("halves"), y)
        assert (host.read(y).view(np.int32) == both + np.roll(both, 16) + 1000 * 11).all()


class TestSchedules:
    """Threads run in any order that CUDA allows."""

    def test_orders_are_what_they_say(self, host: HostDevice) -> None:
        """Ascending runs blocks, warps and lanes upwards, descending downwards, a seed in an order of its own."""
        seen = {}
        for schedule in ("ascending", "descending", 7, 8):
            ticket, order = ints(host, "ticket", np.zeros(1)), floats(host, "order", 256)
            run(host.with_options(schedule=schedule), probe("order"), ticket, order, threads=64, blocks=4)
            seen[schedule] = host.read(order).view(np.int32).tolist()
        up = list(range(256))
        orders = [seen[s] == up for s in seen] + [sorted(seen[7]) == up, seen[7] == seen[8]]
        assert (seen["descending"], orders) == (up[::-1], [True, False, False, False, True, False])

    @pytest.mark.parametrize("kernel", ["reverse", "reverse_warp"])
    def test_missing_barrier_shows_as_different_bits(self, host: HostDevice, kernel: str) -> None:
        """Without its barrier a kernel gives other bits under another schedule; with it, the same under all."""
        same = {}
        for barrier in (False, True):
            outputs = []
            for schedule in ("ascending", "descending", 7):
                x, y = ints(host, "x", np.arange(64)), floats(host, "out", 64)
                threads = 64 if kernel == "reverse" else 32
                run(host.with_options(schedule=schedule), probe(kernel, barrier), x, y, threads=threads)
                outputs.append(host.read(y).tobytes())
            same[barrier] = len(set(outputs)) == 1
        assert same == {False: False, True: True}


class TestCopies:
    """Asynchronous copies complete when a wait demands it, and no sooner than they like."""

    def result(self, device: HostDevice, *values: int) -> bool:
        """Whether the pipeline gives the right sums."""
        x = np.arange(6 * 32 * 4)
        memory, y = ints(device, "x", x), floats(device, "out", 32)
        run(device, probe("pipeline", *values), memory, y, 6)
        return bool((device.read(y).view(np.int32) == x.reshape(6, 32, 4)[:, :, 1].sum(axis=0)).all())

    @pytest.mark.parametrize("copies", ["eager", "late", 1, 2, 3])
    def test_right_pipeline_is_right_in_every_order(self, host: HostDevice, copies: str | int) -> None:
        """A ring that waits and is primed as it must be does not depend on when copies complete."""
        assert self.result(host.with_options(copies=copies), 3, 1, 0, 2)

    @pytest.mark.parametrize(
        "values", [(3, 2, 0, 2), (3, 1, 1, 2), (3, 1, 0, 1)], ids=["waits too little", "last wait", "primed with one"]
    )
    def test_wrong_pipeline_is_wrong_when_copies_are_late(self, host: HostDevice, values: tuple[int, ...]) -> None:
        """Each wrong depth reads poison every time. Red: copies done at issue, or completed before the wait."""
        assert not self.result(host.with_options(copies="late"), *values)


@contextmanager
def flushing() -> Iterator[None]:
    """Let this thread flush denormals to zero, as some numeric libraries leave it."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(b"\x0f\xae\x17\xc3")  # ldmxcsr (%rdi); ret
        code = ctypes.c_char.from_buffer(page)
        set_control = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(code))
        control = np.array([0x9FC0, 0x1F80], np.uint32)
        set_control(control.ctypes.data)
        try:
            yield
        finally:
            set_control(control[1:].ctypes.data)
            del code


class TestLaunch:
    """A launch, whatever happens in it."""

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="not run: the control register is x86-64's")
    def test_denormals_survive_a_library_that_flushes(self, host: HostDevice) -> None:
        """A launch sets the floating-point control itself and gives the caller's back.

        Red: MXCSR left as another library in the process set it.
        """
        x, y = floats(host, "x", 2), floats(host, "out", 32)
        host.write(x, np.array([2.0**-100, 2.0**-40], np.float32))
        with flushing():
            run(host, probe("multiply"), x, y)
        assert host.read(y).view(np.float32)[0] == 2.0**-140

    def test_stack_overflow_is_an_error(self, host: HostDevice) -> None:
        """A thread that needs more than its stack is reported, not corrupted. Red: stacks without guard pages."""
        y = floats(host, "out", 32)
        run(host, probe("deep"), y, 4)
        with pytest.raises(OutOfBounds, match="the stack of 65536 bytes of a thread overflowed"):
            run(host, probe("deep"), y, 1000)

    def test_misaligned_vector_is_an_error(self, host: HostDevice) -> None:
        """A 16-byte load from an address that is no multiple of 16 is an error, as on a GPU."""
        with pytest.raises(DeviceError, match="load of 16 bytes of a misaligned address"):
            run(host, probe("load_vector"), host.alloc("x", 64), floats(host, "out", 32), 8)

    def test_device_is_usable_after_every_error(self, host: HostDevice) -> None:
        """After a fault and a deadlock the next launch is as good as new. Red: state of an abandoned block kept."""
        x, y = ints(host, "x", np.arange(64)), floats(host, "out", 64)
        with pytest.raises(Divergence):
            run(host, probe("mixed_collectives"), y)
        with pytest.raises(OutOfBounds):
            run(host, probe("write_element"), y, 64)
        run(host, probe("reverse", *WITH_BARRIER), x, y, threads=64)
        assert (host.read(y).view(np.int32) == np.arange(64)[::-1]).all()

    @pytest.mark.parametrize(
        ("geometry", "sentence"),
        [
            (Geometry((1, 1, 1), (2048, 1, 1)), "block of 2048 threads"),
            (Geometry((1, 1, 1), (0, 1, 1)), "block of 0 threads"),
            (Geometry((3, 1, 1), (32, 1, 1), 0, 2), "clusters of 2"),
            (Geometry((1, 1, 1), (32, 1, 1), 1 << 20), "dynamic shared memory"),
        ],
    )
    def test_impossible_geometry_is_refused(self, host: HostDevice, geometry: Geometry, sentence: str) -> None:
        """What no GPU can launch is refused before any thread runs."""
        with pytest.raises(DeviceError, match=sentence):
            host.launch(host.build(probe("write_element")), geometry, (floats(host, "out", 1), 0))

    @pytest.mark.parametrize(
        ("args", "sentence"),
        [((1,), "takes 2 arguments, got 1"), ((1, 0), "argument y must be memory"), ((None, 0), "argument y is null")],
    )
    def test_wrong_arguments_are_refused(self, host: HostDevice, args: tuple[int | None, ...], sentence: str) -> None:
        """A launch whose arguments do not fit the catalogue is refused, naming the argument."""
        with pytest.raises(DeviceError, match=sentence):
            run(host, probe("write_element"), *args)

    def test_error_says_how_to_run_it_again(self, host: HostDevice) -> None:
        """An error carries the options that reproduce it."""
        device = host.with_options(schedule=7, copies="late", align="start")
        with pytest.raises(OutOfBounds, match="--device host --schedule 7 --copies late --align start"):
            run(device, probe("write_element"), floats(device, "out", 1), -1)

    def test_graph_replays_values_of_the_capture(self, host: HostDevice) -> None:
        """Captured launches do not run, and replay with scalars and pointers as they were."""
        y = floats(host, "out", 4)
        host.fill(y, 0)
        with host.capture() as stream:
            host.launch(host.build(probe("write_element")), Geometry((1, 1, 1), (32, 1, 1)), (y, 2), stream)
        before = host.read(y).view(np.float32).tolist()
        assert stream.graph is not None
        stream.graph.replay()
        assert (before, host.read(y).view(np.float32).tolist()) == ([0, 0, 0, 0], [0, 0, 1, 0])

    def test_work_is_counted(self, host: HostDevice) -> None:
        """The counters of a launch are the kernel's work: a kernel that does some of it twice is seen."""
        run(host, probe("counted"), ints(host, "x", np.arange(4)), floats(host, "out", 128), threads=64, blocks=2)
        expected = {
            "blocks": 2, "threads": 128, "barriers": 4, "collectives": 12, "shuffles": 4 * (5 * 2 + 1), "dp4a": 384,
            "mma_s8": 4, "load16": 128, "cp_async": 128, "cp_async_bytes": 2048,
        }
        assert {name: count for name, count in host.counters.items() if count} == expected


def write_probe(folder: Path, body: str) -> None:
    """A source of probes whose `halves` has another body, on its second line."""
    (folder / "probes.cu").write_text(f'#include "device.cuh"\n__global__ void halves(int* y) {{ {body} }}\n')


class TestBuilds:
    """Kernels are compiled once, typed by the catalogue."""

    @pytest.mark.parametrize(
        "args",
        [(X, Scalar("at")), (Y, Scalar("at"), Scalar("more")), (Y,), (Y, Scalar("at", "long long"))],
        ids=["read-only pointer", "one more", "one less", "wider scalar"],
    )
    def test_argument_list_that_does_not_match_does_not_compile(self, host: HostDevice, args: tuple[Buffer | Scalar, ...]) -> None:
        """A catalogue entry whose list differs from the kernel's is a compile error. Red: an untyped launch."""
        with pytest.raises(BuildError, match=r"invalid conversion|cannot convert|cannot initialize"):
            host.build(probe("write_element", args=args))

    def test_first_error_names_file_and_line(self, tmp_path: Path) -> None:
        """A source that does not compile gives the compiler's first error with file and line."""
        write_probe(tmp_path, "y[0] = tanh;")
        with pytest.raises(BuildError, match=r"probes.cu:2: .*tanh"):
            HostDevice(source_root=tmp_path).build(probe("halves"))

    def test_assembly_is_refused(self, tmp_path: Path) -> None:
        """A kernel with assembly of its own is refused: the host models what the device header lists."""
        write_probe(tmp_path, 'asm("nop;");')
        with pytest.raises(BuildError, match=r"probes\.cu:2: the host device does not model inline assembly"):
            HostDevice(source_root=tmp_path).build(probe("halves"))

    def test_types_follow_the_catalogue(self) -> None:
        """Read-only buffers are pointers to const, scalars their own type."""
        inst = probe("copy_element")
        assert [argument_type(inst, a) for a in ARGS["copy_element"]] == ["const float*", "float*", "int"]

    def test_two_workers_compile_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two processes that want the same kernel at once start one compiler for it, and one for the runtime.

        Red: a cache entry made without a lock.
        """
        log, wrapper = tmp_path / "log", tmp_path / "counting-g++"
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("not run: no system compiler to count the starts of")
        counting = f'case "$*" in *-shared*) echo started >> {log};; esac'
        wrapper.write_text(f'#!/bin/sh\n{counting}\nexec {compiler} "$@" -O0\n')
        wrapper.chmod(0o755)
        write_probe(tmp_path, "y[0] = 1;")
        monkeypatch.setenv("LANELOCK_CACHE", str(tmp_path / "cache"))
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=build_halves, args=(str(wrapper), tmp_path)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert ([w.exitcode for w in workers], log.read_text().split()) == ([0, 0], ["started"] * 2)


def build_halves(compiler: str, sources: Path) -> None:
    """What each worker of the lock above does."""
    HostDevice(compiler=compiler, source_root=sources).build(probe("halves"))


class TestProcess:
    """The process that the host device lives in."""

    def test_other_fault_handlers_keep_working(self) -> None:
        """After an error the handlers of before are back: a real crash is still faulthandler's to report.

        Red: the runtime's handlers left in place, or the alternate stack lost.
        """
        code = (
            "import faulthandler, ctypes; faulthandler.enable()\n"
            "from locks.host_probes import probe_device, run, probe, floats\n"
            "d = probe_device(); y = floats(d, 'out', 1)\n"
            "try: run(d, probe('write_element'), y, 1)\n"
            "except Exception as error: print(error, flush=True)\n"
            "ctypes.string_at(0)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=SOURCES.parents[2]
        )
        seen = ("past the end of buffer out" in done.stdout, "Fatal Python error: Segmentation fault" in done.stderr)
        assert seen == (True, True)
