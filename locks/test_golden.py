"""Golden streams: they hold, a perturbed run is named with its first step and its first launch, and none goes stale."""

import dataclasses
import datetime
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.check import check, commit_reference, device_reference, difference, first_step, stale
from golden.record import Decoded, Opener, choice_of, decoded, record
from golden.sources import BOUNDED, LANES, source, sources, trained
from golden.stream import FOLDER, Golden, read, read_all, replace, write
from harness import cli
from harness.cli import golden as command
from harness.device import Device
from harness.engine import Choice, Engine, Request, opened
from harness.record import ROOT, newest_record
from kernels.tuning import Tuning
from locks.models import POISONED, output_of, poisoned, prompt, weight_buffer, weights, written
from oracle.bits import ARITHMETIC_VERSION
from oracle.blocks import Run
from oracle.decode import greedy_stream
from oracle.error_bound import bound_of
from oracle.errors import LanelockError
from oracle.model_weights import Weights

REQUEST = Request(prompt(9), 6)
CHANGED = "layers.2.Wo"


def opener(device: Device) -> Opener:
    """Engines of a device."""
    return lambda w, choice: opened(device, w, choice)


@contextmanager
def perturbed(device: Device, w: Weights, choice: Choice) -> Iterator[Engine]:
    """An engine with one code of one weight off by one."""
    with opened(device, w, choice) as e:
        codes = e.read(weight_buffer(e, CHANGED)).copy()
        codes[changed(e)] += 1
        e.write(weight_buffer(e, CHANGED), codes)
        yield e


def changed(e: Engine) -> int:
    """Where the code that `perturbed` changes lies in its buffer."""
    return int(written(e.read(weight_buffer(e, CHANGED)), 78)[77])


def first_element(device: Device, choice: Choice) -> list[int]:
    """The first element of a prefill's `mixer` to which the changed code goes."""
    with opened(device, weights(), choice) as e:
        [launch] = [n for n in e.plan.programs["prefill.first"] if n.label == CHANGED]
        plane, column = output_of(e, CHANGED, changed(e), int(launch.dims["planes"]))
    return [plane, 0, column]


def small(device: Device) -> Golden:
    """A golden of the locks' own model."""
    return record(opener(device), device, "small", weights(), "a15", [REQUEST], "a lock")[0]


class TestRecorded:
    """The goldens of this repository."""

    def test_every_source_and_lane_has_one_a_prompt(self) -> None:
        """Two models, twelve exact and four bounded lanes, every prompt; all under this arithmetic version, each with
        its reason and from a clean commit; bounds and a build where the lane is bounded.
        """
        found = list(read_all())
        wanted = {(s.name, lane, p) for s in sources() for lane in (*LANES, *BOUNDED) for p in s.prompts}

        assert {(g.source, g.lane, g.prompt) for g in found} == wanted
        assert len(found) == len(wanted)
        assert all(g.arithmetic == ARITHMETIC_VERSION and g.provenance["reason"] for g in found)
        assert not any(g.provenance["dirty"] for g in found)
        assert {bool(g.build) and len(g.bounds) == len(g.tokens) for g in found if g.lane in BOUNDED} == {True}
        assert not any(g.build or g.bounds for g in found if g.lane in LANES)

    def test_are_of_a_checkpoint_that_knows_its_text(self) -> None:
        """On held-out text at most 2.6 bits a byte and half of the drafts accepted, by record; half of goldens' too.

        Red: margins of noise, accept patterns without a draft.
        """
        path = ROOT / "reports" / "records" / f"{newest_record('checkpoint')}"
        figures = json.loads(path.read_text())["figures"]
        steps = [n - 1 for g in read_all() if g.source == "kjv" for n in g.accepted[1:]]

        assert figures["held_out_bits_a_byte"] <= 2.6
        assert set(figures["acceptance_k1"]) == {"a15", "a8", "q4"}
        assert min(*figures["acceptance_k1"].values(), np.mean(steps)) >= 0.5

    @pytest.mark.parametrize(("name", "lane"), [
        ("kjv", "a15"), ("peers", "a8+s16+kv16"), ("kjv", "q4+kv16"), ("kjv", "a15+delta"),
    ])  # fmt: skip
    def test_hold_on_every_device(self, device: Device, name: str, lane: str) -> None:
        """Handed case 42: tokens, the bits of every step's logits and the accept pattern are the recorded ones; of a
        bounded lane only where device and build are, elsewhere its margins within their bounds.
        """
        goldens = [g for g in read_all() if (g.source, g.lane) == (name, lane)]
        outcomes = check(opener(device), source(name).weights(), goldens)

        assert [o.problem for o in outcomes] == [""] * len(goldens)

    @pytest.mark.parametrize(("name", "lane"), [("peers", "a15"), ("peers", "a8"), ("kjv", "a8+s16+kv16")])
    def test_a_stream_is_that_of_float64_while_margins_allow(self, name: str, lane: str) -> None:
        """Tokens are those of exact float64 on the same weights, up to a margin below the bounds of both logits.

        Red: a token that differs where no rounding of the lane could have turned the choice.
        """
        golden = next(g for g in read_all() if (g.source, g.lane) == (name, lane))
        run = Run(source(name).weights())
        truth = [int(t[0]) for t, _ in greedy_stream(run, np.array([golden.prompt]), len(golden.tokens))]
        same = next((i for i, (a, b) in enumerate(zip(golden.tokens, truth, strict=True)) if a != b), len(truth))

        assert len(truth) == len(golden.tokens) > 0
        if same < len(truth):
            text = golden.prompt + golden.tokens[:same]
            bound = bound_of(run.weights, lane, text, [len(text) - 1])
            ours, theirs = golden.tokens[same], truth[same]
            assert bound.truth[0].argmax() == theirs
            assert bound.truth[0, theirs] - bound.truth[0, ours] <= bound.reach[0, theirs] + bound.reach[0, ours]


