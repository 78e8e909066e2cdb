"""Locks of compiler, headers, doctor and records: versions that do not fit are named (handed case 43)."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import doctor
from harness.cuda import compiler, headers
from harness.cuda.compile import compile_file
from harness.cuda.gpus import Gpu, Gpus
from harness.cuda.report import Report, parse_reports
from harness.device import BuildError, NotRun
from harness.record import newest_record, record
from harness.sources import KERNELS, closure
from oracle.errors import LanelockError

#: A log as NVRTC 13 returns it: two entries, the first calling a function that was not inlined.
LOG = """ptxas info    : 0 bytes gmem, 256 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'
ptxas info    : Function properties for _Z1av
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 128 bytes smem, 380 bytes cmem[0]
ptxas info    : Function properties for helper
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z1bv' for 'sm_90a'
ptxas info    : Function properties for _Z1bv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 360 bytes cmem[0], 8 bytes cmem[2]
"""

SMALL = 'extern "C" __global__ void small(float* y) { y[0] = y[1] * y[2] + y[3]; }\n'


class TestReport:
    """The report of ptxas."""

    def test_every_number_is_read(self) -> None:
        """Registers, stack, spills, shared and constant memory of each entry; a called function's stack counts."""
        assert parse_reports(LOG) == {"_Z1av": Report(40, 32, 4, 12, 128, 380), "_Z1bv": Report(10, 0, 0, 0, 0, 368)}

    def test_an_entry_without_numbers_is_no_report(self) -> None:
        """A log that ends after the entry's name gives no report, so that zeros are never read into it."""
        assert parse_reports("ptxas info    : Compiling entry function '_Z1cv' for 'sm_90a'\n") == {}

    def test_a_spill_is_seen(self, tmp_path: Path) -> None:
        """An array indexed at run time shows as a stack frame in the report of a real compilation."""
        source = tmp_path / "framed.cu"
        source.write_text(
            'extern "C" __global__ void framed(float* y, int n) {\n'
            "  float a[64];\n"
            "  for (int i = 0; i < 64; ++i) a[i] = y[i];\n"
            "  for (int i = 0; i < n; ++i) a[(i * n) % 64] += a[i % 64];\n"
            "  for (int i = 0; i < 64; ++i) y[i] = a[i];\n"
            "}\n"
        )

        assert compile_file(source, ["framed"], "sm_90a").report("framed").stack == 256


