"""The commands that ask the oracle: exactly these flags, whole files, one sentence for a mistake."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness import cli
from locks.oracle.exact import rel_l2
from locks.oracle.reference import BOUND, FOLDER, GGUF, SAFETENSORS, recorded
from oracle.weights import load, save

PROMPT = ",".join(map(str, recorded()["prompt"].tolist()))
MTP_PROMPT = ",".join(map(str, recorded()["mtp_prompt"].tolist()))
MISTAKES = [
    (["logits", "--tokens", "1,x"], "'x' is no token"),
    (["logits", "--tokens", ""], "no tokens"),
    (["logits", "--tokens", "-1,2"], "--tokens: '-1' is no token"),
    (["logits", "--tokens", "1," * 200 + "x"], "--tokens: 'x' is no token"),
    (["logits", "--tokens", FOLDER], "is a folder, not a file of tokens"),
    (["logits", "--tokens", "1", "--engine", "host", "--tuning", "x"], "--tuning is not JSON"),
    (["logits", "--tokens", "256"], "token 0 is 256, outside the vocabulary of 256"),
    (["logits", "--tokens", "1", "--lane", "a9"], "no lane 'a9'"),
    (["logits", "--tokens", "1", "--engine", "host", "--lane", "fp8c"], "'fp8c' is not one that kernels are built"),
    (["mtp-logits", "--tokens", "1"], "two tokens"),
]


def run(*args: object) -> int:
    """A command's exit code."""
    return cli.main([str(a) for a in args])


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load these three commands alone, so that a fault in another command's module does not show here."""
    assert {"logits", "mtp_logits", "decode"} <= set(cli.COMMANDS)
    monkeypatch.setattr(cli, "COMMANDS", ("logits", "mtp_logits", "decode"))


class TestLogits:
    """`lanelock logits`."""

    @pytest.mark.parametrize(("weights", "key"), [(SAFETENSORS, "logits"), (FOLDER, "logits"), (GGUF, "logits_q8_0")])
    def test_all_rows_meet_the_reference(self, weights: Path, key: str, tmp_path: Path) -> None:
        """From a file, a folder and a GGUF, `--all` writes float64 rows of every position."""
        out = tmp_path / "rows.npy"

        assert run("logits", "--weights", weights, "--tokens", PROMPT, "--all", "--out", out) == 0
        assert rel_l2(np.load(out), recorded()[key]) < BOUND

    def test_without_all_the_last_row_is_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Tokens come from a file too, and `--json` says what was written."""
        out, tokens = tmp_path / "last.npy", tmp_path / "tokens.txt"
        tokens.write_text(PROMPT.replace(",", "\n"), encoding="utf-8")
        code = run("logits", "--weights", SAFETENSORS, "--tokens", tokens, "--out", out, "--json", "--engine", "oracle")
        said = json.loads(capsys.readouterr().out)

        assert code == 0
        assert rel_l2(np.load(out), recorded()["logits"][-1:]) < BOUND
        assert (said["shape"], said["argmax"], said["lane"]) == ([1, 256], [int(recorded()["greedy"][0])], "f64")

    def test_our_own_file_gives_what_the_gguf_gives(self, tmp_path: Path) -> None:
        """Imported and reopened, the same codes give the same logits."""
        ours, out = tmp_path / "ours.safetensors", tmp_path / "rows.npy"
        save(load(GGUF), ours)

        assert run("logits", "--weights", ours, "--tokens", PROMPT, "--all", "--out", out) == 0
        assert rel_l2(np.load(out), recorded()["logits_q8_0"]) < BOUND

    def test_a_lane_rounds_what_an_import_would_store(self, tmp_path: Path) -> None:
        """Lane a8 of a checkpoint runs on Q8_0 weights with 8-bit activations: near the reference, not at it."""
        out = tmp_path / "a8.npy"
        run("logits", "--weights", SAFETENSORS, "--tokens", PROMPT, "--all", "--lane", "a8", "--out", out)

        assert 1e-3 < rel_l2(np.load(out), recorded()["logits_q8_0"]) < 0.5

    def test_nothing_but_the_file_is_left(self, tmp_path: Path) -> None:
        """The file appears whole: no temporary is left beside it, and an old one is replaced."""
        out = tmp_path / "rows.npy"
        out.write_bytes(b"old")
        run("logits", "--weights", "synthetic:3", "--config", "tiny", "--tokens", "1,2", "--out", out)

        assert [p.name for p in tmp_path.iterdir()] == ["rows.npy"]
        assert np.load(out).shape == (1, 256)


class TestMtpLogits:
    """`lanelock mtp-logits`."""

    @pytest.mark.parametrize("flags", [["--all"], []])
    def test_rows_meet_the_reference(self, flags: list[str], tmp_path: Path) -> None:
        """Row t is made of hidden state t and token t + 1; without `--all` the last is written."""
        out = tmp_path / "rows.npy"
        want = recorded()["mtp_logits"] if flags else recorded()["mtp_logits"][-1:]

        assert run("mtp-logits", "--weights", SAFETENSORS, "--tokens", MTP_PROMPT, *flags, "--out", out) == 0
        assert rel_l2(np.load(out), want) < BOUND


class TestDecode:
    """`lanelock decode`."""

    def test_the_stream_meets_the_reference(self, capsys: pytest.CaptureFixture[str]) -> None:
        """32 greedy tokens follow the prompt, printed with commas."""
        assert run("decode", "--weights", SAFETENSORS, "--tokens", PROMPT, "--n", 32) == 0
        assert capsys.readouterr().out.strip() == ",".join(map(str, recorded()["greedy"].tolist()))

    def test_a_batch_is_each_prompt_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Prompts of different lengths decode as they do alone, with margins that are not negative."""
        prompts = [recorded()["prompt"].tolist(), [1], [5, 6, 7]]
        batch = tmp_path / "batch.json"
        batch.write_text(json.dumps(prompts), encoding="utf-8")
        run("decode", "--weights", SAFETENSORS, "--batch", batch, "--n", 4, "--json")
        said = json.loads(capsys.readouterr().out)["sequences"]
        alone = []
        for prompt in prompts:
            run("decode", "--weights", SAFETENSORS, "--tokens", ",".join(map(str, prompt)), "--n", 4)
            alone.append([int(t) for t in capsys.readouterr().out.split(",")])

        assert [s["prompt"] for s in said] == prompts
        assert [s["tokens"] for s in said] == alone
        assert all(float.fromhex(m) >= 0 for s in said for m in s["margins"])


