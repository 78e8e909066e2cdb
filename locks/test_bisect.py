"""Trace and bisect: tracing changes nothing, equal runs agree at every launch, a broken one is named at its first."""

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from harness import cli
from harness.bisect import Side, bisect
from harness.commits import CommitRun, last_change, sources_of, trace_words
from harness.device import Device
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, decode
from harness.trace import Written, arrays_at, digest_of, trace
from kernels.places import ROOT
from kernels.tuning import Tuning
from locks.models import CONFIG, engine, prompt, tokens, weight_buffer, written
from locks.support import assert_same_bits
from oracle.errors import LanelockError

REQUEST = Request(prompt(9), 5)
CHOICE = Choice("a15", 1, 20, 5, 1)


def side(device: Device, choice: Choice = CHOICE, *others: Request, **how: int) -> Side:
    """REQUEST behind other requests, in an engine of its own."""
    wide = dataclasses.replace(choice, B=1 + len(others))
    return Side("a run", lambda: engine(device, wide, **how), (*others, REQUEST), len(others))  # type: ignore[arg-type]  # sms


class TestTrace:
    """A decode seen launch by launch."""

    def test_changes_nothing(self, device: Device) -> None:
        """The control: a traced run gives the tokens of an untraced one, and the same digests again."""
        with engine(device, CHOICE) as e:
            control = tokens(decode(e, [REQUEST]))
            first, second = trace(e, [REQUEST]), trace(e, [REQUEST])

        assert tokens(first[0]) == control
        assert [w.digest for w in first[1]] == [w.digest for w in second[1]]

    def test_sees_every_launch_of_every_pass(self, device: Device) -> None:
        """Each launch of the programs that ran is listed once for each buffer that it writes."""
        with engine(device, CHOICE) as e:
            streams, written = trace(e, [REQUEST])
            steps = len(streams[0].accepted) - 1
            passes = ["prefill.first", "prefill.next"] + ["draft", "commit", "verify"] * steps
            expected = sum(len(item.writes) for p in passes for item in e.plan.programs[p])

        assert len(written) == expected

    def test_any_buffer_after_any_launch_can_be_had(self, device: Device) -> None:
        """What a launch wrote is what it wrote in another run; a launch that never comes is an error."""
        with engine(device, CHOICE) as e:
            _, written = trace(e, [REQUEST])
            key = next(w.key for w in written if w.key[2] == "layers.3.qgkv" and w.key[0] == 1)
            assert_same_bits(arrays_at(e, [REQUEST], key)["qgkv"], arrays_at(e, [REQUEST], key)["qgkv"])
            with pytest.raises(KeyError):
                arrays_at(e, [REQUEST], (99, *key[1:]))


    def test_a_sequence_of_a_batch_looks_as_it_does_alone(self, device: Device) -> None:
        """Rows, slots and control words of one sequence have the shapes and the bits of a batch of one.

        Red: the axis of the batch left in a buffer, or taken out of another.
        """
        with engine(device, CHOICE) as e:
            alone = trace(e, [REQUEST])[1]
        with engine(device, dataclasses.replace(CHOICE, B=3)) as e:
            others = [Request(prompt(5, 2), 9), Request(prompt(3, 4), 2)]
            among = {(w.key, w.buffer): w for w in trace(e, [others[0], REQUEST, others[1]], 1)[1]}
        common = [(w, among[w.key, w.buffer]) for w in alone if (w.key, w.buffer) in among]
        control = {w.buffer for w, _ in common if w.kernel.startswith("speculation")}

        assert len(common) > 100
        assert control
        assert [(w.key, w.buffer, w.shape) for w, other in common if w.shape != other.shape] == []


