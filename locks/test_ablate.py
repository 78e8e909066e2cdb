"""Parts of a program: every launch of a layer belongs to one, and what is left out is that part and no other."""

import json
from collections import Counter
from typing import Any

import pytest

from harness import cli
from harness.ablate import GROUPS, OUTSIDE, groups, without
from harness.devices import open_device
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.plan import Launch
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from locks.models import CONFIG, weights
from oracle.errors import LanelockError
from reports.bench_decode import Case
from reports.bench_step import measure


def program(name: str, lane_name: str = "a8") -> tuple[Launch, ...]:
    """A program of the locks' model, three GDN layers and one of attention, for three sequences and two drafts."""
    setting = Setting(CONFIG, lane(lane_name), 3, 3, 64, Machine("sm_90a", 132, 232448), Tuning())
    return make_plan(setting, 16, 2).programs[name]


class TestParts:
    """The parts of a layer."""

    @pytest.mark.parametrize("name", ["step", "verify", "prefill.first", "prefill.next", "draft"])
    def test_hold_every_launch_that_stands_in_a_layer(self, name: str) -> None:
        """A launch of a layer or of the draft head's block has a part. Red: a label that no part knows."""
        for item, part in zip(program(name), groups(program(name)), strict=True):
            inside = item.label.startswith("layers.")
            assert not inside or part != OUTSIDE, item.label

    def test_are_those_of_the_model(self) -> None:
        """Four layers have eight norms, and one behind them; three GDN mixers with a convolution each, one attention.

        Red: the gate or the output projection of one mixer counted with the other.
        """
        found = Counter(zip(groups(program("step")), (i.instance.kernel.name for i in program("step")), strict=True))
        kinds = Counter(part for part, _ in found.elements())

        assert kinds["norm"] == 9
        assert kinds["conv"] == 3
        assert kinds["ffn"] == 4 * 3
        assert {k for p, k in found if p == "gdn"} >= {"projection_f32", "delta_rule", "gated_norm_quantize"}
        assert {k for p, k in found if p == "attn"} >= {"qk_norm_rope", "gate_mul_quantize"}
        assert not {k for p, k in found if p == "attn"} & {"delta_rule", "gated_norm_quantize"}
        labels = {part: {i.label for i, p in zip(program("step"), groups(program("step")), strict=True) if p == part}
                  for part in ("gdn", "attn")}  # fmt: skip  # a map
        assert {label for label in labels["gdn"] if label.endswith("Wo")} == {f"layers.{i}.Wo" for i in range(3)}
        assert {label for label in labels["attn"] if label.endswith("Wo")} == {"layers.3.Wo"}

    @pytest.mark.parametrize("group", GROUPS)
    def test_left_out_leave_the_others_in_order(self, group: str) -> None:
        """What is left is the program without that part, in its order. Red: a neighbour dropped with it."""
        whole = program("prefill.first", "a8+delta")
        left = without(whole, group)

        assert [i.label for i in left] == [i.label for i, p in zip(whole, groups(whole), strict=True) if p != group]
        assert 0 < len(left) < len(whole)

    def test_that_do_not_exist_are_refused(self) -> None:
        """The refusal names the parts. Red: a misspelt part that leaves the whole program."""
        with pytest.raises(LanelockError, match="no part 'ffm'; the parts are gdn, conv, attn, norm, ffn"):
            without(program("step"), "ffm")


class TestProfile:
    """A program's time by kernel and by part."""

    @pytest.mark.parametrize("name", ["step", "prefill.first"])
    def test_counts_every_launch_once_both_ways(self, name: str) -> None:
        """Kernels and parts each hold all launches but the one that moves positions on. Red: a launch in no row."""
        found: dict[str, Any] = measure(open_device("host"), weights(), Case("a8", 2, 5, 4, 5), name, 10.0, 1)

        for rows in (found["kernels"], found["parts"]):
            assert sum(row["launches"] for row in rows) == found["launches"]
            assert all(row["ms_alone"] > 0 and row["floor_ms"] > 0 for row in rows)
        assert found["ms"] > 0


class TestCommand:
    """`lanelock ablate`."""

    def test_prices_each_part_and_says_that_it_is_no_stream(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A line a part, every launch in one of them; no token is printed. Red: a part taken for a lane."""
        words = "ablate --prompt 3 --repeats 1 --drafts 1 --program verify --json"
        assert cli.main(words.split()) == 0
        said = json.loads(capsys.readouterr().out)

        assert {row["name"] for row in said["parts"]} == {*GROUPS, OUTSIDE}
        assert all(row["launches"] > 0 and row["ms_alone"] > 0 for row in said["parts"])
        assert "is no stream" in said["note"]
        assert "tokens" not in said

    def test_prices_the_part_that_was_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`--skip` names the parts of the table."""
        assert cli.main(["ablate", "--prompt", "3", "--repeats", "1", "--skip", "ffn"]) == 0
        lines = capsys.readouterr().out.splitlines()

        assert [line.split()[0] for line in lines[1:]] == ["ffn", "step"]
        assert lines[-1].endswith("computes nothing and is no stream")

    @pytest.mark.parametrize(("words", "sentence"), [
        ("--program warm", "there is no 'warm' in this plan; its programs are prefill.first"),
        ("--repeats 0", "--repeats: 0 is not at least 1"), ("--batch 0", "--batch: 0 is not"),
        ("--lane a9", "'a9'"), ("--device gpu", "unknown device 'gpu'"),
    ])  # fmt: skip
    def test_refuses_in_one_sentence(self, words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A mistake ends with 2 and the sentence."""
        assert cli.main(["ablate", *words.split()]) == 2
        told = capsys.readouterr().err
        assert sentence in told
        assert told.count("\n") == 1
