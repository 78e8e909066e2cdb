"""Locks of the CUDA device: memory, launches, errors, graphs. What needs no GPU is held without one."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.cuda import list_gpus
from harness.cuda.bindings import checked, core_device, driver
from harness.cuda.device import CudaDevice
from harness.cuda.gpus import Gpus, target
from harness.cuda.launch import Built, check_geometry, pack
from harness.cuda.memory import GUARD, GUARD_BYTE, check_guard, footprint, guards, place
from harness.cuda.report import Report
from harness.device import Device, DeviceError, Memory, NotRun, OutOfBounds, Properties
from harness.sources import KERNELS
from harness.workers import BUDGET, CALLER, SHARERS, VISIBLE
from kernels.entry import ALL_ARCHS, Geometry, instance
from locks.device_probes import RANK, REVERSE, SPIN, STRAY, TICK

ONE = Geometry((1, 1, 1), (1, 1, 1))


@pytest.fixture
def gpu(devices: tuple[dict[str, Device], dict[str, str]]) -> CudaDevice:
    """The CUDA device of this run; without one the lock is not run, by name."""
    opened, missing = devices
    found = next((d for d in opened.values() if isinstance(d, CudaDevice)), None)
    if found is None:
        reason = next(iter(missing.values()), "needs a CUDA device (--device cuda or all)")
        pytest.skip(f"not run: {reason}")
    return found


def built(smem: int = 0, max_threads: int = 1024) -> Built:
    """A loaded kernel as `launch` sees it, with no device behind it."""
    return Built(instance(STRAY), None, None, Report(8, 0, 0, 0, smem, 0), max_threads)


class TestListing:
    """What is on the machine is told, not raised."""

    def test_every_architecture_name_is_one_that_entries_use(self) -> None:
        """Compute capability 9.0 and 10.0 take the architecture-specific target, all others the plain one."""
        named = {target(*c) for c in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}

        assert named == set(ALL_ARCHS)  # red: sm_90 without the a, which has no wgmma

    def test_a_machine_without_a_gpu_is_not_run_with_a_reason(self) -> None:
        """Asking for a GPU that is not there raises NotRun, and the sentence names the GPU and the reason."""
        none = Gpus((), None, "no NVIDIA driver on this machine")
        with pytest.raises(NotRun, match=r"cuda:0: no NVIDIA driver"):
            none.require(0)  # red: an ImportError, or a device that passes locks without running

    def test_listing_never_raises(self) -> None:
        """The list of GPUs has entries or a reason, never both and never neither."""
        listing = list_gpus()

        assert bool(listing.found) != bool(listing.reason)

    @pytest.mark.parametrize("home", ["cuda.core", "cuda.core.experimental"])
    def test_both_homes_of_cuda_core_are_found(self, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Device is taken from cuda.core, and from cuda.core.experimental where the former has none (case 43)."""
        marker = type("Device", (), {})
        real = {name: type(sys)(name) for name in ("cuda.core", "cuda.core.experimental")}
        real[home].Device = marker  # type: ignore[attr-defined]  # a module made for this lock
        for name, module in real.items():
            monkeypatch.setitem(sys.modules, name, module)

        assert core_device() is marker

    def test_no_cuda_core_is_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With neither home the device is not run, and the sentence says what to install."""
        for name in ("cuda.core", "cuda.core.experimental"):
            monkeypatch.setitem(sys.modules, name, type(sys)(name))
        with pytest.raises(NotRun, match="install cuda-core"):
            core_device()


class TestGuards:
    """Where guards lie and what they say; no GPU needed."""

    @pytest.mark.parametrize("align", [1, 16, 256, 4096, 65536])
    @pytest.mark.parametrize("nbytes", [0, 1, 1000])
    @pytest.mark.parametrize("base", [256 * 7, 1 << 40])
    def test_guards_and_buffer_fit_the_allocation(self, base: int, nbytes: int, align: int) -> None:
        """Both guards lie inside what was asked of the driver, touch the buffer, and the buffer is aligned."""
        memory = Memory("b", place(base, align), nbytes, None)
        (before, _), (behind, offset) = guards(memory)

        assert base <= before
        assert before + GUARD == memory.address
        assert behind == memory.address + nbytes
        assert offset == nbytes
        assert behind + GUARD <= base + footprint(nbytes, align)
        assert memory.address % align == 0

    @pytest.mark.parametrize(("offset", "index", "says"), [(-GUARD, GUARD - 1, "byte -1"), (64, 3, "byte 67")])
    def test_a_changed_guard_is_named_with_its_byte(self, offset: int, index: int, says: str) -> None:
        """One changed byte raises OutOfBounds naming the buffer and the byte counted from the buffer's start."""
        contents = np.full(GUARD, GUARD_BYTE, np.uint8)
        contents[index] ^= 1
        with pytest.raises(OutOfBounds, match=rf"buffer b of 64 bytes, at {says}"):
            check_guard(Memory("b", 4096, 64, None), offset, contents, "k")

    def test_an_untouched_guard_says_nothing(self) -> None:
        """A guard that holds its pattern passes."""
        check_guard(Memory("b", 4096, 64, None), 64, np.full(GUARD, GUARD_BYTE, np.uint8), "k")


