"""compute-sanitizer: its logs are read right, nothing it says is lost, and what did not run is never a pass."""

import json
import os
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from harness import cli
from harness.cli import sanitize
from harness.cuda.gpus import Gpu, Gpus
from oracle.errors import LanelockError
from reports.sanitizer import PLANTED, TOOLS, FalseAlarm, Finding, Log, judge, parse, read_ledger

SAMPLES = {
    "memcheck": """
        ========= COMPUTE-SANITIZER
        ========= Invalid __global__ write of size 4 bytes
        =========     at planted_stray(float *, int)+0xa0
        =========     by thread (0,0,0) in block (0,0,0)
        =========     Access to 0x7f2aa5200100 is out of bounds
        =========     and is 1 bytes after the nearest allocation at 0x7f2aa5200000 of size 256 bytes
        =========
        ========= Invalid __global__ read of size 16 bytes
        =========     at void lane::gemm_tc<(int)2, (int)8>(const signed char *, const float *, int)+0x1d0
        =========     by thread (3,0,0) in block (7,0,0)
        =========     Access to 0x7f2aa5200200 is misaligned
        =========
        ========= ERROR SUMMARY: 2 errors
    """,
    "racecheck": """
        ========= COMPUTE-SANITIZER
        ========= Error: Race reported between Write access at planted_race(float *, int)+0x80
        =========     and Read access at planted_race(float *, int)+0x110 [64 hazards]
        =========
        ========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
    """,
    "initcheck": """
        ========= COMPUTE-SANITIZER
        ========= Uninitialized __global__ memory read of size 4 bytes
        =========     at planted_unset(float *, const float *)+0x70
        =========     by thread (0,0,0) in block (0,0,0)
        =========     Address 0x7f46ef200200
        =========
        ========= ERROR SUMMARY: 1 error
    """,
    "synccheck": """
        ========= COMPUTE-SANITIZER
        ========= Barrier error detected. Divergent thread(s) in block
        =========     at planted_divergence(float *)+0xb0
        =========     by thread (0,0,0) in block (0,0,0)
        =========
        ========= ERROR SUMMARY: 1 error
    """,
}
HEAD = "========= COMPUTE-SANITIZER\n"
CLEAN = dict.fromkeys(TOOLS, f"{HEAD}========= ERROR SUMMARY: 0 errors\n")
CLEAN["racecheck"] = f"{HEAD}========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def sample(tool: str) -> str:
    """A log as the tool writes it."""
    lines = textwrap.dedent(SAMPLES[tool]).strip().splitlines()
    return "".join(line.ljust(len("========= ")) + "\n" for line in lines)  # the mark's space stays on an empty line


def row(finding: Finding) -> tuple[str, str]:
    """Kernel and what."""
    return finding.kernel, finding.text.split(" at ")[0]


class TestLog:
    """The log of one process under one tool."""

    @pytest.mark.parametrize("tool", TOOLS)
    def test_names_the_kernel_of_every_complaint(self, tool: str) -> None:
        """A planted fault of the tool's kind is found in its kernel, and the summary counts what was parsed."""
        log = parse(tool, sample(tool))

        assert log.findings[0].kernel == PLANTED[tool]
        assert (len(log.findings), log.unable) == (log.counted, "")

    def test_keeps_what_and_where_of_each(self) -> None:
        """A template's kernel is its symbol; the lines below a complaint belong to it. Red: two complaints in one."""
        first, second = parse("memcheck", sample("memcheck")).findings

        assert row(first) == ("planted_stray", "Invalid __global__ write of size 4 bytes")
        assert row(second) == ("gemm_tc", "Invalid __global__ read of size 16 bytes")
        assert second.detail[-1] == "Access to 0x7f2aa5200200 is misaligned"

    def test_of_a_complaint_about_no_kernel_names_none(self) -> None:
        """An API error is a finding too."""
        text = "========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to \"invalid argument\" on CUDA API call\n"
        log = parse("memcheck", text + "========= ERROR SUMMARY: 1 error\n")

        assert [f.kernel for f in log.findings] == [""]

    def test_of_a_buffer_read_back_names_no_kernel(self) -> None:
        """A host's read of unset bytes is a finding about none, which a ledger's entry for no kernel explains alone."""
        text = (
            "========= Host API memory access error at host access to 0x7fe448800200 of size 256 bytes\n"
            "=========     Uninitialized access to 0x7fe448800280 on access by cudaMemcpy source\n========= \n"
        )
        logs = [parse("initcheck", text + "========= ERROR SUMMARY: 1 error\n")]
        ledger = [FalseAlarm("initcheck", "", "Host API memory access error", "read back in whole")]

        assert judge("initcheck", logs, ledger, 3).status == "clean"
        assert judge("initcheck", [*logs, parse("initcheck", sample("initcheck"))], ledger, 3).status == "found"

    def test_takes_no_line_of_the_program_for_one_of_the_tool(self) -> None:
        """A program that prints a summary of its own changes nothing. Red: a lock that writes its own clean log."""
        assert parse("memcheck", "ERROR SUMMARY: 0 errors\n").counted is None


