"""The command `lanelock bench`: what it times has the right bits, and it says so."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import main
from harness.device import NotRun
from harness.devices import open_device
from oracle.config import preset
from oracle.weights import load
from reports import bench_cublas, bench_decode
from reports.bench_buffers import Bench, step_projections, weight_bytes
from reports.bench_counters import COUNTERS, STALLS, figures, launch_all
from reports.bench_counters import measure as measure_counters
from reports.bench_projections import LEAST_LAUNCHES, Case, Effort, measure
from reports.bench_state import StateCase, measure_state

TINY = ("--config", "tiny", "--device", "host", "--no-record", "--json")


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> list[float]:
    """A clock of the bench that goes on by so much each time it is read; returns the list of its rests."""
    rests: list[float] = []
    read = itertools.count(0.0, step)
    fake = SimpleNamespace(perf_counter=lambda: next(read), sleep=rests.append)
    monkeypatch.setattr("reports.bench_buffers.time", fake)
    return rests


class TestProjections:
    """A step's projections, timed and compared."""

    def test_every_case_has_right_bits_and_a_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each case agrees before, chained and after, and is timed. Red: a launch with a neighbour's weights."""
        code = main(["bench", "projections", "--most", "2", "--prefill", "70", *TINY])
        rows = json.loads(capsys.readouterr().out)["rows"]

        assert code == 0
        assert [row["name"] for row in rows] == [
            "a8 1 rows", "a8 2 rows", "a15 1 rows", "a15 2 rows", "q4 1 rows",
            "a8 13 rows", "a8 35 rows", "a8 70 rows", "a15 70 rows", "q4 70 rows",
        ]  # fmt: skip  # a list of names
        assert all(set(row["bits"].values()) == {True} and row["ms"] > 0 for row in rows)

    def test_every_shape_of_a_step_has_a_speed_of_its_own(self) -> None:
        """The launches of all shapes are those of the step, each timed and with its layout. Red: a shape left out."""
        row = measure(open_device("host"), preset("tiny"), [Case("q4", 1)], Effort(1, 0.0))["rows"][0]

        assert sum(one["launches"] for one in row["shapes"]) == row["projections"]
        assert {one["kernel"] for one in row["shapes"]} == set(row["lowerings"])
        assert all(one["us"] > 0 and one["share"] > 0 and one["grid"] > 0 for one in row["shapes"])

    def test_wrong_bits_have_no_speed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A projection that differs from the reference takes the case's speed away. Red: a check that is not read."""
        monkeypatch.setattr("reports.bench_projections._same", lambda *_: False)
        row = measure(open_device("host"), preset("tiny"), [Case("a8", 1)], Effort(1, 0.0))["rows"][0]

        assert "ms" not in row

    def test_a_step_is_timed_between_rests_and_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Decode steps and shapes between rests, decode steps again without, prefills without. Red: one for another."""
        monkeypatch.setattr(Bench, "rested", lambda *_: [2.0])
        monkeypatch.setattr(Bench, "times", lambda *_, **__: [7.0])
        monkeypatch.setattr(Bench, "sustained", lambda _, __, count, seconds: {"ms": 3.0, "asked": (count, seconds)})
        cases = [Case("a8", 1), Case("a8", 70)]
        decode, prefill = measure(open_device("host"), preset("tiny"), cases, Effort(2, 600.0))["rows"]

        assert (decode["ms"], decode["sustained_ms"], prefill["ms"]) == (2.0, 3.0, 7.0)
        assert decode["sustained_share"] / decode["share"] == pytest.approx(2 / 3)
        assert decode["sustained"]["asked"] == (300, 0.6)
        assert "sustained" not in prefill
        assert all(one["us"] <= 2000 / LEAST_LAUNCHES for row in (decode, prefill) for one in row["shapes"])

    def test_a_rest_is_as_long_as_the_burst_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bursts of one replay more than is timed, each with its rest. Red: a late start timed, a rest of nothing."""
        replays, rests = [], clock(monkeypatch, 5.0)
        graph = SimpleNamespace(replay=lambda: replays.append(len(rests)))
        times = Bench(open_device("host")).rested(graph, 3)

        assert len(times) == 3
        assert replays == [0, 0, 0, 1, 1, 1]
        assert rests == [5.0, 5.0]

    def test_sustained_is_the_later_half_and_its_state_the_middle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The median behind the fall of the clock, the state in the middle, a rest. Red: the start of either."""
        asked: list[float] = []
        rests = clock(monkeypatch, 5.0)
        monkeypatch.setattr(Bench, "times", lambda *_, **__: [1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
        monkeypatch.setattr("reports.bench_buffers._state_in", asked.append)
        found = Bench(open_device("host")).sustained(None, 6, 8.0)

        assert (found["ms"], asked, rests) == (2.0, [4.0], [5.0])

    def test_cublas_multiplies_values(self) -> None:
        """Nothing but random values is made for it. Red: zeros, which draw less power."""
        made = []
        value = SimpleNamespace(to=lambda _: value, t=lambda: value)
        torch = SimpleNamespace(
            float8_e4m3fn="fp8", int8="int8", bfloat16="bf16", ones=lambda *_, **__: None,
            randn=lambda *size, **_: made.append(size) or value,
            randint=lambda *bounds, **_: made.append(bounds[2]) or value,
        )  # fmt: skip  # a map
        for kind in ("fp8", "int8", "bf16"):
            bench_cublas._products(torch, kind, 64, 1 << 14, 1 << 14)

        assert all(made.count(size) >= 3 for size in ((64, 1 << 14), (1 << 14, 1 << 14)))

    def test_a_step_of_the_27b_reads_what_its_weights_hold(self) -> None:
        """257 projections of 27 GB, scales counted. Red: a projection missing, scales not counted."""
        projections = step_projections(preset("qwen3.8-27b"))

        assert len(projections) == 257
        assert sum(weight_bytes(p.N, p.K) for p in projections) == sum(p.N * p.K for p in projections) * 17 // 16


class TestState:
    """The Gated DeltaNet kernels of a step, timed and compared."""

    def test_every_case_has_right_bits_and_a_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each case agrees before and after and is timed; prefills have an error.

        Red: a layer with a neighbour's state.
        """
        code = main(["bench", "state", "--most", "8", "--prefill", "17", *TINY])
        figures = json.loads(capsys.readouterr().out)
        rows = {row["name"]: row for row in figures["rows"]}

        assert code == 0
        assert list(rows) == [
            "scan B=1 T=1 f32", "scan B=1 T=1 f16", "scan B=8 T=1 f32", "scan B=8 T=1 f16",
            "scan B=1 T=17 f32", "chunked B=1 T=17 f32", "conv B=1 T=1", "conv B=8 T=1", "gates B=1 T=1",
            "gates B=8 T=1", "conv B=1 T=17", "gates B=1 T=17",
        ]  # fmt: skip  # a list of names
        assert all(set(row["bits"].values()) == {True} and row["us"] > 0 for row in rows.values())
        assert 0 < rows["chunked B=1 T=17 f32"]["rel_L2"] < 1e-6
        assert figures["faster"] in ({"faster at 17 tokens": name} for name in ("scan", "chunked"))

    def test_a_state_that_another_launch_wrote_has_no_speed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pass that the reference does not make takes the case's speed away. Red: a check that counts no passes."""
        monkeypatch.setattr(Bench, "times", lambda *_: [1.0])
        bench = Bench(open_device("host"))
        row = measure_state(bench, preset("tiny"), 1.0, [StateCase("scan", 2)], 1)[0]
        bench.close()

        assert row["bits"] == {"before": True, "after": False}
        assert "ms" not in row


