"""The accuracy report: its numbers are those of the run, nothing red looks green, and a red lane has no speed."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.stream import read_all
from harness import cli
from harness.cli import report as command
from harness.device import Device
from harness.devices import open_device
from harness.engine import Choice, opened, prompt_logits
from locks.models import CONFIG, POISONED, poisoned, prompt, weights
from oracle.blocks import Run
from oracle.error_bound import bound_of
from oracle.errors import LanelockError
from oracle.model import forward
from reports.accuracy import Errors, LaneAccuracy, Split, errors, measure
from reports.accuracy_page import HEADER, Report, look, markdown, page, round_ticks, rows, summary, windows
from reports.lock_results import LockResult, LockRun, doubt, parameters, read_run
from reports.plot import Axes, Line, plot
from reports.state_drift import Mark

TEXT = prompt(12, 6)


def priced(lane: str = "a8", **changes: Any) -> LaneAccuracy:
    """A lane of made-up figures."""
    one = Errors(1e-3, 2e-3, 3e-6, 1.0)
    row = (1e-3, 9e-4, 4e-8)
    figures = LaneAccuracy(lane, 3, (0, 1, 2), Split(one, one, one), (row, row), (row,) * 3, 1000, 0.25)
    return replace(figures, **changes)


class TestNumbers:
    """What `measure` says of a lane."""

    def test_are_those_of_the_run(self, device: Device) -> None:
        """Error, KL, best tokens and drift are recomputed from the logits of other functions, element by element.

        Red: an error relative to itself, a KL the wrong way round, a mean over the wrong axis.
        """
        found = measure(device, weights(), "a8", TEXT, samples=8)
        with opened(device, weights(), Choice("a8", 1, len(TEXT), 1)) as e:
            mine = prompt_logits(e, TEXT).astype(np.float64)
        truth = forward(Run(weights()), np.array([TEXT]), rows="all").logits[0]
        total = found.logits.total
        p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (truth, mine))
        kl = sum(a * math.log(a / b) for a, b in zip(p.ravel(), q.ravel(), strict=True)) / len(TEXT)
        away = [math.dist(a, b) / math.hypot(*b) for a, b in zip(mine, truth, strict=True)]

        whole = math.dist(mine.ravel(), truth.ravel()) / math.hypot(*truth.ravel())

        assert math.isclose(total.rel_l2, whole, rel_tol=1e-9)
        assert math.isclose(total.largest, max(abs(mine - truth).ravel()), rel_tol=1e-9)
        assert math.isclose(total.kl, kl, rel_tol=1e-6)
        assert total.same_top == sum(a.argmax() == b.argmax() for a, b in zip(mine, truth, strict=True)) / len(TEXT)
        assert np.allclose([d[0] for d in found.drift], away, rtol=1e-9)
        assert found.at == tuple(range(len(TEXT)))
        reach = bound_of(weights(), "a8", TEXT, found.at, 8)
        assert math.isclose(found.share, (abs(mine - reach.truth) / reach.reach).max(), rel_tol=1e-9)

    def test_split_into_parts_that_add_up(self, device: Device) -> None:
        """Arithmetic is at float32's level in every layer and position, and quantisation is the rest of the error.

        Red: codes of another row, layer or token followed, so that formats count as arithmetic.
        """
        found = measure(device, weights(), "a8", TEXT)

        assert len(found.layers) == CONFIG.layers
        for total, quantisation, arithmetic in (*found.layers, *found.drift):
            assert 0 < arithmetic < 2.0**-20
            assert quantisation > 2.0**-13
            assert abs(total - quantisation) <= arithmetic

    def test_bytes_of_a_step_are_those_of_its_weights(self) -> None:
        """Codes and scales of every projection but the embedding and the draft head, and every float tensor."""
        found = measure(open_device("host"), weights(), "a8", TEXT[:2])
        names = [n for n in weights().tensors if n != "emb" and not n.startswith("mtp.")]
        held = [weights().tensor(n) for n in names]

        assert found.bytes_a_step == sum(
            t.codes.nbytes + t.scales.nbytes if hasattr(t, "codes") else np.asarray(t, np.float32).nbytes for t in held
        )

    def test_without_noisy_runs_have_no_bound(self) -> None:
        """None is a choice, as `verify` makes it: figures, the golden, and no share. Red: refused, as one run is."""
        [found], golden = command.collect(open_device("host"), "kjv", ["a8"], 4, 0)

        assert found.share is None
        assert found.logits.total.rel_l2 > 0
        assert golden == {"a8": "holds"}

    def test_are_of_the_models_own_text_as_long_as_asked_for(self) -> None:
        """The golden's prompt and what lane a15 makes of it, also past the golden's end. Red: a text that is cut."""
        long, short = (command.text_of(open_device("host"), "peers", count) for count in (60, 12))
        golden = next(g for g in read_all() if (g.source, g.lane) == ("peers", "a15"))

        assert (len(long), len(short)) == (60, 12)
        assert long[:12] == short
        assert long[: len(golden.prompt) + len(golden.tokens)] == golden.prompt + golden.tokens

    def test_of_a_drift_are_half_a_decade_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Marks from 32 tokens to the end, at either width of the state. Red: a width that is left out."""
        asked: dict[str, tuple[int, ...]] = {}

        def drift(_device: object, _weights: object, lane: str, *more: Any) -> str:
            asked[lane] = more[1]
            return f"drift of {lane}"

        monkeypatch.setattr(command, "drift", drift)
        found = command.drifts(open_device("host"), "kjv", 2000)

        assert asked == dict.fromkeys(("a15", "a15+s16"), (32, 56, 100, 178, 316, 562, 1000, 1778, 2000))
        assert found == {lane: f"drift of {lane}" for lane in asked}
        assert command.drifts(open_device("host"), "kjv", 0) == {}

    def test_of_nothing_or_of_other_shapes_are_an_error(self) -> None:
        """No rows, and rows of another shape, are refused and not averaged."""
        for a, b in (((0, 3), (0, 3)), ((2, 3), (3, 3))):
            with pytest.raises(ValueError, match="not compared"):
                errors(np.zeros(a), np.ones(b))
        with pytest.raises(LanelockError, match="no lane to price"):
            command.collect(open_device("host"), "kjv", [], 8)
        with pytest.raises(LanelockError, match="1 noisy runs have no spread"):
            command.collect(open_device("host"), "kjv", ["a8"], 8, 1)
        with pytest.raises(LanelockError, match="--drift 5 is too few tokens"):
            command.check_drift(5)
        with pytest.raises(LanelockError, match="1 positions are too few"):
            command.text_of(open_device("host"), "kjv", 1)