class TestVerdict:
    """One tool over the locks."""

    def test_is_clean_only_with_a_summary_and_a_lock(self) -> None:
        """No log, a log without a summary, and no lock are each not run. Red: silence taken for a pass."""
        clean = parse("memcheck", CLEAN["memcheck"])
        cut = parse("memcheck", HEAD)

        assert judge("memcheck", [clean, cut], (), 3).status == "clean"
        assert judge("memcheck", [clean], (), 0).status == "not run"
        assert judge("memcheck", [cut], (), 3).status == "not run"
        assert judge("memcheck", [], (), 3).status == "not run"

    @pytest.mark.parametrize("line", ["Internal Sanitizer Error: the device is gone", "Unable to attach to the process",
                                      "Device not supported. Please refer to the documentation"])  # fmt: skip
    def test_is_not_run_where_the_tool_says_it_could_not(self, line: str) -> None:
        """One process that could not be watched makes the whole tool not run, with its line as the reason."""
        logs = [parse("memcheck", CLEAN["memcheck"]), parse("memcheck", f"========= {line}\n")]
        verdict = judge("memcheck", logs, (), 3)

        assert (verdict.status, verdict.reason) == ("not run", line)

    def test_is_found_where_a_complaint_is_unexplained(self) -> None:
        """The ledger explains by tool, kernel and text together. Red: an entry that excuses another kernel."""
        log = parse("racecheck", sample("racecheck"))
        right = FalseAlarm("racecheck", "planted_race", "Race reported", "a lock")
        others = [FalseAlarm("memcheck", "planted_race", "Race reported", "-"),
                  FalseAlarm("racecheck", "gemm_tc", "Race reported", "-"),
                  FalseAlarm("racecheck", "planted_race", "Invalid", "-")]  # fmt: skip  # an entry a line

        assert judge("racecheck", [log], others, 3).status == "found"
        verdict = judge("racecheck", [log], [*others, right], 3)
        assert (verdict.status, len(verdict.explained)) == ("clean", 1)

    def test_is_found_where_the_summary_counts_more_than_the_log_shows(self) -> None:
        """Complaints beyond the print limit are not lost."""
        verdict = judge("memcheck", [Log((), 5, "")], (), 3)

        assert (verdict.status, verdict.findings[0].text) == ("found", "5 more, which its log does not show")


class TestLedger:
    """The file of proven false alarms."""

    def test_of_this_repository_is_whole(self) -> None:
        """Every entry names a tool, a text and its proof."""
        assert all(alarm.tool in TOOLS for alarm in read_ledger())

    @pytest.mark.parametrize("text", [
        "[[false_alarm",
        '[[false_alarm]]\ntool = "memcheck"',
        '[[false_alarm]]\ntool = "a"\nkernel = ""\ntext = "b"\nproof = "c"',
        '[[false_alarm]]\ntool = "memcheck"\nkernel = ""\ntext = "b"\nproof = ""',
    ])  # fmt: skip  # an entry a line
    def test_with_a_broken_entry_is_refused(self, text: str, tmp_path: Path) -> None:
        """An entry without its proof, or of no tool, is named with the file."""
        (tmp_path / "ledger.toml").write_text(text)
        with pytest.raises(LanelockError, match=r"ledger\.toml: "):
            read_ledger(tmp_path / "ledger.toml")


FAKE = """
import json, os, re, sys
words = sys.argv[1:]
tool = words[words.index("--tool") + 1]
log = words[words.index("--log-file") + 1].replace("%p", "1")
planted = "locks.sanitizer_probes" in words
said = json.loads(os.environ["FAKE"])
open(log, "w").write(said["planted" if planted else "locks"][tool])
if not planted:
    assert os.environ["LANELOCK_WATCHED"].startswith("guards")
    named = re.compile(words[words.index("-k") + 1].replace("cuda and ", ""))
    workers = words[words.index("-n") + 1] if "-n" in words else "none"
    assert workers == os.environ["WORKERS"], workers
    rows = [{"node": n, "outcome": o} for n, o in said["outcomes"].items() if named.search(n)]
    open(words[words.index("--results") + 1], "w").write(json.dumps({"locks": rows}))
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """A compute-sanitizer that says what it is told, on a machine that seems to have a GPU."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\n{FAKE}")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpu = Gpu(0, "a GPU", "", (9, 0), 132, 232448, 1 << 30)
    monkeypatch.setattr(sanitize, "list_gpus", lambda: Gpus((gpu,), None, ""))
    planted = {t: sample(t).split("========= \n")[0] + CLEAN[t].replace("0", "1") for t in TOOLS}  # the first complaint
    return {"planted": planted, "locks": dict(CLEAN), "outcomes": {"a[cuda]": "passed", "b[cuda]": "not run"}}