class TestCompiler:
    """NVRTC as this project calls it; no driver needed."""

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_120"])
    def test_a_real_target_gives_machine_code(self, arch: str) -> None:
        """The output is an ELF file for the named architecture, beside its PTX."""
        output = compiler.compile_source(SMALL, "small.cu", ["small"], arch)

        assert output.cubin[:4] == b"\x7fELF"
        assert f".target {arch}" in output.ptx
        assert output.names == {"small": "small"}

    def test_nothing_is_contracted(self) -> None:
        """A product and a sum written apart stay apart: multiply and add, each with its rounding, and no fma."""
        ptx = compiler.compile_source(SMALL, "small.cu", ["small"], "sm_90a").ptx

        assert ("mul.rn.f32" in ptx, "add.rn.f32" in ptx, "fma" in ptx) == (True, True, False)

    def test_an_unknown_architecture_is_not_run(self) -> None:
        """An architecture that this NVRTC does not know is not run; the sentence names both and what is known."""
        with pytest.raises(NotRun, match=r"NVRTC \d+\.\d+ does not compile for sm_30; it knows sm_"):
            compiler.require_arch("sm_30")

    @pytest.mark.parametrize("arch", ["compute_90", "90", "sm_"])
    def test_a_virtual_architecture_is_refused(self, arch: str) -> None:
        """PTX for a driver to compile is never the product: only real targets are accepted, by name."""
        with pytest.raises(BuildError, match="is no real GPU architecture"):
            compiler.require_arch(arch)

    def test_the_first_error_is_in_the_message(self) -> None:
        """A source that does not compile raises one error with file, line and the compiler's sentence."""
        with pytest.raises(BuildError, match=r'bad\.cu for sm_90a .*: bad\.cu\(2\): error: identifier "nothing"'):
            compiler.compile_source("\n__global__ void bad() { nothing; }", "bad.cu", [], "sm_90a")

    def test_a_changed_header_is_compiled_anew(self, tmp_path: Path) -> None:
        """Changing a header that a source includes through another changes what the cache returns."""
        (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
        (tmp_path / "inner.cuh").write_text("constexpr float C = 1.0f;\n")
        source = tmp_path / "using.cu"
        source.write_text('#include "outer.cuh"\nextern "C" __global__ void k(float* y) { y[0] = C; }\n')
        first = compile_file(source, ["k"], "sm_90a").ptx
        (tmp_path / "inner.cuh").write_text("constexpr float C = 2.0f;\n")
        second = compile_file(source, ["k"], "sm_90a").ptx

        assert [p.name for p in closure(source)] == ["using.cu", "outer.cuh", "inner.cuh"]
        assert first != second  # red: a key of the source file alone


class TestHeaders:
    """Toolkit headers from wheels, held against the compiler before anything compiles."""

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_120"])
    @pytest.mark.parametrize("variable", ["clean", "elsewhere"])
    def test_fp16_bf16_fp8_and_matrix_headers_compile(self, arch: str, variable: str, tmp_path: Path) -> None:
        """A kernel with all four headers compiles, with no CUDA variable and with one that points elsewhere."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        if variable == "elsewhere":
            fake_toolkit(tmp_path / "include", 9020)
            environ |= {"CUDA_PATH": str(tmp_path), "CUDA_HOME": str(tmp_path), "CPATH": str(tmp_path / "include")}
        script = (
            "import sys\n"
            "from harness.cuda.headers import compile_probe\n"
            "from harness.device import NotRun\n"
            "try:\n"
            "    print(compile_probe(sys.argv[1]).cubin[:4] == b'\\x7fELF')\n"
            "except NotRun as absent:\n"
            "    print('not run:', absent)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, arch],
            env=environ, capture_output=True, text=True, cwd=KERNELS.parent, check=False,
        )  # fmt: skip  # one argument list
        if done.stdout.startswith("not run:"):
            pytest.skip(done.stdout.strip())

        assert done.stdout == "True\n", done.stderr

    def test_stale_headers_are_named_before_compiling(self, tmp_path: Path) -> None:
        """Headers of another toolkit are one sentence with the stale part and both versions, not a compiler's log."""
        fake_toolkit(tmp_path, 12080)
        with pytest.raises(BuildError) as caught:
            headers.compile_probe("sm_90a", [headers.folder_part(tmp_path)])

        have = "{}.{}".format(*compiler.version())
        assert str(caught.value) == (
            f"headers of {tmp_path} are of CUDA 12.8, the compiler is NVRTC {have}: use headers of CUDA {have}"
        )

    def test_a_stale_wheel_is_named_with_its_remedy(self) -> None:
        """A header wheel of another release is told apart and told what to install."""
        stale = headers.Part("nvidia-cuda-crt", Path("/x"), (12, 8))
        with pytest.raises(BuildError, match=r"nvidia-cuda-crt are of CUDA 12\.8.*: install nvidia-cuda-crt \d+\.\d+$"):
            headers.check([stale])

    def test_a_folder_without_headers_is_named(self, tmp_path: Path) -> None:
        """A folder that states no version holds no CUDA headers, and the sentence says so."""
        with pytest.raises(BuildError, match="these are no CUDA headers"):
            headers.folder_part(tmp_path)


class TestDoctor:
    """`lanelock doctor`."""

    def test_a_stale_part_is_named_and_the_rest_still_examined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Headers that do not fit are one stale finding; every other part is still reported."""
        stale = (headers.Part("nvidia-cuda-runtime", Path("/x"), (12, 8)),)
        monkeypatch.setattr(headers, "from_wheels", lambda: stale)
        monkeypatch.setattr(doctor, "host", lambda: (doctor.Finding("host device", doctor.OK, ""),))
        findings = {f.part: f for f in doctor.examine()}

        assert findings["headers"].state == doctor.STALE
        assert "nvidia-cuda-runtime are of CUDA 12.8" in findings["headers"].says
        assert {"Python", "host device", "NVRTC", "GPU"} <= set(findings)

    def test_an_old_driver_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver of an older CUDA generation than the compiler is stale, with both versions and the remedy."""
        gpu = Gpu(0, "A GPU", "", (9, 0), 132, 232448, 1 << 37)
        monkeypatch.setattr(doctor, "list_gpus", lambda: Gpus((gpu,), (12, 4), ""))
        found = {f.part: f for f in doctor.graphics()}

        assert found["GPU"].says == "cuda:0 A GPU, sm_90a, 128 GiB"
        assert found["driver"].state == doctor.STALE
        assert found["driver"].says.startswith("the driver is of CUDA 12.4 and cannot load what NVRTC ")

    def test_no_gpu_is_absent_with_its_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a GPU the finding is absent, not an error, and gives the reason."""
        monkeypatch.setattr(doctor, "list_gpus", lambda: Gpus((), None, "no NVIDIA driver on this machine"))

        assert doctor.graphics() == (doctor.Finding("GPU", doctor.ABSENT, "no NVIDIA driver on this machine"),)

    @pytest.mark.parametrize(("state", "code"), [(doctor.OK, 0), (doctor.ABSENT, 0), (doctor.BROKEN, 1)])
    def test_the_exit_code_says_whether_the_host_works(
        self, state: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A missing GPU leaves the exit code 0; a host device that does not work makes it 1."""
        monkeypatch.setattr(doctor, "examine", lambda: (doctor.Finding("part", state, "sentence"),))
        assert doctor.run(argparse.Namespace(json=True)) == code
        printed = json.loads(capsys.readouterr().out)

        assert printed["healthy"] is (code == 0)
        assert printed["findings"] == [{"part": "part", "state": state, "says": "sentence"}]


class TestRecord:
    """Machine-written records."""

    def test_a_record_carries_its_circumstances(self, tmp_path: Path) -> None:
        """A record holds the figures as given, and commit, toolkit and GPUs, null where they cannot be known."""
        path = record("lock-self-test", {"milliseconds": 1.5}, tmp_path)
        content = json.loads(path.read_text())

        assert content["figures"] == {"milliseconds": 1.5}
        assert {"kind", "date", "commit", "dirty", "toolkit", "gpus", "cpu", "python"} <= set(content)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary file stays

    def test_records_of_one_second_are_all_kept(self, tmp_path: Path) -> None:
        """Each has a name of its own, in the order of their making. Red: a night's second check over its first."""
        paths = [record("two", {"number": n}, tmp_path) for n in range(4)]

        assert paths == sorted(set(paths)) == sorted(tmp_path.iterdir())
        assert [json.loads(path.read_text())["figures"]["number"] for path in paths] == [0, 1, 2, 3]

    def test_the_newest_record_of_a_kind_is_found(self, tmp_path: Path) -> None:
        """Of several records of a kind the one with the latest time is named; another kind's name may start alike."""
        for name in ("a-20260101T000000Z", "a-20261130T020000Z", "a-b-20270101T000000Z"):
            (tmp_path / f"{name}.json").touch()

        assert newest_record("a", tmp_path) == "a-20261130T020000Z.json"
        assert newest_record("c", tmp_path) is None

    @pytest.mark.parametrize("figure", [float("nan"), object()])
    def test_a_figure_that_is_no_json_is_refused(self, figure: object, tmp_path: Path) -> None:
        """NaN and objects are refused, and no file is left."""
        with pytest.raises(LanelockError, match="cannot be written as JSON"):
            record("bad", {"x": figure}, tmp_path)

        assert list(tmp_path.iterdir()) == []


def fake_toolkit(folder: Path, version: int) -> None:
    """Headers of another toolkit: they state a version and compile to nothing but errors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    for name in headers.WHEELS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("#error a header of another toolkit\n")