class TestNan:
    """A lane whose logits hold a NaN."""

    def test_is_loud_everywhere(self, device: Device) -> None:
        """Every figure is NaN, the share infinite, the summary, the table and the page say so, and the exit is red.

        Red: a NaN that is skipped by a mean, a maximum or an axis.
        """
        found = measure(device, poisoned(), "a8", (*TEXT[:3], POISONED), samples=2)
        report = Report("t", [found])

        assert np.isnan([found.logits.total.rel_l2, found.logits.total.kl, found.logits.total.same_top]).all()
        assert found.share == np.inf
        assert found.unexcused == 1
        assert not command.holds(report)
        assert "NOT A NUMBER" in summary(report)
        assert "| nan |" in markdown(report)
        assert "<td class='bad'>nan</td>" in page(report)
        assert "not drawn everywhere: a8" in page(report)

    def test_of_a_single_logit_leaves_no_figure(self) -> None:
        """One NaN among rows whose truth is finite: not even a share of best tokens is left."""
        rows_ = np.ones((3, 4))
        rows_[1, 2] = np.nan
        found = errors(rows_, np.ones((3, 4)))

        assert np.isnan([found.rel_l2, found.largest, found.kl, found.same_top]).all()

    def test_is_null_in_json(self) -> None:
        """JSON has no NaN: it is null, and what is finite stays."""
        assert command.finite({"a": [math.nan, (1.5, math.inf)], "b": "x"}) == {"a": [None, [1.5, None]], "b": "x"}

    def test_leaves_a_record_that_is_short_and_whole(self) -> None:
        """Of the drift a record keeps the root mean squares of four quarters, of all else everything; a gap is null."""
        rows_ = [asdict(priced(drift=((3.0, 4.0, 0.0),) * 2 + ((math.nan, 1.0, 1.0),) * 6))]
        kept = command.brief(command.finite({"source": "s", "lanes": rows_}))

        assert kept["source"] == "s"
        assert set(kept["lanes"][0]) == set(rows_[0]) - {"at", "drift"} | {"drift_by_quarter"}
        assert kept["lanes"][0]["drift_by_quarter"] == [[3.0, 4.0, 0.0], *[[None, 1.0, 1.0]] * 3]

    @pytest.mark.parametrize("change", [
        {"share": 1.5}, {"unexcused": 1}, {"logits": Split(*[Errors(math.nan, 0, 0, 1)] * 3)},
    ])  # fmt: skip
    def test_and_every_error_out_of_bounds_is_red(self, change: dict[str, Any]) -> None:
        """A share above one, or a best token that no rounding explains, is red in the exit and in the summary."""
        assert command.holds(Report("t", [priced()], {"a8": "holds"}))
        assert "within its derived bound" in summary(Report("t", [priced()]))
        report = Report("t", [priced("a15"), priced(**change)])

        assert not command.holds(report)
        assert "within its derived bound" not in summary(report) or "NOT A NUMBER" in summary(report)
        assert not command.holds(Report("t", [priced()], {"a8": "lane a8, step 0: ..."}))


