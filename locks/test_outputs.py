"""What commands write: whole files, and a file or a record that cannot be written is refused before anything runs."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import harness.cli.golden
import harness.record
from harness import cli
from harness.cache import cached, write_whole
from harness.cli.output import check_output
from harness.record import check_records
from oracle.errors import LanelockError

MODEL = "--weights /missing --tokens 1"
#: A command line for every option that names a file to write; what it reads is missing too.
FILES = {
    ("logits", "--out"): f"logits {MODEL} --out",
    ("mtp-logits", "--out"): f"mtp-logits {MODEL},2 --out",
    ("trace", "--out"): f"trace {MODEL} --launch embed --out",
    ("report accuracy", "--markdown"): "report accuracy --device cuda:99 --markdown",
    ("report accuracy", "--html"): "report accuracy --device cuda:99 --html",
    ("emit", "--out"): f"emit {MODEL} --n 1 --out",
    ("strength", "--out"): "strength --root /missing --out",
    ("import", "out"): "import /missing",
    ("export", "out"): "export /missing",
}
RECORDS = {
    ("golden check", "--record"): "golden check --device cuda:99 --record",
    ("report accuracy", "--record"): "report accuracy --device cuda:99 --record",
    ("strength", "--record"): "strength --root /missing --record",
    ("sanitize", "--record"): "sanitize --record",
}


def options(top: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Every option with the command it belongs to."""
    for action in top._actions:  # argparse has no public list of its options
        if isinstance(action, argparse._SubParsersAction):  # as above
            for name, sub in action.choices.items():
                yield from options(sub, f"{path} {name}".strip())
        else:
            yield path, action


class TestOptions:
    """Options that name something to write."""

    def test_are_all_held_below(self) -> None:
        """No command has an OUT, --out, --record or the like that the locks of this file do not know."""
        names = {"out", "--out", "--markdown", "--html", "--record"}
        found = {(path, n) for path, a in options(cli.parser()) for n in a.option_strings or [a.dest] if n in names}

        assert found == set(FILES) | set(RECORDS)


@pytest.mark.parametrize("words", FILES.values(), ids=[" ".join(key) for key in FILES])
class TestFiles:
    """A file that a command is asked to write."""

    @pytest.mark.parametrize(("out", "sentence"), [("", "is a folder"), ("none/f", "there is no folder"),
                                                   ("link", "is a symbolic link"),
                                                   ("/proc/x", "cannot be written")])  # fmt: skip
    def test_is_refused_before_anything_is_read(
        self, words: str, out: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A folder, a file in none or in one that takes none, and a link end with 2 and one sentence.

        Weights that are missing go unnoticed. Red: permissions asked for, which a file system need not keep.
        """
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        target = tmp_path / out

        assert cli.main([*words.split(), str(target)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"lanelock: {target}: ")
        assert sentence in told
        assert told.count("\n") == 1


@pytest.mark.parametrize("words", RECORDS.values(), ids=[" ".join(key) for key in RECORDS])
def test_a_record_that_cannot_be_written_is_refused_before_anything_runs(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A records folder that is not there ends with 2 and its name; the device that is missing goes unnoticed."""
    monkeypatch.setattr(harness.record.check_records, "__defaults__", (tmp_path / "none",))

    assert cli.main(words.split()) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_folder_that_one_may_not_write_to_takes_no_record(tmp_path: Path) -> None:
    """A file in place of the folder, no folder, or one that takes no files, is named; nothing is left where one may."""
    (tmp_path / "file").write_text("")
    check_records(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for name in ("file", "none", "/proc"):
        with pytest.raises(LanelockError, match=f"{tmp_path / name} is no folder"):
            check_records(tmp_path / name)


class TestTrace:
    """`lanelock trace --out`."""

    def test_writes_the_file_whole_or_not_at_all(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The arrays by buffer, under the name given, without a rest; what was there stays where writing fails."""
        model = ["--weights", "synthetic:1", "--config", "tiny", "--tokens", "1,2"]
        words = ["trace", *model, "--launch", "layers.3.qgkv", "--out"]
        out = tmp_path / "written"
        assert cli.main([*words, str(out)]) == 0
        with np.load(out) as arrays:
            assert {name: arrays[name].shape for name in arrays} == {"qgkv": (1, 2, 512)}
        before = out.read_bytes()

        def broken(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(np, "savez", broken)
        assert cli.main([*words, str(out)]) == 130
        assert (out.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (before, ["written"])
        capsys.readouterr()


@pytest.mark.parametrize("words", ["--results /proc/x", "--device none"])
def test_options_of_the_locks_are_refused_before_anything_runs(words: str) -> None:
    """Results that could not be written end the run at once, as a device that is none does. Red: hours, then none."""
    command = [sys.executable, "-m", "pytest", __file__, *words.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (pytest.ExitCode.USAGE_ERROR, "")
    assert words.split()[1] in done.stderr


@pytest.mark.parametrize(("source", "read"), [("w.safetensors", ("config.json",)),
                                              ("m.index.json", ("shard.safetensors", "config.json"))])  # fmt: skip
def test_what_lies_beside_weights_is_not_written_over(source: str, read: tuple[str, ...], tmp_path: Path) -> None:
    """The config of a file, and the shards of an index, are read too; another file beside it may be replaced."""
    for name in ("w.safetensors", "config.json", "m.index.json", "shard.safetensors"):
        (tmp_path / name).write_text("")
    for name in read:
        out = tmp_path / name
        with pytest.raises(LanelockError, match=f"{out}: is the same file as {out}, which is read"):
            check_output(out, str(tmp_path / source))
    if source == "w.safetensors":
        check_output(tmp_path / "shard.safetensors", str(tmp_path / source))


def test_a_golden_that_cannot_be_written_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of goldens that takes no files ends with 2 and its name; the device that is missing goes unnoticed."""
    monkeypatch.setattr(harness.cli.golden, "FOLDER", Path("/proc"))

    assert cli.main(["golden", "record", "--device", "cuda:99", "--reason", "none"]) == 2
    assert "/proc is no folder that this user may write to" in capsys.readouterr().err


def test_a_compile_cache_that_takes_no_files_is_named(tmp_path: Path) -> None:
    """The folder, why, and the variable that names another: /proc, and a file in place of a folder."""
    (tmp_path / "file").write_text("")
    for root in (Path("/proc/none"), tmp_path / "file"):
        with pytest.raises(LanelockError, match=f"compile cache {root}: cannot be written .*; LANELOCK_CACHE names"):
            cached("ab12", lambda path: path.write_text("") and None, root)


def test_a_file_that_can_no_longer_be_written_is_named(tmp_path: Path) -> None:
    """What goes wrong in the end is a sentence too, and leaves nothing."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(LanelockError, match=f"{tmp_path / 'folder'}: cannot be written"):
        write_whole(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
