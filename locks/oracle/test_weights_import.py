"""Locks: importers of Hugging Face and GGUF checkpoints map every tensor as specified, and name what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

from locks.oracle.checkpoints import PEER, PEER_GGUF, hf_folder, hf_tensors, same
from oracle.config import ModelConfig, preset
from oracle.errors import LanelockError
from oracle.formats import Q8_0, q8_0_decode, q8_0_encode
from oracle.model_weights import Weights, specs
from oracle.weights import QuantisedWeights, load, origin
from oracle.weights.assemble import is_quantised
from oracle.weights.dialects import HUGGING_FACE
from oracle.weights.recipe import recipes

GGUF, HF = load(PEER_GGUF), load(PEER)
CODED = QuantisedWeights(HF)
C = GGUF.config
NAMES = list(specs(C))
MATRICES = [name for name in NAMES if is_quantised(name)]


class TestPeer:
    """One model, written by two programs that are not ours."""

    @pytest.mark.parametrize("name", MATRICES)
    def test_both_imports_give_the_same_codes(self, name: str) -> None:
        """Our quantisation of the safetensors equals the GGUF's codes and scales, in our order of heads."""
        assert same(GGUF.tensor(name), CODED.tensor(name))

    def test_small_tensors_agree(self) -> None:
        """Norms, taps and dt are equal as float32; A to one unit in the last place, since exp is the converter's.

        `ba` is Q8_0 in the GGUF, so there the difference is at most half a step: |x - code·d| <= d/2, and d is stored
        as fp16, which moves a code of up to 127 by 127·d·2^-11.
        """
        for name in NAMES:
            ours, theirs = CODED.tensor(name), GGUF.tensor(name)
            if name.endswith(".ba"):
                scale = np.repeat(np.abs(ours).reshape(len(ours), -1, 32).max(2) / 127, 32, axis=1)
                assert (np.abs(ours - theirs) <= scale * (0.5 + 127 * 2.0**-11) * (1 + 2.0**-20)).all(), name
            elif name.endswith(".Al"):
                assert (np.abs(ours - theirs) <= np.spacing(np.abs(theirs))).all(), name
            elif not is_quantised(name):
                assert same(ours, theirs.astype(np.float32)), name

    def test_sizes_agree(self) -> None:
        """Both files give one config: theta, rope width, and the epsilon 1e-06 that float32 shows as 9.99...e-07."""
        assert replace(HF.config, name="peer") == replace(C, name="peer")
        assert (C.eps, C.rope_theta, C.rope_dim, C.layers, C.mtp, C.tied) == (1e-6, 1e7, 8, 8, True, False)

    def test_blocks_are_taken_over_byte_for_byte(self) -> None:
        """Codes and scales of a matrix that is not reordered are the file's own 34-byte blocks.

        Read by the gguf package. Red: any requantisation, codes and scale swapped, a byte order mistake.
        """
        raw = {tensor.name: tensor.data for tensor in GGUFReader(PEER_GGUF).tensors}
        for ours, theirs in (("emb", "token_embd.weight"), ("layers.3.Wo", "blk.3.attn_output.weight"),
                             ("mtp.ehproj", "blk.8.nextn.eh_proj.weight")):
            tensor = GGUF.tensor(ours)
            blocks = raw[theirs].reshape(tensor.shape[0], -1, 34)
            assert np.array_equal(blocks[:, :, :2].tobytes(), tensor.scales.tobytes())
            assert np.array_equal(blocks[:, :, 2:].view(np.int8).reshape(tensor.shape), tensor.codes)

    def test_rows_are_those_of_the_whole(self) -> None:
        """Any rows of a matrix, in any order, are the same as taken from the whole tensor."""
        rng = np.random.default_rng(3)
        for weights in (GGUF, HF):
            for name in ("emb", "layers.0.qkvz", "layers.0.ba", "layers.3.qgkv", "layers.0.gu", "layers.0.Wo"):
                whole = weights.tensor(name)
                index = rng.permutation(whole.shape[0])[:17]
                part = weights.rows(name, index)
                wanted = Q8_0(whole.codes[index], whole.scales[index]) if isinstance(whole, Q8_0) else whole[index]
                assert same(part, wanted), name

    def test_floats_of_a_checkpoint_are_kept(self) -> None:
        """Norms and A of safetensors are folded in float64: 1 + w exactly, where float32 would round."""
        from safetensors.numpy import load_file

        stored = load_file(PEER / "model.safetensors")
        w = stored["model.language_model.layers.0.input_layernorm.weight"].astype(np.float64)
        a_log = stored["model.language_model.layers.0.linear_attn.A_log"].astype(np.float64)

        assert np.array_equal(HF.tensor("layers.0.an"), w + 1)
        assert np.array_equal(HF.tensor("layers.0.Al"), -np.exp(a_log)[[0, 3, 1, 4, 2, 5]])