LANES = ("a8", "a8+s16", "q4")
GREEN = "locks/test_accuracy.py::TestLogits::test_lie[cuda-a8]"


def lock_run(*rows: tuple[str, str], commit: str = "abc", dirty: bool = False) -> LockRun:
    """Results of these locks."""
    return LockRun(commit, dirty, tuple(LockResult(node, "r", "", outcome, 0.1, {}) for node, outcome in rows))


class TestSpeed:
    """Which lanes have one."""

    @pytest.mark.parametrize(("run", "sentence"), [
        (lock_run((GREEN, "passed")), ""),
        (lock_run((GREEN, "passed"), ("t.py::other[cuda-q4]", "failed")), ""),
        (None, "no results of a lock run were given"),
        (lock_run(), "no lock of a8 passed on cuda"),
        (lock_run((GREEN, "not run")), "no lock of a8 passed on cuda"),
        (lock_run((GREEN.replace("cuda", "host"), "passed")), "no lock of a8 passed on cuda"),
        (lock_run((GREEN.replace("a8", "a8+s16"), "passed")), "no lock of a8 passed on cuda"),
        (lock_run((GREEN, "passed"), ("t.py::other[host-a8-2]", "failed")), "failed: t.py::other[host-a8-2]"),
        (lock_run((GREEN, "passed"), ("t.py::of_all", "failed")), "failed: t.py::of_all"),
        (lock_run((GREEN, "passed"), commit="abd"), "the lock run is of commit abd, this is abc"),
        (lock_run((GREEN, "passed"), dirty=True), "the lock run is of commit abc with changes"),
    ])  # fmt: skip
    def test_only_a_lane_that_this_commits_locks_hold(self, run: LockRun | None, sentence: str) -> None:
        """One passing lock of the lane on this device, none failing of it or of all lanes, and of this very commit.

        Red: a red lane, one that nobody ran, or a run of other sources, that shows a speed.
        """
        found = doubt(run, "abc", LANES, "a8", "cuda")

        assert sentence in found
        assert bool(found) == bool(sentence)
        assert doubt(run, None, LANES, "a8", "cuda")

    def test_a_red_lane_is_not_even_timed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a red and a green lane the green one is timed; a timed run that raised a flag has no speed either."""
        rows_ = [("t.py::x[host-a8]", "passed"), ("t.py::x[host-q4]", "failed"), ("t.py::x[host-a15]", "passed")]
        locks = [LockResult(n, "r", "", o, 0.1, {}) for n, o in rows_]
        path = tmp_path / "locks.json"
        data = {"commit": "abc", "dirty": False, "locks": [asdict(row) for row in locks]}
        path.write_text(json.dumps(data))
        timed = []

        def time_it(_device: Device, _weights: Any, case: Any) -> dict[str, Any]:
            timed.append(case.lane)
            return {"flags": [0] if case.lane == "a8" else [1], "tokens_a_second": 7.0}

        monkeypatch.setattr(command, "timed", time_it)
        device = open_device("host")
        speeds, withheld = command.speeds_of(device, weights(), ["a8", "q4", "a15"], read_run(path), "abc")

        assert timed == ["a8", "a15"]
        assert speeds == {"a8": 7.0}
        assert set(withheld) == {"q4", "a15"}
        shown = rows(Report("t", [priced("a8"), priced("q4")], {}, speeds, withheld))
        assert [row[-1] for row in shown] == ["7.0", "withheld"]

    @pytest.mark.parametrize(("words", "sentence"), [
        ("--drift 5", "report: --drift 5 is too few tokens"),
        ("--drift 99", "report: --drift 99 is too few tokens"),
        ("--locks OUT/y.json", "not the results of a lock run"),
        ("--markdown OUT/x --html OUT/x", "report: --markdown and --html are both OUT/x"),
    ])  # fmt: skip
    def test_what_is_asked_for_wrongly_is_refused_before_anything_is_measured(
        self, words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A drift of few tokens, a file of no results even where no speed is asked for, one file for two pages.

        Red: minutes of measuring, then the sentence; a name of results that is never opened.
        """
        monkeypatch.setattr(command, "collect", lambda *_: pytest.fail("something is measured"))
        here = str(tmp_path)

        assert cli.main(["report", "accuracy", *words.replace("OUT", here).split()]) == 2
        assert sentence.replace("OUT", here) in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_a_lane_that_is_asked_for_twice_is_priced_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the order of asking. Red: a lane with two rows."""
        asked: list[tuple[str, ...]] = []

        def collected(*given: Any) -> Any:
            asked.append(tuple(given[2]))
            raise LanelockError("enough")

        monkeypatch.setattr(command, "collect", collected)
        assert cli.main(["report", "accuracy", "--lane", "q4", "--lane", "a8", "--lane", "q4"]) == 2
        assert asked == [("q4", "a8")]

    def test_results_that_are_none_are_refused(self, tmp_path: Path) -> None:
        """A file that is missing or holds something else is named."""
        (tmp_path / "x.json").write_text("{}")
        for name in ("x.json", "y.json"):
            with pytest.raises(LanelockError, match=f"{name}: not the results of a lock run"):
                read_run(tmp_path / name)
        assert parameters("t.py::T::t[cuda-a8+s16-2]") == ("cuda", "a8+s16", "2")


class Tags(HTMLParser):
    """Every element of a page, and that each is closed by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "html"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "html":
            assert self.open.pop() == tag


