"""A decode as one CUDA C++ program: it does what the decode does, and its text holds every launch of the plan."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harness import cli
from harness.cuda.compiler import CONTRACT_FLAGS, compile_source
from harness.device import Device
from harness.emit import Recording, program, recorded
from harness.emit.recording import Run, Told, Write
from harness.emit.sources import sources
from harness.engine import Choice, Engine, Request
from harness.engine.session import setting
from harness.sources import KERNELS
from kernels.lanes import lane
from kernels.places import ROOT
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from locks.models import CONFIG, engine, prompt, run, tokens, weights
from locks.test_plan import H200
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import HeldWeights, specs

REQUESTS = [Request(prompt(9), 7), Request(prompt(3, 2), 12), Request(prompt(20, 3), 1), Request(prompt(6, 4), 5)]

#: Label, kernel, blocks, shared memory, cluster and arguments of a launch in the text.
CALL = re.compile(r'launch\("([^"]+)", room_\w+::(.+?), dim3\{(\d+)u, .*?\}, (\d+)u, (\d+)u, \w+, stream,\n(.*)\);')


def replayed(e: Engine, recording: Recording) -> dict[int, list[int]]:
    """The streams that an engine's device tells when it does what was recorded, and nothing else."""
    found: dict[int, list[int]] = {}
    for op in recording.ops:
        if isinstance(op, Write):
            e.device.write(e.memory[op.buffer], op.data, op.offset)
        elif isinstance(op, Run):
            e.run(op.program)
        else:
            found[op.request] = e.read("history")[op.first : op.first + op.count].tolist()
    return found


def recording_of(lane_name: str, B: int, drafts: int, requests: list[Request]) -> Recording:
    """A recording for an H200."""
    s = Setting(CONFIG, lane(lane_name), B, B, 40, H200, Tuning())
    return recorded(s, make_plan(s, 6, drafts), weights(), requests)


class TestRecording:
    """What a decode asks of a device, as a list made without one."""

    @pytest.mark.parametrize(("lane_name", "drafts"), [("a15", 0), ("a8+s16+kv16", 2), ("q4", 4)])
    def test_gives_the_streams_of_the_decode(self, device: Device, lane_name: str, drafts: int) -> None:
        """Four requests through two lanes, whatever is accepted, weights and tables included.

        Red: a write left out, a step too few, a stream read from another place or after its lane was given away.
        """
        choice = Choice(lane_name, 2, 40, 6, drafts)
        expected = tokens(run(device, choice, REQUESTS))
        with engine(device, choice) as e:
            s = setting(device, CONFIG, choice)
            for memory in e.memory.values():
                device.fill(memory, 0xFF)
            found = replayed(e, recorded(s, e.plan, weights(), REQUESTS))

        assert [found[i] for i in range(len(REQUESTS))] == expected

    def test_reads_each_stream_once_when_its_lane_is_left(self) -> None:
        """Every request is told once, with its own count, before a write empties its slot."""
        recording = recording_of("a8", 2, 1, REQUESTS)
        told = [op for op in recording.ops if isinstance(op, Told)]
        behind = [recording.ops[i + 1] for i, op in enumerate(recording.ops) if isinstance(op, Told)]

        assert sorted((op.request, op.count) for op in told) == [(i, r.count) for i, r in enumerate(REQUESTS)]
        assert all(isinstance(op, Write) and op.buffer == "slot" for op in behind)


    def test_refuses_the_weights_that_an_engine_refuses(self) -> None:
        """A row that has no Q4 scale is named before anything is recorded. Red: a program that prints NaN's tokens."""
        held = {name: weights().tensor(name) for name in specs(CONFIG)}
        wide = held["layers.0.Wd"]
        assert isinstance(wide, Q8_0)
        held["layers.0.Wd"] = Q8_0(wide.codes, np.full_like(wide.scales, 65504))
        s = Setting(CONFIG, lane("q4"), 1, 1, 40, H200, Tuning())

        with pytest.raises(LanelockError, match=r"layers\.0\.Wd: row 0, block 0 needs a Q4 scale"):
            recorded(s, make_plan(s, 6, 0), HeldWeights(CONFIG, held), REQUESTS[:1])