class TestPositions:
    """A checkpoint whose every value tells where it lay, compared index by index with the page's sentences."""

    @pytest.fixture
    def marked(self, tmp_path: Path) -> tuple[Any, dict[str, NDArray[np.float32]]]:
        """Weights, and the tensors they were made of; value = row + column/1024, so each one differs."""
        def mark(value: NDArray[Any]) -> NDArray[np.float32]:
            grid = value.reshape(value.shape[0], -1)
            marks = np.arange(grid.shape[0])[:, None] + np.arange(grid.shape[1]) / 1024
            return marks.reshape(value.shape).astype(np.float32)

        tensors = {name: mark(value) for name, value in hf_tensors().items()}
        return load(hf_folder(tmp_path, tensors)), tensors

    def test_value_heads(self, marked: tuple[Any, dict[str, Any]]) -> None:
        """Our value head h is HF head r·(h % nk) + h // nk in V, Z, b, a, A, dt, taps, and in Wo's columns.

        Here nk = 1 and r = 2, so order is kept; the peers' model (nk = 2, r = 3) moves heads, to 0 3 1 4 2 5.
        """
        weights, _ = marked
        assert np.array_equal(weights.tensor("layers.0.qkvz")[:, 0], [*range(64), *range(32)])
        peer, stored = HF.tensor("layers.0.Dt"), _raw("layers.0.linear_attn.dt_bias")
        assert [int(np.flatnonzero(stored == value)[0]) for value in peer] == [0, 3, 1, 4, 2, 5]

    def test_gate_follows_q_head_by_head(self) -> None:
        """Of q_proj, head by head, the first head_dim rows are q and the next are its gate."""
        stored, ours = _raw("layers.3.self_attn.q_proj.weight"), HF.tensor("layers.3.qgkv")
        for head in range(6):
            for j in (0, 1, 31):
                assert np.array_equal(ours[32 * head + j], stored[64 * head + j])
                assert np.array_equal(ours[192 + 32 * head + j], stored[64 * head + 32 + j])

    def test_rows_of_heads_of_four(self) -> None:
        """With heads of 4, of q_proj rows 0..15 q takes 0-3 and 8-11, the gate 4-7 and 12-15 (handed case 12a)."""
        config = ModelConfig("case12", 4, 32, 32, 32, 8, 1, 4, 2, 1e4, 1, 3, 32, context=64)
        q, gate = (piece.rows for piece in recipes(config, HUGGING_FACE)["layers.3.qgkv"][:2])
        assert q is not None
        assert gate is not None
        assert (q[:8].tolist(), gate[:8].tolist()) == ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])

    def test_output_columns(self) -> None:
        """Column block h of the GDN output projection is block r·(h % nk) + h // nk of out_proj; rows stay."""
        stored, ours = _raw("layers.0.linear_attn.out_proj.weight"), HF.tensor("layers.0.Wo")
        for h in range(6):
            g = 3 * (h % 2) + h // 2
            assert np.array_equal(ours[:, 32 * h:32 * h + 32], stored[:, 32 * g:32 * g + 32])

    def test_taps(self) -> None:
        """Wc[t][c] is conv1d[c, 0, t], with V channels moved as their heads."""
        stored, ours = _raw("layers.0.linear_attn.conv1d.weight"), HF.tensor("layers.0.Wc")
        assert np.array_equal(ours[:, :128], stored[:128, 0].T)
        for h in range(6):
            g = 3 * (h % 2) + h // 2
            assert np.array_equal(ours[:, 128 + 32 * h:160 + 32 * h], stored[128 + 32 * g:160 + 32 * g, 0].T)

    def test_stacks(self) -> None:
        """Gu is gate then up, ba is b then a, qgkv ends in K then V, ehproj keeps the embedding half first."""
        d = "layers.0."
        order = [0, 3, 1, 4, 2, 5]
        assert same(HF.tensor(d + "gu"), np.concatenate([_raw(d + f"mlp.{x}_proj.weight") for x in ("gate", "up")]))
        assert same(HF.tensor(d + "ba"),
                    np.concatenate([_raw(d + f"linear_attn.in_proj_{x}.weight")[order] for x in ("b", "a")]))
        assert same(HF.tensor("layers.3.qgkv")[384:],
                    np.concatenate([_raw(f"layers.3.self_attn.{x}_proj.weight") for x in ("k", "v")]))
        assert same(HF.tensor("mtp.ehproj"), _raw("mtp.fc.weight"))

    def test_norms(self) -> None:
        """Every norm is 1 + w but the GDN norm, which is w; the pre-FFN norm is post_attention_layernorm."""
        pairs = {"on": "norm", "layers.0.an": "layers.0.input_layernorm",
                 "layers.0.fn": "layers.0.post_attention_layernorm", "layers.3.Qn": "layers.3.self_attn.q_norm",
                 "layers.3.Kn": "layers.3.self_attn.k_norm", "mtp.enorm": "mtp.pre_fc_norm_embedding",
                 "mtp.hnorm": "mtp.pre_fc_norm_hidden", "mtp.shnorm": "mtp.norm",
                 "mtp.an": "mtp.layers.0.input_layernorm", "mtp.Qn": "mtp.layers.0.self_attn.q_norm"}
        for ours, theirs in pairs.items():
            assert np.array_equal(HF.tensor(ours), _raw(theirs + ".weight").astype(np.float64) + 1), ours
        assert np.array_equal(HF.tensor("layers.0.Gn"), _raw("layers.0.linear_attn.norm.weight"))