class TestPage:
    """The HTML page."""

    MARKS = (Mark(100, 1e-7, 1e-5, 0.1), Mark(1000, 1e-7, 1e-5, 0.1))
    REPORT = Report("A <title>", [priced(), priced("q4+s16", share=None)], {"a8": "step 3: <b>"}, {"a8": 12.5},
                    {"q4+s16": "failed: x"}, {"a15": MARKS})  # fmt: skip  # fields in their order

    def test_stands_alone_and_is_well_formed(self) -> None:
        """No link, script or import; every element closed; texts escaped; both colour schemes.

        Red: a font or a script from a network, a lane's message that becomes markup.
        """
        text, tags = page(self.REPORT), Tags()
        tags.feed(text)

        assert tags.open == []
        assert tags.links == []
        assert "script" not in tags.seen
        assert "url(" not in text
        assert "@import" not in text
        assert "step 3: &lt;b&gt;" in text
        assert "prefers-color-scheme:dark" in text
        assert tags.seen.count("figure") == 5
        for label in ("layer", "position (tokens)", "tokens", "rel_L2"):
            assert f">{label}</text>" in text

    def test_shows_every_lane_in_every_plot_and_row(self) -> None:
        """A line a lane in each plot, a row a lane, a column a figure; a withheld speed is a word."""
        text = page(self.REPORT)

        assert text.count("<tr>") == 3
        assert text.count("<th scope='col'>") == len(HEADER)
        assert text.count(f"class='line {look('q4+s16')}'") == 4 + 2  # plots; table and legend
        assert "<td class=''>withheld</td>" in text
        assert "<td class=''>12.5</td>" in text

    def test_markdown_has_a_cell_a_figure(self) -> None:
        """Every row has the header's columns, whatever a message holds."""
        lines = markdown(replace(self.REPORT, golden={"a8": "a|b"})).splitlines()
        table = [line.replace("\\|", "") for line in lines if line.startswith("|")]

        assert {line.count("|") for line in table} == {len(HEADER) + 1}
        assert "- q4+s16: no speed, failed: x" in lines


