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

    def test_user_errors_are_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A checkpoint that does not fit ends with code 2, one line on stderr that names the tensor, and no file."""
        tensors = hf_tensors()
        del tensors["mtp.norm.weight"]
        code = main(["import", str(hf_folder(tmp_path / "hf", tensors)), str(tmp_path / "w")])
        told = capsys.readouterr()

        assert (code, told.out, told.err.count("\n")) == (2, "", 1)
        assert "lacks tensor 'mtp.norm.weight'" in told.err
        assert not (tmp_path / "w").exists()
