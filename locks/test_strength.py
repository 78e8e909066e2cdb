"""The tool that proves the locks can fail, held on a project of two rooms that is made here.

Each lock is red when the tool counts a mutant as killed that no lock saw, or loses one from its accounts.
"""

import hashlib
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from oracle.errors import LanelockError
from reports.strength.campaign import Setting, measure
from reports.strength.cuda_operators import cuda_edits, masked
from reports.strength.generate import generated, sample
from reports.strength.mutant import Mutant
from reports.strength.overlay import applied
from reports.strength.plan import PER_ROOM, Choice, Planting, choose, in_turns, survivors_of
from reports.strength.python_operators import python_edits
from reports.strength.result import Strength, as_json, judge, tally
from reports.strength.worker import Run

FILES = {
    "oracle/__init__.py": "",
    "oracle/double.py": """\
        def double(x):
            return 2 * x


        def unused(x):
            return x - 1


        def forever(x):
            return x


        def die(x):
            return x
        """,
    "oracle/idle.py": "def idle(x):\n    return x + 1\n",
    "locks/__init__.py": "",
    "locks/test_double.py": """\
        import pytest

        from oracle import double


        def test_double():
            assert double.double(2) == 4


        def test_forever():
            while double.forever(1) != 1:
                pass


        def test_die():
            if double.die(1) != 1:
                import os

                os.kill(os.getpid(), 11)
        """,
    "locks/test_idle.py": """\
        import pytest

        from oracle.idle import idle


        def test_passes():
            assert True


        def test_skipped():
            if idle(1) != 2:
                pytest.skip("no device")
        """,
    "locks/test_bare.py": """\
        import pytest

        from oracle.idle import idle


        def test_skipped_when_broken():
            if idle(1) != 2:
                pytest.skip("no device")
        """,
    "locks/mutants/rooms.toml": """\
        [[mutant]]
        name = "seen"
        file = "oracle/double.py"
        anchor = "2 * x"
        replacement = "3 * x"
        class = "constant changed"
        sentence = "double triples"

        [[mutant]]
        name = "unseen"
        file = "oracle/double.py"
        anchor = "x - 1"
        replacement = "x + 1"
        class = "operator changed"
        sentence = "unused adds one"

        [[mutant]]
        name = "endless"
        file = "oracle/double.py"
        anchor = "def forever(x):\\n    return x"
        replacement = "def forever(x):\\n    return 2"
        class = "loop"
        sentence = "the lock never ends"

        [[mutant]]
        name = "deadly"
        file = "oracle/double.py"
        anchor = "def die(x):\\n    return x"
        replacement = "def die(x):\\n    return 2"
        class = "crash"
        sentence = "the process dies"

        [[mutant]]
        name = "unparsable"
        file = "oracle/double.py"
        anchor = "def double(x):"
        replacement = "def double(x:"
        class = "constant changed"
        sentence = "the file does not compile"

        [[mutant]]
        name = "refused"
        file = "oracle/double.py"
        anchor = "def unused(x):"
        replacement = "def unused(x:"
        class = "build"
        sentence = "planted to be refused by the compiler"

        [[mutant]]
        name = "all-skipped"
        file = "oracle/idle.py"
        anchor = "x + 1"
        replacement = "x + 2"
        class = "constant changed"
        sentence = "every lock skips"
        locks = ["locks/test_bare.py"]

        [[mutant]]
        name = "equal"
        file = "oracle/double.py"
        anchor = "return 2 * x"
        replacement = "return x * 2"
        class = "operands swapped"
        sentence = "the same product"
        """,
    "locks/mutants/equivalent.toml": """\
        [[equivalent]]
        id = "equal"
        check = 'python -c "from oracle.double import double; print([double(x) for x in range(256)])"'
        sentence = "the product commutes for every byte"

        [[equivalent]]
        id = "unseen"
        check = 'python -c "from oracle.double import unused; print(unused(1))"'
        sentence = "claimed, and wrong"
        """,
}


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write a project."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def table(file: str, anchor: str, replacement: str) -> str:
    """A mutant as TOML."""
    return (
        f'[[mutant]]\nfile = "{file}"\nanchor = "{anchor}"\nreplacement = "{replacement}"\n'
        'class = "c"\nsentence = "s"\n'
    )