class TestPlot:
    """Lines on a logarithmic axis."""

    def points(self, values: list[float]) -> Iterator[tuple[float, float]]:
        """Where a line's points were drawn."""
        drawn = plot([Line("l", "x", list(enumerate(values)))], Axes("a", "b", [0, len(values) - 1]))
        for run in drawn.split("points='")[1:]:
            for pair in run.split("'")[0].split():
                x, y = pair.split(",")
                yield float(x), float(y)

    def test_equal_ratios_are_equal_distances(self) -> None:
        """Up is more: 1e-4, 1e-3 and 1e-2 stand evenly, left to right, first and last decade at the ends."""
        (x0, y0), (x1, y1), (x2, y2) = self.points([1e-4, 1e-3, 1e-2])

        assert (x0, x2) == (74.0, 612.0)
        assert math.isclose(x1 - x0, x2 - x1)
        assert (y0, y2) == (268.0, 12.0)
        assert math.isclose(y0 - y1, y1 - y2)

    def test_what_is_no_positive_number_is_a_gap_that_is_named(self) -> None:
        """Zero, NaN and infinity break the line, and a note says whose."""
        for bad in (math.nan, math.inf, 0.0):
            drawn = plot([Line("bad one", "x", [(0, 1.0), (1, bad), (2, 1.0), (3, 2.0)])], Axes("a", "b", [0]))

            assert drawn.count("<polyline") == 1
            assert drawn.count("<circle") == 1
            assert "not drawn everywhere: bad one" in drawn

    @pytest.mark.parametrize(("decades", "labels"), [(2, 3), (6, 7), (7, 4)])
    def test_many_decades_have_a_label_every_second(self, decades: int, labels: int) -> None:
        """Up to six each has its own; lines at 2 and 5 stand where there are at most two. Red: labels that overlap."""
        drawn = plot([Line("l", "x", [(0, 1.0), (1, 10.0**decades)])], Axes("a", "b", [0, 1]))

        assert drawn.count("<tspan dy='-5'") == labels
        assert drawn.count("class='fine'") == (2 * decades if decades <= 2 else 0)

    def test_layers_have_about_eight_ticks(self) -> None:
        """Of 32 layers every fourth is labelled. Red: every layer's number over its neighbour's."""
        many = page(Report("t", [priced(layers=((1e-3, 9e-4, 4e-8),) * 32)]))

        ticks = [int(n) for n in re.findall(r"text-anchor='middle'>(\d+)</text>", many)]

        assert ticks[:8] == ticks[8:16] == list(range(0, 32, 4))

    def test_windows_and_ticks_cover_the_text(self) -> None:
        """At most 24 windows whose mean square is the text's, and round ticks from zero to the last position."""
        values = np.arange(1.0, 97.0)
        points = windows(range(96), values.tolist())

        assert len(points) == 24
        assert math.isclose(sum(y * y for _, y in points) / 24, (values**2).mean())
        assert [x for x, _ in points][:2] == [1.5, 5.5]
        assert round_ticks(2) == [0, 1, 2]
        assert round_ticks(80) == list(range(0, 81, 10))
        assert round_ticks(95) == [0, 20, 40, 60, 80]
        assert round_ticks(255) == [0, 50, 100, 150, 200, 250]


class TestCommand:
    """`lanelock report accuracy`."""

    def test_prints_json_and_writes_both_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """JSON with every field, a page and Markdown, all of one run; the exit is green."""
        files = {"--html": tmp_path / "a.html", "--markdown": tmp_path / "a.md"}
        outs = [word for option, path in files.items() for word in (option, str(path))]
        code = cli.main(["report", "accuracy", "--positions", "8", "--samples", "2", "--lane", "a8", "--json", *outs])
        data = json.loads(capsys.readouterr().out)

        assert code == 0
        assert data["golden"] == {"a8": "holds"}
        assert [row["lane"] for row in data["lanes"]] == ["a8"]
        assert data["lanes"][0]["logits"]["arithmetic"]["rel_l2"] < 1e-6
        assert data["tokens_a_second"] == data["withheld"] == data["drift"] == {}
        assert all("a8" in path.read_text() for path in files.values())