class TestRefusals:
    """Launches that are refused before the driver sees them; no GPU needed."""

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            ([Memory("y", 4096, 64, None), 3], "takes 3 arguments, got 2"),
            ([None, 3, 0], "argument y must not be null"),
            ([4096, 3, 0], "argument y is a pointer"),
            ([Memory("y", 4096, 64, None), 3.5, 0], "argument N is of type int"),
            ([Memory("y", 4096, 64, None), True, 0], "argument N is a scalar"),
            ([Memory("y", 4096, 64, None).at(65), 3, 0], "argument y points to byte 65 of y"),
        ],
    )
    def test_a_wrong_argument_is_named(self, args: list[Any], says: str) -> None:
        """An argument list that does not fit the entry is an error naming kernel and argument."""
        with pytest.raises(DeviceError, match=f"stray<64>.*{says}"):
            pack(instance(STRAY), args)

    @pytest.mark.parametrize(
        ("geometry", "says"),
        [
            (Geometry((0, 1, 1), (1, 1, 1)), "must be at least 1"),
            (Geometry((1, 65536, 1), (1, 1, 1)), "exceeds 65535"),
            (Geometry((1, 1, 1), (32, 33, 1)), "1056 threads a block"),
            (Geometry((1, 1, 1), (1, 1, 1), smem=1 << 20), "bytes of shared memory"),
            (Geometry((4, 1, 1), (1, 1, 1), cluster=2), "need compute capability 9.0"),
        ],
    )
    def test_a_launch_the_device_cannot_make_is_named(self, geometry: Geometry, says: str) -> None:
        """Grid, block, shared memory and cluster are held against the device before the launch."""
        with pytest.raises(DeviceError, match=f"stray<64>.*{says}"):
            check_geometry(built(), geometry, 232448, clusters=False)

    def test_a_grid_that_cuts_a_cluster_is_refused(self) -> None:
        """The grid is a multiple of the cluster."""
        with pytest.raises(DeviceError, match="no multiple of the cluster"):
            check_geometry(built(), Geometry((3, 1, 1), (1, 1, 1), cluster=2), 232448, clusters=True)

    def test_static_shared_memory_counts(self) -> None:
        """What the kernel declares itself counts against the block's shared memory."""
        with pytest.raises(DeviceError, match="1200 bytes of shared memory"):
            check_geometry(built(smem=1000), Geometry((1, 1, 1), (1, 1, 1), smem=200), 1100, clusters=False)


class Asked:
    """The context of a GPU that is not there: every call succeeds, and what functions are asked to be is kept."""

    label, stream = "cuda:0", None

    def __init__(self) -> None:
        self.api, self.asked = self, list[tuple[str, int]]()
        self.CUfunction_attribute = self

    def __getattr__(self, name: str) -> Any:
        return name.removeprefix("CU_FUNC_ATTRIBUTE_") if name.isupper() else lambda *_: (0, None)

    def cuFuncSetAttribute(self, _: Any, attribute: str, value: int) -> tuple[int, None]:  # noqa: N802  the driver's name
        self.asked.append((attribute, value))
        return 0, None