class TestBisect:
    """Two runs that should agree."""

    @pytest.mark.parametrize("kind", ["alone", "batch", "lowering", "machine"])
    def test_agree_at_every_launch(self, device: Device, kind: str) -> None:
        """A prompt again, beside others, by another lowering, planned for a wide machine: equal bits everywhere."""
        other = {
            "alone": side(device),
            "batch": side(device, CHOICE, Request(prompt(4, 2), 3), Request(prompt(12, 3), 6)),
            "lowering": side(device, dataclasses.replace(CHOICE, tuning=Tuning(lowering="gemm_dp4a"))),
            "machine": side(device, CHOICE, sms=132),
        }[kind]
        verdict = bisect(side(device), other)

        assert verdict.difference is None
        assert verdict.compared > 500
        assert verdict.tokens[0] == verdict.tokens[1]

    @pytest.mark.parametrize(("tensor", "label"), [
        ("layers.1.qkvz", "layers.1.qkvz"), ("layers.3.Wd", "layers.3.Wd"),
        ("mtp.Wo", "mtp.Wo"), ("layers.0.an", "layers.0.norm1"),
        ("layers.3.Kn", "layers.3.rope"), ("layers.2.Wc", "layers.2.conv"),
    ])  # fmt: skip
    def test_name_the_first_launch_that_reads_a_changed_weight(self, device: Device, tensor: str, label: str) -> None:
        """One weight changed: the launch that reads it is named, with an element and both values."""

        @contextmanager
        def broken() -> Iterator[Engine]:
            with engine(device, CHOICE) as e:
                values = e.read(weight_buffer(e, tensor)).copy()
                values[written(values, 6)[5]] += values.dtype.type(1)
                e.write(weight_buffer(e, tensor), values)
                yield e

        found = bisect(side(device), Side("broken", broken, (REQUEST,))).difference

        assert found is not None
        assert found.written.key[2] == label
        assert found.bits[0] != found.bits[1]
        assert 0 < found.differing <= found.size
        assert found.bits[0] in found.sentence("a", "b")

    def test_a_side_that_does_not_repeat_itself_is_an_error(self, device: Device) -> None:
        """Two openings that decode differently are reported as such, not as a difference between the sides."""
        count = [0]

        @contextmanager
        def flickering() -> Iterator[Engine]:
            count[0] += 1
            with engine(device, CHOICE) as e:
                norm = e.read("w.on").copy()
                norm[: CONFIG.d // 2] *= np.float32(1 - 50 * (count[0] % 2))
                e.write("w.on", norm)
                yield e

        with pytest.raises(LanelockError, match="does not repeat itself"):
            bisect(Side("flickering", flickering, (REQUEST,)), side(device))


def git(folder: Path, *words: str) -> None:
    """A git command that must succeed."""
    who = ("-c", "user.name=lock", "-c", "user.email=lock@localhost")
    subprocess.run(("git", "-C", str(folder), *who, *words), check=True, capture_output=True)  # noqa: S607  # any git


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of two commits: these sources, and the same with one rounding of SwiGLU moved."""
    if shutil.which("git") is None:
        pytest.skip("not run: there is no git")
    folder = tmp_path_factory.mktemp("checkout")
    left_out = shutil.ignore_patterns("__pycache__", "records", "streams", "checkpoint")
    for name in ("oracle", "kernels", "harness", "golden", "reports"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    prompt_of_peers = Path("locks/data/qwen35-ratio3/reference.npz")  # the command line looks for it
    (folder / prompt_of_peers).parent.mkdir(parents=True)
    shutil.copy(ROOT / prompt_of_peers, folder / prompt_of_peers)
    (folder / "lock.json").write_text(json.dumps(CONFIG.to_dict()))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "the same")
    source = folder / "kernels" / "swiglu.cu"
    text = source.read_text()
    assert text.count("v[i] = ") == 1
    source.write_text(text.replace("v[i] = ", "v[i] = 1.0000001f * "))
    git(folder, "commit", "-q", "-a", "-m", "moved")
    return folder


class TestCommits:
    """A run against the sources of another commit."""

    def run(self, history: Path, folder: Path) -> CommitRun:
        words = trace_words("host", "synthetic:3", str(history / "lock.json"), "a15", (5, 9, 2), 3, 1, 2)
        return CommitRun("that commit", folder, words)

    @pytest.mark.parametrize(("revision", "label"), [("HEAD~1", None), ("HEAD", "layers.0.swiglu")])
    def test_are_told_apart_at_the_first_launch(self, history: Path, revision: str, label: str | None) -> None:
        """Equal sources agree everywhere; a moved rounding is named with its element and both values in hex.

        Red: the other process running these sources, a launch matched with another.
        """
        here = Side("this", lambda: engine(open_device("host"), Choice("a15", 1, 6, 2, 1)), (Request((5, 9, 2), 3),))
        with sources_of(revision, history) as (_, folder):
            verdict = bisect(here, self.run(history, folder))
        found = verdict.difference

        assert (found and found.written.key[:3]) == (label and (0, "prefill.first", label))
        assert verdict.compared > (300 if label is None else 10)
        assert verdict.skipped == 0
        assert found is None or (found.bits[0] != found.bits[1] and found.written.buffer in ("codes", "scales"))
        assert not folder.exists()

    def test_that_are_not_there_are_refused_by_name(self, history: Path, tmp_path: Path) -> None:
        """No git checkout, no such commit, and a commit that cannot trace are each one sentence."""
        with pytest.raises(LanelockError, match="is not a git checkout"), sources_of("HEAD", tmp_path):
            pass
        with pytest.raises(LanelockError, match="is not a git checkout"), sources_of("HEAD", history / "kernels"):
            pass
        with pytest.raises(LanelockError, match="there is no commit '--all'"), sources_of("--all", history):
            pass
        with sources_of("HEAD", history) as (_, folder):
            with pytest.raises(LanelockError, match="a tolerance needs both runs here"):
                self.run(history, folder).traced(keep=True)
            (folder / "harness" / "cli" / "trace.py").write_text("raise SystemExit('an older command')")
            with pytest.raises(LanelockError, match="that commit cannot trace this run: an older command"):
                self.run(history, folder).traced()

    def test_know_the_last_change_of_a_file(self, history: Path, tmp_path: Path) -> None:
        """The commit that recorded a golden is the last that changed its file; a file git never saw has none."""
        first, last = (last_change(history / "kernels" / name, history) for name in ("add.cu", "swiglu.cu"))
        with sources_of("HEAD", history) as (commit, _):
            assert commit == (last or "")[:12]

        assert first != last
        assert last_change(history / "kernels" / "none.cu", history) is None
        assert last_change(tmp_path, tmp_path) is None


@dataclasses.dataclass
class Told:
    """A run that wrote one buffer once, and says what it wrote."""

    name: str
    traced_as: np.ndarray
    again: np.ndarray
    label: str = "head"
    kernel: str = "gemm"

    def traced(self, *, keep: bool = False) -> tuple[None, list[Written]]:
        key, wrote = (0, "step", self.label, 0), self.traced_as
        return None, [Written(key, self.kernel, "logits", wrote.shape, digest_of(wrote), wrote if keep else None)]

    def array(self, _written: Written) -> np.ndarray:
        return self.again


class TestRepetition:
    """A run that is asked again for what it wrote."""

    def test_must_write_what_it_wrote_when_it_was_traced(self) -> None:
        """The element is looked for in the same bits that differed, and the launch is the first run's.

        Red: a difference of a run from itself, the other run's kernel.
        """
        one, two = np.float32([1, 2]), np.float32([1, 3])
        found = bisect(Told("a", one, one), Told("b", two, two, kernel="another")).difference

        assert found is not None
        assert (found.element, found.values, found.written.kernel) == ((1,), ("2.0", "3.0"), "gemm")
        for first, second in ((Told("a", one, two), Told("b", two, two)), (Told("b", one, one), Told("a", two, one))):
            with pytest.raises(LanelockError, match=r"bisect: a wrote .* launch head .* does not repeat itself"):
                bisect(first, second)


class TestCounts:
    """How much of two runs was compared."""

    def test_every_launch_in_common_counts_once(self) -> None:
        """One launch in common is one compared; another shape is skipped. Red: a count that says nothing."""
        one, wide = np.float32([1, 2]), np.float32([1, 2, 3])
        same = bisect(Told("a", one, one), Told("b", one, one))

        assert (same.difference, same.compared, same.skipped) == (None, 1, 0)
        with pytest.raises(LanelockError, match="bisect: a and b have no launch in common"):
            bisect(Told("a", one, one), Told("b", wide, wide))
        with pytest.raises(LanelockError, match="no launch in common"):
            bisect(Told("a", one, one), Told("b", one, one, label="tail"))


class TestTolerance:
    """Two runs of a bounded lane."""

    @pytest.mark.parametrize(("moved", "tolerance", "differs"), [
        (2.5, 0.1, False), (2.5, 0.2, False), (3.5, 0.2, True), (np.nan, 0.9, True), (2.5, 0.0, True),
    ])  # fmt: skip
    def test_agree_up_to_a_share_of_the_largest_value(self, moved: float, tolerance: float, differs: bool) -> None:
        """[2.5, 5] beside [2, 5] is a tenth off. Red: a share of the element, a NaN within every bound."""
        one, two = np.float32([moved, 5]), np.float32([2, 5])
        found = bisect(Told("a", one, one), Told("b", two, two), tolerance).difference

        assert (found is not None) == differs

    @pytest.mark.parametrize(("moved", "differs"), [(0.0021, False), (0.0031, True)])
    def test_a_share_is_of_what_was_written(self, moved: float, differs: bool) -> None:
        """A tenth of five thousandths is half of one. Red: a share of one where all values are small."""
        one, two = np.float32([moved, 0.005]), np.float32([0.002, 0.005])
        found = bisect(Told("a", one, one), Told("b", two, two), 0.1).difference

        assert (found is not None) == differs

    def test_a_lane_through_the_chunked_rule_is_near_its_exact_lane_and_names_where_it_parts(
        self, device: Device
    ) -> None:
        """Bits part at the first state of a chunk; a changed weight is named at its own launch, past all rounding.

        Red: rounding named in place of the fault.
        """
        exact, delta = dataclasses.replace(CHOICE, chunk=9), dataclasses.replace(CHOICE, chunk=9, lane="a15+delta")

        @contextmanager
        def broken() -> Iterator[Engine]:
            with engine(device, delta) as e:
                values = e.read(weight_buffer(e, "layers.2.Wd")).copy()
                values[written(values, 256)] ^= 64
                e.write(weight_buffer(e, "layers.2.Wd"), values)
                yield e

        first = bisect(side(device, delta), side(device, exact)).difference
        found = bisect(side(device, exact), Side("broken", broken, (REQUEST,)), 1e-2).difference

        assert first is not None
        assert first.written.key[2] in {"layers.0.scan", "layers.0.delta", "layers.0.gated"}
        assert bisect(side(device, delta), side(device, exact), 1e-2).difference is None
        assert found is not None
        assert found.written.key[2] == "layers.2.Wd"


class TestCommands:
    """`lanelock plan`, `trace` and `bisect`."""

    @pytest.mark.parametrize(("words", "said"), [
        ("plan --config tiny --machine host --limit 64 --chunk 8", "at least"),
        ("plan --summary --batch 32 --lane a8+s16+kv16", "launches, "),
        ("plan --program prefill.next --config mini --json", '"launches"'),
        ("trace --weights synthetic:1 --config tiny --tokens 1,2 --launch layers.3.qgkv", "buffer qgkv [1, 2, 512]"),
        ("bisect --weights synthetic:1 --config tiny --tokens 1,2,3 --n 2 --against-batch 2", "agree to the bit"),
    ])  # fmt: skip
    def test_say_what_they_found(self, words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Each prints its finding and ends with 0."""
        assert cli.main(words.split()) == 0
        assert said in capsys.readouterr().out

    @pytest.mark.parametrize(("words", "sentence"), [
        ("plan --program warm", "there is no 'warm' in this plan; its programs are prefill.first"),
        ("trace --weights synthetic:1 --config tiny --tokens 1 --launch nothing", "has no launch 'nothing'"),
        ("trace --weights synthetic:1 --config tiny --tokens 1 --launch embed --number 1", "'embed' number 1"),
        ("trace --weights synthetic:1 --config tiny --tokens 1 --out here.npz", "--out needs --launch"),
        ("bisect --weights synthetic:1 --config tiny --tokens 1", "one of --against,"),
        ("bisect --weights synthetic:1 --config tiny --tokens 1 --against-commit no/such", "checkout"),
        ("bisect --weights synthetic:1 --config tiny --tokens 1 --tolerance 1", "--tolerance: 1.0 is not a share"),
    ])  # fmt: skip
    def test_refuse_in_one_sentence(self, words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A mistake ends with 2 and the sentence."""
        assert cli.main(words.split()) == 2
        assert sentence in capsys.readouterr().err
