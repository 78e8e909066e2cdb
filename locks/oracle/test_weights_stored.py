"""Locks: our weight files and the export, each through a round trip and an independent reader."""

import hashlib
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.numpy import load_file

from locks.oracle.checkpoints import PEER, PEER_GGUF, same
from oracle.config import ModelConfig, preset
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import HeldWeights, Weights, specs
from oracle.weights import QuantisedWeights, export_gguf, load, save
from oracle.weights.gguf_write import Described, write_gguf
from oracle.weights.mapped import RESIDENT, let_go, map_file
from oracle.weights.sanity import examine

TINY = preset("tiny")
TIED = replace(TINY, tied=True, mtp=False)


def all_same(a: Weights, b: Weights) -> bool:
    """Every tensor equal to the bit, and the configs but for their names."""
    names = specs(a.config)
    return replace(a.config, name="x") == replace(b.config, name="x") and all(
        same(a.tensor(name), b.tensor(name)) for name in names)


def resident(path: Path) -> int:
    """KiB of a mapped file that this process holds, by the kernel's own count."""
    lines = Path("/proc/self/smaps").read_text().split(str(path))[1].splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


SOURCES: dict[str, tuple[str, ModelConfig | None]] = {
    "Hugging Face": (str(PEER), None), "GGUF": (str(PEER_GGUF), None), "tiny": ("synthetic:3", TINY),
    "tied": ("synthetic:3", TIED), "no draft": ("synthetic:0", replace(TINY, mtp=False))}


