"""Locks: the commands import, inspect and export, called as a user calls them."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from locks.oracle.checkpoints import PEER, PEER_GGUF, hf_folder, hf_tensors
from oracle.weights import load


class TestWeightCommands:
    """`lanelock import`, `inspect` and `export`."""

    @pytest.mark.parametrize(("source", "note"), [(PEER, "encoded to Q8_0"), (PEER_GGUF, "byte for byte")])
    def test_import_says_what_it_did(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: Path,
                                     note: str) -> None:
        """An import writes a file that loads, and one line: sizes, draft head, and how the codes came about."""
        assert main(["import", str(source), str(tmp_path / "w")]) == 0
        line = capsys.readouterr().out

        assert "8 layers, untied, with MTP head" in line
        assert note in line
        assert load(tmp_path / "w").config.layers == 8

    def test_inspect_lists_every_tensor(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`--json` gives config, kind, origin, and each stored tensor with its hash; the table names them too."""
        main(["import", "synthetic:4", str(tmp_path / "w"), "--config", "tiny"])
        capsys.readouterr()
        assert main(["inspect", str(tmp_path / "w"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert main(["inspect", str(tmp_path / "w")]) == 0
        table = capsys.readouterr().out

        assert (told["kind"], told["origin"], told["config"]["d"]) == ("lanelock", "synthetic:4", 96)
        assert {len(row["sha256"]) for row in told["tensors"]} == {64}
        assert all(row["name"] in table for row in told["tensors"])
        assert "every hash holds" in table

    def test_export_is_a_gguf_of_the_same_model(self, tmp_path: Path) -> None:
        """What is exported and imported again inspects to the same hashes."""
        main(["import", str(PEER_GGUF), str(tmp_path / "a")])
        assert main(["export", str(tmp_path / "a"), str(tmp_path / "w.gguf")]) == 0
        main(["import", str(tmp_path / "w.gguf"), str(tmp_path / "b")])

        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.parametrize("command", ["import", "export"])
    @pytest.mark.parametrize("way", ["itself", "hard link", "symbolic link", "inside the folder"])
    def test_a_source_is_never_overwritten(self, command: str, way: str, tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
        """OUT that is a file of SRC, by its name or through a link, is refused by name and every byte stays.

        Without the check the source would be replaced by what was made of it.
        """
        folder = hf_folder(tmp_path / "hf", hf_tensors())
        mine = folder / "model.safetensors"
        out = {"itself": mine, "inside the folder": folder / "config.json"}.get(way, tmp_path / "out")
        if way == "hard link":
            out.hardlink_to(mine)
        if way == "symbolic link":
            out.symlink_to(mine)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        code = main([command, str(folder if way == "inside the folder" else mine), str(out)])

        assert (code, {path: path.read_bytes() for path in folder.iterdir()}) == (2, before)
        assert capsys.readouterr().err.startswith(f"lanelock: {out}: is ")

    @pytest.mark.parametrize("command", ["import", "export"])
    @pytest.mark.parametrize(("out", "sentence"), [("", "is a folder"), ("none/w", "there is no folder")])
    def test_an_impossible_output_is_refused_before_reading(self, command: str, out: str, sentence: str, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
        """OUT that is a folder, or in none, is named at once: the source, which is missing too, is not looked at."""
        target = tmp_path / out

        assert main([command, str(tmp_path / "missing"), str(target)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"lanelock: {target}: ")
        assert sentence in told

    def test_random_bytes_are_read_as_safetensors(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A file of any bytes is said to have been read as safetensors, so that its header's claim is understood."""
        (tmp_path / "w").write_bytes(bytes(range(1, 200)))

        assert main(["inspect", str(tmp_path / "w")]) == 2
        assert "read as safetensors, it claims a header of" in capsys.readouterr().err

    def test_user_errors_are_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A checkpoint that does not fit ends with code 2, one line on stderr that names the tensor, and no file."""
        tensors = hf_tensors()
        del tensors["mtp.norm.weight"]
        code = main(["import", str(hf_folder(tmp_path / "hf", tensors)), str(tmp_path / "w")])
        told = capsys.readouterr()

        assert (code, told.out, told.err.count("\n")) == (2, "", 1)
        assert "lacks tensor 'mtp.norm.weight'" in told.err
        assert not (tmp_path / "w").exists()