class TestCheck:
    """Comparing a run with its golden."""

    @pytest.mark.parametrize("tiled", [False, True])
    def test_a_perturbed_run_is_named_with_step_margin_and_first_launch(self, device: Device, tiled: bool) -> None:
        """One weight code off by one: lane, step, token, margin, then launch, buffer, element, both values in hex.

        The element is the first that the code goes to, in whichever form this device's lowerings read weights.
        """
        form = Tuning(tiled=tiled)
        broken = lambda w, choice: perturbed(device, w, dataclasses.replace(choice, tuning=form))  # noqa: E731
        right = lambda w, choice: opened(device, w, dataclasses.replace(choice, tuning=form))  # noqa: E731
        [outcome] = check(broken, weights(), [small(device)], [device_reference("the other", right)])

        assert outcome.problem.startswith("lane a15, step 0: ")
        assert "recorded margin" in outcome.problem
        assert "launch layers.2.Wo" in outcome.problem
        element = first_element(device, dataclasses.replace(choice_of("a15", [REQUEST]), tuning=form))
        assert f"buffer mixer, element {element}: this run wrote" in outcome.problem
        assert outcome.problem.count("(0x") >= 2

    def test_a_fault_that_only_a_batch_shows_is_found_in_the_batch(self, device: Device) -> None:
        """The checked run is bisected as it ran, beside the other goldens; up to the step that differs.

        Red: each golden decoded alone for the bisection, where all launches agree.
        """
        requests = [REQUEST, Request(prompt(4, 2), 6)]
        goldens = record(opener(device), device, "small", weights(), "a15", requests, "a lock")
        other = device_reference("one alone", opener(device))
        wide = lambda w, choice: (perturbed if choice.B > 1 else opened)(device, w, choice)  # noqa: E731  # an opener
        outcomes = check(wide, weights(), goldens, [other])

        assert all("launch layers.2.Wo" in o.problem and ", one alone " in o.problem for o in outcomes)

    def test_a_difference_at_a_later_step_is_looked_for_up_to_that_step(self, device: Device) -> None:
        """Logits that differ at step 3: as many passes are compared as lead there. Red: the first step alone."""
        golden, compared = small(device), []
        for step in (0, 3):
            logits = (*golden.logits[:step], "another", *golden.logits[step + 1 :])
            twin = device_reference("the twin", opener(device))
            [outcome] = check(opener(device), weights(), [dataclasses.replace(golden, logits=logits)], [twin])
            assert f"step {step}: the same token" in outcome.problem
            compared += re.findall(r"all (\d+) written buffers are those of the twin", outcome.problem)

        assert 1.5 * int(compared[0]) < int(compared[1])

    def test_says_which_runs_could_not_be_compared_with_and_which_agree(self, device: Device) -> None:
        """A golden that no commit holds has no recording commit; a reference with the same fault agrees everywhere."""
        golden = small(device)
        broken = lambda w, choice: perturbed(device, w, choice)  # noqa: E731  # an opener
        references = [commit_reference(None), device_reference("the twin", broken)]
        [outcome] = check(broken, weights(), [golden], references)

        assert f"bisect: not possible: no commit of a checkout holds golden {golden.name}" in outcome.problem
        assert re.search(r"; bisect: all \d{3,} written buffers are those of the twin$", outcome.problem)

    def test_the_same_run_has_no_problem_and_nothing_is_written(self, device: Device, tmp_path: Path) -> None:
        """A check of an unchanged run is silent, and no golden file changes."""
        path = write(small(device), tmp_path)
        before = path.read_bytes()
        [outcome] = check(opener(device), weights(), [read(path)])

        assert outcome.problem == ""
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize(("change", "sentence"), [
        ({"tokens": [1, 9, 3]}, "step 1: token 2 was recorded, 9 came; recorded margin 0.5"),
        ({"logits": ["a", "b", "x"]}, "step 2: the same token 3, but other logits"),
        ({"tokens": [1, 2], "logits": ["a", "b"]}, "step 2: token 3 was recorded, the stream ends"),
        ({"accepted": [1, 1, 1]}, "pass 1: the same tokens, but other drafts were accepted"),
        ({"margins": [(0.5).hex(), (0.25).hex(), (0.5).hex()]}, "step 1: the same logits, whose margin is 0x1.0"),
        ({}, ""),
    ])  # fmt: skip
    def test_the_first_difference_is_the_one_reported(self, change: dict[str, list[object]], sentence: str) -> None:
        """Tokens before logits of the same step, steps in order, accept patterns last."""
        golden = Golden("c", "w", (1,), "a15", 1, 1, (1, 2, 3), ("a", "b", "c"), ((0.5).hex(),) * 3, (1, 2), "s", {})
        found = Decoded([1, 2, 3], ["a", "b", "c"], [(0.5).hex()] * 3, [1, 2])
        for name, value in change.items():
            setattr(found, name, value)

        problem = difference(golden, found)
        assert sentence in problem
        assert bool(problem) == bool(sentence)

    @pytest.mark.parametrize(("tokens", "margins", "build", "sentence"), [
        ([1, 2, 3], (0.5, 5e-4, 0.5), "here", "other logits"),
        ([1, 2, 3], (0.5, 6e-4, 0.4999), "there", ""),
        ([1, 9, 8], (0.5, 4e-4, 0.1), "there", ""),
        ([1, 9, 8], (0.5, 1e-3 - 5e-4, 0.1), "there", ""),
        ([1, 9, 3], (0.5, 6e-4, 0.5), "there", "step 1: token 2 was recorded, 9 came with a margin of 0.0006"),
        ([9, 2, 3], (1e-4, 5e-4, 0.5), "there", "step 0: token 1 was recorded, 9 came with a margin of 0.0001"),
        ([1, 2, 3], (0.5, 5e-4, 0.6), "there", "step 2: the same token 3 with a margin of 0.6"),
        ([1, 2, 3], (0.5, 5e-4, np.nan), "there", "step 2: the same token 3 with a margin of nan"),
        ([1, 2], (0.5, 5e-4), "there", "step 2: token 3 was recorded, the stream ends"),
        ([1, 2, 3, 4], (0.5, 5e-4, 0.5, 0.5), "there", "3 tokens were recorded, 4 came"),
    ])  # fmt: skip
    def test_a_bounded_lane_is_held_to_bits_here_and_to_its_bounds_elsewhere(
        self, tokens: list[int], margins: tuple[float, ...], build: str, sentence: str
    ) -> None:
        """Handed case 42: the same device and build, every bit; another, a token that differs at a gap under its bound
        ends the comparison, at a wide gap it fails, and so does a margin that is off by more than its bound.

        Red: a tolerance for all steps, a wide gap let through, a comparison that goes on behind a parting.
        """
        recorded = ((0.5).hex(), (5e-4).hex(), (0.5).hex())
        golden = Golden("c", "w", (1,), "a15+delta", 2, 1, (1, 2, 3), ("a", "b", "c"), recorded, (1, 2), "s", {},
                        ((1e-3).hex(),) * 3, "here")  # fmt: skip
        found = Decoded(tokens, ["x"] * len(tokens), [float(m).hex() for m in margins], [1, 2], build)

        problem = difference(golden, found)
        assert sentence in problem
        assert bool(problem) == bool(sentence)

    @pytest.mark.parametrize(("factor", "holds"), [(1 + 2.0**-23, True), (1.25, False)])
    def test_a_bounded_golden_of_another_build_holds_but_not_with_a_fault(
        self, device: Device, factor: float, holds: bool
    ) -> None:
        """A norm weight off by one unit in its last place, as another build may round, is within the bounds; a quarter
        too large is not.
        """
        [golden] = record(opener(device), device, "small", weights(), "a15+delta", [REQUEST], "a lock")

        @contextmanager
        def other(w: Weights, choice: Choice) -> Iterator[Engine]:
            with opened(device, w, choice) as e:
                e.write("w.layers.0.an", e.read("w.layers.0.an") * np.float32(factor))
                yield e

        [outcome] = check(other, weights(), [dataclasses.replace(golden, build="another")])
        assert (outcome.problem == "") == holds
        assert holds or "bound" in outcome.problem

    def test_other_weights_lanes_or_arithmetic_are_refused(self, device: Device) -> None:
        """A golden of another key is never compared: it is refused by name."""
        golden = small(device)
        for changed, sentence in (
            (dataclasses.replace(golden, weights="0" * 64), "other weights"),
            (dataclasses.replace(golden, arithmetic=ARITHMETIC_VERSION + 1), "record it anew, with the reason"),
            (dataclasses.replace(golden, drafts=2), "recorded with 2 drafts a step, and checked with 1"),
        ):
            with pytest.raises(LanelockError, match=f"{changed.name}.*{sentence}"):
                check(opener(device), weights(), [changed])
        with pytest.raises(LanelockError, match="goldens of several lanes are checked one lane at a time"):
            check(opener(device), weights(), [golden, dataclasses.replace(golden, lane="a8")])
        with pytest.raises(LanelockError, match="there is nothing to check"):
            check(opener(device), weights(), [])

    def test_a_stream_that_ends_by_a_fault_is_no_golden(self, device: Device) -> None:
        """A prompt whose logits are NaN is an error with lane, prompt and token. Red: half a stream recorded."""
        with pytest.raises(LanelockError, match=r"lane a15, prompt 1, token 0: .*"):
            decoded(opener(device), poisoned(), "a15", [REQUEST, Request((1, POISONED), 3)])

    @pytest.mark.parametrize(("tokens", "logits", "step"), [
        ((9, 2, 3), "abc", 0), ((1, 2, 3), "axc", 1), ((1, 2, 9), "abc", 2), ((1, 2, 3), "abc", 2), ((1, 2), "ab", 2),
        ((1,), "a", 1),
    ])  # fmt: skip
    def test_a_bisection_starts_at_the_first_step_that_differs(
        self, tokens: tuple[int, ...], logits: str, step: int
    ) -> None:
        """By token or by logits; the end of a stream that ends early; the last step where only drafts differ."""
        golden = Golden("c", "w", (1,), "a15", 1, 1, (1, 2, 3), ("a", "b", "c"), ((0.5).hex(),) * 3, (1, 2), "s", {})

        assert first_step(golden, Decoded(list(tokens), list(logits), [], [1, 2])) == step


