"""Locks of the worker-to-GPU mapping and of the compile cache that workers share (handed case 40)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cache import cache_key, cached
from harness.device import DeviceError
from harness.sources import KERNELS
from harness.workers import BUDGET, CALLER, SHARERS, VISIBLE, Share, budget, entries, memory_budget, pin_worker, share

#: Two whole UUIDs and a MIG slice, as nvidia-smi -L prints them.
UUIDS = "GPU-5f6a3c1e-0000-4000-8000-00000000000a,MIG-77777777-0000-4000-8000-00000000000b"


class TestMapping:
    """Entry n mod count of the caller's own list."""

    @pytest.mark.parametrize(
        ("visible", "count", "expected"),
        [
            (None, 8, ["0", "1", "2", "3", "4", "5", "6", "7"]),
            (None, 2, ["0", "1"] * 4),
            (None, 1, ["0"] * 8),
            ("1", 8, ["1"] * 8),
            ("2,3", 8, ["2", "3"] * 4),
            (" 2 , 3 ", 8, ["2", "3"] * 4),
            ("", 8, [""] * 8),
            (None, 0, [""] * 8),
            ("-1", 8, [""] * 8),
            ("3,-1,2", 8, ["3"] * 8),
            ("0,9", 2, ["0"] * 8),
            (UUIDS, 2, UUIDS.split(",") * 4),
        ],
    )
    def test_worker_n_gets_entry_n_mod_count(self, visible: str | None, count: int, expected: list[str]) -> None:
        """Eight workers go round the caller's list, whatever its kind; a hidden GPU is never used."""
        chosen = [share(worker, 8, visible, count).visible for worker in range(8)]

        assert chosen == expected  # red: the worker's number taken as the physical id

    @given(
        listed=st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True),
        workers=st.integers(1, 32),
    )
    @settings(derandomize=True, deadline=None, max_examples=60)
    def test_sharers_add_up_to_the_workers(self, listed: list[int], workers: int) -> None:
        """Each GPU's sharers sum to all workers, differ by one at most, and only the caller's GPUs are used."""
        visible = ",".join(map(str, listed))
        shares = [share(w, workers, visible, 16) for w in range(workers)]
        per_gpu = {s.visible: s.sharers for s in shares}

        assert set(per_gpu) <= {str(i) for i in listed}
        assert sum(per_gpu.values()) == workers
        assert max(per_gpu.values()) - min(per_gpu.values()) <= 1

    def test_an_unknown_count_keeps_the_list(self) -> None:
        """Where the machine's GPUs cannot be counted, the caller's indices stand as written."""
        assert entries("5,7", 0) == ("5", "7")