class TestSharedMemory:
    """What a function is asked to be before it is launched; no GPU needed."""

    def asked(self, monkeypatch: pytest.MonkeyPatch, launches: list[int], static: int = 0) -> list[tuple[str, int]]:
        """What the driver is asked for by launches of one function with so many bytes of dynamic shared memory."""
        monkeypatch.setattr("harness.cuda.device.configuration", lambda *_, **__: None)
        device, context = object.__new__(CudaDevice), Asked()
        device.properties = Properties("fake", "cuda", "sm_90a", 1, 232448, 0, "", "")
        device._context, device._opted_in, device._clusters = context, {}, False  # type: ignore[assignment]
        function = replace(built(smem=static), function=4096)
        y = Memory("y", 4096, 256, None)
        for smem in launches:
            device.launch(function, Geometry((1, 1, 1), (64, 1, 1), smem), [y, 63, 63])
        return context.asked

    @pytest.mark.parametrize(("smem", "static"), [(0, 0), (0, 48 << 10), (48 << 10, 0), (40 << 10, 8 << 10)])
    def test_within_the_default_asks_for_nothing(self, smem: int, static: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A kernel that needs no opt-in keeps the L1. Red: shared memory preferred for every kernel."""
        assert self.asked(monkeypatch, [smem], static) == []

    def test_beyond_it_is_asked_for_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A launch that opts in asks for its bytes and for all of the shared memory; later ones only for more bytes.

        Red: a request at each launch, a larger launch that keeps the smaller one's bytes, what is declared uncounted.
        """
        first = [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 44 << 10), ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100)]
        more = [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 200 << 10), ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100)]

        launches = [n << 10 for n in (40, 44, 44, 42, 200, 44, 200)]
        assert self.asked(monkeypatch, launches, static=8 << 10) == first + more