def digest(root: Path) -> str:
    """Hash of every source file and of its time."""
    parts = [
        f"{p.relative_to(root)} {p.stat().st_mtime_ns} {p.read_text()}"
        for p in sorted(root.rglob("*.*"))
        if p.is_file()
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def run(root: Path, planting: Planting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A campaign on a project as JSON; endless mutants are given a second."""
    monkeypatch.setattr("reports.strength.campaign.SLACK_SECONDS", 1.0)
    setting = Setting(root, processes=1)
    verdicts, seconds = measure(setting, planting.mutants, lambda _: None, lambda _: None)
    return as_json(
        Strength(
            tuple(verdicts), planting.dead, planting.operators, planting.candidates, {}, len(planting.mutants), "host",
            seconds,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of two rooms."""
    root = tmp_path_factory.mktemp("project")
    write(root, FILES)
    return root


@pytest.fixture(scope="module")
def outcome(project: Path) -> dict[str, Any]:
    """The result of all planted mutants of the project, with the state of the checkout before and after."""
    before = digest(project)
    with pytest.MonkeyPatch.context() as patch:
        result = run(project, choose(Choice(per_room=0), project), patch)
    return {**json.loads(json.dumps(result)), "untouched": before == digest(project)}


def fates(outcome: Mapping[str, Any]) -> dict[str, str]:
    """Fate by name."""
    return {m["id"]: m["fate"] for m in outcome["mutants"]}


class TestVerdicts:
    """What the tool says of one mutant."""

    def test_mutant_that_a_lock_sees_is_killed(self, outcome: dict[str, Any]) -> None:
        """A mutant that turns a lock red is killed, and the lock is named."""
        seen = next(m for m in outcome["mutants"] if m["id"] == "seen")

        assert (seen["fate"], seen["by"]) == ("killed", "locks/test_double.py::test_double")

    def test_mutant_that_no_lock_sees_survives(self, outcome: dict[str, Any]) -> None:
        """A mutant that leaves every lock green survives."""
        assert fates(outcome)["unseen"] == "survived"

    def test_locks_that_only_skip_kill_nothing(self, outcome: dict[str, Any]) -> None:
        """A mutant under which every lock is skipped survives."""
        assert fates(outcome)["all-skipped"] == "nothing ran"
        assert "all-skipped" in [s["id"] for s in outcome["survivors"]]

    def test_endless_mutant_is_named_so(self, outcome: dict[str, Any]) -> None:
        """A mutant whose locks do not end is counted as killed, under its own name."""
        assert (fates(outcome)["endless"], outcome["timed_out"]) == ("timed out", 1)

    def test_a_loop_ends_by_the_processors_time(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A mutant that spins is ended where the clock would wait for ever, and is counted the same.

        Red: a run on a busy machine that waits many minutes for each loop.
        """
        monkeypatch.setattr("reports.strength.campaign.SLACK_CPU", 1.0)
        monkeypatch.setattr("reports.strength.campaign.SLACK_SECONDS", 1e6)
        chosen = choose(Choice(classes=("loop",), per_room=0), project).mutants
        verdicts, _ = measure(Setting(project, processes=1), chosen, lambda _: None, lambda _: None)

        assert [v.fate for v in verdicts] == ["timed out"]

    def test_dying_process_is_named_so(self, outcome: dict[str, Any]) -> None:
        """A mutant that ends the process is counted as killed, under its own name."""
        assert (fates(outcome)["deadly"], outcome["crashed"]) == ("crashed", 1)

    def test_proven_equivalent_leaves_the_total(self, outcome: dict[str, Any]) -> None:
        """A survivor whose stored check prints the same with and without it is equivalent and not counted."""
        assert (fates(outcome)["equal"], [e["id"] for e in outcome["equivalent"]]) == ("equivalent", ["equal"])

    def test_claimed_equivalent_is_checked(self, outcome: dict[str, Any]) -> None:
        """A survivor whose stored check prints something else survives."""
        assert fates(outcome)["unseen"] == "survived"

    def test_source_that_does_not_compile_is_no_kill(self, outcome: dict[str, Any]) -> None:
        """A mutant that does not compile is counted by itself, unless it was planted to be refused."""
        assert outcome["killed_by_build"] == 1
        assert outcome["by_class"]["build"]["killed"] == 1


class TestAccounts:
    """The sums of a run."""

    def test_every_mutant_is_counted_once(self, outcome: dict[str, Any]) -> None:
        """The total is the sum of killed, survived and not compiled, in all, by room and by class."""
        rows = [outcome, *outcome["by_room"].values(), *outcome["by_class"].values()]

        assert all(r["total"] == r["killed"] + r["survived"] + r["killed_by_build"] for r in rows)
        assert (outcome["total"], outcome["killed"], len(outcome["survivors"])) == (7, 4, 2)

    def test_generated_mutant_that_is_no_program_is_no_mutant(self) -> None:
        """What an operator made and no compiler takes is counted beside the total, not in it."""
        made = Mutant("m", "a", "a.cu", 0, "a", "b", "c", "s", "operator", 1)
        verdicts = [judge(made, ("l",), Run(failed=1, build=True)), judge(made, ("l",), Run(failed=1))]
        figures = tally(verdicts)

        assert (figures["total"], figures["killed"], figures["not_compiled"]) == (1, 1, 1)

    def test_survivor_says_where_and_what_ran(self, outcome: dict[str, Any]) -> None:
        """A survivor carries file, line, class, sentence and the locks that ran."""
        unseen = next(s for s in outcome["survivors"] if s["id"] == "unseen")

        assert (unseen["file"], unseen["line"], unseen["class"]) == ("oracle/double.py", 6, "operator changed")
        assert unseen["sentence"] == "unused adds one"
        assert unseen["ran"] == {"locks": ["locks/test_double.py"], "passed": 3, "skipped": 0}

    def test_checkout_is_untouched(self, outcome: dict[str, Any]) -> None:
        """No file of the checkout changes, nor its time."""
        assert outcome["untouched"]

    def test_strength_leaves_out_what_did_not_compile(self, outcome: dict[str, Any]) -> None:
        """Strength is killed over compiled."""
        assert outcome["strength"] == 4 / 6


class TestErrors:
    """What makes a run fail, and what is refused."""

    def test_dead_anchor_is_reported(self, project: Path, tmp_path: Path) -> None:
        """An anchor that occurs zero or several times is dead, with the count in its reason."""
        tables = [table("oracle/double.py", anchor, "y") for anchor in ("nowhere", "return x")]
        write(tmp_path, {"dead.toml": "".join(tables)})
        planting = choose(Choice(folder=tmp_path), project)

        assert [d.reason for d in planting.dead] == [
            "the anchor occurs 0 times in oracle/double.py",
            "the anchor occurs 3 times in oracle/double.py",
        ]

    def test_dead_anchor_fails_the_run(self, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A run with a dead anchor ends with an exit code that is not zero."""
        text = table("gone.py", "a", "b") + 'room = "double"\n'
        write(tmp_path, {"dead.toml": text})
        code = main(["strength", "--root", str(project), "--mutants", str(tmp_path), "--json", "--processes", "1"])
        result = json.loads(capsys.readouterr().out)

        assert (code, result["total"], result["dead"][0]["reason"]) == (1, 0, "gone.py does not exist")

    def test_red_baseline_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A room that is red without a mutant is an error, not a kill."""
        write(tmp_path, {**FILES, "locks/test_double.py": "def test_red():\n    assert False\n"})
        planting = choose(Choice(rooms=("double",), per_room=0), tmp_path)

        with pytest.raises(LanelockError, match="red without a mutant"):
            run(tmp_path, planting, monkeypatch)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ('[[mutant]]\nfile = "oracle/double.py"\n', "mutant 1: the field 'anchor' is missing"),
            ("mutant = 3\n", "is not a table array"),
            ("[[mutant\n", "is not TOML"),
            (
                table("../x", "a", "b"),
                "outside the repository",
            ),
        ],
    )
    def test_faulty_table_is_refused_by_name(self, project: Path, tmp_path: Path, text: str, sentence: str) -> None:
        """A file of mutants that is not in the format is refused with its name and place."""
        write(tmp_path, {"faulty.toml": text})

        with pytest.raises(LanelockError, match=sentence):
            choose(Choice(folder=tmp_path), project)

    def test_unknown_room_is_refused(self, project: Path) -> None:
        """A room that does not exist is refused, and the rooms there are named."""
        with pytest.raises(LanelockError, match="unknown room 'nowhere'; rooms with locks are double"):
            choose(Choice(rooms=("nowhere",)), project)


class TestChoice:
    """Parts of a campaign."""

    def test_files_choose_the_mutants_of_these_sources(self, project: Path) -> None:
        """A pattern leaves planted and generated mutants of other sources out. Red: one kind unfiltered."""
        planting = choose(Choice(files=("oracle/d*",), per_room=3), project)

        assert {m.file for m in planting.mutants} == {"oracle/double.py"}
        assert {m.planted for m in planting.mutants} == {False, True}

    def test_survivors_run_again_alone(self, project: Path, tmp_path: Path, outcome: dict[str, Any]) -> None:
        """What an earlier run left alive is all that is planted, by id, and generated ones are not sampled."""
        (tmp_path / "run.json").write_text(json.dumps(outcome))
        ids = survivors_of(tmp_path / "run.json")
        made = generated("double", project)
        planting = choose(Choice(ids=ids | {made[-1].id}, per_room=0), project)

        assert ids == {m["id"] for m in outcome["mutants"] if m["fate"] in ("survived", "nothing ran")}
        assert sorted(m.id for m in planting.mutants) == sorted({*ids, made[-1].id})

    def test_a_run_that_is_cut_short_has_seen_every_room(self, project: Path) -> None:
        """Rooms take turns, and each keeps its order. Red: all of one room before the first of the next."""
        chosen = choose(Choice(per_room=3), project).mutants
        turns = in_turns(chosen)
        rooms = [m.room for m in turns]

        assert sorted(m.id for m in turns) == sorted(m.id for m in chosen)
        assert set(rooms[: len(set(rooms))]) == set(rooms)
        for room in set(rooms):
            assert [m.id for m in turns if m.room == room] == [m.id for m in chosen if m.room == room]

    def test_no_mutant_starts_behind_the_time_given(
        self, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What did not start is counted as such and in no total. Red: a mutant that never ran counted as killed."""
        write(tmp_path, {"one.toml": table("oracle/double.py", "x - 1", "x + 1")})
        flags = ["--mutants", str(tmp_path), "--json", "--processes", "1", "--seconds", "0", "--seed", "5"]
        code = main(["strength", "--root", str(project), *flags])
        result = json.loads(capsys.readouterr().out)

        assert (code, result["total"], result["not_started"], result["strength"]) == (1, 0, 1, None)
        assert result["sample"] == {"seed": 5, "per_room": PER_ROOM, "limit": None, "seconds": 0.0}

    def test_a_file_that_is_no_result_is_named(self, tmp_path: Path) -> None:
        """Another JSON, or none, is refused with the path."""
        for text in ("{}", "not", '{"survivors": 3}', "[" * 100_000):
            (tmp_path / "other.json").write_text(text)
            with pytest.raises(LanelockError, match=r"other\.json: is not the JSON of a run of strength"):
                survivors_of(tmp_path / "other.json")


class TestOutsideFolder:
    """Mutants that are not in the repository."""

    def test_outside_mutants_take_the_place_of_ours(
        self, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A folder from outside is run alone, and its verdicts come out as JSON."""
        text = table("oracle/double.py", "2 * x", "x")
        write(tmp_path, {"outside.toml": text})
        code = main(["strength", "--root", str(project), "--mutants", str(tmp_path), "--json", "--processes", "1"])
        result = json.loads(capsys.readouterr().out)

        assert (code, result["total"], result["killed"], result["survivors"]) == (0, 1, 1, [])


class TestOverlay:
    """The copy in which a mutant is planted."""

    def test_file_is_replaced_and_comes_back(self, tmp_path: Path) -> None:
        """Inside, the file is a new one with a time of its own; afterwards bytes and time are the old ones."""
        path = tmp_path / "a.py"
        path.write_text("x = 1\n")
        twin = tmp_path / "twin.py"
        twin.hardlink_to(path)
        before = path.stat().st_mtime_ns
        change = Mutant("m", "a", "a.py", 4, "1", "2", "c", "s", "test", 1)
        with applied(change, tmp_path):
            inside = (path.read_text(), twin.read_text(), path.stat().st_mtime_ns != before)

        assert inside == ("x = 2\n", "x = 1\n", True)
        assert (path.read_text(), path.stat().st_mtime_ns) == ("x = 1\n", before)


def results(text: str, kind: str, python: bool = False) -> list[str]:
    """The texts that the edits of one class make."""
    edits = python_edits(text) if python else cuda_edits(text)
    return [text[: e.start] + e.replacement + text[e.end :] for e in edits if e.kind == kind]


class TestOperators:
    """The operators that make mutants, and the sample of them."""

    @pytest.mark.parametrize(
        ("text", "kind", "expected"),
        [
            ("a;\n__syncthreads();\nb;", "barrier removed", "a;\n;\nb;"),
            ("x = __shfl_xor_sync(lane::FULL, x, 1);", "warp mask narrowed", "x = __shfl_xor_sync(0x7fffffffu, x, 1);"),
            ("x = threadIdx.x;", "lane index off by one", "x = (threadIdx.x + 1);"),
            ("for (int i = 0; i < n; ++i) f();", "loop bound off by one", "for (int i = 0; i < n - 1; ++i) f();"),
            ("for (i = 0; i < n; i += 4) f();", "loop bound off by one", "for (i = 0; i < (n) - 4; i += 4) f();"),
            ("for (i = 1; i < n; i *= 2) f();", "loop bound off by one", "for (i = 1; i < (n) / 2; i *= 2) f();"),
            ("for (int i = 0; i < n; ++i) f();", "first step skipped", "for (int i = 1; i < n; ++i) f();"),
            ("y = scales[b];", "neighbour's scale", "y = scales[b + 1];"),
            ("y = fmaf(f(a, 1), b, c + d);", "fma split in two", "y = ((f(a, 1)) * (b) + (c + d));"),
            ("for (int c = 0; c < n; ++c) t = t + s;", "additions swapped", "for (int c = (n) - 1; c >= 0; --c) "),
            ("y = 0.5f * x;", "constant changed", "y = 0.50000006f * x;"),
            ("y = 0x1.8p-3f * x;", "constant changed", "y = 0x1.8000020000000p-3f * x;"),
            ("y = x & 0x7fu;", "constant changed", "y = x & 0x7eu;"),
            ("{ y[i] = x; }", "write-back skipped", "{ ; }"),
            ("y = sqrtf(s + eps);", "epsilon dropped", "y = sqrtf(s);"),
            ("y = rintf(x);", "tie rule reversed", "y = rintf(1.00000012f * x);"),
            ("if (row < N) f();", "guard removed", "if (true) f();"),
            ("if (row >= N) return;", "guard removed", "if (false) return;"),
            ("if (a < b) f();", "< for <=", "if (a <= b) f();"),
            ("y = a - b;", "operator changed", "y = a + b;"),
        ],
    )  # fmt: skip
    def test_cuda_operator_plants_its_fault(self, text: str, kind: str, expected: str) -> None:
        """Each operator of the list makes its fault in a CUDA text."""
        assert any(made.startswith(expected) for made in results(text, kind))

    @pytest.mark.parametrize(
        ("text", "kind", "expected"),
        [
            ("y = a - b", "operands swapped", "y = ((b) - (a))"),
            ("y = a + b", "operator changed", "y = a - b"),
            ("y = x + eps", "epsilon dropped", "y = x"),
            ("y = x.sum(axis=-1)", "axis swapped", "y = x.sum(axis=0)"),
            ("y = x[:n]", "slice off by one", "y = x[:(n) - 1]"),
            ("y = x.T @ z", "transpose dropped", "y = x @ z"),
            ("y = np.swapaxes(x, 0, 1)", "transpose dropped", "y = x"),
            ("y = fma(a, b, c)", "fma split in two", "y = ((a) * (b) + (c))"),
            ("if x < 0:\n    raise E", "guard removed", "if False:\n    raise E"),
            ("y = a < b", "< for <=", "y = a <= b"),
            ("y = 2 * x", "constant changed", "y = 3 * x"),
            ("y[0] = x", "write-back skipped", "pass"),
        ],
    )
    def test_python_operator_plants_its_fault(self, text: str, kind: str, expected: str) -> None:
        """Each operator of the list makes its fault in a Python text."""
        assert expected in results(text, kind, python=True)

    def test_comments_and_strings_are_left_alone(self) -> None:
        """What is not code is blanked, and every position stays."""
        text = (
            '// a < b\n#include "x.h"\nf("a < b"); /* a < b */ static_assert(a < b, "s");'
            'static_assert((a & (b < 1)), "s");'
            "__launch_bounds__(32, a < b) constexpr int UNROLL = a < b ? 1 : 2;"
        )

        assert "<" not in masked(text)
        assert len(masked(text)) == len(text)

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ("#ifdef LANELOCK_HOST\na\n#else\nb\n#endif\nc", "ac"),
            ("#if !defined(LANELOCK_HOST)\na\n#elif defined(LANELOCK_HOST)\nb\n#else\nc\n#endif", "b"),
            ("#if defined(LANELOCK_HOST) && !defined(LANELOCK_SOFT_HALF)\na\n#endif", "a"),
            ("#ifdef UNKNOWN\na\n#else\nb\n#endif", "ab"),
            ("#if defined(LANELOCK_SOFT_HALF) || defined(UNKNOWN)\na\n#endif\nb", "ab"),
            ("#ifndef LANELOCK_HOST\n#ifdef UNKNOWN\na\n#endif\nb\n#endif\nc", "c"),
        ],
    )
    def test_branches_that_the_host_does_not_compile_are_left_alone(self, text: str, kept: str) -> None:
        """A branch that is surely not compiled here is blanked; one that may be is kept."""
        assert "".join(masked(text).split()) == kept

    def test_sentences_for_people_are_left_alone(self) -> None:
        """Docstrings, annotations and the sentences of errors are no code."""
        text = 'def f(x: "tuple[2]") -> 3:\n    """Doc 2."""\n    raise E(f"{2} {1 + x}")\n'

        assert list(python_edits(text)) == []

    def test_sample_depends_on_the_seed_alone(self) -> None:
        """The same seed gives the same mutants, another seed others."""
        made = generated("rms_norm", Path(__file__).parents[1])
        samples = [[m.id for m in sample(made, 2, seed)] for seed in range(8)]

        assert samples == [[m.id for m in sample(made, 2, seed)] for seed in range(8)]
        assert len({tuple(s) for s in samples}) > 1
