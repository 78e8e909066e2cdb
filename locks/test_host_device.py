"""The host device: what it refuses, what it sees, and that it lives on afterwards. CUDA's rules, run strictly.

Each probe of locks/kernels/host_*.cu does one thing; most of them do one thing wrong.
"""

import ctypes
import faulthandler
import itertools
import multiprocessing
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.device import BuildError, DeviceError, NotRun, OutOfBounds, Race
from harness.host import HostDevice, HostOptions
from harness.host.builds import Builder
from harness.host.compilers import Compiler, find, zig_command
from harness.host.library import RUNTIME, runtime
from harness.host.thunks import library_source
from harness.inputs import random_inputs
from harness.run import run_kernel, run_once
from harness.sources import KERNELS
from kernels.add import ADD
from kernels.catalogue import kernel as find_kernel
from kernels.entry import Buffer, Geometry, Instance, Kernel, Param, Scalar, instance
from locks import host_probes as probe
from locks.host_faults import ALIGNMENT, BOUNDS, BYTES, FAULTS, SPACES, THREADS, TRAPS, Arrays, Dims, Fault, once
from locks.support import assert_same_bits

NOT_RUN = "not run: "
POISON_WORD = 0xFFFFFFFF
T64 = {"threads": 64}
PAST = BOUNDS["read of f32 5"]


def _instances() -> list[Instance]:
    """Every probe with every choice of its template values: built together, a library a source."""
    kernels = [k for k in vars(probe).values() if isinstance(k, Kernel)] + list(probe.WRONG.values())
    return [Instance(k, values) for k in kernels for values in itertools.product(*(p.values for p in k.params))]


@pytest.fixture(scope="module")
def host() -> HostDevice:
    """A host device on which all probes are built."""
    try:
        device = HostDevice()
    except NotRun as absent:
        pytest.skip(NOT_RUN + str(absent))
    device.build_many(_instances())
    return device


def words(*shape: int) -> np.ndarray:
    """Words that are all different."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.uint32).reshape(shape)


def halves(rounds: int) -> np.ndarray:
    """What the probe of that name leaves."""
    v = lanes = np.arange(32)
    for i in range(rounds):
        moved = v[lanes // 16 * 16 + (lanes % 16 ^ 1 + i % 15)] + 1
        v = np.where(lanes < 16, moved, v) if i else moved
    v = 3 * v + v[lanes ^ 15]
    v = v + v[lanes ^ 5]
    v = v + v[lanes ^ 3]
    return (v + v[lanes ^ 16]).astype(np.int32)


def by_name(faults: Mapping[str, Fault]) -> pytest.MarkDecorator:
    """One lock a fault."""
    return pytest.mark.parametrize("name", list(faults))


class TestBounds:
    """A kernel that touches what is not its own is an error that names kernel, buffer and byte offset."""

    @by_name(BOUNDS)
    def test_an_access_outside_is_named(self, host: HostDevice, name: str) -> None:
        """One element past or before, or far away, read or written, by a thread or a copy: named with its offset.

        Red: guard pages or canaries left out, buffers or shared arrays side by side.
        """
        with pytest.raises(BOUNDS[name].error, match=BOUNDS[name].says):
            BOUNDS[name].run(host)

    @by_name(ALIGNMENT)
    def test_a_misaligned_access_is_named(self, host: HostDevice, name: str) -> None:
        """An access of 16 bytes at an address that is no multiple of 16 is an error, as on a GPU."""
        with pytest.raises(ALIGNMENT[name].error, match=ALIGNMENT[name].says):
            ALIGNMENT[name].run(host)

    @by_name(SPACES)
    def test_an_address_of_another_space_is_named(self, host: HostDevice, name: str) -> None:
        """An instruction for global memory takes no address in shared memory, nor the reverse; its own space passes.

        Red: a host body that follows any pointer, where a GPU stops with an illegal address.
        """
        fault = SPACES[name]
        with pytest.raises(fault.error, match=fault.says):
            fault.run(host)

        right = {**fault.template, "SHARED_ADDRESS": not fault.template["SHARED_ADDRESS"]}
        replace(fault, template=right).run(host)

    @by_name(TRAPS)
    def test_a_trap_is_an_error(self, host: HostDevice, name: str) -> None:
        """What would end the process of a host program, such as a division by zero, ends the launch alone."""
        with pytest.raises(TRAPS[name].error, match=TRAPS[name].says):
            TRAPS[name].run(host)

    def test_the_message_names_kernel_thread_and_options(self, host: HostDevice) -> None:
        """An error says which instantiation, which thread, and the options that choose the same run."""
        with pytest.raises(OutOfBounds) as caught:
            PAST.run(host.with_options(schedule=9, copies="late"))

        assert re.search(
            r"^read_at<float> on the host device: .* by thread \(0, 0, 0\) of block \(0, 0, 0\) "
            r"\[--device host --schedule 9 --copies late --align end\]$", str(caught.value)
        )  # fmt: skip

    def test_bytes_of_no_buffer_do_not_pass_for_data(self, host: HostDevice) -> None:
        """What an alignment leaves between a buffer and its guard page differs between variants of a checked run.

        Red: one canary for all, so that codes read beyond a buffer are equal in all variants.
        """
        y, _, at = probe.READ_AT.args
        wide = replace(probe.READ_AT, args=(y, Buffer("x", "T", ("N",), "r", align=16), at))
        with pytest.raises(Race, match=r"read_at<signed char> on host: y\[0\] .* or bytes that belong to no buffer"):
            run_kernel(host, wide, {"N": 5, "at": 6}, {"x": np.ones(5, np.int8)}, {"T": "i8"})

    def test_free_checks_the_canary(self, host: HostDevice) -> None:
        """Memory is given back with its guards checked, and is gone also when the check fails."""
        memory = host.with_options(align="start").alloc("slack", 5)
        ctypes.memset(memory.address + 6, 0, 1)

        with pytest.raises(OutOfBounds, match=r"write past the end of buffer slack \(5 bytes\) at byte offset 6"):
            host.free(memory)
        for use in (host.read, host.check, host.free):
            with pytest.raises(DeviceError, match="buffer slack was freed"):
                use(memory)

    @pytest.mark.parametrize("align", ["end", "start"])
    @pytest.mark.parametrize("nbytes", [0, 1, 16, 4095, 4096, 4097])
    def test_memory_lies_at_its_guard_page(self, host: HostDevice, align: str, nbytes: int) -> None:
        """A buffer ends (or begins) exactly at a page that nothing may touch, as closely as its alignment allows."""
        memory = host.with_options(align=align).alloc("edge", nbytes, 1)
        edge = memory.address + (nbytes if align == "end" else 0)
        host.free(memory)

        assert edge % 4096 == 0

    def test_neighbouring_buffers_are_told_apart(self, host: HostDevice) -> None:
        """An access between two buffers is named by the one that it left: guards are wide and do not touch."""
        first, second = host.alloc("first", 64), host.alloc("second", 64)
        gap = abs(first.address - second.address)
        host.free(first)
        host.free(second)

        assert gap >= 1 << 22


class TestShared:
    """Shared memory holds nothing that was not written in the same block."""

    def test_shared_memory_is_poisoned_before_each_block(self, host: HostDevice) -> None:
        """What a block finds is poison, also where the block before it wrote, in static and in dynamic memory."""
        found = once(host, probe.SHARED_FIRST, {"blocks": 3, "words": 32})

        assert (np.array([found["y"], found["z"]]) == POISON_WORD).all()

    def test_outputs_are_poisoned(self, host: HostDevice) -> None:
        """New memory is poison: NaN as a float, so that what a kernel leaves out cannot look right."""
        memory = host.alloc("new", 64)
        seen = host.read(memory).view(np.float32)
        host.free(memory)

        assert np.isnan(seen).all()

    def test_more_than_48_kb_of_declarations_are_refused(self, host: HostDevice) -> None:
        """Static shared memory beyond what a GPU gives without opting in is an error."""
        with pytest.raises(DeviceError, match="declares 49156 bytes of static shared memory"):
            once(host, probe.TOO_MUCH_SHARED)


    def test_static_and_dynamic_memory_share_what_a_gpu_has(self, host: HostDevice) -> None:
        """Declarations and the launch's bytes together are limited, not each alone."""
        most = (227 << 10) // 4
        with pytest.raises(DeviceError, match="128 bytes of static and 232448 of dynamic shared memory are more than"):
            once(host, probe.SHARED_FIRST, {"blocks": 1, "words": most})