class TestCounters:
    """What limits the projections, through a profiler."""

    def test_every_shape_of_a_step_is_launched_once(self) -> None:
        """The watched process launches one projection of each shape a case, in order. Red: a shape left out."""
        config = preset("tiny")
        launched = launch_all(config, [Case("a8", 1), Case("q4", 3)], "host")
        shapes = list(dict.fromkeys(f"{p.N} x {p.K}" for p in step_projections(config)))

        assert [(one["case"], one["shape"]) for one in launched] == [
            (case, shape) for case in ("a8 1 rows", "q4 3 rows") for shape in shapes
        ]

    def test_figures_name_what_a_launch_is_nearest_to(self) -> None:
        """The largest share and the longest wait have their names, instructions are those of a block. Red: swapped."""
        row = dict.fromkeys((*COUNTERS.values(), *(f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio"
                                                   for s in STALLS)), "1.5")  # fmt: skip  # a map
        row |= {COUNTERS["us"]: "81,664", COUNTERS["issue"]: "42.13", COUNTERS["instructions"]: "28,685,017"}
        row |= {"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "1.6"}
        found = figures({"blocks": 100}, row)

        assert (found["nearest"], found["waits_for"]) == ("issue", "wait")
        assert (found["us"], found["instructions"]) == (81.664, 286850.17)

    def test_without_a_profiler_nothing_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where there is no Nsight Compute the command says that it did not run. Red: counters of nothing."""
        monkeypatch.setenv("PATH", "")
        with pytest.raises(NotRun, match="Nsight Compute"):
            measure_counters("tiny", [Case("a8", 1)])


class TestAttention:
    """Attention of a layer, timed and compared."""

    @pytest.mark.nightly
    def test_every_case_has_right_bits_and_a_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each form has the bits of one head and one token a block, and a time. Red: a cache of another layer."""
        code = main(["bench", "attention", "--most", "1", "--context", "640", *TINY])
        rows = json.loads(capsys.readouterr().out)["rows"]

        assert code == 0
        assert [row["name"].removeprefix("attention ") for row in rows] == [
            "a8+s16+kv16 B=1 T=1 context=640", "a8 B=1 T=1 context=640", "a8+s16+kv16 B=1 T=2 context=640",
            "a8+s16+kv16 B=1 T=512 context=512",
        ]  # fmt: skip  # a list of names
        assert all(set(row["bits"].values()) == {True} and row["us"] > 0 for row in rows)


class TestDecode:
    """A whole decode, timed and compared."""

    def test_lanes_agree_with_themselves(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Drafts and chunks change no stream of a lane, and every case has a speed; a profiled one lists the kernels of
        its step, the one furthest above its floor first. Red: a step of another graph, a kernel that is not listed.
        """
        lanes = ("--lane", "a8", "--lane", "q4+kv16")
        code = main(["bench", "decode", "--most", "8", "--prompt", "5", "--n", "4", *lanes, *TINY])
        rows = json.loads(capsys.readouterr().out)["rows"]

        assert code == 0
        names = [f"{lane} {case}" for lane in ("a8", "q4+kv16") for case in ("B=1", "B=8", "B=1 drafts=1")]
        assert [row["name"] for row in rows] == names
        assert all(row["streams_agree"] and row["ms"] > 0 and row["share"] > 0 for row in rows)
        assert all(row["first_token_ms"] > 0 and row["floor_ms"] > 0 for row in rows)
        assert rows[0]["agrees_with"] == names[1:3]
        over = [kernel["over_ms"] for kernel in rows[0]["kernels"]]
        assert over == sorted(over, reverse=True)
        assert {"delta_rule", "gates", "swiglu_quantize"} <= {kernel["name"] for kernel in rows[0]["kernels"]}

    def test_a_lane_whose_streams_disagree_has_no_speed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One sequence that decodes other tokens in a batch takes the speed of its whole lane away.

        Red: a digest that is not compared.
        """
        figures = bench_decode._figures
        digests = iter("ab")
        monkeypatch.setattr(bench_decode, "_figures",
                            lambda *a: {**figures(*a), "first_stream_sha256": next(digests)})  # fmt: skip
        cases = (bench_decode.Case("a8", 1, 5, 4, 5), bench_decode.Case("a8", 2, 5, 4, 5))
        rows = bench_decode.measure_all(open_device("host"), load("synthetic:1", preset("tiny")), cases, 1.0)

        assert all(not row["streams_agree"] and not set(row) & set(bench_decode.SPEEDS) for row in rows)


def bench_record(folder: Path, name: str, rows: list[dict[str, Any]], **changes: Any) -> str:
    """A record of a bench with these rows."""
    figures = {"config": changes.pop("config", "tiny"), "valid": changes.pop("valid", True), "rows": rows}
    circumstances = {"kind": "bench-decode", "date": "2030-01-01", "commit": "abcdef0123456789", "cpu": "C"}
    path = folder / name
    path.write_text(json.dumps({**circumstances, **changes, "figures": figures}))
    return str(path)


class TestCompare:
    """Two records side by side."""

    def test_ratio_is_second_over_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Of milliseconds and of those to the first token; where each was measured stands above.

        Red: the two exchanged, a dirty tree or a disturbed GPU that nobody is told of.
        """
        a = bench_record(tmp_path, "a.json", [{"name": "x", "ms": 2.0, "first_token_ms": 10.0}])
        b = bench_record(
            tmp_path, "b.json", [{"name": "x", "ms": 3.0, "first_token_ms": 9.0}], dirty=True, valid=False,
            gpus=[{"name": "G"}],
        )  # fmt: skip
        assert main(["bench", "compare", a, b]) in (0, None)
        lines = capsys.readouterr().out.splitlines()

        assert lines[0] == "A: bench-decode tiny, 2030-01-01, abcdef012345, C"
        assert lines[1].startswith("B: bench-decode tiny, 2030-01-01, abcdef012345 with changes, G; NOT VALID")
        assert [line.split() for line in lines if line.startswith(" x")] == [
            ["x", "2", "3", "1.500"], ["x", "10", "9", "0.900"]
        ]  # fmt: skip

    def test_a_case_that_has_no_speed_any_more_is_shown(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Wrong bits are a word, and a case of one record alone a dash. Red: a lane that broke and left the table."""
        a = bench_record(tmp_path, "a.json", [{"name": n, "ms": 2.0} for n in ("x", "y", "z")])
        b = bench_record(tmp_path, "b.json", [{"name": "w", "ms": 1.0}, {"name": "x", "ms": 4.0}, {"name": "y"}])
        main(["bench", "compare", a, b])
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]

        assert rows == [["x", "2", "4", "2.000"], ["y", "2", "wrong"], ["z", "2", "-"], ["w", "-", "1"]]

    @pytest.mark.parametrize(("changes", "sentence"), [
        ({"kind": "bench-state"}, "is a bench-decode of tiny, {b} a bench-state of tiny: they are not compared"),
        ({"config": "qwen3.8-27b"}, "is a bench-decode of tiny, {b} a bench-decode of qwen3.8-27b: they are not"),
        ({"rows": [{"name": "y", "ms": 1.0}]}, "and {b} hold no case in common"),
        ({"rows": [{"name": "x", "ms": 0.0}]}, "{b}: not a readable record of a bench"),
        ({"rows": [{"name": "x", "ms": float("nan")}]}, "{b}: not a readable record of a bench"),
        ({"rows": [{"ms": 1.0}]}, "{b}: not a readable record of a bench"),
        ({"rows": []}, "{b}: not a readable record of a bench"),
        ({"gpus": 3}, "{b}: not a readable record of a bench"),
    ])  # fmt: skip
    def test_what_cannot_be_compared_is_refused(
        self, changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Another bench, another model, no common case, no time. Red: a small model's speed beside the 27B's."""
        rows = [{"name": "x", "ms": 1.0}]
        a = bench_record(tmp_path, "a.json", rows)
        b = bench_record(tmp_path, "b.json", **{"rows": rows, **changes})

        assert main(["bench", "compare", a, b]) == 2
        told = capsys.readouterr()
        assert sentence.format(b=b) in told.err
        assert told.out == ""

    def test_a_file_that_is_no_record_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The refusal names the file. Red: a traceback."""
        path = tmp_path / "a.json"
        for text in ("{}", "[]", "x", '{"figures": {"rows": 1}}'):
            path.write_text(text)
            assert main(["bench", "compare", str(path), str(path)]) == 2
            assert "a.json: not a readable record of a bench" in capsys.readouterr().err


class TestRefusals:
    """Benches that cannot say anything."""

    @pytest.mark.parametrize(
        "words",
        [["state", "--most", "0", "--prefill", ""], ["attention", "--most", "0"], ["decode", "--most", "0"]],
        ids=" ".join,
    )
    def test_a_bench_of_no_case_is_refused(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        """Limits that leave no case out of all are an error. Red: an empty table, exit code 0."""
        assert main(["bench", *words, *TINY]) == 2
        assert f"bench {words[0]}: no case" in capsys.readouterr().err

    @pytest.mark.parametrize("lengths", ["a", "512,-3", "0", "1.5"])
    def test_a_prefill_of_no_tokens_is_named(self, lengths: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A length that is none is told by option and text. Red: a traceback of int."""
        assert main(["bench", "state", f"--prefill={lengths}", *TINY]) == 2
        assert f"--prefill: '{lengths.rsplit(',', maxsplit=1)[-1]}' is no number of tokens" in capsys.readouterr().err
