"""Sizes of models: the 27B's as published, and a clear refusal of sizes that do not fit."""

import dataclasses
import json
from pathlib import Path

import pytest

from oracle.config import PRESETS, ModelConfig, load, preset
from oracle.errors import LanelockError
from oracle.model_weights import HeldWeights, head_name, specs

TINY = preset("tiny")
WRONG = [
    ("layers", 0), ("d", -32), ("d", 100), ("ffn", 161), ("vocab", 2.0), ("vocab", True), ("q_heads", 5),
    ("v_heads", 5), ("rope_dim", 7), ("rope_dim", 34), ("conv_taps", 3), ("eps", 0.0), ("eps", float("nan")),
    ("rope_theta", float("inf")), ("rope_theta", 1.0), ("tied", 1), ("mtp", None), ("name", ""), ("context", 2**31),
    ("head_dim", 15), ("gdn_dim", 17), ("period", 0),
]


class TestPresets:
    """The sizes that are named."""

    def test_the_27b_has_the_published_widths(self) -> None:
        """Projection widths of the 27B are 14336, 16384 and 10240 channels, and its weights 25.6 GB of codes a step."""
        c = preset("qwen3.8-27b")
        table = specs(c)
        read = sum(s.shape[0] * s.shape[1] for n, s in table.items() if s.quantised and n != "emb" and "mtp" not in n)

        assert (c.q_width, c.kv_width, c.attn_proj, c.gdn_qk, c.gdn_v, c.conv_channels, c.gdn_proj, c.ratio) == (
            6144, 1024, 14336, 2048, 6144, 10240, 16384, 3)
        assert (c.layers, c.d, c.ffn, c.vocab, c.context, c.eps, c.rope_theta) == (
            64, 5120, 17408, 248320, 262144, 1e-6, 1e7)
        assert round(read / 1e9, 1) == 25.6

    @pytest.mark.parametrize(("name", "sizes"), [
        ("qwen3.5-0.8b", (24, 1024, 3584, 8, 2, 16, True)), ("qwen3.5-2b", (24, 2048, 6144, 8, 2, 16, True)),
        ("qwen3.5-4b", (32, 2560, 9216, 16, 4, 32, True)), ("qwen3.5-9b", (32, 4096, 12288, 16, 4, 32, False))])
    def test_the_family_has_its_sizes(self, name: str, sizes: tuple[object, ...]) -> None:
        """Layers, width, FFN and head counts are those of the family's table."""
        c = preset(name)

        assert (c.layers, c.d, c.ffn, c.q_heads, c.kv_heads, c.v_heads, c.tied) == sizes

    def test_one_layer_in_four_is_attention_and_it_is_the_last(self) -> None:
        """The 27B has 48 GDN layers and 16 attention layers, at 3, 7, 11 and so on."""
        c = preset("qwen3.8-27b")

        assert [i for i in range(c.layers) if c.is_attention(i)] == list(range(3, 64, 4))

    @pytest.mark.parametrize("name", PRESETS)
    def test_json_gives_the_same_config_back(self, name: str, tmp_path: Path) -> None:
        """A config written as JSON is read back equal, as a preset or as a file."""
        path = tmp_path / "config.json"
        path.write_text(preset(name).to_json(), encoding="utf-8")

        assert load(str(path)) == load(name) == preset(name)


class TestRefusals:
    """Sizes that do not fit."""

    @pytest.mark.parametrize(("field", "value"), WRONG)
    def test_a_size_that_does_not_fit_is_named(self, field: str, value: object) -> None:
        """A wrong field is refused with a sentence that names the model and the field or its rule."""
        with pytest.raises(LanelockError, match=f"config.*{field}.*\\."):
            ModelConfig.from_dict(TINY.to_dict() | {field: value})

    def test_a_head_may_be_rotated_whole(self) -> None:
        """As many rotated dims as a head has are the most there can be."""
        whole = ModelConfig.from_dict(TINY.to_dict() | {"rope_dim": TINY.head_dim})

        assert whole.rope_dim == whole.head_dim

    @pytest.mark.parametrize(("change", "word"), [
        ({"colour": 1}, "unknown field 'colour'"), ({}, "'layers' is missing")])
    def test_unknown_and_missing_fields_are_named(self, change: dict[str, int], word: str) -> None:
        """A field that does not exist, or one that is absent without a default, is named."""
        fields = TINY.to_dict() | change
        if not change:
            del fields["layers"]

        with pytest.raises(LanelockError, match=word):
            ModelConfig.from_dict(fields)

    def test_fields_with_a_default_may_be_absent(self) -> None:
        """A file without taps, epsilon, context, period, tied and mtp gets the published values."""
        short = {k: v for k, v in TINY.to_dict().items()
                 if k not in {"conv_taps", "eps", "context", "period", "tied", "mtp"}}

        assert ModelConfig.from_dict(short) == TINY

    @pytest.mark.parametrize("text", ["[1]", "{", json.dumps("tiny")])
    def test_a_file_that_is_no_config_is_named(self, text: str, tmp_path: Path) -> None:
        """A file that is not one JSON object is refused by its path."""
        path = tmp_path / "broken.json"
        path.write_text(text, encoding="utf-8")

        with pytest.raises(LanelockError, match=r"broken\.json"):
            load(str(path))

    @pytest.mark.parametrize("find", [preset, load])
    def test_an_unknown_name_lists_the_presets(self, find: object) -> None:
        """A name that is neither preset nor file is refused with the list of presets."""
        with pytest.raises(LanelockError, match=r"'nought'.*qwen3\.8-27b.*tiny"):
            find("nought")  # type: ignore[operator]  # both take a name


class TestTensors:
    """The tensors that a config asks for."""

    def test_every_layer_has_its_tensors(self) -> None:
        """A tiny model has 56 tensors; tied drops the head and no MTP drops its 12."""
        plain, tied = specs(TINY), specs(dataclasses.replace(TINY, tied=True, mtp=False))

        assert len(plain) == 3 + 3 * 11 + 8 + 12
        assert len(tied) == len(plain) - 13
        assert (head_name(TINY), head_name(dataclasses.replace(TINY, tied=True))) == ("Wout", "emb")

    def test_a_missing_tensor_is_named(self) -> None:
        """Asking held weights for a tensor they lack names it."""
        with pytest.raises(LanelockError, match=r"layers\.0\.an"):
            HeldWeights(TINY, {}).tensor("layers.0.an")
