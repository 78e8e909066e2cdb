"""The nightly run: every command that scripts and pages name is one that the command line takes."""

import itertools
import re
import shlex
import subprocess
import sys

import pytest

from harness import cli
from kernels.places import ROOT

if not (ROOT / ".ci").is_dir():
    pytest.skip("not run: an installed package has no .ci folder", allow_module_level=True)
SCRIPT = (ROOT / ".ci" / "nightly").read_text(encoding="utf-8")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}


def shell_lines(program: str) -> list[list[str]]:
    """Arguments of every call of a program in the nightly script."""
    lines = [line.split("||")[0] for line in SCRIPT.splitlines() if line.startswith(program)]
    return [shlex.split(line)[len(program.split()) :] for line in lines]


def quoted() -> list[str]:
    """Every `lanelock ...` of the pages that has an option: those without may leave out what is required."""
    spans = [span for text in PAGES.values() for span in re.findall(r"`(lanelock [^`]*--[^`]*)`", text)]
    return [" ".join(span.split()) for span in spans]


class TestScript:
    """`.ci/nightly`."""

    def test_runs_all_four_parts(self) -> None:
        """All locks on both devices, the 27B alone, goldens, compute-sanitizer and strength. Red: a part left out."""
        assert [words[:2] for words in shell_lines("lanelock")] == [
            ["golden", "check"], ["golden", "check"], ["sanitize", "--processes"], ["strength", "--record"]
        ]  # fmt: skip
        everything, model = shell_lines("python -m pytest")
        assert [w for w in everything if w.startswith("locks/")] == ["locks/"]
        assert [w for w in model if w.startswith("locks/")] == ["locks/test_27b.py"]
        assert "-n" in everything
        assert "-n" not in model

    @pytest.mark.parametrize("words", shell_lines("lanelock"), ids=" ".join)
    def test_gives_commands_that_parse(self, words: list[str]) -> None:
        """The command line takes each, and each leaves a record. Red: an option that was renamed."""
        assert cli.parser().parse_args(words).record

    @pytest.mark.parametrize("words", shell_lines("python -m pytest"), ids=" ".join)
    def test_runs_locks_at_full_shapes_on_both_devices(self, words: list[str]) -> None:
        """Pytest takes its options: the tier, shapes and devices are those of the nightly run."""
        assert {("--device", "all"), ("--tier", "nightly"), ("--shapes", "full")} <= set(itertools.pairwise(words))
        workers = words.index("-n") if "-n" in words else len(words)
        rest = words[:workers] + words[workers + 2 :]
        here = [w for w in rest if not w.startswith("locks/") and w != "--record"]
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *here, "locks/test_nightly.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

        assert done.returncode == 0, done.stdout + done.stderr

    def test_fails_if_any_part_fails(self) -> None:
        """Every part goes on to the next and turns the exit code red. Red: the code of the last part alone."""
        parts = [line for line in SCRIPT.splitlines() if line.startswith(("lanelock", "python"))]

        assert all(line.endswith("|| red=1") for line in parts)
        assert SCRIPT.endswith('exit "$red"\n')

    def test_is_what_the_workflow_and_the_cron_line_call(self) -> None:
        """The example workflow runs the script and nothing else of its own; the cron line does too."""
        workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")

        assert re.findall(r"- run: (.*)", workflow)[-1] == ".ci/nightly"
        assert "lanelock" not in workflow
        assert re.search(r"^\d+ \d+ \* \* \* .*&& \.ci/nightly", PAGES["CONTRIBUTING.md"], re.MULTILINE)


@pytest.mark.parametrize("line", quoted())
def test_a_page_names_commands_that_parse(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """README and CONTRIBUTING give lines that the command line takes; FILE stands for a name."""
    try:
        cli.parser().parse_args(shlex.split(line)[1:])
    except SystemExit:
        pytest.fail(f"{line}: {capsys.readouterr().err}")