class TestStored:
    """Files of ours."""

    @pytest.mark.parametrize("source", SOURCES)
    def test_round_trip(self, tmp_path: Path, source: str) -> None:
        """What is saved is loaded to the bit: codes, scales, floats, config."""
        weights = load(*SOURCES[source])
        save(weights, tmp_path / "w")

        assert all_same(QuantisedWeights(weights), load(tmp_path / "w"))

    def test_is_plain_safetensors(self, tmp_path: Path) -> None:
        """The published package reads the file: names, codes, scales, the config, and a SHA-256 of each tensor."""
        weights = load(PEER_GGUF)
        save(weights, tmp_path / "w", "origin")
        tensors = load_file(tmp_path / "w")
        with safe_open(tmp_path / "w", "numpy") as file:
            metadata = file.metadata()

        assert np.array_equal(tensors["layers.3.qgkv.codes"], weights.tensor("layers.3.qgkv").codes)
        assert np.array_equal(tensors["layers.3.qgkv.scales"], weights.tensor("layers.3.qgkv").scales)
        assert ModelConfig(**json.loads(metadata["config"])) == weights.config
        assert {f"sha256.{name}": hashlib.sha256(array.tobytes()).hexdigest() for name, array in tensors.items()} == {
            key: value for key, value in metadata.items() if key.startswith("sha256.")}

    def test_any_flipped_bit_is_named(self, tmp_path: Path) -> None:
        """One flipped bit of any tensor is found when that tensor is asked for, and only then."""
        save(load("synthetic:1", TINY), tmp_path / "w")
        blob = bytearray((tmp_path / "w").read_bytes())
        blob[-1] ^= 16
        (tmp_path / "w").write_bytes(blob)
        weights = load(tmp_path / "w")
        weights.tensor("emb")

        with pytest.raises(LanelockError, match=r"'mtp.Wo.codes' does not have the SHA-256"):
            weights.tensor("mtp.Wo")

    def test_nothing_is_left_half_written(self, tmp_path: Path) -> None:
        """An import that fails leaves neither the file nor a partial one, and an older file stays as it was."""
        bad = dict(load(PEER_GGUF).config.to_dict())
        weights = load(PEER_GGUF)
        tensors: dict[str, Any] = {name: weights.tensor(name) for name in specs(weights.config)}
        tensors["mtp.Wo"] = np.full(specs(weights.config)["mtp.Wo"].shape, 9e9)
        (tmp_path / "w").write_bytes(b"older")

        with pytest.raises(LanelockError, match=r"mtp.Wo"):
            save(HeldWeights(ModelConfig(**bad), tensors), tmp_path / "w")
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("w", b"older")]

    @pytest.mark.parametrize("value", [1e300, np.nan, -np.inf])
    def test_floats_that_are_not_finite_are_refused(self, tmp_path: Path, value: float) -> None:
        """A value that is NaN or infinite as float32 is refused by name, and nothing is written."""
        tensors: dict[str, Any] = {name: load("synthetic:1", TINY).tensor(name) for name in specs(TINY)}
        tensors["on"] = np.where(np.arange(96) == 5, value, 1.0)

        with pytest.raises(LanelockError, match=r"'on' as float32 has a value .* at \[5\]"):
            save(HeldWeights(TINY, tensors), tmp_path / "w")
        assert list(tmp_path.iterdir()) == []

    def test_streams_in_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Writing a few rows at a time gives the same file as writing whole tensors."""
        save(load(PEER), tmp_path / "whole")
        # by its full name: in the package, `save` is the function.
        monkeypatch.setattr(importlib.import_module("oracle.weights.save"), "CHUNK", 1000)
        save(load(PEER), tmp_path / "rows")

        assert (tmp_path / "whole").read_bytes() == (tmp_path / "rows").read_bytes()

    def test_large_files_let_go_of_their_pages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tensor held while others are read keeps its values, though the file's pages are dropped between tensors."""
        save(load("synthetic:1", TINY), tmp_path / "w")
        monkeypatch.setattr("oracle.weights.mapped.RESIDENT", 0)
        weights = load(tmp_path / "w")
        held = {name: weights.tensor(name) for name in specs(TINY)}

        assert all(same(tensor, load("synthetic:1", TINY).tensor(name)) for name, tensor in held.items())

    @pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="not run: no /proc/self/smaps on this system")
    def test_dropped_pages_are_not_resident(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After letting go of a large file none of its pages count to this process; a small file stays.

        Red: an advice that misses the mapping, or one on every small file, which would only cost time.
        """
        path = tmp_path / "pages"
        path.write_bytes(bytes(1 << 20))
        content = map_file(path)
        counts = [int(content.sum())]
        for limit in (RESIDENT, 0):
            monkeypatch.setattr("oracle.weights.mapped.RESIDENT", limit)
            let_go(content)
            counts.append(resident(path))

        assert counts == [0, 1024, 0]

    def test_examine_states_the_hashes_of_an_import(self, tmp_path: Path) -> None:
        """A checkpoint and its import show the same hashes, which are those in the file's metadata."""
        save(load(PEER_GGUF), tmp_path / "w")
        rows = list(examine(load(PEER_GGUF)))
        with safe_open(tmp_path / "w", "numpy") as file:
            metadata = file.metadata()

        assert {f"sha256.{row.name}": row.sha256 for row in rows}.items() <= metadata.items()
        assert rows == list(examine(load(tmp_path / "w")))
        assert len(rows) == sum(1 + spec.quantised for spec in specs(load(PEER_GGUF).config).values())

    def test_suspicious_values_are_remarked(self) -> None:
        """A norm around zero, an A that is not negative, zero blocks and subnormal scales are pointed out."""
        tensors: dict[str, Any] = {name: load("synthetic:1", TINY).tensor(name) for name in specs(TINY)}
        tensors["on"] = tensors["on"] - 1
        tensors["layers.0.Al"] = tensors["layers.0.Al"] * (np.arange(6) != 3)
        scales = tensors["emb"].scales.copy()
        scales[0], scales[1] = 0, (2.0**-20, 2.0**-15, 2.0**-14)
        tensors["emb"] = Q8_0(tensors["emb"].codes, scales)
        remarks = {row.name: row.remarks for row in examine(HeldWeights(TINY, tensors)) if row.remarks}

        assert set(remarks) == {"on", "layers.0.Al", "emb.scales"}
        assert remarks["emb.scales"] == ("2 subnormal scales: their blocks lose accuracy", "3 blocks are zero")


class TestExport:
    """GGUF for other engines."""

    @pytest.mark.parametrize("source", SOURCES)
    def test_round_trip(self, tmp_path: Path, source: str) -> None:
        """Exported and read again, every code, scale and float is the same."""
        weights = load(*SOURCES[source])
        export_gguf(weights, tmp_path / "w.gguf")

        assert all_same(QuantisedWeights(weights), load(tmp_path / "w.gguf"))

    def test_equals_the_converters_file(self, tmp_path: Path) -> None:
        """Read by the gguf package, an export of the peers' GGUF has its tensors, types and metadata.

        Only `ssm_alpha` and `ssm_beta` differ in type: we hold them as float32, with the same values.
        """
        export_gguf(load(PEER_GGUF), tmp_path / "w.gguf")
        ours, theirs = GGUFReader(tmp_path / "w.gguf"), GGUFReader(PEER_GGUF)
        mine = {tensor.name: tensor for tensor in ours.tensors}
        assert mine.keys() == {tensor.name for tensor in theirs.tensors}
        for tensor in theirs.tensors:
            if "ssm_alpha" not in tensor.name and "ssm_beta" not in tensor.name:
                assert mine[tensor.name].tensor_type == tensor.tensor_type
                assert np.array_equal(mine[tensor.name].data, tensor.data), tensor.name
        for key, field in theirs.fields.items():
            if key.startswith("qwen35.") or key in ("general.architecture", "general.file_type"):
                assert (ours.fields[key].contents(), ours.fields[key].types) == (field.contents(), field.types), key

    @pytest.mark.parametrize("chunk", [1, 1000])
    def test_streams_in_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
        """Written a few rows at a time, in pieces of at most that many elements, the file is the same."""
        export_gguf(load(PEER_GGUF), tmp_path / "whole")
        monkeypatch.setattr(importlib.import_module("oracle.weights.export_gguf"), "CHUNK", chunk)
        seen: list[str] = []
        export_gguf(load(PEER_GGUF), tmp_path / "rows", lambda name, _done, _total: seen.append(name))

        assert (tmp_path / "whole").read_bytes() == (tmp_path / "rows").read_bytes()
        # rows of 192 columns: five at a time of 96, or one.
        assert seen.count("blk.0.ssm_out.weight") == (20 if chunk == 1000 else 96)

    def test_progress_reaches_its_end(self, tmp_path: Path) -> None:
        """What is done never falls, starts at none and ends at all, in an import and in an export."""
        steps: list[tuple[int, int]] = []

        def report(_name: str, done: int, total: int) -> None:
            steps.append((done, total))

        for write in (lambda: export_gguf(load("synthetic:1", TINY), tmp_path / "w", report),
                      lambda: save(load("synthetic:1", TINY), tmp_path / "w", "", report)):
            write()
            done, totals = zip(*steps, strict=True)
            assert list(done) == sorted(done)
            assert (done[0], done[-1], len(set(totals))) == (0, totals[0], 1)
            steps.clear()

    @pytest.mark.parametrize(("data", "fault"), [
        ([bytes(31)], "too few"), ([bytes(33)], "1 bytes too many"), ([], "too few"),
        ([bytes(16), bytes(15)], "too few")])
    def test_bytes_must_fill_their_tensor(self, tmp_path: Path, data: list[bytes], fault: str) -> None:
        """A stream of too few or too many bytes is refused by the tensor's name, and no file is left."""
        with pytest.raises(LanelockError, match=f"tensor 'a' was given {fault}"):
            write_gguf(tmp_path / "w", {}, [Described("a", 0, (8,))], iter(data))
        assert list(tmp_path.iterdir()) == []

    def test_vocabulary_covers_every_byte(self, tmp_path: Path) -> None:
        """Tokens are as many as the vocabulary, the first 256 spell the bytes as GPT-2 does, and none occurs twice."""
        export_gguf(load("synthetic:1", replace(TINY, vocab=300)), tmp_path / "w.gguf")
        fields = GGUFReader(tmp_path / "w.gguf").fields
        tokens = fields["tokenizer.ggml.tokens"].contents()

        assert (len(tokens), len(set(tokens))) == (300, 300)
        # the ends of GPT-2's three printable ranges, and the bytes beside them.
        spelled = {0x00: 0x100, 0x0A: 0x10A, 0x20: 0x120, 0x21: 0x21, 0x7E: 0x7E, 0x7F: 0x121, 0xA0: 0x142, 0xA1: 0xA1,
                   0xAC: 0xAC, 0xAD: 0x143, 0xAE: 0xAE, 0xFF: 0xFF}
        assert {byte: ord(tokens[byte]) for byte in spelled} == spelled
        assert fields["tokenizer.ggml.token_type"].contents() == [1] * 256 + [5] * 44
