"""The checkers can fail: the checked run of a kernel, the comparers, and the accounting of what was not run.

A kernel here is a Python function on a device made of arrays, so that every fault of a kernel can be played.
"""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.device import POISON, Argument, Memory, OutOfBounds, Pointer, Properties, Race
from harness.run import GAP, HOST_VARIANTS, arguments, run_kernel, same_bits, scalar_value, used_mask
from kernels.entry import Buffer, Geometry, Instance, Kernel, Rule, Scalar
from locks.support import (
    Case,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    assert_within,
    decoded,
    quantiser_bound,
    rel_L2,
)
from oracle.errors import LanelockError
from reports.lock_results import FEW, by_room, result_of, room_of, summary

ROOT = Path(__file__).parents[1]
PITCHES = {"x_pitch": 4, "y_pitch": 4}
PROBE = Kernel(
    name="probe",
    room="probe",
    symbol="probe",
    args=(
        Buffer("x", "f32", ("rows", "K"), "r", "x_pitch"),
        Scalar("x_pitch"),
        Buffer("extra", "i32", ("rows",), "rw", optional=True),
        Buffer("y", "f32", ("rows", "K"), "w", "y_pitch"),
        Scalar("y_pitch"),
        Scalar("K"),
    ),
    geometry=lambda d: Geometry((int(d["rows"]), 1, 1), (32, 1, 1)),
    doc="y = 2 x",
    derive=lambda d: {"x_pitch": d["K"], "y_pitch": d["K"]},
    rules=(Rule(lambda d: int(d["K"]) < 100, "K = {K} is too wide"),),
)
Body = Callable[["Arrays"], None]


class Arrays:
    """What a launch sees: flat buffers by name, and scalars."""

    def __init__(self, inst: Instance, args: Sequence[Argument], launch: int) -> None:
        self.launch = launch
        self.values: dict[str, Any] = {}
        for argument, value in zip(inst.kernel.args, args, strict=True):
            held = value.handle if isinstance(value, Memory) else value
            kind = {"f32": np.float32, "i32": np.int32}.get(getattr(argument, "dtype", ""))
            self.values[argument.name] = held.view(kind) if kind and held is not None else held

    def rows(self, name: str, count: int) -> list[np.ndarray]:
        """The rows of a buffer, at its pitch."""
        pitch = self.values[f"{name}_pitch"]
        return [self.values[name][r * pitch : r * pitch + self.values["K"]] for r in range(count)]


class Fake:
    """A device whose kernel is a Python function, run on arrays without guards. Arguments are those of the protocol."""

    # ruff: noqa: ARG002  # the protocol gives more than a fake uses
    def __init__(self, body: Body, kind: str = "cuda") -> None:
        self.body, self.launches, self.live, self.checked = body, 0, 0, 0
        self.options: list[Mapping[str, Any]] = []
        self.properties = Properties("fake", kind, "none", 1, 0, 0, "", "")

    def with_options(self, **options: Any) -> "Fake":
        self.options.append(options)
        return self

    def build(self, inst: Instance) -> Instance:
        return inst

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        self.live += 1
        return Memory(name, 16 * self.live, nbytes, np.zeros(nbytes, np.uint8))

    def free(self, memory: Memory) -> None:
        self.live -= 1

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        memory.handle[offset : offset + data.size] = data

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        return np.array(memory.handle[offset : offset + (memory.nbytes if nbytes is None else nbytes)])

    def check(self, memory: Memory) -> None:
        self.checked += 1

    def launch(self, built: Instance, geometry: Geometry, args: Sequence[Argument], stream: Any = None) -> None:
        self.launches += 1
        self.body(Arrays(built, args, self.launches))

    def synchronize(self) -> None:
        pass


def doubled(a: Arrays) -> None:
    """The right kernel, for any number of rows."""
    count = 1 + (a.values["x"].size - a.values["K"]) // a.values["x_pitch"]
    for source, target in zip(a.rows("x", count), a.rows("y", count), strict=True):
        target[:] = 2 * source


