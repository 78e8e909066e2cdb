"""`lanelock verify`: green only where locks ran and held, every golden stream holds and every lane is a number."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from golden.sources import BOUNDED, LANES
from harness import cli
from harness.cli import verify
from locks.test_report import priced
from oracle.errors import LanelockError
from reports.accuracy import Errors, Split
from reports.lock_results import LockResult

GREEN = LockResult("locks/test_add.py::TestAdd::test_is[host]", "add", "It is so.", "passed", 0.1, {"a sum": 0.5})
RED = LockResult("locks/test_add.py::TestAdd::test_holds[host]", "add", "It holds.", "failed", 0.1, {})
LEFT = LockResult("locks/test_add.py::TestAdd::test_far[host]", "add", "It is far.", "not run", 0.0, {}, "not run: why")
NAN = Split(*[Errors(math.nan, 0, 0, 1)] * 3)


def verified(monkeypatch: pytest.MonkeyPatch, locks: list[LockResult], golden: str = "holds", **lane: Any) -> int:
    """The exit code where locks and one lane of one of two devices end like this."""
    stages = {"host": ([priced("a15", **lane)], {"a15": golden}), "a GPU": ([priced("a15")], {"a15": "holds"})}
    monkeypatch.setattr(verify, "run_locks", lambda *_: locks)
    monkeypatch.setattr(verify, "decode_stage", lambda _: stages)
    return cli.main(["verify", "--device", "host"])


class TestVerdict:
    """The exit, and what is printed."""

    def test_is_green_where_all_holds(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A room's line has its share, the lane's its golden, the last one the counts, also of what was not run."""
        assert verified(monkeypatch, [GREEN, LEFT]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "device: host"
        assert any(line.split()[:5] == ["add", "1", "0", "1", "0.500"] for line in lines)
        assert any("a15" in line and "holds" in line for line in lines)
        assert lines[-1] == "1 locks passed, 0 failed, 1 not run"

    @pytest.mark.parametrize(("locks", "golden", "lane"), [
        ([], "holds", {}),
        ([LEFT], "holds", {}),
        ([GREEN, RED], "holds", {}),
        ([GREEN], "lane a15, step 3: token 1 was recorded, 2 came", {}),
        ([GREEN], "holds", {"logits": NAN}),
        ([GREEN], "holds", {"share": 1.5}),
    ])  # fmt: skip
    def test_is_red_for_one_fault_of_any_kind(
        self, locks: list[LockResult], golden: str, lane: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No lock, none that ran, one that failed, a stream that differs, a NaN, an error out of its bound.

        Red: a part whose verdict is lost behind another's.
        """
        assert verified(monkeypatch, locks, golden, **lane) == 1

    def test_names_a_lock_that_failed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """On one line, with its parameters and its sentence. Red: brackets taken for a style, and left out."""
        verified(monkeypatch, [GREEN, RED])

        assert f"FAILED {RED.node}: It holds." in capsys.readouterr().out.splitlines()


    def test_is_the_same_as_json(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """Counts, every lock with its outcome and shares, every lane of each device and what its golden says."""
        monkeypatch.setattr(verify, "run_locks", lambda *_: [GREEN, RED, LEFT])
        monkeypatch.setattr(verify, "decode_stage", lambda _: {"host": ([priced("a15")], {"a15": "holds"})})
        assert cli.main(["verify", "--device", "host", "--json"]) == 1
        out = capsys.readouterr().out
        told = json.loads(out)

        assert out == json.dumps(told, indent=2) + "\n"
        assert (told["device"], told["passed"], told["failed"]) == ("host", 1, 1)
        assert [(row["outcome"], row["shares"]) for row in told["locks"]] == [
            ("passed", {"a sum": 0.5}), ("failed", {}), ("not run", {})
        ]  # fmt: skip  # a row a lock
        assert told["decodes"]["host"]["golden"] == {"a15": "holds"}
        assert [row["lane"] for row in told["decodes"]["host"]["lanes"]] == ["a15"]


class TestDevice:
    """Where it runs when nobody says."""

    @pytest.mark.parametrize(("gpu", "choice", "said"), [
        (True, "all", "host and An H200"), (False, "host", "host only; GPU not run: no driver"),
    ])  # fmt: skip
    def test_is_both_where_there_is_a_gpu(
        self, gpu: bool, choice: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And the host alone where there is none, with the reason. Red: a GPU that is there and not verified."""
        card = SimpleNamespace(properties=SimpleNamespace(name="An H200"))
        monkeypatch.setattr(verify, "available", lambda _: ({"cuda": card}, {}) if gpu else ({}, {"cuda": "no driver"}))
        asked: list[str] = []
        monkeypatch.setattr(verify, "run_locks", lambda device, *_: asked.append(device) or [GREEN])
        monkeypatch.setattr(verify, "decode_stage", lambda device: asked.append(device) or {})
        monkeypatch.setattr(verify, "check_choice", asked.append)

        assert cli.main(["verify"]) == 0
        assert asked == [choice] * 3
        assert capsys.readouterr().out.splitlines()[0] == f"device: {said}"


class TestStages:
    """What it runs."""

    def test_decodes_the_trained_checkpoint_in_every_lane(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Twelve exact lanes and the bounded ones, on each device. Red: a lane that nobody verifies."""
        asked = []
        monkeypatch.setattr(verify, "collect", lambda _, *what: asked.append(what))
        verify.decode_stage("host")

        assert asked == [("kjv", [*LANES, *BOUNDED], 48)]
        assert len(LANES) == 12

    @pytest.mark.parametrize("quiet", [True, False])
    def test_runs_the_locks_that_are_marked(
        self, quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Those marked `verify`, on the device of the choice; what pytest says of a failure is passed on, unless quiet.

        Red: a run of nothing that reads as a pass.
        """
        words: list[str] = []
        results = [asdict(GREEN)]

        def ran(command: list[str], **_: Any) -> Any:
            words.extend(command)
            if results:
                Path(command[command.index("--results") + 1]).write_text(json.dumps({"locks": results}))
            return SimpleNamespace(returncode=4, stdout="e" * 3000, stderr="no such option")

        monkeypatch.setattr(verify.subprocess, "run", ran)
        assert verify.run_locks("host", 2, quiet=quiet) == [GREEN]
        assert capsys.readouterr().err == ("" if quiet else "e" * 3000 + "\n")
        assert Path(words[3]) == Path(__file__).parent
        assert words[words.index("-n") + 1] == "2"
        assert words[words.index("-m", 3) + 1] == "verify"
        assert words[words.index("--device") + 1] == "host"
        results.clear()
        with pytest.raises(LanelockError, match=r"could not be run \(pytest exit code 4\): e{1986}no such option$"):
            verify.run_locks("host", 2, quiet=quiet)