class TestFiles:
    """Golden files."""

    def test_an_edited_key_is_refused(self, tmp_path: Path) -> None:
        """A file whose key is not its name's, or whose lists differ in length, is no golden."""
        path = next(FOLDER.glob("kjv-a15-*.json"))
        data = json.loads(path.read_text())
        copy = tmp_path / path.name
        copy.write_text(json.dumps({**data, "lane": "a8"}))
        with pytest.raises(LanelockError, match="recorded, not edited"):
            read(copy)
        copy.write_text(json.dumps({**data, "tokens": data["tokens"][:-1]}))
        with pytest.raises(LanelockError, match="not of one length"):
            read(copy)

    @pytest.mark.parametrize("change", [
        {"tokens": ["x", *[1] * 23]}, {"tokens": [-1, *[1] * 23]}, {"tokens": [True, *[1] * 23]},
        {"logits": ["0" * 63] * 24}, {"logits": [0] * 24}, {"margins": ["zz"] * 24}, {"margins": ["nan"] * 24},
        {"margins": ["inf"] * 24}, {"margins": ["-0x1p-3"] * 24}, {"margins": [0.5] * 24}, {"accepted": None},
        {"accepted": [1] * 23}, {"accepted": [1] * 25}, {"provenance": {}}, {"provenance": {"reason": " "}},
        {"provenance": None}, {"bounds": ["inf"] * 24}, {"bounds": 1},
    ], ids=str)  # fmt: skip
    def test_a_field_that_is_none_is_refused_by_name(self, change: dict[str, Any], tmp_path: Path) -> None:
        """Tokens, digests, gaps and the accept pattern are what they say, and the reason stands there.

        Red: a traceback at the night's check, a bound that holds anything.
        """
        path = next(FOLDER.glob("peers-a8+delta-*.json"))
        copy = tmp_path / path.name
        copy.write_text(json.dumps({**json.loads(path.read_text()), **change}))

        with pytest.raises(LanelockError, match=f"{re.escape(str(copy))}: "):
            read(copy)

    def test_a_new_arithmetic_takes_the_place_of_the_old(self, tmp_path: Path) -> None:
        """A golden of another arithmetic version of the same stream goes; those of other streams stay.

        Red: two goldens of one stream, of which one can never pass.
        """
        golden, other = list(read_all())[:2]
        old = dataclasses.replace(golden, arithmetic=golden.arithmetic - 1)
        for one in (old, other):
            write(one, tmp_path)

        assert replace(golden, tmp_path) == old
        assert {g.name for g in read_all(tmp_path)} == {golden.name, other.name}
        assert replace(golden, tmp_path) is None

    def test_one_token_is_a_stream_and_none_is_not(self, tmp_path: Path) -> None:
        """A golden of one token is read back, an empty one is refused by name. Red: a check that compares nothing."""
        said = {"reason": "a lock"}
        one = Golden("c", "w", (1,), "a15", 1, 1, (5,), ("0" * 64,), ((0.5).hex(),), (1,), "s", said)
        path = write(one, tmp_path)
        assert read(path).tokens == (5,)

        path = write(dataclasses.replace(one, tokens=(), logits=(), margins=()), tmp_path)
        with pytest.raises(LanelockError, match=f"{path.name}: tokens, logits and margins are not of one length"):
            read(path)

    def test_a_recording_needs_a_reason(self, device: Device) -> None:
        """Nothing is recorded without one."""
        with pytest.raises(LanelockError, match="--reason"):
            record(opener(device), device, "small", weights(), "a15", [REQUEST], " ")

    def test_device_plan_and_tuning_are_no_part_of_the_key(self) -> None:
        """Provenance and source change nothing; prompt, lane and arithmetic do."""
        golden = next(iter(read_all()))

        assert dataclasses.replace(golden, provenance={}, source="x", drafts=4).key == golden.key
        for change in ({"prompt": (1,)}, {"lane": "q4"}, {"arithmetic": 9}, {"config": ""}, {"weights": ""}):
            assert dataclasses.replace(golden, **change).key != golden.key  # type: ignore[arg-type]  # fields of it

    def test_one_that_nobody_checked_for_days_is_stale_by_name(self, tmp_path: Path) -> None:
        """Only a record of a check that passed keeps a golden fresh, and the last one only for so many days."""
        golden = next(iter(read_all()))
        now = datetime.datetime(2030, 1, 10, tzinfo=datetime.UTC)
        figures = {"passed": [golden.name], "failed": []}
        text = json.dumps({"date": "2030-01-01T00:00:00+00:00", "figures": figures})
        assert stale([golden], 30, tmp_path, now) == [golden.name]
        for year in (2029, 2030, 2028):
            (tmp_path / f"golden-{year}0101T000000Z.json").write_text(text.replace("2030", str(year)))

        assert stale([golden], 10, tmp_path, now) == []
        assert stale([golden], 1e300, tmp_path, now) == []
        assert stale([golden], 8, tmp_path, now) == [golden.name]

    def test_one_that_nobody_ever_checked_is_stale_however_long(self, tmp_path: Path) -> None:
        """Any number of days; a record of a day to come is no check; one that is none is named.

        Red: a time before all times that many days reach, a clock that was wrong once.
        """
        golden = next(iter(read_all()))
        now = datetime.datetime(2030, 1, 10, tzinfo=datetime.UTC)
        path = tmp_path / "golden-20310101T000000Z.json"
        for text in (None, json.dumps({"date": "2031-01-01T00:00:00+00:00", "figures": {"passed": [golden.name]}})):
            if text is not None:
                path.write_text(text)
            for days in (0, 1e6, 1e300):
                assert stale([golden], days, tmp_path, now) == [golden.name]
        for text in ("", "{}", '{"date": 1, "figures": {"passed": []}}'):
            path.write_text(text)
            with pytest.raises(LanelockError, match=f"{path}: not the record of a check of goldens"):
                stale([golden], 1, tmp_path, now)