def device(body: Body, kind: str = "cuda") -> Any:
    """As Any: it has what `run_kernel` uses of a device, and no more."""
    return Fake(body, kind)


X = np.arange(6, dtype=np.float32).reshape(2, 3)
DIMS = {"rows": 2, "K": 3}
NO_EXTRA: dict[str, Any] = {"x": X, "extra": None}


def run(body: Body, dims: Mapping[str, Any] = DIMS, kind: str = "cuda", **inputs: Any) -> dict[str, np.ndarray]:
    """The probe with this body."""
    return run_kernel(device(body, kind), PROBE, dims, {**NO_EXTRA, **inputs})


def probe_case(rows: int = 2) -> Case:
    """The probe as a case."""
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    return Case(PROBE, {"rows": rows, "K": 3}, {"x": x, "extra": None})


class TestCheckedRun:
    """`run_kernel` returns what was written and refuses what must not happen."""

    @pytest.mark.parametrize("dims", [DIMS, {**DIMS, "x_pitch": 4, "y_pitch": 7}])
    def test_it_returns_the_rows_that_were_written(self, dims: dict[str, int]) -> None:
        """Rows go in and come out at any pitch."""
        assert_same_bits(run(doubled, dims)["y"], 2 * X)

    def test_padding_and_outputs_are_poisoned(self) -> None:
        """What is no input reads as poison before the launch, and between the rows of an output lies no NaN."""
        seen = []

        def body(a: Arrays) -> None:
            seen.append((a.values["x"].view(np.uint8)[12:16].tolist(), a.values["y"].view(np.uint8).tolist()))

        run(body, {**DIMS, **PITCHES})
        row, gap = [POISON] * 12, [GAP] * 4
        assert seen == [([POISON] * 4, row + gap + row)] * 2

    def test_an_unwritten_output_stays_poison(self) -> None:
        """An element that a kernel forgets comes back as NaN."""
        assert np.isnan(run(lambda a: a.rows("y", 2)[0].fill(1))["y"]).tolist() == [[False] * 3, [True] * 3]

    def test_a_write_into_padding_is_reported(self) -> None:
        """An element between rows that changes is named. Red: padding not compared."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.values["y"][3] = 0

        with pytest.raises(OutOfBounds, match="probe: wrote element 3 of padding between rows of y"):
            run(body, {**DIMS, **PITCHES})

    def test_a_write_of_poison_into_padding_is_reported(self) -> None:
        """So is one that holds what was read from poison. Red: padding of an output as poison, which it equals."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.values["y"][3] = a.values["x"][3]

        with pytest.raises(OutOfBounds, match="probe: wrote element 3 of padding between rows of y"):
            run(body, {**DIMS, **PITCHES})

    def test_a_write_into_an_input_is_reported(self) -> None:
        """A read-only buffer that changes is named, also where it is no padding."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.values["x"][5] = -1

        with pytest.raises(OutOfBounds, match="probe: wrote element 5 of read-only buffer x"):
            run(body)

    def test_two_runs_that_differ_are_a_race(self) -> None:
        """A last element that differs in the second run is named. Red: only the first element compared."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.rows("y", 2)[1][2] += a.launch

        with pytest.raises(Race, match=r"probe on fake: y\[1, 2\] is 11.0 under first run and 12.0 under second run"):
            run(body)

    def test_a_race_among_later_variants_is_seen(self) -> None:
        """On the host a difference in the last variant alone is a race. Red: a variant skipped."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.rows("y", 2)[0][0] = a.launch == len(HOST_VARIANTS)

        with pytest.raises(Race, match="schedule"):
            run(body, kind="host")

    def test_the_host_runs_every_variant(self) -> None:
        """Three schedules, three kinds of copies and both alignments are used, in one call."""
        host = device(doubled, "host")
        run_kernel(host, PROBE, DIMS, NO_EXTRA)

        assert host.options == list(HOST_VARIANTS)
        assert {v["schedule"] for v in host.options} >= {"ascending", "descending"}
        assert {v["copies"] for v in host.options} >= {"eager", "late"}
        assert {v["align"] for v in host.options} == {"end", "start"}
        assert sum(isinstance(v["schedule"], int) for v in host.options) == 1
        assert sum(isinstance(v["copies"], int) for v in host.options) == 1

    def test_no_variant_is_an_error(self) -> None:
        """A run of nothing is not a pass."""
        with pytest.raises(LanelockError, match="probe: no variant to run"):
            run_kernel(device(doubled, "host"), PROBE, DIMS, NO_EXTRA, variants=())

    def test_every_buffer_is_checked_and_freed(self) -> None:
        """The guards of each buffer are looked at, and nothing stays allocated, after a failure too."""
        good, bad = device(doubled), device(lambda a: a.values["x"].fill(0))
        run_kernel(good, PROBE, DIMS, NO_EXTRA)
        with pytest.raises(OutOfBounds):
            run_kernel(bad, PROBE, DIMS, NO_EXTRA)

        assert (good.checked, good.live, bad.live) == (4, 0, 0)

    def test_an_optional_buffer_may_be_null(self) -> None:
        """None arrives as a null pointer and is not an output; an array arrives and is one."""
        seen = []

        def body(a: Arrays) -> None:
            doubled(a)
            seen.append(a.values["extra"] is None)

        given = run(body, extra=np.array([4, 5], np.int32))
        assert (sorted(run(body)), given["extra"].tolist(), seen) == (["y"], [4, 5], [False, False, True, True])

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"x": X.astype(np.float64)}, r"probe: argument x needs float32 \(2, 3\), got float64 \(2, 3\)"),
            ({"x": X.T}, r"probe: argument x needs float32 \(2, 3\), got float32 \(3, 2\)"),
            ({"z": X}, r"probe: has no argument 'z'; it has \['extra', 'x', 'y'\]"),
        ],
    )
    def test_wrong_inputs_are_refused(self, change: dict[str, Any], sentence: str) -> None:
        """An input of another type or shape, or of no argument, is refused before the launch."""
        with pytest.raises(LanelockError, match=sentence):
            run(doubled, **change)

    def test_a_missing_input_is_refused(self) -> None:
        """A buffer that is read must be given."""
        with pytest.raises(LanelockError, match="probe: input x is missing"):
            run_kernel(device(doubled), PROBE, DIMS, {"extra": None})

    def test_a_refused_size_does_not_launch(self) -> None:
        """A rule of the entry is asked before the launch."""
        fake = device(doubled)
        with pytest.raises(LanelockError, match="probe: K = 100 is too wide"):
            run_kernel(fake, PROBE, {"rows": 1, "K": 100}, NO_EXTRA)

        assert fake.launches == 0

    @pytest.mark.parametrize(
        ("ctype", "low", "high"),
        [("int", -(2**31), 2**31 - 1), ("unsigned", 0, 2**32 - 1), ("long long", -(2**63), 2**63 - 1)],
    )
    def test_a_scalar_must_fit_its_type(self, ctype: Any, low: int, high: int) -> None:
        """Both ends of a type pass, and one beyond either is refused. Red: a limit off by one."""
        scalar = Scalar("n", ctype)
        assert [scalar_value({"n": n}, scalar) for n in (low, high)] == [low, high]
        for beyond in (low - 1, high + 1):
            with pytest.raises(LanelockError, match=f"argument n = {beyond} does not fit {ctype}"):
                scalar_value({"n": beyond}, scalar)

    def test_a_buffer_without_memory_is_refused(self) -> None:
        """Only an optional buffer may be null. Red: a null pointer for an argument that was forgotten."""
        with pytest.raises(LanelockError, match=f"probe: argument {PROBE.buffers[0].name} has no memory"):
            arguments(PROBE, {"rows": 1, "K": 4}, {})

    def test_used_elements_are_those_of_the_rows(self) -> None:
        """The mask of two rows of three at a pitch of five."""
        assert used_mask((2, 3), (5, 1), 8).tolist() == [True] * 3 + [False] * 2 + [True] * 3

    def test_pointer_offsets_are_bytes(self) -> None:
        """A pointer's address is that of its memory plus its offset, past 32 bits too."""
        memory = Memory("m", 1 << 40, 1 << 34, None)

        assert (memory.at(5 << 32).address, Pointer(memory).address) == ((1 << 40) + (5 << 32), 1 << 40)


