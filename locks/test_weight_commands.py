"""Locks: the commands import, inspect and export, called as a user calls them."""

import functools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from golden.sources import LANES
from harness.cli import main
from harness.device import Device
from harness.engine import Choice
from harness.engine.session import opened
from locks.oracle.checkpoints import PEER, PEER_GGUF, hf_folder, hf_tensors
from oracle.errors import LanelockError
from oracle.weights import QuantisedWeights, export_gguf, load, save


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


@functools.cache
def wide_files(folder: Path) -> dict[str, Path]:
    """One model in every kind of file; in row 3 of layer 0's down projection a weight of five million, fit for Q8_0."""
    tensors = load_file(PEER / "model.safetensors")
    name = next(n for n in tensors if n.endswith("layers.0.mlp.down_proj.weight"))
    tensors[name][3, 40] = 5e6
    files = {"hugging-face": folder / "hf", "lanelock": folder / "w", "gguf": folder / "w.gguf"}
    files["hugging-face"].mkdir()
    shutil.copy(PEER / "config.json", files["hugging-face"])
    save_file(tensors, files["hugging-face"] / "model.safetensors")
    save(QuantisedWeights(load(files["hugging-face"])), files["lanelock"])
    export_gguf(load(files["lanelock"]), files["gguf"])
    return files


class TestDecode:
    """`lanelock decode` on a device."""

    def tokens(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, list[int]]:
        """Lane and tokens that it tells."""
        assert main(["decode", "--engine", "host", "--tokens", "1,2,3", "--json", *words]) == 0
        told = json.loads(capsys.readouterr().out)
        return told["lane"], told["sequences"][0]["tokens"]

    def test_of_any_kind_of_file_is_the_same(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The peers' model from Hugging Face, from GGUF and from our own file: one stream, plain and with drafts.

        Red: a kind that goes another way to the engine.
        """
        save(load(PEER_GGUF), tmp_path / "w")
        words = ("--lane", "a8+s16+kv16", "--n", "8")
        told = [self.tokens(capsys, "--weights", str(path), *words) for path in (PEER, PEER_GGUF, tmp_path / "w")]

        assert told == [told[0]] * 3
        assert self.tokens(capsys, "--weights", str(PEER_GGUF), *words, "--drafts", "2") == told[0]

    @pytest.mark.parametrize("lane", LANES)
    def test_runs_every_exact_lane(self, lane: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Synthetic weights in the lane that was asked for, and as many tokens. Red: a lane's name that is dropped."""
        told, tokens = self.tokens(capsys, "--weights", "synthetic:1", "--config", "tiny", "--lane", lane, "--n", "4")

        assert told == lane
        assert len(tokens) == 4


class TestQ4Lane:
    """Weights that four bits cannot hold are refused by name."""

    @pytest.mark.parametrize("engine", ["host", "oracle"])
    @pytest.mark.parametrize("source", ["hugging-face", "lanelock", "gguf"])
    def test_a_weight_without_a_q4_scale_is_named(self, source: str, engine: str, capsys: pytest.CaptureFixture[str],
                                                  tmp_path_factory: pytest.TempPathFactory) -> None:
        """Tensor, row and block are told from any kind of file, and no token is printed.

        Red: an infinite scale stored, which makes NaN of every output of its row.
        """
        path = wide_files(tmp_path_factory.getbasetemp())[source]
        chosen = ["--weights", str(path), "--engine", engine, "--lane", "q4"]
        code = main(["decode", *chosen, "--tokens", "1,2", "--n", "1"])
        told = capsys.readouterr()

        assert (code, told.out) == (2, "")
        assert "layers.0.Wd: row 3, block 1 needs a Q4 scale that is infinite in fp16." in told.err

    def test_nothing_is_allocated_before_the_refusal(self, tmp_path: Path, device: Device) -> None:
        """A device that cannot even allocate hears of no refused weights. Red: an engine left half loaded."""
        weights = load(wide_files(tmp_path)["lanelock"])
        nothing: Any = SimpleNamespace(properties=device.properties)
        with pytest.raises(LanelockError, match=r"weights: layers\.0\.Wd: row 3, block 1"), opened(
            nothing, weights, Choice(lane="q4")
        ):
            pass