class TestCommand:
    """`lanelock golden`."""

    ONE = ("--source", "peers", "--lane", "a8")

    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on the command decodes peers with one code of one weight off by one."""
        monkeypatch.setattr(command, "opener", lambda device: lambda w, choice: perturbed(device, w, choice))
        monkeypatch.setattr(command, "references_of", lambda device, _: [device_reference("the host", opener(device))])

    def test_says_what_holds_and_what_differs_and_writes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Green and a count; then red, with the golden's name, lane, step, margin and launch. No file changes.

        Red: a difference that ends with 0, a golden mended by looking.
        """
        before = {path: path.read_bytes() for path in FOLDER.iterdir()}
        assert cli.main(["golden", "check", *self.ONE]) == 0
        assert "1 golden streams hold on host, 0 differ" in capsys.readouterr().out
        assert cli.main(["golden", "diff", *self.ONE]) == 0
        assert "0 of 24 steps differ" in capsys.readouterr().out
        self.broken(monkeypatch)
        assert cli.main(["golden", "check", *self.ONE]) == 1
        said = capsys.readouterr().out
        assert re.search(r"FAILED peers-a8-\w+ on host: lane a8, step \d+: .* margin .*launch layers.2.Wo", said)
        assert "0 golden streams hold on host, 1 differ" in said
        assert cli.main(["golden", "diff", *self.ONE]) == 1
        step = r"  step \d+: token \d+ recorded, \d+ now; logits \w{12} and \w{12}; margin"
        assert re.search(step, capsys.readouterr().out)

        assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before

    def test_lists_and_fails_by_name_what_went_unchecked(self, capsys: pytest.CaptureFixture[str]) -> None:
        """No check is younger than no day at all: the name, and 1. Red: an old golden that only reads as recorded."""
        assert cli.main(["golden", "list", *self.ONE, "--max-age", "1e6"]) == 0
        line = capsys.readouterr().out
        assert re.match(r"peers-a8-\w+: 24 tokens, smallest margin [\d.e-]+, \w+", line)
        assert cli.main(["golden", "list", *self.ONE, "--max-age", "0"]) == 1
        assert "  STALE" in capsys.readouterr().out
        assert cli.main(["golden", "check", *self.ONE, "--max-age", "0"]) == 1
        assert re.search(r"STALE peers-a8-\w+: not checked for 0 days", capsys.readouterr().out)

    def test_records_with_its_reason_and_not_without(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same stream again is one file, with the reason of the last time. Red: a golden that nobody argued."""
        monkeypatch.setattr(command, "replace", lambda golden: replace(golden, tmp_path))
        for reason in ("first", "second"):
            assert cli.main(["golden", "record", *self.ONE, "--reason", reason]) == 0
        [path] = tmp_path.iterdir()
        assert read(path).provenance["reason"] == "second"
        with pytest.raises(SystemExit):
            cli.main(["golden", "record", *self.ONE])

    def test_is_not_checked_against_a_commit_that_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A revision that does not exist is refused though nothing differs. Red: a night whose bisection is not one."""
        assert cli.main(["golden", "check", *self.ONE, "--against-commit", "nope"]) == 2
        assert "there is no commit 'nope'" in capsys.readouterr().err or not (ROOT / ".git").exists()

    def test_of_what_nobody_recorded_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A lane without a golden checks nothing, and says so. Red: a check of nothing that is green."""
        for action in ("check", "list", "diff"):
            assert cli.main(["golden", action, "--lane", "a15+s17"]) == 2
            assert "no recorded stream is of this source and lane" in capsys.readouterr().err

    def test_finds_the_launch_in_under_a_minute(self, device: Device) -> None:
        """A fault in the trained checkpoint, at its second prompt: from the mismatch to launch and element.

        Red: a bisection that decodes again for every launch.
        """
        goldens = [g for g in read_all() if (g.source, g.lane) == ("kjv", "a8")]
        broken = lambda w, choice: perturbed(device, w, choice)  # noqa: E731  # an opener
        start = time.monotonic()
        outcomes = check(broken, trained().weights(), goldens, [device_reference("the other", opener(device))])

        assert all("launch layers.2.Wo" in o.problem for o in outcomes)
        assert time.monotonic() - start < 60


def test_decoding_beside_each_other_or_alone_records_the_same(device: Device) -> None:
    """What is recorded of a prompt does not depend on the prompts beside it."""
    pair = [REQUEST, Request(prompt(4, 2), 6)]
    together = decoded(opener(device), weights(), "a8", pair)

    assert together == [decoded(opener(device), weights(), "a8", [r])[0] for r in pair]