class TestSameBits:
    """Bits are equal, or both are NaN."""

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_zeros_differ_and_nans_agree(self, dtype: type) -> None:
        """-0 is not +0, any NaN is any NaN, a NaN is no number, neighbours differ."""
        one = dtype(1)
        a = np.array([0.0, np.nan, np.nan, 1.0, 1.0], dtype)
        b = np.array([-0.0, -np.nan, 1.0, np.nan, np.nextafter(one, dtype(2))], dtype)

        assert same_bits(a, a).all()
        assert same_bits(a, b).tolist() == [False, True, False, False, False]

    def test_integers_are_compared(self) -> None:
        """Integers are equal or not."""
        assert same_bits(np.array([1, 2]), np.array([1, 3])).tolist() == [True, False]


class TestComparers:
    """What the locks compare with turns red."""

    @pytest.mark.parametrize(
        ("other", "sentence"),
        [
            (X.astype(np.float64), "dtype float32 is not float64"),
            (X[:1], "shape"),
            (X.reshape(3, 2), "shape"),
            (np.where(X == 5, np.nan, X).astype(np.float32), r"\[1, 2\] is 5.0 .* not nan .*; 1 of 6 differ"),
            (np.nextafter(X, np.float32(9)), r"\[0, 0\] is 0.0 \(00000000\), not .* \(00000001\); 6 of 6 differ"),
        ],
    )
    def test_arrays_that_differ_fail(self, other: np.ndarray, sentence: str) -> None:
        """Another type, length, shape, a NaN or the last bit is seen, and the place is named."""
        assert_same_bits(X, X.copy())
        with pytest.raises(AssertionError, match=sentence):
            assert_same_bits(X, other)

    def test_nothing_is_not_equal(self) -> None:
        """Two empty arrays compare nothing, which fails."""
        with pytest.raises(AssertionError, match="nothing to compare"):
            assert_same_bits(X[:0], X[:0])

    @pytest.mark.parametrize("actual", [{"a": X}, {"a": X, "b": X, "c": X}, {"a": X, "b": X + 1}])
    def test_outputs_that_differ_fail(self, actual: dict[str, np.ndarray]) -> None:
        """A missing output, another one, or a different last one is seen."""
        assert_same_outputs({"b": X, "a": X}, {"a": X, "b": X})
        with pytest.raises(AssertionError):
            assert_same_outputs(actual, {"a": X, "b": X})

    def test_relative_error_is_that_of_the_whole(self) -> None:
        """The norm of the error over the norm of the truth, NaN where one is, an error on shapes."""
        assert rel_L2(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == 4 / 3
        assert np.isnan(rel_L2(np.array([np.nan, 4.0]), np.ones(2)))
        for a, b in ((X, X.T), (X[:0], X[:0])):
            with pytest.raises(AssertionError):
                rel_L2(a, b)

    @pytest.mark.parametrize(
        ("actual", "bound"),
        [
            ([1.0, 2.0, 3.2], 0.1),
            ([1.0, 2.0, np.nan], 0.1),
            ([1.0, 2.0, 3.0], -0.1),
            ([1.0, 2.0, 3.0], np.nan),
            ([1.0, 2.0], 0.1),
            ([1.0, 2.0, 3.0 + 2**-50], 0.0),
            ([1.0, 2.0, 3.0 + 2**-20], [1, 1, 2**-21]),
        ],
    )
    def test_an_error_beyond_its_bound_fails(self, actual: list[float], bound: Any) -> None:
        """Each element is held to its own bound; a NaN, a bound below zero and a wrong length fail."""

        def share(_what: str, error: float, allowed: float) -> float:
            return float(error / allowed) if allowed > 0 else float("inf") if error > 0 else 0.0

        assert_within(share, "good", [1.0, 2.0, 3.0], [1.0, 2.1, 3.0], [0.0, 0.11, 0.0])
        with pytest.raises(AssertionError):
            assert_within(share, "bad", actual, [1.0, 2.0, 3.0], np.float64(bound))

    def test_codes_decode_to_values(self) -> None:
        """One word is code times scale, two words 128 hi + lo times scale, one scale a block of 32."""
        codes = np.zeros((1, 2, 64), np.int8)
        codes[0, :, [0, 63]] = [[1, -3], [-2, 5]]
        scales = np.array([[2.0, 0.5]], np.float32)

        assert decoded(codes, scales)[0, [0, 63]].tolist() == [2.0 * (128 - 3), 0.5 * (-256 + 5)]
        assert decoded(codes[:, :1], scales)[0, [0, 63]].tolist() == [2.0, -1.0]

    def test_half_a_code_is_allowed(self) -> None:
        """The bound of a quantiser is half a step of the block's own scale, and hardly more."""
        bound = quantiser_bound(np.array([[2.0, 4.0]], np.float32), 1)
        fine = quantiser_bound(np.ones((1, 1), np.float32), 2)

        assert bound.shape == (1, 64)
        assert np.all((bound[0, :32] > 1) & (bound[0, :32] < 1.001))
        assert np.all((bound[0, 32:] > 2) & (bound[0, 32:] < 2.001))
        assert np.all((fine > 0.5019) & (fine < 0.502))  # a code of 16256 carries two roundings of 2**-24


class TestCases:
    """A case in other surroundings catches the kernel that depends on them."""

    def test_a_right_kernel_passes(self) -> None:
        """Alone, in any slot, at any pitch, over any old contents."""
        assert_stands_alone(device(doubled), probe_case())
        assert_pitch_free(device(doubled), probe_case())
        assert_fully_written(device(doubled), probe_case())

    @pytest.mark.parametrize("neighbour", [0, -1])
    def test_a_row_that_reads_another_fails(self, neighbour: int) -> None:
        """A kernel that adds a zero of another row is red among poison."""

        def body(a: Arrays) -> None:
            doubled(a)
            count = 1 + (a.values["x"].size - 3) // a.values["x_pitch"]
            for row in a.rows("y", count):
                row[:] = row + 0 * a.rows("x", count)[neighbour][0]

        with pytest.raises(AssertionError):
            assert_stands_alone(device(body), probe_case())

    @pytest.mark.parametrize("batch", [1, 2, 64])
    def test_a_kernel_that_counts_rows_fails(self, batch: int) -> None:
        """A kernel that is wrong in a batch of one size alone is red, whichever of the three it is."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.values["y"][:] += a.values["y"].size == 3 * batch

        with pytest.raises(AssertionError):
            assert_stands_alone(device(body), probe_case())

    def test_a_pitch_taken_as_width_fails(self) -> None:
        """A kernel that reads rows as if they were packed is red at a wider pitch."""

        def body(a: Arrays) -> None:
            doubled(a)
            a.rows("y", 2)[1][:] = 2 * a.values["x"][3:6]

        with pytest.raises(AssertionError):
            assert_pitch_free(device(body), probe_case())

    @pytest.mark.parametrize("keep", [0, 5])
    def test_an_element_that_is_not_written_fails(self, keep: int) -> None:
        """A kernel that leaves one element as it was is red."""

        def body(a: Arrays) -> None:
            old = a.values["y"][keep]
            doubled(a)
            a.values["y"][keep] = old

        with pytest.raises(AssertionError):
            assert_fully_written(device(body), probe_case())


LOCKS = """
    import pytest

    def test_passes():
        '''A lock with a sentence.'''

    def test_skipped():
        pytest.skip("not run: there is no device of this kind")

    @pytest.mark.nightly
    def test_nightly():
        pass

    @pytest.mark.full
    def test_full():
        pass

    @pytest.mark.gpu
    def test_of_a_gpu(device):
        assert device.properties.kind == "cuda"

    def test_share(share):
        '''Half of a bound.'''
        assert share("error", 1.0, 2.0) == 0.5
        assert share("none", 0.0, 0.0) == 0.0
        assert share("too much", 1.0, 0.0) == float("inf")

    def test_nan_share(share):
        with pytest.raises(AssertionError, match="bad: the error is NaN"):
            share("bad", float("nan"), 1.0)

    def test_on_the_gpu(device):
        pass

    def test_on_both(both_devices):
        pass

    def test_many_shares(share):
        for part in range(10):
            share(f"part {part}", 1.0, 4.0 + part)
"""


def pytest_run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a file of locks with the options and accounting of ours, on a machine with no GPU to be seen."""
    (folder / "test_probe.py").write_text(textwrap.dedent(text))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-p", "locks.conftest"]
    command += ["-p", "no:cacheprovider", "-q", "test_probe.py", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run of LOCKS on a GPU that is not there: its output, exit code and results."""
    folder = tmp_path_factory.mktemp("accounting")
    done = pytest_run(folder, LOCKS, "--device", "cuda", "--results", "results.json")
    written = json.loads((folder / "results.json").read_text())
    return SimpleNamespace(
        text=done.stdout + done.stderr,
        code=done.returncode,
        seconds=written["seconds"],
        results={r["node"].split("::")[1]: r for r in written["locks"]},
    )


class TestAccounting:
    """What was not run is counted by itself and by name."""

    def test_outcomes_are_told_apart(self, accounted: Any) -> None:
        """Each lock has its own outcome: what was left out is not run, never passed."""
        outcomes = {node: row["outcome"] for node, row in accounted.results.items()}

        assert accounted.code == 0, accounted.text
        assert outcomes == {
            "test_passes": "passed",
            "test_share": "passed",
            "test_nan_share": "passed",
            "test_many_shares": "passed",
            "test_skipped": "not run",
            "test_nightly": "not run",
            "test_full": "not run",
            "test_on_the_gpu[cuda]": "not run",
            "test_of_a_gpu[cuda]": "not run",
            "test_on_both": "not run",
        }

    def test_reasons_are_counted(self, accounted: Any) -> None:
        """The end of the run lists each reason with its count."""
        assert "1  not run: there is no device of this kind" in accounted.text
        assert "1  not run: nightly tier only (--tier nightly)" in accounted.text
        assert "1  not run: full shapes only (--shapes full)" in accounted.text

    def test_a_result_carries_sentence_and_share(self, accounted: Any) -> None:
        """A lock's row has its sentence and the share of its bound."""
        row = accounted.results["test_share"]

        assert (row["sentence"], row["shares"]["error"], row["room"]) == ("Half of a bound.", 0.5, "probe")
        assert "0.500  test_probe.py::test_share  error" in accounted.text

    def test_the_largest_shares_are_listed(self, accounted: Any) -> None:
        """Eight shares are shown, the largest first, and the run's time is in the results."""
        listed = [float(line.split()[0]) for line in accounted.text.splitlines() if "::" in line and " part " in line]

        assert listed == sorted(listed, reverse=True)
        assert len([line for line in accounted.text.splitlines() if "test_probe.py::" in line]) == 8
        assert 0 < accounted.seconds < 120

    def test_one_device_is_not_both(self, tmp_path: Path) -> None:
        """With the host alone a lock of both devices is not run."""
        text = "def test_passes():\n    pass\n\ndef test_on_both(both_devices):\n    pass\n"
        done = pytest_run(tmp_path, text, "--device", "host")

        assert "1 passed, 1 skipped" in done.stdout
        assert "not run: needs both devices (--device all)" in done.stdout

    def test_the_host_is_no_gpu(self, tmp_path: Path) -> None:
        """A lock marked as a GPU's is not run on the host, by name. Red: 27 billion weights decoded by a processor."""
        done = pytest_run(tmp_path, LOCKS, "--device", "host", "-k", "of_a_gpu or passes")

        assert "1 passed, 1 skipped" in done.stdout
        assert "not run: needs a GPU (--device cuda or all)" in done.stdout

    def test_a_run_of_nothing_fails(self, tmp_path: Path) -> None:
        """A run in which everything was skipped ends with a failure."""
        done = pytest_run(tmp_path, "import pytest\n\ndef test_skipped():\n    pytest.skip('not run: nothing')\n")

        assert done.returncode != 0
        assert "no lock ran" in done.stdout

    def test_an_unknown_device_is_a_usage_error(self, tmp_path: Path) -> None:
        """A device that no machine has is one sentence before anything runs. Red: an error at every lock instead."""
        done = pytest_run(tmp_path, "def test_passes():\n    pass\n", "--device", "tpu")

        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert (done.stdout + done.stderr).strip() == (
            "ERROR: --device: unknown device 'tpu'; choose host, cuda, cuda:N or all"
        )

    def test_tiers_and_shapes_choose(self, tmp_path: Path) -> None:
        """The nightly tier and full shapes run what they name."""
        done = pytest_run(tmp_path, LOCKS, "--tier", "nightly", "--shapes", "full", "-k", "nightly or full")

        assert "2 passed" in done.stdout


def report(outcome: str, when: str = "call", longrepr: Any = None) -> Any:
    """What pytest reports of one phase of a lock."""
    return SimpleNamespace(
        when=when, outcome=outcome, nodeid="locks/test_add.py::TestAdd::test_it", longrepr=longrepr, duration=1.0,
        user_properties=[("sentence", "It adds."), ("share add", 0.123456)],
    )  # fmt: skip


class TestResults:
    """Results of a run as data."""

    def test_a_skip_is_not_run(self) -> None:
        """A skipped lock is not run, with its reason, in whatever phase it was skipped."""
        row = result_of(report("skipped", "setup", ("file", 1, "Skipped: no device")))
        assert row is not None
        assert (row.outcome, row.reason, row.room) == ("not run", "no device", "add")

    def test_a_failure_in_any_phase_is_a_failure(self) -> None:
        """A failed set-up or tear-down is a failure; one that passed decides nothing."""
        rows = [result_of(report("failed", when)) for when in ("setup", "call", "teardown")]

        assert [r.outcome for r in rows if r] == ["failed"] * 3
        assert result_of(report("passed", "setup")) is None
        assert result_of(report("passed", "teardown")) is None

    def test_the_summary_counts_by_outcome_and_room(self) -> None:
        """Passed, failed and not run are counted apart, in all and by room, and every failure is listed."""
        rows = [r for o in ("passed", "failed", "skipped", "skipped") if (r := result_of(report(o, longrepr="why")))]
        total = summary(rows, 2.3456)

        assert (total["passed"], total["failed"], total["not_run"]) == (1, 1, 2)
        assert total["rooms"] == {"add": {"passed": 1, "failed": 1, "not run": 2}}
        assert [f["outcome"] for f in total["failures"]] == ["failed"]
        assert total["not_run_reasons"] == {"why": 2}
        assert total["largest_shares"][0] == {"share": 0.1235, "lock": rows[0].node, "of": "add"}
        assert total["seconds"] == 2.35

    @pytest.mark.parametrize("count", [FEW, FEW + 1])
    def test_the_summary_of_few_locks_names_them(self, count: int) -> None:
        """Up to FEW passed locks are listed with their seconds. Red: a record that does not say which lane it held."""
        row = result_of(report("passed"))
        failed = result_of(report("failed"))
        assert row
        assert failed
        rows = [failed, *(dataclasses.replace(row, node=f"locks/test_add.py::test[{i}]") for i in range(count))]
        listed = summary(rows, 1.0)["passed_locks"]

        assert listed == ({r.node: 1.0 for r in rows[1:]} if count == FEW else None)

    def test_rooms_are_stems(self) -> None:
        """A lock belongs to the room of its file."""
        assert room_of("locks/test_rms_norm.py::TestValue::test_it") == "rms_norm"
        assert list(by_room([r for r in [result_of(report("passed"))] if r])) == ["add"]