class TestText:
    """The program's source."""

    def text(self, drafts: int = 2) -> tuple[Recording, str, bytes]:
        recording = recording_of("q4", 2, drafts, REQUESTS)
        text, pieces = program(recording, "lock", "sm_90a", "A lock.")
        return recording, text, b"".join(pieces)

    def test_holds_every_launch_of_the_plan(self) -> None:
        """Kernel with template values, grid, shared memory and every argument, in the order of each program.

        Red: a launch left out, two of a program swapped, an argument of another.
        """
        recording, text, _ = self.text()
        for name, items in recording.plan.programs.items():
            head = f"void run_{re.sub(r'[^A-Za-z0-9]', '_', name)}(cudaStream_t stream) {{\n"
            calls = CALL.findall(text.split(head)[1].split("\n}\n")[0])
            assert [c[:5] for c in calls] == [
                (i.label, i.instance.expression, str(i.geometry.grid[0]), str(i.geometry.smem), str(i.geometry.cluster))
                for i in items
            ]
            assert [len(c[5].split(", ")) for c in calls] == [len(i.args) for i in items]

    def test_offsets_are_bytes_of_the_buffer(self) -> None:
        """A reference into a buffer is an address so many bytes behind its start. Red: elements taken for bytes."""
        _, text, _ = self.text()
        z = CONFIG.conv_channels * 4

        assert f"Place{{buffer_qkvz + {z}ll}}" in text
        assert "Place{buffer_drafts + 8ll}" in text

    def test_repeats_the_steps_and_writes_what_was_recorded(self) -> None:
        """Steps in a row are one graph; the file holds the bytes of every write, in order. Red: a step too many."""
        recording, text, data = self.text()
        runs = Counter(op.program for op in recording.ops if isinstance(op, Run))
        times = [(int(n), names) for n, names in re.findall(r"repeat\((\d+), stream, \[&\] \{ (.*?) \}\);", text)]
        once = Counter(re.findall(r"^  (?:run_\w+\(stream\); ?)+", text, re.MULTILINE))
        made = Counter[str]()
        for n, names in times:
            made.update(dict.fromkeys(re.findall(r"run_(\w+)\(", names), n))
        for line, n in once.items():
            made.update(dict.fromkeys(re.findall(r"run_(\w+)\(", line), n))

        assert max(n for n, _ in times) >= 4
        assert made == Counter({re.sub(r"\W", "_", name): n for name, n in runs.items()})
        assert data == b"".join(op.data.tobytes() for op in recording.ops if isinstance(op, Write))
        sizes = re.findall(r"^  write\(buffer_\w+ \+ \d+u, (\d+)u\);", text, re.MULTILINE)
        assert sum(map(int, sizes)) == len(data)

    def test_of_every_room_compiles_as_one(self) -> None:
        """All rooms in one translation unit are no error. Red: helpers of two rooms, or their headers, that collide."""
        text = sources(path.name for path in KERNELS.glob("*.cu"))

        assert compile_source(text, "rooms.cu", [], "sm_90a").cubin

    def test_holds_every_source_once(self) -> None:
        """What all rooms share stands once, in front of whoever includes it; no quoted include of ours is left."""
        text = sources(["conv.cu", "gates.cu", "rms_norm.cu", "swiglu.cu"])

        left = re.findall(r'#include "([^"]+)"', text)  # the host's, behind its own macro
        assert [name for name in left if not (ROOT / "harness/host/runtime" / name).is_file()] == []
        assert text.count("struct half_t {") == 1
        assert [text.count(f"namespace room_{n} {{") for n in ("conv", "gates", "rms_norm", "swiglu")] == [1] * 4
        assert text.index("struct half_t {") < text.index("namespace room_conv {")

    def test_prefers_shared_memory_where_a_launch_opts_in(self) -> None:
        """What a function is asked to be stands behind the opt-in, as the device's own launches have it.

        Red: shared memory preferred for every kernel, which leaves those within the default no L1.
        """
        asked = re.compile(r"cudaFuncSetAttribute\(kernel, cudaFuncAttribute(\w+), (\w+)\)")
        text = self.text()[1]
        opt_in = text.split("  if (shared + own.sharedSizeBytes > DEFAULT_SHARED) {\n")[1].split("\n  }\n")[0]

        assert asked.findall(text) == asked.findall(opt_in)
        assert dict(asked.findall(text)) == {
            "MaxDynamicSharedMemorySize": "shared",
            "PreferredSharedMemoryCarveout": "100",
        }

    def test_is_the_same_each_time(self) -> None:
        """The same decode gives the same bytes. Red: an order of a set, a time, a path."""
        assert self.text()[1:] == self.text()[1:]

    def test_of_the_host_is_refused(self) -> None:
        """Kernels chosen for the host are no GPU's."""
        with pytest.raises(LanelockError, match="emit: x86-64-v3 is no GPU"):
            program(recording_of("a8", 2, 0, REQUESTS), "lock", "x86-64-v3", "")