def _raw(name: str) -> NDArray[np.float32]:
    """A tensor of the peers' safetensors, by the published package."""
    from safetensors import safe_open

    top = ("mtp.", "lm_head.")
    with safe_open(PEER / "model.safetensors", "numpy") as file:
        return np.asarray(file.get_tensor(name if name.startswith(top) else "model.language_model." + name))


class TestSpec:
    """What a user may name."""

    def test_what_is_named_must_fit(self) -> None:
        """A config that differs from the file's, a missing one, a bad seed and a missing file are one sentence each."""
        wrong = replace(C, rope_theta=1e6)
        cases: list[tuple[str | Path, ModelConfig | None, str]] = [
            (PEER_GGUF, wrong, "has rope_theta 10000000.0, but 1000000.0"), (PEER, wrong, "has rope_theta 10000000.0"),
            ("synthetic:1", None, "need a config"),
            ("synthetic:x", preset("tiny"), "whole number"),
            ("synthetic:" + "0" * 21, preset("tiny"), "whole number"),
            ("synthetic:99999999999999999999", preset("tiny"), "2.64"),
            ("nowhere", None, "no such file")]
        for spec, config, fault in cases:
            with pytest.raises(LanelockError, match=fault):
                load(spec, config)

    @pytest.mark.parametrize("weights", [GGUF, HF, CODED, load("synthetic:1", preset("tiny"))])
    def test_what_is_not_there_is_named(self, weights: Weights) -> None:
        """An unknown tensor, and rows that a matrix does not have, are one sentence from every kind of weights."""
        with pytest.raises(LanelockError, match=r"no tensor 'layers\.0\.nothing'"):
            weights.tensor("layers.0.nothing")
        for index in ([256], [0, 7, 300], [-1]):
            with pytest.raises(LanelockError, match="'emb'"):
                weights.rows("emb", np.array(index))
        for index in ([255, 0], []):
            assert weights.rows("emb", np.array(index, np.int64)).shape == (len(index), 96)

    def test_origin_says_what_was_done(self) -> None:
        """An import says whether codes were taken over or made."""
        assert origin(PEER_GGUF, GGUF) == "GGUF, Q8_0 byte for byte"
        assert "encoded to Q8_0" in origin(PEER, HF)

    def test_quantised_names_are_those_of_the_table(self) -> None:
        """The matrices known by name are exactly those that the model's table stores as Q8_0."""
        for config in (C, preset("mini"), replace(C, tied=True, mtp=False)):
            assert all(is_quantised(name) == spec.quantised for name, spec in specs(config).items())

    def test_quantised_view_encodes_once(self) -> None:
        """The view of a checkpoint gives codes that a second view leaves alone, and float32 for the rest."""
        twice = QuantisedWeights(CODED)
        assert all(same(twice.tensor(name), CODED.tensor(name)) for name in NAMES)
        again = q8_0_encode(q8_0_decode(CODED.tensor("emb")))
        assert np.array_equal(again.codes, CODED.tensor("emb").codes)