class TestThreads:
    """Barriers and collectives that not all of their threads reach."""

    @by_name(THREADS)
    def test_who_waits_where_is_said(self, host: HostDevice, name: str) -> None:
        """A divergent barrier or collective is an error that says who waits where; it does not hang."""
        with pytest.raises(THREADS[name].error, match=THREADS[name].says):
            THREADS[name].run(host)

    @pytest.mark.parametrize("schedule", ["ascending", "descending", 3])
    def test_barriers_in_a_row_keep_their_generations(self, host: HostDevice, schedule: str | int) -> None:
        """Warps that run ahead to the next barrier do not pass for late ones at the last: words go round a block."""
        threads, rounds = 90, 9  # the last warp is not full
        dims = {"threads": threads, "rounds": rounds}
        y = once(host.with_options(schedule=schedule), probe.BARRIERS_IN_A_ROW, dims)["y"]

        assert_same_bits(y, (np.arange(threads, dtype=np.int32) + rounds) % threads + rounds * (rounds - 1) // 2)

    @pytest.mark.parametrize("schedule", ["ascending", "descending", 3])
    def test_named_barriers_hold_their_own_threads(self, host: HostDevice, schedule: str | int) -> None:
        """Even and odd warps, each with a barrier of their own, neither wait for each other nor free each other."""
        dims = {"id": 1, "wrong": 0, "threads": 128}
        y = once(host.with_options(schedule=schedule), probe.BARRIER_BY_NAME, dims)["y"]

        assert_same_bits(y, np.roll(np.arange(128, dtype=np.int32), -64))

    @pytest.mark.parametrize("schedule", ["ascending", "descending", 3])
    def test_parts_of_a_warp_meet_at_their_own_pace(self, host: HostDevice, schedule: str | int) -> None:
        """Shuffles under masks of halves and quarters do not mix, at whatever pace the parts go."""
        y = once(host.with_options(schedule=schedule), probe.HALVES, {"threads": 32, "rounds": 7})["y"]

        assert_same_bits(y, halves(7))


class TestRaces:
    """A missing barrier shows as different bits between schedules, and is named as one."""

    @pytest.mark.parametrize("kernel", [probe.REVERSE_BLOCK, probe.REVERSE_WARP], ids=lambda k: k.name)
    def test_a_missing_barrier_is_a_race(self, host: HostDevice, kernel: Kernel) -> None:
        """Reading what another thread wrote, with no barrier in between, raises Race."""
        dims = {"threads": 64 if kernel is probe.REVERSE_BLOCK else 32}
        x = np.arange(dims["threads"], dtype=np.int32)

        with pytest.raises(Race, match=rf"{kernel.symbol}<false> on host: y\[\d+\] is .* a missing barrier or a race"):
            run_kernel(host, kernel, dims, {"x": x}, {"SYNC": False})

    @pytest.mark.parametrize("kernel", [probe.REVERSE_BLOCK, probe.REVERSE_WARP], ids=lambda k: k.name)
    def test_the_barrier_in_its_place_is_right(self, host: HostDevice, kernel: Kernel) -> None:
        """With the barrier every schedule gives the right words."""
        dims = {"threads": 64 if kernel is probe.REVERSE_BLOCK else 32}
        x = np.arange(dims["threads"], dtype=np.int32)

        assert_same_bits(run_kernel(host, kernel, dims, {"x": x}, {"SYNC": True})["y"], x[::-1])

    def test_blocks_that_overwrite_each_other_are_a_race(self, host: HostDevice) -> None:
        """The order of blocks is a choice too: two blocks that write one word raise Race."""
        with pytest.raises(Race, match="last_block on host: y"):
            run_kernel(host, probe.LAST_BLOCK, {"blocks": 3}, {})

    def test_schedules_are_what_they_are_called(self, host: HostDevice) -> None:
        """Threads arrive in ascending or descending order, before and after a barrier."""
        forward, backward = (self._order(host, s) for s in ("ascending", "descending"))

        assert_same_bits(np.array([forward, backward[:, ::-1]]), np.tile(np.arange(192, dtype=np.int32), (2, 2, 1)))

    def test_a_seed_orders_blocks_warps_and_lanes(self, host: HostDevice) -> None:
        """A seeded order is neither of the two, repeats, differs from seed to seed and from barrier to barrier."""
        seeds = [self._order(host, seed) for seed in range(8)]
        blocks = {tuple(dict.fromkeys(first // 64)) for first, _ in seeds}
        warps = {tuple(dict.fromkeys(first // 32)) for first, _ in seeds}
        lanes = {tuple(half[half // 32 == 0]) for order in seeds for half in order}

        assert (seeds[1] == self._order(host, 1)).all()
        assert all(sorted(half) == list(range(192)) for order in seeds for half in order)
        assert (len(blocks) > 2, len(warps) > 4, len(lanes)) == (True, True, 16)

    @staticmethod
    def _order(host: HostDevice, schedule: str | int) -> np.ndarray:
        zeros = {"next": np.zeros(2, np.int32)}
        device = host.with_options(schedule=schedule)
        return once(device, probe.ORDER, {"blocks": 3, "threads": 64}, zeros)["y"].reshape(2, -1)

    def test_threads_and_blocks_know_their_place(self, host: HostDevice) -> None:
        """Indices in three dimensions follow x first, in grids and in blocks."""
        block, thread = np.meshgrid(np.arange(12), np.arange(24), indexing="ij")
        expected = np.stack([block, thread, np.full_like(block, 12)], axis=-1).astype(np.int32)

        assert_same_bits(run_kernel(host, probe.PLACE, {}, {})["y"], expected)


CHUNKS = {"x": words(6, 128)}
REVERSED = words(6, 32, 4)[:, ::-1].reshape(6, 128)
#: The chunks that each wrong pipeline of three stages reads before they are complete.
POISONED = {
    "the wait is one group too shallow": [0, 1, 2, 3, 4, 5],
    "no wait": [0, 1, 2, 3, 4, 5],
    "primed with one chunk only": [0, 1],
    "no commit": [0, 1, 2, 3, 4, 5],
    "the last chunks have no group of their own": [5],
}


class TestCopies:
    """Asynchronous copies complete as late as the program allows, so a wrong wait is wrong every time."""

    @pytest.mark.parametrize("copies", ["eager", "late", 1, 2, 3])
    def test_a_right_pipeline_is_right_in_every_order(self, host: HostDevice, copies: str | int) -> None:
        """Copies may complete at once, when waited for, or in between: the result is the same."""
        y = once(host.with_options(copies=copies), probe.RIGHT, {"chunks": 6}, CHUNKS)["y"]

        assert_same_bits(y, REVERSED)

    @pytest.mark.parametrize("fault", list(POISONED))
    @pytest.mark.parametrize("schedule", ["ascending", "descending", 5])
    def test_a_wrong_pipeline_is_wrong_every_time(self, host: HostDevice, fault: str, schedule: str | int) -> None:
        """Under `late` a wrong wait depth, priming or grouping reads poison, in the same chunks under every schedule.

        Red: copies done at issue, their target not poisoned, or completed before a wait demands it.
        """
        y = once(host.with_options(copies="late", schedule=schedule), probe.WRONG[fault], {"chunks": 6}, CHUNKS)["y"]

        assert [c for c in range(6) if (y[c] == POISON_WORD).all()] == POISONED[fault]

    @pytest.mark.parametrize("fault", [f for f in probe.WRONG if "primed" not in f])
    def test_an_eager_machine_hides_it(self, host: HostDevice, fault: str) -> None:
        """Copies that complete at once hide a wrong wait: that is why late ones are run."""
        y = once(host.with_options(copies="eager"), probe.WRONG[fault], {"chunks": 6}, CHUNKS)["y"]

        assert_same_bits(y, REVERSED)

    @pytest.mark.parametrize("fault", [f for f in probe.WRONG if "primed" not in f])
    def test_a_checked_run_names_it_a_race(self, host: HostDevice, fault: str) -> None:
        """A checked run compares orders of completion, so that a wrong wait raises Race."""
        with pytest.raises(Race, match="'copies': 'late'"):
            run_kernel(host, probe.WRONG[fault], {"chunks": 6}, CHUNKS)

    def test_a_seed_completes_some_copies_early(self, host: HostDevice) -> None:
        """Random completion lies between the two extremes: without a wait some words have come and some have not."""
        seen = [
            once(host.with_options(copies=seed), probe.WRONG["no commit"], {"chunks": 6}, CHUNKS)["y"] == POISON_WORD
            for seed in range(3)
        ]

        assert all(s.any() and not s.all() for s in seen)

    @pytest.mark.parametrize("copies", ["eager", "late", 1])
    @pytest.mark.parametrize("filled", [0, 1, 15, 16])
    def test_what_is_not_copied_is_zero(self, host: HostDevice, filled: int, copies: str | int) -> None:
        """A copy of fewer bytes fills the rest of its 16 with zeros, and reads nothing beyond them."""
        x = np.arange(1, 65, dtype=np.uint8)
        dims = {"to": 32, "from": 48, "filled": filled}
        y = once(host.with_options(copies=copies), probe.COPY, dims, {"x": x}, SHARED_TARGET=True)["y"]

        assert_same_bits(y.view(np.uint8), np.where(np.arange(16) < filled, x[48:], 0).astype(np.uint8))

    def test_a_failed_launch_leaves_no_copies_behind(self, host: HostDevice) -> None:
        """Copies pending when a launch fails are forgotten: a later launch does not complete them."""
        late = host.with_options(copies="late")
        with pytest.raises(OutOfBounds):
            once(late, probe.COPY, {"to": 64, "from": 0, "filled": 16}, {"x": BYTES}, SHARED_TARGET=True)

        nothing = {"to": 0, "from": 0, "filled": -1}

        assert (once(late, probe.COPY, nothing, {"x": BYTES}, SHARED_TARGET=True)["y"] == POISON_WORD).all()


_CONTROL = """
extern "C" unsigned get_control() { return __builtin_ia32_stmxcsr(); }
extern "C" void set_control(unsigned c) { __builtin_ia32_ldmxcsr(c); }
"""
FLUSHING = 0x9FC0  # denormals flushed on the way in and on the way out
x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason=f"{NOT_RUN}MXCSR is x86-64's")


@dataclass(frozen=True, slots=True)
class Control:
    """The floating-point control register of this thread."""

    get: Callable[[], int]
    set: Callable[[int], None]


@pytest.fixture(scope="module")
def control(host: HostDevice, tmp_path_factory: pytest.TempPathFactory) -> Control:
    """Reads and writes the register, as another library in the process might."""
    folder = tmp_path_factory.mktemp("control")
    (folder / "control.cpp").write_text(_CONTROL)
    host.compiler.compile([folder / "control.cpp"], folder / "control.so", ("-fPIC", "-O1"), "control")
    library = ctypes.CDLL(str(folder / "control.so"))
    return Control(library.get_control, library.set_control)


@pytest.fixture
def flushing(control: Control) -> Iterator[Control]:
    """The register as a library that wants speed leaves it."""
    before = control.get()
    control.set(FLUSHING)
    yield control
    control.set(before)


@x86
class TestFloatingPoint:
    """Kernels run with the contract's rounding whatever the process has set."""

    def test_flushing_by_another_library_does_not_reach_a_kernel(self, host: HostDevice, flushing: Control) -> None:
        """A subnormal is halved exactly although the process flushes them."""
        x = np.full(32, 2, np.uint32).view(np.float32)
        y = once(host, probe.HALF_OF, {"threads": 32}, {"x": x})["y"].view(np.uint32)
        flushing.set(0x1F80)

        assert_same_bits(y, np.ones(32, np.uint32))

    def test_the_callers_setting_is_put_back(self, host: HostDevice, flushing: Control) -> None:
        """After a launch, right or wrong, the register is what it was."""
        once(host, probe.HALF_OF, {"threads": 32}, {"x": np.ones(32, np.float32)})
        after_right = flushing.get()
        with pytest.raises(OutOfBounds):
            PAST.run(host)
        after_wrong = flushing.get()

        assert (after_right & 0xFFC0, after_wrong & 0xFFC0) == (0x9FC0, 0x9FC0)

    def test_a_kernel_that_changes_it_is_an_error(self, host: HostDevice) -> None:
        """A kernel has no business with the rounding mode."""
        with pytest.raises(DeviceError, match="the kernel changed the floating-point control register"):
            once(host, probe.CHANGES_ROUNDING, {"threads": 32})


class TestAfterAnError:
    """An error ends the launch, not the process and not the device."""

    @by_name(FAULTS)
    def test_the_next_launch_is_right(self, host: HostDevice, name: str) -> None:
        """After any fault, barriers, shared memory, collectives and copies of the next launch work."""
        with pytest.raises(FAULTS[name].error):
            FAULTS[name].run(host)
        again = once(host.with_options(**FAULTS[name].options), probe.HALVES, {"threads": 32, "rounds": 1})["y"]
        x = np.arange(64, dtype=np.int32)
        reverse = once(host, probe.REVERSE_BLOCK, {"threads": 64}, {"x": x}, SYNC=True)["y"]

        assert_same_bits(again, halves(1))
        assert_same_bits(reverse, x[::-1])

    def test_hundreds_of_faults_leave_the_process_as_it_was(self, host: HostDevice) -> None:
        """Memory and mappings of failed launches are given back. Red: a leak of a page a launch."""
        pages, maps = Path("/proc/self/statm"), Path("/proc/self/maps")
        if not maps.is_file():
            pytest.skip(NOT_RUN + "no /proc on this machine")
        sizes, counts = [], []
        for repeat in range(300):
            with pytest.raises(DeviceError):
                FAULTS["inactive lane" if repeat % 2 else "read of f32 5"].run(host)
            if repeat % 100 == 99:
                counts.append(maps.read_text().count("\n"))
                sizes.append(int(pages.read_text().split()[0]))

        assert counts[0] == counts[-1]
        assert sizes[-1] - sizes[0] < 100

    def test_a_fault_outside_a_launch_ends_the_process_as_before(self, host: HostDevice, tmp_path: Path) -> None:
        """Handlers are put back after a launch: faulthandler still reports a crash that is not a kernel's."""
        report = tmp_path / "report"
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with report.open("w") as file:
                faulthandler.enable(file)
                try:
                    PAST.run(host)
                except OutOfBounds:
                    ctypes.string_at(0)
            os._exit(0)
        _, status = os.waitpid(child, 0)

        assert os.WTERMSIG(status) == signal.SIGSEGV
        assert "Segmentation fault" in report.read_text()


def _bad_entry(args: tuple[Buffer | Scalar, ...]) -> Kernel:
    return Kernel("half_of", probe.THREADS, "half_of", args, probe.HALF_OF.geometry, "Wrong arguments.")


ARGUMENTS = {
    "one too few": (Buffer("y", "f32", (32,), "w"),),
    "one too many": (*probe.HALF_OF.args, Scalar("N")),
    "another element type": (Buffer("y", "f32", (32,), "w"), Buffer("x", "f16", (32,), "r")),
    "an input as output": (Buffer("y", "f32", (32,), "r"), Buffer("x", "f32", (32,), "r")),
    "a number as pointer": (Scalar("y"), Buffer("x", "f32", (32,), "r")),
}

KINDS = "(invalid conversion|cannot convert|cannot initialize)"

FORBIDDEN = {
    "__expf": "y[0] = __expf(y[0]);",
    "fmaxf": "y[0] = fmaxf(y[0], 0.0f);",
    "__shared__": "__shared__ float s[32]; y[0] = s[0];",
    "__nanosleep": "__nanosleep(1); y[0] = 0.0f;",
    "inline assembly": 'asm("mov.u32 %0, 1;" : "=f"(y[0]));',
}


def _room(folder: Path, body: str) -> Kernel:
    """A kernel of one statement, in a folder of its own."""
    (folder / "room.cu").write_text(f'#include "device.cuh"\n__global__ void room(float* y) {{\n{body}\n}}\n')
    return Kernel("room", "room", "room", (Buffer("y", "f32", (1,), "rw"),), probe.HALF_OF.geometry, "One statement.")


class TestBuilds:
    """A kernel is compiled once for each text, compiler and level; what does not fit does not compile."""

    @pytest.mark.parametrize("wrong", list(ARGUMENTS))
    def test_a_wrong_argument_list_does_not_compile(self, host: HostDevice, wrong: str) -> None:
        """The catalogue's arguments are the kernel's, or the build fails with a sentence."""
        with pytest.raises(BuildError, match=rf"host_threads\.cu \(half_of\) on the host device: .*{KINDS}"):
            host.build(instance(_bad_entry(ARGUMENTS[wrong])))

    @pytest.mark.parametrize("name", list(FORBIDDEN))
    def test_what_is_not_modelled_does_not_compile(self, tmp_path: Path, name: str) -> None:
        """A name or an instruction that the host device does not model is refused, not guessed."""
        device = HostDevice(source_root=tmp_path)

        with pytest.raises(BuildError, match=rf"room\.cu:3: .*{name}"):
            device.build(instance(_room(tmp_path, FORBIDDEN[name])))

    def test_a_missing_template_value_is_refused(self, host: HostDevice) -> None:
        """An instantiation that the source does not have is an error with the compiler's sentence."""
        plain = replace(probe.READ_AT, args=(Scalar("at"),), params=(Param("T", (7,)),))

        with pytest.raises(BuildError, match=r"host_memory\.cu \(read_at<7>\)"):
            host.build(instance(plain, T=7))

    def test_sources_of_a_folder_are_built(self, tmp_path: Path) -> None:
        """`source_root` chooses another folder of sources, so that a copy of the checkout runs its own."""
        first, second = (tmp_path / n for n in ("first", "second"))
        outputs = []
        for folder, value in ((first, 1), (second, 2)):
            folder.mkdir()
            entry = _room(folder, f"y[0] = {value}.0f;")
            outputs.append(once(HostDevice(source_root=folder), entry, {}, {"y": np.zeros(1, np.float32)})["y"])

        assert_same_bits(np.concatenate(outputs), np.array([1, 2], np.float32))

    def test_a_later_process_finds_each_kernel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was built together is found kernel by kernel in the cache, each the one that was asked for."""
        monkeypatch.setenv("LANELOCK_CACHE", str(tmp_path / "cache"))
        entries = [replace(_room(tmp_path, ""), name=name, symbol=name) for name in ("one", "two")]
        (tmp_path / "room.cu").write_text(
            '#include "device.cuh"\n'
            "__global__ void one(float* y) { y[0] = 1.0f; }\n__global__ void two(float* y) { y[0] = 2.0f; }\n"
        )
        HostDevice(source_root=tmp_path).build_many([instance(entry) for entry in entries])
        later, y = HostDevice(source_root=tmp_path), {"y": np.zeros(1, np.float32)}

        assert [once(later, entry, {}, y)["y"][0] for entry in entries] == [1.0, 2.0]

    def test_two_processes_compile_once(
        self, host: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of two processes that want one kernel at once, one starts the compiler and the other waits for it."""
        monkeypatch.setenv("LANELOCK_CACHE", str(tmp_path / "cache"))
        wrapper, starts = tmp_path / "wrapper", tmp_path / "starts"
        real = " ".join(host.compiler.command)
        wrapper.write_text(f'#!/bin/sh\necho start >> {starts}\nsleep 0.2\nexec {real} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        compiler = Compiler((str(wrapper), *host.compiler.command[1:]), "wrapped")
        entry = _room(tmp_path, "y[0] = 1.0f;")
        shared = runtime(host.compiler, host.march)

        def build() -> None:
            Builder(compiler, host.march, tmp_path, shared).build([instance(entry)])

        workers = [multiprocessing.get_context("fork").Process(target=build) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        build()

        assert [w.exitcode for w in workers] == [0, 0]
        assert starts.read_text().split() == ["start"]

    def test_a_changed_source_is_compiled_anew(self, tmp_path: Path) -> None:
        """The cache is keyed by the text, so an edit is never served what was compiled before it."""
        outputs = []
        for value in (1, 2):
            entry = _room(tmp_path, f"y[0] = {value}.0f;")
            outputs.append(once(HostDevice(source_root=tmp_path), entry, {}, {"y": np.zeros(1, np.float32)})["y"][0])

        assert outputs == [1.0, 2.0]

    def test_an_unknown_compiler_is_not_run(self) -> None:
        """A machine without the compiler asked for says so; it does not fail."""
        with pytest.raises(NotRun, match=r"no C\+\+20 compiler on this machine; looked for no-such-compiler"):
            find("no-such-compiler")


GEOMETRIES = {
    "no thread": (Geometry((1, 1, 1), (0, 1, 1)), "a block of 0 threads is not possible"),
    "1025 threads": (Geometry((1, 1, 1), (1025, 1, 1)), "a block of 1025 threads is not possible"),
    "no block": (Geometry((0, 1, 1), (32, 1, 1)), r"a grid of \(0, 1, 1\) blocks is not possible"),
    "65536 blocks along y": (Geometry((1, 65536, 1), (32, 1, 1)), r"a grid of \(1, 65536, 1\) blocks is not possible"),
    "a cluster that does not divide": (Geometry((4, 1, 1), (32, 1, 1), cluster=3), "not made of clusters of 3"),
    "a cluster of 17": (Geometry((17, 1, 1), (32, 1, 1), cluster=17), "not made of clusters of 17"),
    "no cluster": (Geometry((1, 1, 1), (32, 1, 1), cluster=0), "not made of clusters of 0"),
    "too much shared memory": (Geometry((1, 1, 1), (32, 1, 1), smem=232449), "232449 bytes of dynamic shared memory"),
}

VALUES = {
    "a missing argument": ([], "half_of takes 2 arguments, got 0"),
    "null": ([None, None], "argument y is null"),
    "a number for memory": ([1, 2], "argument y must be memory, not int"),
}

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"schedule": "sideways"}, "schedule is 'sideways'; choose ascending, descending or a seed"),
    "copies": ({"copies": "never"}, "copies is 'never'; choose eager, late or a seed"),
    "a negative seed": ({"schedule": -1}, "schedule is -1"),
    "a boolean": ({"copies": True}, "copies is True"),
    "align": ({"align": "middle"}, "align is 'middle'; choose end or start"),
}


_HALF = """#define LANELOCK_SOFT_HALF
#include "device.cuh"
__global__ void half(const half_t* code, float* wide, half_t* back, const float* x, half_t* rounded, int n) {
  for (int i = threadIdx.x; i < 65536; i += 32) back[i] = lane::to_half(wide[i] = lane::to_float(code[i]));
  for (int i = threadIdx.x; i < n; i += 32) rounded[i] = lane::to_half(x[i]);
}
"""


class TestHalf:
    """Where the compiler has no half-width type the conversions are ours."""

    def test_our_own_conversions_are_those_of_ieee(self, tmp_path: Path) -> None:
        """All 65536 codes widen and come back, and ties and their neighbours round to nearest even."""
        (tmp_path / "half.cu").write_text(_HALF)
        codes = np.arange(65536, dtype=np.uint16).view(np.float16)
        exact = np.sort(np.abs(codes[np.isfinite(codes)]).astype(np.float32))
        ends = [65519.996, 65520, 70000, 3e38, 2.0**-25, 2.0**-149]
        ties = np.concatenate([(exact[1:] + exact[:-1]) / 2, ends]).astype(np.float32)
        near = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(0))])
        nan = np.array([0x7F800001, 0x7F8FFFFF, 0xFFC00001], np.uint32).view(np.float32)
        x = np.concatenate([near, -near, nan])
        codes_of, numbers = (65536,), ("n",)
        buffers = (
            Buffer("code", "f16", codes_of, "r"),
            Buffer("wide", "f32", codes_of, "w"),
            Buffer("back", "f16", codes_of, "w"),
            Buffer("x", "f32", numbers, "r"),
            Buffer("rounded", "f16", numbers, "w"),
        )
        entry = Kernel("half", "half", "half", (*buffers, Scalar("n")), probe.HALF_OF.geometry, "Conversions.")
        seen = once(HostDevice(source_root=tmp_path), entry, {"n": x.size}, {"code": codes, "x": x})

        assert_same_bits(seen["wide"], codes.astype(np.float32))
        assert_same_bits(seen["back"], codes)
        with np.errstate(over="ignore"):
            assert_same_bits(seen["rounded"], x.astype(np.float16))


class TestRefusals:
    """What cannot be launched is refused with a sentence before anything runs."""

    @pytest.mark.parametrize("name", list(GEOMETRIES))
    def test_an_impossible_geometry_is_named(self, host: HostDevice, name: str) -> None:
        """Blocks, grids, clusters and shared memory have the limits of a GPU."""
        geometry, says = GEOMETRIES[name]
        memory = host.alloc("y", 4)
        with pytest.raises(DeviceError, match=says):
            host.launch(host.build(instance(probe.LAST_BLOCK)), geometry, [memory])
        host.free(memory)

    def test_a_block_beyond_the_launch_bounds_is_named(self, host: HostDevice) -> None:
        """A GPU refuses a block larger than its kernel was compiled for. Red: launch bounds read past."""
        memory = host.alloc("y", 4 * 33)
        with pytest.raises(DeviceError, match="a block of 33 threads exceeds the 32 of its launch bounds"):
            host.launch(host.build(instance(probe.BARRIER_AND_SHUFFLE)), Geometry((1, 1, 1), (33, 1, 1)), [memory])
        host.free(memory)

    @pytest.mark.parametrize("name", list(VALUES))
    def test_a_wrong_argument_is_named(self, host: HostDevice, name: str) -> None:
        """Number, kind and presence of arguments are the catalogue's."""
        args, says = VALUES[name]
        with pytest.raises(DeviceError, match=says):
            host.launch(host.build(instance(probe.HALF_OF)), Geometry((1, 1, 1), (32, 1, 1)), args)

    def test_freed_and_misaligned_memory_is_named(self, host: HostDevice) -> None:
        """A pointer to memory that is gone, or of the wrong alignment, is refused by name."""
        built, one = host.build(instance(probe.HALF_OF)), Geometry((1, 1, 1), (32, 1, 1))
        gone, kept = host.alloc("gone", 128), host.alloc("kept", 132)
        host.free(gone)
        with pytest.raises(DeviceError, match="argument x is memory gone, which was freed"):
            host.launch(built, one, [kept, gone])
        with pytest.raises(DeviceError, match="argument x is not aligned to 4 bytes"):
            host.launch(built, one, [kept, kept.at(2)])
        host.free(kept)

    @pytest.mark.parametrize("value", [2**32, -1, 0.5, "1"])
    def test_a_number_that_does_not_fit_is_named(self, host: HostDevice, value: Any) -> None:
        """A scalar is passed exactly or not at all."""
        counter = host.alloc("counter", 4)
        with pytest.raises(DeviceError, match="argument add"):
            host.launch(host.build(instance(probe.STEP)), Geometry((1, 1, 1), (32, 1, 1)), [counter, value])
        host.free(counter)

    @pytest.mark.parametrize("name", list(OPTIONS))
    def test_an_unknown_option_is_named(self, name: str) -> None:
        """A choice that does not exist is refused with those that do."""
        changes, says = OPTIONS[name]
        with pytest.raises(DeviceError, match=says):
            HostOptions(**changes)

    @pytest.mark.parametrize(("nbytes", "align"), [(-1, 16), (4, 3), (4, 0), (1 << 60, 16)])
    def test_impossible_memory_is_named(self, host: HostDevice, nbytes: int, align: int) -> None:
        """Memory of no possible size or alignment is refused by name."""
        with pytest.raises(DeviceError, match="buffer huge of"):
            host.alloc("huge", nbytes, align)

    def test_a_copy_outside_is_refused(self, host: HostDevice) -> None:
        """Copies to and from the device stay inside the buffer."""
        memory = host.alloc("small", 8)
        with pytest.raises(DeviceError, match="8 bytes at offset 4 do not lie in buffer small of 8"):
            host.write(memory, np.zeros(2, np.float32), 4)
        with pytest.raises(DeviceError, match="9 bytes at offset 0 do not lie in buffer small of 8"):
            host.read(memory, 9)
        host.free(memory)


class TestCounters:
    """Counters say how much work a launch did: a right result by twice the work is seen."""

    def test_a_known_kernel_has_its_counts(self, host: HostDevice) -> None:
        """Two blocks of 64 threads: loads and dp4a by thread, shuffles and votes by warp, barriers by block."""
        once(host, probe.WORK, {"blocks": 2, "threads": 64}, {"x": np.ones((2, 64, 4), np.int32)})
        seen = {name: count for name, count in host.counters.items() if count}
        expected = {
            "blocks": 2, "threads": 128, "barriers": 4, "syncwarps": 4, "collectives": 36, "shuffles": 60, "votes": 4,
            "dp4a": 384, "mma_s8": 4, "load16": 128, "store16": 128,
        }  # fmt: skip

        assert seen == expected

    @pytest.mark.parametrize("copies", ["eager", "late", 1])
    def test_copies_are_counted_with_their_bytes(self, host: HostDevice, copies: str | int) -> None:
        """Six chunks of 32 copies of 16 bytes, in whatever order they complete."""
        device = host.with_options(copies=copies)
        once(device, probe.RIGHT, {"chunks": 6}, CHUNKS)

        assert (device.counters["cp_async"], device.counters["cp_async_bytes"]) == (192, 3072)

    @pytest.mark.parametrize(
        ("body", "stored", "again"),
        [
            ("z[threadIdx.x] = x[threadIdx.x];", 256, 0),
            ("z[threadIdx.x] = x[threadIdx.x]; if (threadIdx.x == 63) z[0] = x[0];", 260, 4),
            ("z[threadIdx.x / 2] = x[threadIdx.x / 2];", 256, 128),
            ("SHARED(float, s, [64]); s[threadIdx.x] = s[0] = 1; float t[2] = {1, 2}; z[0] = t[K % 2];", 256, 252),
            ("reinterpret_cast<uint4*>(z)[threadIdx.x % 16] = uint4{};", 1024, 768),
            ("struct Wide { float v[8]; }; *reinterpret_cast<Wide*>(z + K / 2) = Wide{};", 64 * 32, 63 * 32),
        ],
    )
    def test_stores_of_a_watched_kernel_are_counted(
        self, tmp_path: Path, body: str, stored: int, again: int
    ) -> None:
        """Bytes stored to buffers, and those stored before, by any thread; not those of shared memory and of locals.

        Red: threads that store the same number to one place, which no comparison of results can see.
        """
        (tmp_path / "add.cu").write_text(
            '#include "device.cuh"\n__global__ void add(const float* x, int, const float*, int, float* z, int, int K) '
            f"{{ {body} }}\n"
        )
        device = HostDevice(source_root=tmp_path, watch=True)
        rows = np.ones((1, 64), np.float32)
        kernel = replace(ADD, geometry=lambda _: Geometry((1, 1, 1), (64, 1, 1)))
        counts = []
        for _ in range(2):  # flags of the launch before are not this one's
            run_once(device, instance(kernel), {"rows": 1, "K": 64}, {"x": rows, "y": rows})
            counts.append((device.counters["store_bytes"], device.counters["stored_again"]))

        assert counts == [(stored, again)] * 2

    def test_counters_begin_anew(self, host: HostDevice) -> None:
        """Counts are those of the last launch alone."""
        x = {"x": np.ones((2, 64, 4), np.int32)}
        counts = []
        for _ in range(2):
            once(host, probe.WORK, {"blocks": 2, "threads": 64}, x)
            counts.append(host.counters)

        assert counts[0] == counts[1]


class TestGraphs:
    """A captured graph is a list of launches with the arguments that they had."""

    def test_a_graph_replays_in_order_with_values_of_its_capture(self, host: HostDevice) -> None:
        """Captured launches do not run, then run in order, with the numbers that were given at the capture."""
        built, one = host.build(instance(probe.STEP)), Geometry((1, 1, 1), (32, 1, 1))
        counter = host.alloc("counter", 4)
        host.write(counter, np.zeros(1, np.uint32))
        args: list[Any] = [counter, 1]
        with host.capture() as stream:
            for add in (1, 2, 3):
                args[1] = add
                host.launch(built, one, args, stream)
        args[1] = 100
        before = int(host.read(counter).view(np.uint32)[0])
        for _ in range(2):
            stream.graph.replay()
        after = int(host.read(counter).view(np.uint32)[0])
        host.free(counter)
        expected = 0
        for add in (1, 2, 3, 1, 2, 3):
            expected = 3 * expected + add

        assert (before, after) == (0, expected)

    def test_a_graph_over_freed_memory_is_refused(self, host: HostDevice) -> None:
        """A replay that would touch memory which is gone is an error that names it, not a stray write."""
        counter = host.alloc("counter", 4)
        with host.capture() as stream:
            host.launch(host.build(instance(probe.STEP)), Geometry((1, 1, 1), (32, 1, 1)), [counter, 1], stream)
        host.free(counter)

        with pytest.raises(DeviceError, match="counter"):
            stream.graph.replay()


class TestTwoDevices:
    """Devices of different levels, compilers and options live side by side."""

    def test_levels_have_builds_of_their_own(self, host: HostDevice, tmp_path: Path) -> None:
        """What is built for one processor level is never served for another."""
        if os.uname().machine != "x86_64":
            pytest.skip(NOT_RUN + "levels are x86-64's")
        entry = instance(_room(tmp_path, "y[0] = 1.0f;"))
        shared = runtime(host.compiler, host.march)
        builders = [Builder(host.compiler, march, tmp_path, shared) for march in ("x86-64", "x86-64-v2")]
        libraries = {builder.build([entry])[0].library for builder in builders}

        assert len(libraries) == 2

    def test_other_options_share_builds(self, host: HostDevice) -> None:
        """Schedules, copies and alignment are choices of a launch, not of a compilation."""
        other = host.with_options(schedule=4, copies="late", align="start")

        assert other.build(instance(probe.HALF_OF)) is host.build(instance(probe.HALF_OF))

    def test_other_sources_do_not(self, host: HostDevice, tmp_path: Path) -> None:
        """A device told to read other sources runs those."""
        signature = "const float*, int, const float*, int, float* z, int, int"
        body = "if (threadIdx.x < 32) z[threadIdx.x] = 5.0f;"
        (tmp_path / "add.cu").write_text(f'#include "device.cuh"\n__global__ void add({signature}) {{ {body} }}\n')
        entry, x = find_kernel("add"), np.zeros((1, 32), np.float32)
        seen = [
            once(device, entry, {"rows": 1, "K": 32}, {"x": x, "y": x})["z"][0, 0]
            for device in (host, host.with_options(source_root=tmp_path))
        ]

        assert seen == [0.0, 5.0]


def _compared() -> Iterator[tuple[Kernel, Dims, Arrays, Dims]]:
    """Kernels of the catalogue, with dims, inputs and template values, that compilers are compared on."""
    wanted: tuple[tuple[str, Dims, Dims], ...] = (
        ("rms_norm_quantize", {"rows": 3, "K": 2560, "eps": 1e-6}, {"WORDS": 2}),
        *(("map_function", {"n": 4099}, {"FUNCTION": f}) for f in range(5)),
        ("primitive_mma_s8", {"tiles": 3}, {}),
    )
    for name, dims, template in wanted:
        kernel = find_kernel(name)
        inputs = random_inputs(kernel, dims, template, 1)
        if name == "map_function":
            inputs["x"] = (inputs["x"] * np.exp2(np.linspace(-140, 8, 4099))).astype(np.float32)
        yield kernel, dims, inputs, template


@pytest.mark.nightly
class TestCompilers:
    """Compilers and levels are a matter of speed: the bits are the contract's."""

    @pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
    @pytest.mark.parametrize("compiler", ["g++", "clang++", "zig"])
    def test_compilers_and_levels_agree(self, host: HostDevice, compiler: str, march: str) -> None:
        """A norm with quantisation, the functions and a tensor-core product have the same bits from every compiler."""
        if os.uname().machine != "x86_64":
            pytest.skip(NOT_RUN + "levels are x86-64's")
        try:
            other = HostDevice(compiler=compiler, march=march)
        except NotRun as absent:
            pytest.skip(NOT_RUN + str(absent))
        for kernel, dims, inputs, template in _compared():
            mine, theirs = (once(d, kernel, dims, inputs, **template) for d in (host, other))
            for name, value in mine.items():
                assert_same_bits(theirs[name], value, f"{kernel.name}.{name}")

    def test_the_runtime_compiles_for_aarch64(self, tmp_path: Path) -> None:
        """The other architecture's half of the runtime, and a library of kernels, at least compile."""
        if zig_command() is None:
            pytest.skip(NOT_RUN + "no zig on this machine (pip install ziglang)")
        zig = find("zig")
        kernels = tmp_path / "kernels.cpp"
        kernels.write_text(library_source(KERNELS / "add.cu", [instance(find_kernel("add"))]))
        folders = (f"-I{RUNTIME}", f"-I{KERNELS}")
        flags = (*zig.flags(""), "-target", "aarch64-linux-gnu", "-DLANELOCK_HOST", *folders, "-c")
        done = subprocess.run(
            [*zig.command, *flags, *map(str, sorted(RUNTIME.glob("*.cpp"))), str(kernels)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        assert {p.read_bytes()[18:20] for p in tmp_path.glob("*.o")} == {b"\xb7\x00"}
