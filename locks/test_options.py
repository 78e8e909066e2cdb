"""What a user types on the command line: a value that is none is one sentence that names it, before anything runs."""

import argparse
import json
from pathlib import Path

import pytest

from harness.cli import main, parser
from harness.cli.numbers import ABOVE_ZERO, LEAST
from kernels.places import ROOT
from kernels.tuning import VARIABLE
from locks.test_outputs import options

#: Numbers whose command says what they must be: shares, counts with a meaning below, and places in a trace.
OWN = {"tolerance", "positions", "samples", "drift", "at", "number"}
NUMBERS = [(path, action) for path, action in options(parser()) if action.type in (int, float)]
TINY = "--weights synthetic:1 --config tiny"
BELOW = LEAST | dict.fromkeys(ABOVE_ZERO, 1)


def required(path: str, given: argparse.Action) -> list[str]:
    """The words that a command needs beside one option."""
    words = path.split()
    for where, action in options(parser()):
        if where == path and action.required and action.dest != given.dest:
            words += [*action.option_strings[:1], "1"]
    return words


class TestNumbers:
    """Options that take a number."""

    def test_all_have_a_least_value(self) -> None:
        """Every number is in the table of least values, or its command has its own. Red: a new option left out."""
        assert sorted({action.dest for _, action in NUMBERS} - set(LEAST) - set(ABOVE_ZERO) - OWN) == []

    def test_are_counted_from_one_or_from_none(self) -> None:
        """What there must be one of, to do anything; the others may be none. Red: a batch of one refused."""
        ones = {"against_batch", "batch", "chunk", "context", "n", "prefill", "prompt", "repeats"}

        assert {name: least for name, least in LEAST.items() if least} == dict.fromkeys(ones, 1)

    @pytest.mark.parametrize(
        ("path", "action"),
        [(p, a) for p, a in NUMBERS if a.dest in BELOW],
        ids=[f"{p} {a.option_strings[0]}" for p, a in NUMBERS if a.dest in BELOW],
    )
    def test_are_refused_below_it(self, path: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]) -> None:
        """One less, nan and infinity end with 2 and one sentence that names the option. Red: a seed of -1 in NumPy."""
        least, name = BELOW[action.dest], action.option_strings[0]
        values = [str(least - 1), "-3", *(["nan", "inf"] if action.type is float else [])]
        for value in values:
            assert main([*required(path, action), f"{name}={value}"]) == 2
            told = capsys.readouterr()
            assert told.out == ""
            least_said = f"above {least - 1}" if action.dest in ABOVE_ZERO else f"at least {least}"
            shown, finite = (value, "") if action.type is int else (str(float(value)), " and finite")
            assert told.err == f"lanelock: {name}: {shown} is not {least_said}{finite}\n"

    @pytest.mark.parametrize("value", [0.5, 1e-300, 4800])
    def test_a_bandwidth_may_be_any_above_nothing(self, value: float, capsys: pytest.CaptureFixture[str]) -> None:
        """However little, it is taken as it is. Red: zero for the data sheet's, silently."""
        assert main(["plan", "--config", "tiny", "--bandwidth", str(value), "--json"]) == 0
        assert all(row["floor"] > 0 for row in json.loads(capsys.readouterr().out)["launches"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--weights synthetic:1 --config tiny --tokens 1 --n 1 --engine host --stop=-1", "--stop: '-1' is no token."),
        ("--weights synthetic:1 --config tiny --tokens=-1 --n 1", "--tokens: '-1' is no token."),
        ("--weights synthetic:-1 --config tiny --tokens 1 --n 1", "the seed must be a whole number of 0 to 2^64 - 1."),
        (f"--weights synthetic:{2**64} --config tiny --tokens 1 --n 1", "synthetic weights take a seed of 0 to "),
        (f"--weights {ROOT}/golden/checkpoint --tokens 1 --n 1", "to read a file, name it: kjv-1m.safetensors."),
    ],
)  # fmt: skip
def test_a_decode_names_the_option_and_what_it_may_be(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two options that take tokens the one that is wrong, of a seed its range, of a folder its files."""
    assert main(["decode", *words.split()]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


#: A command line for every command that takes the option; what it writes goes nowhere before it is refused.
TUNED = {
    "plan": "plan --config tiny",
    "decode": f"decode {TINY} --tokens 1 --n 1 --engine host",
    "logits": f"logits {TINY} --tokens 1 --engine host --out OUT.npy",
    "mtp-logits": f"mtp-logits {TINY} --tokens 1,2 --engine host --out OUT.npy",
    "trace": f"trace {TINY} --tokens 1",
    "emit": f"emit {TINY} --tokens 1 --n 1 --out OUT.cu",
}


class TestTuning:
    """Changed knobs, by option or by variable."""

    PLAN = ("plan", "--config", "tiny", "--json")

    def kernels(self, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
        """The kernels of a plan."""
        assert main([*self.PLAN, *words]) == 0
        return [row["kernel"] for row in json.loads(capsys.readouterr().out)["launches"]]

    def test_of_a_plan_are_the_variable_unless_the_option_is_given(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A plan is the one that a decode runs under the same variable. Red: knobs of the option alone."""
        text = '{"lowering": "gemm_dp4a"}'
        plain, asked = self.kernels(capsys), self.kernels(capsys, "--tuning", text)
        monkeypatch.setenv(VARIABLE, text)

        assert plain != asked == self.kernels(capsys)
        assert "gemm_mma<1>" in self.kernels(capsys, "--tuning", '{"lowering": "gemm_mma"}')

    def test_commands_below_are_all(self) -> None:
        """Every command that takes the option is held. Red: a new one that ignores the variable."""
        found = {path for path, action in options(parser()) if "--tuning" in action.option_strings}

        assert found == set(TUNED)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [("{", f"{VARIABLE} is not JSON"), ("[" * 100_000, f"{VARIABLE} is not JSON: nested too deeply"),
         ('{"warp": 8}', f"{VARIABLE}: unknown field 'warp'")],
    )  # fmt: skip  # a table
    @pytest.mark.parametrize("words", TUNED.values(), ids=TUNED)
    def test_of_the_variable_are_refused_by_its_name(
        self, words: str, text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """No JSON and unknown fields are one sentence in every command, and nothing is written."""
        monkeypatch.setenv(VARIABLE, text)

        assert main(words.replace("OUT", str(tmp_path / "out")).split()) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"lanelock: {sentence}")
        assert told.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_the_readme_names_the_variable(self) -> None:
        """What changes a plan from outside can be found. Red: a variable that only the source knows."""
        assert f"`{VARIABLE}`" in (ROOT / "README.md").read_text()
