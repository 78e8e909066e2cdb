"""A red lock of a kernel prints a command line that runs the same launch again."""

import hashlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.device import Device, NotRun, OutOfBounds, Race
from harness.host import HostDevice
from harness.reproduce import load_inputs, save_inputs
from harness.run import run_kernel
from kernels.add import ADD
from kernels.rms_norm import KERNELS as NORMS
from locks.red import reproduction
from locks.support import Case, assert_same_bits
from oracle.errors import LanelockError

ROWS = {
    "x": np.arange(64, dtype=np.float32).reshape(2, 32),
    "y": np.ones((2, 32), np.float32),
}
SIZE = {"rows": 2, "K": 32}
_SIGNATURE = "const float* x, int x_pitch, const float* y, int y_pitch, float* z, int z_pitch, int K"
OUTSIDE = "if (!threadIdx.x) z[2 * z_pitch] = x[0];"
RACE = "z[0] = threadIdx.x; for (int i = 1; i < 64; ++i) z[i] = 0;"


def broken(folder: Path, body: str) -> HostDevice:
    """A host device whose `add` has another body."""
    (folder / "add.cu").write_text(f'#include "device.cuh"\n__global__ void add({_SIGNATURE}) {{ {body} }}\n')
    try:
        return HostDevice(source_root=folder)
    except NotRun as absent:
        pytest.skip(f"not run: {absent}")


class TestErrors:
    """What a checked run raises ends with the line that runs it again."""

    def test_a_fault_names_its_variant(self, tmp_path: Path) -> None:
        """An error of one launch is reproduced by its kernel, dims, schedule, copies and alignment."""
        with pytest.raises(OutOfBounds) as caught:
            run_kernel(broken(tmp_path, OUTSIDE), ADD, SIZE, ROWS)

        assert str(caught.value).endswith(
            "; reproduce: lanelock run add --device host --dims rows=2,K=32 "
            "--schedule ascending --copies eager --align end"
        )

    def test_a_race_names_all_variants(self, tmp_path: Path) -> None:
        """A difference between variants is reproduced by all of them, so the line chooses none."""
        with pytest.raises(Race) as caught:
            run_kernel(broken(tmp_path, RACE), ADD, SIZE, ROWS)

        assert str(caught.value).endswith("; reproduce: lanelock run add --device host --dims rows=2,K=32")

    def test_template_values_are_named(self, tmp_path: Path) -> None:
        """Template values and fractions are spelled as the command reads them."""
        kernel = next(k for k in NORMS if k.name == "rms_norm_quantize")
        case = Case(kernel, {"rows": 1, "K": 96, "eps": np.float32(0.5)}, {}, {"WORDS": 2})

        assert " --dims rows=1,K=96,eps=0.5,WORDS=2 --inputs " in line_of(case, tmp_path)


def line_of(case: Case, root: Path, kind: str = "host") -> str:
    """The line of a lock that fails with a case at hand."""
    device: Any = SimpleNamespace(properties=SimpleNamespace(kind=kind))
    item: Any = SimpleNamespace(
        funcargs={"device": device}, nodeid="locks/test_x.py::test_y", config=SimpleNamespace(rootpath=root)
    )
    try:
        helper(case)
    except AssertionError:
        return reproduction(item, pytest.ExceptionInfo.from_current())
    return ""


def helper(case: Case) -> None:
    """Fails as a comparison does."""
    raise AssertionError(case.kernel.name)


class TestRedLocks:
    """A comparison that fails prints the line too, with the inputs in a file."""

    def test_the_line_runs_the_same_inputs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: Device
    ) -> None:
        """The printed command gives what the lock's case gave, bit for bit."""
        case = Case(ADD, SIZE, ROWS)
        monkeypatch.chdir(tmp_path)
        program, *arguments = shlex.split(line_of(case, tmp_path, device.properties.kind))
        code = main([*arguments, "--json"])
        told = json.loads(capsys.readouterr().out)["outputs"][0]

        assert (program, code, told["argument"]) == ("lanelock", 0, "z")
        assert told["sha256"] == hashlib.sha256(case.run(device)["z"].tobytes()).hexdigest()

    def test_inputs_come_back_with_their_nulls(self, tmp_path: Path) -> None:
        """A file of inputs holds dtype, shape and bits of each array and the pointers that were null."""
        save_inputs({**ROWS, "extra": None}, tmp_path / "inputs.npz")
        loaded = load_inputs(tmp_path / "inputs.npz")

        assert sorted(loaded) == ["extra", "x", "y"]
        assert loaded["extra"] is None
        assert_same_bits(loaded["x"], ROWS["x"])

    @pytest.mark.parametrize("content", [None, b"", b"text", b"\x80\x05random", "npz"])
    def test_a_file_of_something_else_is_refused(self, tmp_path: Path, content: bytes | str | None) -> None:
        """A missing file, text, and an archive of other arrays are errors that name the file."""
        path = tmp_path / "other.npz"
        if content == "npz":
            np.savez(path, x=ROWS["x"])
        elif isinstance(content, bytes):
            path.write_bytes(content)
        with pytest.raises(LanelockError, match=r"other\.npz holds no inputs of a kernel") as caught:
            load_inputs(path)
        assert "pickle" not in str(caught.value)

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ("rows=x,K=160,eps=1", "dim rows = x is not a finite number"),
            ("rows=2.5,K=160,eps=1", "dim rows = 2.5 is not a whole number"),
            ("rows=2,K=160,eps=nan", "dim eps = nan is not a finite number"),
            ("rows=2,K=160,eps=inf", "dim eps = inf is not a finite number"),
            ("rows=2,K=160,eps=1,foo=3", "has no dim 'foo'"),
            ("rows=2,K=160,eps=1,WORDS=2.0", "template parameter WORDS = 2.0 is no whole number"),
            ("rows=2,K=160", "dim eps is missing"),
        ],
    )
    def test_a_dim_that_is_none_is_named(self, dims: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A dim that is no number, no whole one where one is needed, unknown or missing ends with code 2 and its name.

        A value that reaches a rule or a derivation unchecked ends in a traceback instead.
        """
        assert main(["run", "rms_norm_quantize", "--dims", dims]) == 2
        assert f"rms_norm_quantize: {sentence}" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ("rows=2,,K=160", "'' is not NAME=VALUE"),
            ("rows=2,K", "'K' is not NAME=VALUE"),
            ("K=160,K=64", "K is given twice"),
        ],
    )
    def test_a_list_of_dims_says_each_once(self, dims: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing between commas, no value, and two values are one sentence. Red: the last of two taken silently."""
        assert main(["run", "rms_norm_quantize", "--dims", dims]) == 2
        assert f"lanelock: --dims: {sentence}" in capsys.readouterr().err

    def test_a_file_of_inputs_that_is_not_there_is_named_first(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Before the dims, which the line of a red lock would have too. Red: `dim K is missing` for a name mistyped."""
        assert main(["run", "projection_stream", "--inputs", "/none.npz"]) == 2
        told = capsys.readouterr().err
        assert told == "lanelock: /none.npz holds no inputs of a kernel: No such file or directory\n"

    def test_a_lock_without_a_case_prints_no_line(self) -> None:
        """A lock that runs no kernel has nothing to reproduce."""
        item: Any = SimpleNamespace(funcargs={})
        try:
            raise AssertionError
        except AssertionError:
            assert reproduction(item, pytest.ExceptionInfo.from_current()) == ""