class TestPinning:
    """The environment of a worker."""

    def test_a_worker_narrows_its_list(self) -> None:
        """Worker 3 of 4 with the list 2,3 sees 3 alone and knows that it shares it with worker 1."""
        environ = {"PYTEST_XDIST_WORKER": "gw3", "PYTEST_XDIST_WORKER_COUNT": "4", VISIBLE: "2,3"}
        chosen = pin_worker(environ, 8)

        assert chosen == Share("3", 2)
        assert (environ[VISIBLE], environ[CALLER], environ[SHARERS]) == ("3", "2,3", "2")

    def test_pinning_twice_changes_nothing(self) -> None:
        """A child process of a worker computes the same GPU from the caller's list, not entry 3 of a list of one."""
        environ = {"PYTEST_XDIST_WORKER": "gw3", "PYTEST_XDIST_WORKER_COUNT": "4"}
        first = pin_worker(environ, 2)
        second = pin_worker(environ, 2)

        assert first == second == Share("1", 2)

    def test_outside_xdist_the_callers_list_stands(self) -> None:
        """A run without workers leaves the environment alone."""
        environ = {VISIBLE: "2,3"}

        assert pin_worker(environ, 8) is None
        assert environ == {VISIBLE: "2,3"}

    def test_uncounted_gpus_are_not_hidden(self) -> None:
        """With no list of the caller's and no count of the machine's GPUs the environment stays as it is."""
        environ = {"PYTEST_XDIST_WORKER": "gw3", "PYTEST_XDIST_WORKER_COUNT": "4"}

        assert pin_worker(environ, 0) is None
        assert VISIBLE not in environ  # red: an empty list, which hides the GPU that CUDA would have found

    @pytest.mark.parametrize("visible", [None, "1", "2,3", "", UUIDS])
    def test_the_choice_is_made_before_cuda_is_imported(self, visible: str | None) -> None:
        """In a fresh worker process the list is narrowed while no module that starts CUDA is loaded."""
        script = (
            "import os, sys\n"
            "from harness.workers import pin_worker\n"
            "chosen = pin_worker(count=8)\n"
            "assert not [m for m in sys.modules if m.startswith(('cuda', 'torch'))]\n"
            "print(chosen.visible == os.environ['CUDA_VISIBLE_DEVICES'], chosen.visible)\n"
        )
        environ = {k: v for k, v in os.environ.items() if k not in (VISIBLE, CALLER, SHARERS)}
        environ |= {"PYTEST_XDIST_WORKER": "gw5", "PYTEST_XDIST_WORKER_COUNT": "8"}
        if visible is not None:
            environ[VISIBLE] = visible
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environ, capture_output=True, text=True, cwd=KERNELS.parent, check=False,
        )  # fmt: skip  # one argument list

        assert done.stdout.strip() == f"True {share(5, 8, visible, 8).visible}".strip(), done.stderr

    def test_a_late_choice_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that would change its list after CUDA may have started is an error, not a silent wrong GPU."""
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
        monkeypatch.setenv(VISIBLE, "somewhere else")
        monkeypatch.setenv(CALLER, "0,1")
        monkeypatch.setenv(SHARERS, "1")
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", sys)
        with pytest.raises(DeviceError, match="must choose its GPU before CUDA starts"):
            pin_worker(count=2)


class TestBudget:
    """Memory of a GPU that workers share."""

    def test_workers_together_fit(self) -> None:
        """The budgets of all sharers and a reserve for each context add up to no more than the GPU."""
        memory, reserve = 80 << 30, 1 << 30

        assert all(n * (budget(memory, n, reserve) + reserve) <= memory for n in range(1, 33))

    def test_too_many_workers_are_refused(self) -> None:
        """More workers than the GPU has room for is an error with the numbers."""
        with pytest.raises(DeviceError, match="16 workers on a GPU"):
            budget(16 << 30, 16, 1 << 30)

    @pytest.mark.parametrize(("text", "value"), [("1048576", 1 << 20), (None, None)])
    def test_the_callers_budget_is_read(self, text: str | None, value: int | None) -> None:
        """LANELOCK_GPU_MEMORY is a number of bytes; unset, there is no limit of ours."""
        assert memory_budget({} if text is None else {BUDGET: text}) == value

    def test_a_budget_that_is_no_number_is_refused(self) -> None:
        """A budget with a unit is an error that shows it."""
        with pytest.raises(DeviceError, match="'8GB' is no number of bytes"):
            memory_budget({BUDGET: "8GB"})


class TestExclusive:
    """A GPU that one process holds alone."""

    def test_holders_of_one_gpu_come_one_after_another(self, tmp_path: Path) -> None:
        """Of three processes that want the same GPU alone, no two hold it at the same time."""
        script = (
            "import pathlib, sys, time\n"
            "from harness.workers import exclusive\n"
            "log = pathlib.Path(sys.argv[1])\n"
            "with exclusive('GPU-1'), log.open('a') as file:\n"
            "    file.write('in ')\n"
            "    file.flush()\n"
            "    time.sleep(0.1)\n"
            "    file.write('out ')\n"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "log")]
        environ = os.environ | {"LANELOCK_CACHE": str(tmp_path / "cache")}
        for process in [subprocess.Popen(command, cwd=KERNELS.parent, env=environ) for _ in range(3)]:
            assert process.wait(60) == 0

        assert (tmp_path / "log").read_text().split() == ["in", "out"] * 3


class TestCache:
    """One compile cache for all workers."""

    def test_two_processes_produce_an_entry_once(self, tmp_path: Path) -> None:
        """Of four processes that ask for one key at once exactly one produces it, and all read the same bytes."""
        script = (
            "import os, pathlib, sys, time\n"
            "from harness.cache import cached\n"
            "root = pathlib.Path(sys.argv[1])\n"
            "def produce(path):\n"
            "    (root / f'made-{os.getpid()}').touch()\n"
            "    time.sleep(0.2)\n"
            "    path.write_text('whole')\n"
            "print(cached('ab12', produce, root).read_text())\n"
        )
        command = [sys.executable, "-c", script, str(tmp_path)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=KERNELS.parent) for _ in range(4)]
        answers = [p.communicate(timeout=60)[0].strip() for p in started]

        assert answers == ["whole"] * 4
        assert len(list(tmp_path.glob("made-*"))) == 1  # red: no lock, or no second look after it

    def test_a_failed_production_leaves_no_entry(self, tmp_path: Path) -> None:
        """What produce raises comes out, and the next caller produces again."""

        def fail(path: Path) -> None:
            path.write_text("half")
            raise DeviceError("no")

        with pytest.raises(DeviceError, match="no"):
            cached("cd34", fail, tmp_path)

        assert cached("cd34", lambda p: p.write_text("whole") and None, tmp_path).read_text() == "whole"

    def test_parts_of_a_key_do_not_run_together(self) -> None:
        """Moving a letter from one part to the next changes the key."""
        assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("ab", "c", "")}) == 4