class TestMistakes:
    """What a user can get wrong."""

    @pytest.mark.parametrize(("args", "sentence"), MISTAKES)
    def test_one_sentence_and_exit_code_two(self, args, sentence, tmp_path, capsys) -> None:
        """The sentence names the mistake, and no file is written."""
        out = tmp_path / "rows.npy"
        code = run(*args, "--weights", SAFETENSORS, "--out", out)
        said = capsys.readouterr().err.strip()

        assert code == 2
        assert sentence in said
        assert said.count("\n") == 0
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(("args", "sentence"), [
        (["--n", "3"], "either --tokens or --batch"), (["--tokens", "1", "--batch", "x.json", "--n", "3"], "either"),
        (["--tokens", "1", "--n", "0"], "--n: 0 is not at least 1"),
        (["--batch", "missing.json", "--n", "1"], "missing.json"),
        (["--tokens", "1", "--n", "2", "--drafts", "1"], "--engine host or cuda")])
    def test_decode_says_what_it_takes(self, args, sentence, capsys) -> None:
        """A decode without a prompt, with two, or of nothing is refused."""
        assert run("decode", "--weights", SAFETENSORS, *args) == 2
        assert sentence in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["{}", "[]", "[[]]", "[[1, -1]]", "[[1.5]]", '[["a"]]', "[[true]]", "[3]", "["])
    def test_a_batch_that_is_none_is_refused(self, text: str, tmp_path: Path, capsys) -> None:
        """A batch file is a list of lists of tokens, and anything else is named by its path."""
        batch = tmp_path / "batch.json"
        batch.write_text(text, encoding="utf-8")

        assert run("decode", "--weights", SAFETENSORS, "--batch", batch, "--n", 1) == 2
        assert "batch.json" in capsys.readouterr().err

    def test_a_batch_names_the_sequence_that_does_not_fit(self, tmp_path: Path, capsys) -> None:
        """A token outside the vocabulary is named with its sequence, though prompts are decoded one by one."""
        batch = tmp_path / "batch.json"
        batch.write_text("[[1, 2], [3, 300]]", encoding="utf-8")

        assert run("decode", "--weights", SAFETENSORS, "--batch", batch, "--n", 1) == 2
        assert "sequence 1, token 1 is 300, outside the vocabulary of 256" in capsys.readouterr().err

    @pytest.mark.parametrize("flag", ["--tokens", "--batch"])
    def test_a_binary_file_is_not_echoed(self, flag: str, tmp_path: Path, capsys) -> None:
        """A file that is no text is named with the place of its first such byte, and none of it is printed."""
        path = tmp_path / "binary"
        path.write_bytes(b"1,\xff\x1b[31m")

        assert run("decode", "--weights", SAFETENSORS, flag, path, "--n", 1) == 2
        assert capsys.readouterr().err == f"lanelock: {path}: is no text of tokens; byte 2 is not ASCII.\n"

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path, capsys) -> None:
        """The output's path is named with the reason."""
        out = tmp_path / "none" / "rows.npy"

        assert run("logits", "--weights", SAFETENSORS, "--tokens", "1", "--out", out) == 2
        assert f"rows.npy: cannot be written, because there is no folder {out.parent}" in capsys.readouterr().err