class TestCommand:
    """`lanelock sanitize`."""

    def run(self, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
        monkeypatch.setenv("FAKE", json.dumps(said))
        asked = words[words.index("--processes") + 1] if "--processes" in words else "1"
        monkeypatch.setenv("WORKERS", "none" if asked == "1" else asked)
        return cli.main(["sanitize", "--room", "add", *words])

    def test_passes_where_every_tool_ran_and_found_nothing(
        self, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each of the four tools sees its planted fault, and nothing in the locks."""
        assert self.run(said, monkeypatch) == 0
        assert [line.split(";")[0] for line in capsys.readouterr().out.splitlines()] == [
            f"{tool}: clean, 1 locks" for tool in TOOLS
        ]

    def test_shares_the_locks_among_processes(
        self, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many as were asked for, one where nothing was. Red: an option that is read and dropped."""
        assert self.run(said, monkeypatch, "--tool", "memcheck", "--processes", "2") == 0
        assert self.run(said, monkeypatch, "--tool", "memcheck", "--processes", "1") == 0

    @pytest.mark.parametrize(("match", "code"), [("a", 0), ("b", 2)])
    def test_runs_only_locks_that_match(
        self, match: str, code: int, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip  # as many arguments
        """Lock a[cuda] passes and b[cuda] is not run; the figures say what was matched.

        Red: a choice of locks that is dropped, or a part of a room that reads as the whole.
        """
        said["outcomes"] = {"a[cuda]": "passed", "b[cuda]": "not run"}

        assert self.run(said, monkeypatch, "--tool", "memcheck", "--match", match, "--json") == code
        assert json.loads(capsys.readouterr().out)["match"] == match

    def test_fails_where_a_tool_finds_something(
        self, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A race in a lock ends with 1, its kernel and its words."""
        said["locks"]["racecheck"] = sample("racecheck").replace("planted_race", "add")

        assert self.run(said, monkeypatch, "--json") == 1
        rows = {row["tool"]: row for row in json.loads(capsys.readouterr().out)["tools"]}
        assert [r["status"] for r in rows.values()] == ["clean", "found", "clean", "clean"]
        assert rows["racecheck"]["findings"][0]["kernel"] == "add"

    def test_a_finding_is_told_where_locks_fail_by_it(
        self, said: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An access out of bounds that fails every lock is a finding, not a tool that did not run."""
        said["locks"]["memcheck"] = sample("memcheck").replace("planted_stray", "attention")
        said["outcomes"] = {"a[cuda]": "failed"}

        assert self.run(said, monkeypatch, "--tool", "memcheck") == 1
        assert "1 x attention: Invalid __global__ write of size 4 bytes" in capsys.readouterr().out

    @pytest.mark.parametrize(("change", "reason"), [
        ({"planted": {"memcheck": CLEAN["memcheck"]}}, "it does not see the planted fault, and that alone"),
        ({"planted": {"memcheck": "========= Device not supported\n"}}, "Device not supported"),
        ({"planted": {"memcheck": sample("memcheck").replace("lane::gemm_tc", "planted_nothing")}}, "that alone"),
        ({"locks": {"memcheck": HEAD}}, "it left no summary"),
        ({"outcomes": {"a[cuda]": "failed"}}, "1 locks fail under it, such as a[cuda]"),
        ({"outcomes": {"a[cuda]": "not run", "b[cuda]": "not run"}}, "no lock ran under it"),
    ])  # fmt: skip
    def test_is_not_run_where_a_tool_cannot_be_believed(
        self, change: dict[str, dict[str, str]], reason: str, said: dict[str, dict[str, str]],
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip  # as many arguments
        """A tool blind to its planted fault, without a summary, or over locks that fail, ends with 2 and says why."""
        for part, values in change.items():
            said[part] = values if part == "outcomes" else {**said[part], **values}

        assert self.run(said, monkeypatch, "--tool", "memcheck") == 2
        assert "memcheck: not run, " in (text := capsys.readouterr().out)
        assert reason in text

    def test_says_that_it_is_not_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Where there is no compute-sanitizer, or no GPU, it ends with 2 and one sentence: not run is no pass."""
        monkeypatch.setattr(sanitize.shutil, "which", lambda *_, **__: None)
        assert cli.main(["sanitize"]) == 2
        assert "not run: compute-sanitizer is not installed" in capsys.readouterr().err
        monkeypatch.setattr(sanitize.shutil, "which", lambda *_, **__: str(tmp_path))
        monkeypatch.setattr(sanitize, "list_gpus", lambda: Gpus((), None, "no driver"))
        assert cli.main(["sanitize"]) == 2
        assert "no driver" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.nightly
def test_every_tool_sees_its_planted_fault() -> None:
    """compute-sanitizer itself, where it is installed, names the planted kernel and not the clean one beside it."""
    try:
        sanitizer = sanitize.find()
        sanitize.list_gpus().require(0)
    except LanelockError as missing:
        pytest.skip(f"not run: {missing}")
    for tool in TOOLS:
        logs, _ = sanitize.watched(sanitizer, tool, ["locks.sanitizer_probes", tool])

        assert {f.kernel for log in logs for f in log.findings} - {""} == {PLANTED[tool]}