@pytest.mark.gpu
class TestMemory:
    """Memory of a GPU."""

    def test_new_memory_is_poison(self, gpu: CudaDevice) -> None:
        """Every byte of new memory reads 0xFF."""
        memory = gpu.alloc("poison", 1000)
        content = gpu.read(memory)
        gpu.free(memory)

        assert (content == 0xFF).all()

    def test_bytes_come_back(self, gpu: CudaDevice) -> None:
        """Bytes written at an odd offset are read back there, and nowhere else."""
        data = np.arange(1, 200, dtype=np.uint8)
        memory = gpu.alloc("bytes", 1000)
        gpu.write(memory, data, 77)
        content = gpu.read(memory)
        gpu.free(memory)

        assert (content[77 : 77 + 199] == data).all()
        assert (np.delete(content, np.arange(77, 77 + 199)) == 0xFF).all()

    def test_a_copy_outside_is_refused(self, gpu: CudaDevice) -> None:
        """A read past the end is an error with both numbers, not a fault of the device."""
        memory = gpu.alloc("short", 16)
        with pytest.raises(OutOfBounds, match="read of bytes 8 to 24 of short"):
            gpu.read(memory, 16, 8)
        gpu.free(memory)

    @pytest.mark.parametrize(("element", "byte"), [(64, 256), (-1, -4)])
    def test_a_stray_write_is_named(self, gpu: CudaDevice, element: int, byte: int) -> None:
        """One element past or before a buffer is an error naming kernel, buffer and byte offset."""
        memory = gpu.alloc("stray.y", 256)
        gpu.launch(gpu.build(instance(STRAY)), Geometry((1, 1, 1), (64, 1, 1)), [memory, 64, element])
        with pytest.raises(OutOfBounds, match=r"stray<64> wrote \d+ byte\(s\).*stray\.y.*at byte -?\d+") as caught:
            gpu.free(memory)

        # the pattern of a guard may hold a byte of 2.0f by chance: the nearest changed byte is within the element
        assert byte <= int(str(caught.value).split("at byte ")[1].split(",")[0]) < byte + 4

    def test_the_budget_of_a_worker_is_kept(self, gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        """A buffer that exceeds the worker's budget is refused with the budget's size."""
        monkeypatch.setattr(gpu, "budget", 1 << 20)
        with pytest.raises(DeviceError, match="exceeds this worker's budget of 1048576"):
            gpu.alloc("big", 2 << 20)


@pytest.mark.gpu
class TestLaunches:
    """Launches on a GPU."""

    def test_dynamic_shared_memory_above_48_kb_works(self, gpu: CudaDevice) -> None:
        """A kernel may use the whole opt-in of its device."""
        words, n = gpu.properties.shared_per_block // 4, 256
        x = np.arange(n, dtype=np.float32)
        source, target_ = gpu.alloc("x", 4 * n), gpu.alloc("y", 4 * n)
        gpu.write(source, x)
        args = [target_, source, n, words]
        gpu.launch(gpu.build(instance(REVERSE)), Geometry((1, 1, 1), (n, 1, 1), smem=4 * words), args)
        result = gpu.read(target_).view(np.float32)
        gpu.free(source)
        gpu.free(target_)

        assert (result == x[::-1]).all()

    def test_only_an_opt_in_prefers_shared_memory(self, gpu: CudaDevice) -> None:
        """The driver gives all of a multiprocessor's shared memory to the function that opted in, not to one beside it.

        Red: a preference for every kernel, which leaves those within the default no L1.
        """
        y, n = gpu.alloc("y", 4 * 64), 64
        large, small = gpu.build(instance(REVERSE)), gpu.build(instance(STRAY))
        words = gpu.properties.shared_per_block // 4
        gpu.launch(large, Geometry((1, 1, 1), (n, 1, 1), smem=4 * words), [y, y, n, words])
        gpu.launch(small, Geometry((1, 1, 1), (n, 1, 1)), [y, n - 1, n - 1])
        gpu.free(y)
        carveout = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        found = [checked(driver().cuFuncGetAttribute(carveout, k.function), "carve-out") for k in (large, small)]

        assert found == [100, -1]

    def test_cluster_dimensions_reach_the_kernel(self, gpu: CudaDevice) -> None:
        """In a grid of 8 blocks with clusters of 4 the ranks count 0 to 3 twice."""
        if gpu.properties.arch not in RANK.archs:
            pytest.skip(f"not run: clusters need compute capability 9.0, this is {gpu.properties.arch}")
        y = gpu.alloc("rank.y", 32)
        gpu.launch(gpu.build(instance(RANK)), Geometry((8, 1, 1), (32, 1, 1), cluster=4), [y])
        ranks = gpu.read(y).view(np.uint32)
        gpu.free(y)

        assert sorted(ranks.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]

    @pytest.mark.usefixtures("gpu")
    def test_a_fault_names_the_kernel(self) -> None:
        """An address that no allocation has is an error at the next wait, naming device and kernel."""
        # in a process of its own, since a fault costs the context; red: an error code with no kernel, or no error
        script = (
            "from harness.devices import open_device\n"
            "from harness.device import DeviceError\n"
            "from kernels.entry import Geometry, instance\n"
            "from locks.device_probes import WILD\n"
            "d = open_device('cuda')\n"
            "y = d.alloc('y', 4)\n"
            "d.launch(d.build(instance(WILD)), Geometry((1, 1, 1), (1, 1, 1)), [y])\n"
            "for attempt in (d.synchronize, lambda: d.alloc('z', 4)):\n"
            "    try:\n"
            "        attempt()\n"
            "    except DeviceError as error:\n"
            "        print(error)\n"
        )
        first, second = run_python(script).splitlines()

        assert "cuda:0" in first
        assert "after wild" in first
        assert "context is lost" in second
        assert "after wild" in second

    def test_a_kernel_for_another_architecture_is_not_run(self, gpu: CudaDevice) -> None:
        """A kernel whose entry does not name this GPU is not run, and the sentence names both."""
        kernel = replace(STRAY, archs=("sm_75",))
        with pytest.raises(NotRun, match="stray is for sm_75"):
            gpu.build(instance(kernel))

    def test_time_between_events_covers_the_work(self, gpu: CudaDevice) -> None:
        """A kernel that is busy for 20 million cycles takes between 5 ms and 1 s."""
        # no GPU clock is above 4 GHz or, at work, below 20 MHz; red: events on another stream than the launch
        y, kernel = gpu.alloc("spin.y", 4), gpu.build(instance(SPIN))
        gpu.launch(kernel, ONE, [y, 1])
        start = gpu.event()
        gpu.launch(kernel, ONE, [y, 20_000_000])
        took = gpu.elapsed(start, gpu.event())
        gpu.free(y)

        assert 5 < took < 1000


@pytest.mark.gpu
class TestGraphs:
    """Graphs on a GPU."""

    def test_a_graph_gives_the_bits_of_its_launches(self, gpu: CudaDevice) -> None:
        """Three launches replayed twice leave the number that the six launches leave in order."""
        counter, kernel = gpu.alloc("counter", 4), gpu.build(instance(TICK))

        def launches(stream: Any = None) -> None:
            for add in (1, 7, 100):
                gpu.launch(kernel, ONE, [counter, add], stream)

        gpu.write(counter, np.array([5], np.uint32))
        for _ in range(2):
            launches()
        eager = gpu.read(counter).view(np.uint32)[0]
        gpu.write(counter, np.array([5], np.uint32))
        with gpu.capture() as capture:
            launches(capture)
        captured = gpu.read(counter).view(np.uint32)[0]
        for _ in range(2):
            capture.graph.replay()
        replayed = gpu.read(counter).view(np.uint32)[0]
        gpu.free(counter)

        assert captured == 5  # capturing runs nothing
        assert replayed == eager

    def test_a_wait_inside_a_capture_is_refused(self, gpu: CudaDevice) -> None:
        """Reading memory while launches are captured is a clear error, and the capture ends in order."""
        counter = gpu.alloc("counter", 4)
        with gpu.capture() as capture:
            gpu.launch(gpu.build(instance(TICK)), ONE, [counter, 1], capture)
            with pytest.raises(DeviceError, match="while launches are captured"):
                gpu.read(counter)
        capture.graph.replay()
        gpu.free(counter)


@pytest.mark.gpu
class TestWorkers:
    """A GPU among the workers of a run (handed case 40)."""

    @pytest.mark.parametrize("worker", [0, 3])
    def test_a_worker_runs_on_the_gpu_that_it_chose(self, gpu: CudaDevice, worker: int) -> None:
        """A worker whose caller names one GPU by UUID opens that GPU, whatever the worker's number."""
        script = (
            "from harness.workers import pin_worker\n"
            "pin_worker()\n"
            "from harness.cuda import CudaDevice\n"
            "print(CudaDevice().uuid)\n"
        )
        environ = {k: v for k, v in os.environ.items() if k not in (CALLER, SHARERS)}
        environ |= {VISIBLE: f"GPU-{gpu.uuid}", "PYTEST_XDIST_WORKER": f"gw{worker}", "PYTEST_XDIST_WORKER_COUNT": "4"}

        assert run_python(script, environ).strip() == gpu.uuid  # red: the worker's number as the physical id

    @pytest.mark.usefixtures("gpu")
    def test_budgets_of_sharers_fit_the_card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Eight workers on one GPU may together hold less than its memory."""
        monkeypatch.setenv(SHARERS, "8")
        monkeypatch.delenv(BUDGET, raising=False)
        shared = CudaDevice()

        assert shared.budget is not None
        assert 0 < 8 * shared.budget < shared.properties.memory

    @pytest.mark.usefixtures("gpu")
    def test_two_gpus_work_side_by_side(self) -> None:
        """Launches that alternate between two GPUs leave on each what its own launches leave."""
        if len(list_gpus().found) < 2:
            pytest.skip("not run: needs two GPUs that this process sees")
        both = [CudaDevice(0), CudaDevice(1)]
        counters = [d.alloc("counter", 4) for d in both]
        for d, counter in zip(both, counters, strict=True):
            d.write(counter, np.array([5], np.uint32))
        for add in (1, 7, 100):
            for d, counter in zip(both, counters, strict=True):
                d.launch(d.build(instance(TICK)), ONE, [counter, add])
        left = [int(d.read(c).view(np.uint32)[0]) for d, c in zip(both, counters, strict=True)]

        assert left == [((5 * 3 + 1) * 3 + 7) * 3 + 100] * 2


@pytest.mark.gpu
@pytest.mark.nightly
class TestLargeMemory:
    """Offsets wider than 32 bits."""

    def test_offsets_are_64_bits_wide(self, gpu: CudaDevice) -> None:
        """Bytes written past 4 GiB are read back there, and the bytes 4 GiB below keep their poison."""
        offset = (1 << 32) + 12
        memory = gpu.alloc("large", offset + 64)
        gpu.write(memory, np.arange(16, dtype=np.uint8), offset)
        far, near = gpu.read(memory, 16, offset), gpu.read(memory, 16, offset - (1 << 32))
        gpu.free(memory)

        assert (far == np.arange(16)).all()
        assert (near == 0xFF).all()


def run_python(script: str, environ: dict[str, str] | None = None) -> str:
    """Run a script at the root of the checkout; its output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ, capture_output=True, text=True, cwd=KERNELS.parent, timeout=120, check=False,
    )  # fmt: skip  # one argument list
    assert done.returncode == 0, done.stderr
    return done.stdout