class TestCommand:
    """`lanelock emit`."""

    WORDS = ("emit", "--weights", "synthetic:1", "--config", "tiny", "--tokens", "1,2,3", "--n", "3")

    def test_writes_a_program_and_its_bytes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """FILE.cu and FILE.bin, whole, and nothing else; the line says what they hold."""
        assert cli.main([*self.WORDS, "--out", str(tmp_path / "a.cu")]) == 0
        said = capsys.readouterr().out

        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "a.cu"]
        assert f"{(tmp_path / 'a.bin').stat().st_size} bytes" in said
        assert "./program a.bin" in (tmp_path / "a.cu").read_text()

    @pytest.mark.parametrize(("words", "out", "sentence"), [
        ((), "a.txt", "the program's name must end with .cu"), ((), "none/a.cu", "there is no folder"),
        (("--batch", "x.json"), "a.cu", "either --tokens or --batch"), (("--drafts", "9"), "a.cu", "9 drafts"),
        (("--n", "0"), "a.cu", "--n: 0 is not at least 1"), (("--lane", "b8"), "a.cu", "'b8'"),
    ])  # fmt: skip
    def test_refuses_in_one_sentence_and_writes_nothing(
        self, words: tuple[str, ...], out: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A mistake ends with 2 and the sentence; no half program is left."""
        assert cli.main([*self.WORDS, *words, "--out", str(tmp_path / out)]) == 2
        told = capsys.readouterr().err
        assert sentence in told
        assert told.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def nvcc() -> str:
    """The path of nvcc; not run where there is none."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("not run: nvcc is not installed")
    return found


def built(compiler: str, folder: Path, recording: Recording, *options: str) -> Path:
    """The program of a recording, built by nvcc."""
    text, pieces = program(recording, "lock", "sm_90a", "A lock.")
    (folder / "lock.cu").write_text(text)
    (folder / "lock.bin").write_bytes(b"".join(pieces))
    out = folder / "lock"
    command = [compiler, *CONTRACT_FLAGS, "-diag-suppress", "177", "-arch=sm_90a", *options, "-o", str(out)]
    done = subprocess.run([*command, str(folder / "lock.cu")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return out


@pytest.mark.nightly
@pytest.mark.parametrize(("lane_name", "drafts"), [("a15", 0), ("a8+s16+kv16", 2), ("q4", 1)])
class TestProgram:
    """The program, built by nvcc."""

    def test_compiles(self, lane_name: str, drafts: int, tmp_path: Path) -> None:
        """Without an error or a warning. Red: two rooms whose helpers collide, an argument of another type."""
        assert built(nvcc(), tmp_path, recording_of(lane_name, 2, drafts, REQUESTS), "-cubin", "-Werror=all-warnings")

    @pytest.mark.gpu
    def test_prints_the_tokens_of_the_decode(self, device: Device, lane_name: str, drafts: int, tmp_path: Path) -> None:
        """On a GPU it prints what the decode gives. Red: anything that nvcc or a graph makes otherwise."""
        if device.properties.arch != "sm_90a":
            pytest.skip("not run: needs a CUDA device of compute capability 9.0")
        binary = built(nvcc(), tmp_path, recording_of(lane_name, 2, drafts, REQUESTS))
        done = subprocess.run([str(binary), str(tmp_path / "lock.bin")], capture_output=True, text=True, check=False)
        lines = [[int(t) for t in line.split(",")] for line in done.stdout.splitlines()]
        expected = tokens(run(device, Choice(lane_name, 2, 40, 6, drafts), REQUESTS))

        assert done.returncode == 0, done.stderr
        # a line when a sequence leaves its lane
        assert sorted(lines) == sorted(expected)
        assert np.all([len(line) for line in lines])
