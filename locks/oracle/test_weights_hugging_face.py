"""Locks: Hugging Face checkpoints in every form that is read, and what is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from locks.oracle.checkpoints import hf_folder, hf_tensors, same, sharded
from oracle.errors import LanelockError
from oracle.model_weights import specs
from oracle.weights import QuantisedWeights, load
from oracle.weights.hf_config import read_hf_config


class TestHuggingFaceForms:
    """The same checkpoint in every form that is read."""

    @pytest.mark.parametrize("prefix", ["model.language_model.", "model."])
    def test_prefixes_and_shards(self, tmp_path: Path, prefix: str) -> None:
        """One file, its folder, shards with an index, and both prefixes give the same tensors; vision is skipped."""
        tensors = hf_tensors(prefix)
        one = load(hf_folder(tmp_path / "one"))
        vision = {"model.visual.patch.weight": np.zeros((2, 2), np.float32)}
        others = [load(hf_folder(tmp_path / "again", tensors)),
                  load(sharded(tmp_path / "many", {**tensors, **vision})), load(tmp_path / "one" / "model.safetensors"),
                  load(tmp_path / "many" / "model.safetensors.index.json")]

        assert all(same(one.tensor(name), other.tensor(name)) for other in others for name in specs(one.config))

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    def test_float_types_keep_their_values(self, tmp_path: Path, dtype: str) -> None:
        """F16 and F64 checkpoints give the values they hold."""
        # the factor is lost in float16 and in float32, and must not be in float64.
        factor = np.float64(1 + 2.0**-40)
        tensors = {name: (value * factor).astype(dtype) for name, value in hf_tensors().items()}
        weights = load(hf_folder(tmp_path, tensors))

        gate = tensors["model.language_model.layers.0.mlp.gate_proj.weight"]
        assert np.array_equal(weights.tensor("layers.0.gu")[:32], gate)

    def test_bf16_is_the_upper_half(self, tmp_path: Path) -> None:
        """BF16 bits are the upper half of a float32."""
        folder = hf_folder(tmp_path)
        path = folder / "model.safetensors"
        blob = path.read_bytes()
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8:8 + size])
        data, at = b"", 0
        header.pop("__metadata__", None)
        for entry in sorted(header.values(), key=lambda e: e["data_offsets"]):
            start, stop = entry["data_offsets"]
            part = np.frombuffer(blob[8 + size + start:8 + size + stop], "<u2")[1::2].tobytes()
            entry.update(dtype="BF16", data_offsets=[at, at + len(part)])
            data, at = data + part, at + len(part)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        wanted = (hf_tensors()["lm_head.weight"].view(np.uint32) & 0xFFFF0000).view(np.float32)

        assert np.array_equal(load(folder).tensor("Wout"), wanted)

    def test_draft_head_may_be_absent(self, tmp_path: Path) -> None:
        """A checkpoint that has lost every mtp tensor is a model without the draft head."""
        tensors = {name: value for name, value in hf_tensors().items() if not name.startswith("mtp.")}

        assert not load(hf_folder(tmp_path, tensors)).config.mtp

    def test_tied_head(self, tmp_path: Path) -> None:
        """A tied model needs no lm_head, accepts a copy of the embedding there, and nothing else."""
        tensors = hf_tensors()
        emb = tensors["model.language_model.embed_tokens.weight"]
        bare = {name: value for name, value in tensors.items() if name != "lm_head.weight"}

        for given in (bare, {**tensors, "lm_head.weight": emb.copy()}):
            assert "Wout" not in specs(load(hf_folder(tmp_path, given, tie_word_embeddings=True)).config)
        with pytest.raises(LanelockError, match=r"'lm_head.weight' differs"):
            load(hf_folder(tmp_path, tensors, tie_word_embeddings=True))
        with pytest.raises(LanelockError, match=r"lacks tensor 'lm_head.weight'"):
            load(hf_folder(tmp_path, bare))


def _spoiled(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tensors = hf_tensors()
    change(tensors)
    return tensors


BASE = "model.language_model.layers.0."
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (lambda t: t.pop(BASE + "mlp.up_proj.weight"), r"lacks tensor 'layers.0.mlp.up_proj.weight'"),
    "unknown": (lambda t: t.update({BASE + "extra": np.ones(1, "f4")}), "unknown tensor 'layers.0.extra'"),
    "unknown top": (lambda t: t.update({"other": np.ones(1, "f4")}), "unknown tensor ' other'"),
    "missing of MTP": (lambda t: t.pop("mtp.norm.weight"), "lacks tensor 'mtp.norm.weight'"),
    "transposed": (lambda t: t.update({"mtp.fc.weight": np.ones((64, 32), "f4")}), r"\[64, 32\]"),
    "both prefixes": (lambda t: t.update({"model.norm.weight": np.ones(32, "f4")}), "has both"),
    "integer": (lambda t: t.update({"mtp.norm.weight": np.ones(32, "i4")}), "has type I32"),
}
NOT_FINITE = [np.nan, np.inf, -np.inf]


class TestHuggingFaceRefusals:
    """What an importer must not accept."""

    @pytest.mark.parametrize("case", REFUSED)
    def test_wrong_tensors_are_named(self, tmp_path: Path, case: str) -> None:
        """A tensor that is missing, unknown, misshapen, doubled or no float is named before anything is read."""
        change, fault = REFUSED[case]
        with pytest.raises(LanelockError, match=fault):
            load(hf_folder(tmp_path, _spoiled(change)))

    @pytest.mark.parametrize("value", NOT_FINITE)
    def test_not_finite_is_named(self, tmp_path: Path, value: float) -> None:
        """NaN and infinity are refused with the tensor's name and the place."""
        tensors = hf_tensors()
        tensors[BASE + "mlp.up_proj.weight"][5, 7] = value
        with pytest.raises(LanelockError, match=r"up_proj.weight' .*NaN or infinite, at \[5, 7\]"):
            load(hf_folder(tmp_path, tensors)).tensor("layers.0.gu")

    def test_decay_that_overflows_is_named(self, tmp_path: Path) -> None:
        """An A_log of 1000 makes A infinite, which is refused, not stored."""
        tensors = hf_tensors()
        tensors[BASE + "linear_attn.A_log"][1] = 1000
        with pytest.raises(LanelockError, match="A_log"):
            load(hf_folder(tmp_path, tensors)).tensor("layers.0.Al")

    def test_scale_beyond_fp16_is_named(self, tmp_path: Path) -> None:
        """A block of 8.4e6 needs a scale that fp16 does not have; 8319008 gives exactly 65504 (case 27)."""
        tensors = hf_tensors()
        tensors["lm_head.weight"][2, 3] = 8319008
        assert QuantisedWeights(load(hf_folder(tmp_path / "a", tensors))).tensor("Wout").scales[2, 0] == 65504
        tensors["lm_head.weight"][2, 3] = 8.4e6
        with pytest.raises(LanelockError, match=r"'Wout': row 2, columns 0 to 31 .*infinite in fp16"):
            QuantisedWeights(load(hf_folder(tmp_path / "b", tensors))).tensor("Wout")

    @pytest.mark.parametrize(("field", "value"), [
        ("hidden_act", "gelu"), ("attn_output_gate", False), ("attention_bias", True), ("model_type", "qwen3_next"),
        ("linear_value_head_dim", 32), ("mtp_num_hidden_layers", 2), ("layer_types", ["full_attention"] * 2),
        ("full_attention_interval", 0), ("full_attention_interval", 2.0),
        ("rms_norm_eps", 0), ("num_hidden_layers", 2**40), ("num_hidden_layers", "2"), ("head_dim", 48),
        ("linear_num_key_heads", 2**20), ("mtp_use_dedicated_embeddings", True), ("quantization_config", {"a": 1}),
        ("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 0.3}),
        ("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "yarn"}),
        ("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}),
        ("rope_parameters", {"partial_rotary_factor": 0.25}), ("rms_norm_eps", 10**400), ("head_dim", 10**400),
        ("rope_parameters", {"rope_theta": 10**400, "partial_rotary_factor": 0.25})])
    def test_config_that_is_not_computed_is_named(self, tmp_path: Path, field: str, value: object) -> None:
        """A field that asks for another formula, or sizes that do not fit, is refused with the file's name."""
        with pytest.raises(LanelockError, match=str(tmp_path)):
            load(hf_folder(tmp_path, None, **{field: value}))

    def test_sizes_are_bounded_by_the_file(self, tmp_path: Path) -> None:
        """Attention or GDN widths beyond every tensor are refused before tables of that size are made.

        A model with neither attention layer nor draft head may state any number of heads.
        """
        for field in ("num_attention_heads", "linear_num_key_heads"):
            heads = {field: 2**26, "linear_num_value_heads": 2**26 if field.startswith("linear") else 2}
            with pytest.raises(LanelockError, match="rows, but no tensor is wider than 64"):
                load(hf_folder(tmp_path / field, None, **heads))
        gdn = {name: value for name, value in hf_tensors().items() if "layers.1." not in name and "mtp." not in name}
        one = {"num_hidden_layers": 1, "layer_types": ["linear_attention"], "num_attention_heads": 2**26}
        assert load(hf_folder(tmp_path / "gdn", gdn, **one)).config.layers == 1
        attention = {name.replace("layers.1.", "layers.0."): value for name, value in hf_tensors().items()
                     if not name.startswith(BASE)}
        one = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "full_attention_interval": 1,
               "linear_num_key_heads": 2**26, "linear_num_value_heads": 2**26}
        assert load(hf_folder(tmp_path / "attention", attention, **one)).config.layers == 1

    def test_config_may_come_from_outside(self, tmp_path: Path) -> None:
        """A file without a config.json beside it takes the config that is given, and says so where there is none."""
        folder = hf_folder(tmp_path)
        config = load(folder).config
        (folder / "config.json").unlink()
        assert load(folder / "model.safetensors", config).config == config
        with pytest.raises(LanelockError, match=r"config\.json: is not a readable JSON config"):
            load(folder)
        for text in ("[]", "1", '{"text_config": []}', "{"):
            (folder / "config.json").write_text(text)
            with pytest.raises(LanelockError, match=r"config\.json: "):
                load(folder)
        (folder / "config.json").unlink()
        (folder / "model.safetensors").unlink()
        with pytest.raises(LanelockError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json\.$"):
            load(folder, config)

    def test_a_folder_of_other_files_names_them(self, tmp_path: Path) -> None:
        """Weights of a name that no folder is opened by are told, up to eight. Red: a user who must go and look."""
        for name in ("b.gguf", "a.safetensors", "notes.txt"):
            (tmp_path / name).write_text("")
        with pytest.raises(LanelockError, match=r"has neither .*; to read a file, name it: a\.safetensors, b\.gguf\.$"):
            load(tmp_path)
        for i in range(9):
            (tmp_path / f"a{i}.gguf").write_text("")
        with pytest.raises(LanelockError, match=r"name it: a\.safetensors, a0\.gguf, .*a6\.gguf, \.\.\.\.$"):
            load(tmp_path)

    def test_theta_is_read(self, tmp_path: Path) -> None:
        """theta, the rope width and epsilon come from the file, not from a default."""
        rope = {"rope_theta": 1e6, "partial_rotary_factor": 0.5}
        hf_folder(tmp_path, None, rope_parameters=rope, rms_norm_eps=1e-5)
        config = read_hf_config(tmp_path / "config.json")
        assert (config.rope_theta, config.rope_dim, config.eps) == (1e6, 16, 1e-5)
        hf_folder(tmp_path, None, rope_parameters=rope, head_dim=8192)
        assert read_hf_config(tmp_path / "config.json").rope_dim == 4096

    def test_index_must_agree_with_its_shards(self, tmp_path: Path) -> None:
        """A shard that holds more or less than the index says is named, and so is one outside the folder."""
        folder = sharded(tmp_path, hf_tensors())
        index = folder / "model.safetensors.index.json"
        table = json.loads(index.read_text())
        moved = {**table["weight_map"], "lm_head.weight": "model-00003-of-00003.safetensors"}
        for weight_map, fault in ((moved, "disagree on tensor 'lm_head.weight'"),
                                  ({**table["weight_map"], "x": "../x.safetensors"}, "not a plain file name")):
            index.write_text(json.dumps({"weight_map": weight_map}))
            with pytest.raises(LanelockError, match=fault):
                load(folder)
