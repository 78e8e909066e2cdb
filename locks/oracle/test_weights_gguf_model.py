"""Locks: GGUF models of other types, of the older architecture, and of sizes that do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from locks.oracle.checkpoints import gguf_file, gguf_tensors, same
from oracle.errors import LanelockError
from oracle.formats import q8_0_encode
from oracle.weights import QuantisedWeights, load, origin
from oracle.weights.gguf_types import bf16_to_f32, dequantise

OTHER_TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


class TestOtherTypes:
    """Matrices that are not Q8_0 in the file."""

    @pytest.mark.parametrize("kind", OTHER_TYPES)
    def test_are_dequantised_and_encoded_once(self, tmp_path: Path, kind: str) -> None:
        """A matrix of another type becomes the Q8_0 of its values, and the import says so."""
        tensors = gguf_tensors()
        path = gguf_file(tmp_path / "w.gguf", tensors, {"output.weight": kind})
        weights = load(path)
        number = GGMLQuantizationType[kind]
        values = quants.dequantize(quants.quantize(tensors["output.weight"], number), number)

        assert same(weights.tensor("Wout"), q8_0_encode(values))
        assert f"1 {kind}" in origin(path, weights)

    def test_stacks_keep_the_bytes_of_their_q8_0_part(self, tmp_path: Path) -> None:
        """In gu, a Q8_0 gate is taken over byte for byte beside an up of F16 that is encoded.

        Red: dequantising the stack and encoding all of it. A scale of half a code's step makes that visible.
        """
        tensors = gguf_tensors()
        weights = load(gguf_file(tmp_path / "w.gguf", tensors,
                                 {"blk.0.ffn_gate.weight": "Q8_0", "blk.0.ffn_up.weight": "F16"}))
        raw = quants.quantize(tensors["blk.0.ffn_gate.weight"], GGMLQuantizationType.Q8_0).reshape(32, 34)
        gu = weights.tensor("layers.0.gu")

        assert np.array_equal(gu.codes[:32], raw[:, 2:].view(np.int8))
        assert np.array_equal(gu.scales[:32], raw[:, :2].copy().view(np.float16))
        assert same(gu.codes[32:], q8_0_encode(tensors["blk.0.ffn_up.weight"].astype(np.float16)).codes)

    def test_codes_are_never_made_again(self, tmp_path: Path) -> None:
        """Blocks that the published rule would not give (no code of 127) keep their codes and scales."""
        import gguf

        tensors = gguf_tensors()
        path = gguf_file(tmp_path / "w.gguf", tensors, {"output.weight": "Q8_0"})
        info = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "output.weight")
        blob = bytearray(path.read_bytes())
        codes = bytes(range(1, 33))
        blob[info.data_offset:info.data_offset + 34] = np.float16(0.25).tobytes() + codes
        path.write_bytes(blob)
        tensor = load(path).tensor("Wout")

        assert (tensor.codes[0].tobytes(), float(tensor.scales[0, 0])) == (codes, 0.25)

    @pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
    def test_scale_that_is_not_finite_is_named(self, tmp_path: Path, scale: float) -> None:
        """A Q8_0 block with an infinite or NaN scale is refused with the tensor's name and the block's place."""
        path = gguf_file(tmp_path / "w.gguf", gguf_tensors(), {"output.weight": "Q8_0"})
        blob = path.read_bytes()
        block = quants.quantize(gguf_tensors()["output.weight"], GGMLQuantizationType.Q8_0).reshape(8, 34)[5].tobytes()
        assert blob.count(block) == 1
        path.write_bytes(blob.replace(block, np.float16(scale).tobytes() + block[2:]))

        with pytest.raises(LanelockError, match=r"w\.gguf: tensor 'output.weight' has a scale .* at \[5, 0\]"):
            load(path).tensor("Wout")

    def test_k_quants_go_through_the_package(self) -> None:
        """A Q4_K block of equal nibbles has the values d·scale·q - dmin·min that its definition gives."""
        block = np.zeros((1, 144), np.uint8)
        block[0, :4] = np.array([0.5, 0.25], np.float16).view(np.uint8)
        block[0, 4:8], block[0, 8:12] = 3, 2          # scales and minima of the first four groups of 32
        block[0, 12:16] = 3 | 2 << 4                  # and of the last four
        block[0, 16:] = 7 | 9 << 4
        expected = np.where(np.arange(256) // 32 % 2 == 0, 0.5 * 3 * 7 - 0.25 * 2, 0.5 * 3 * 9 - 0.25 * 2)

        assert np.array_equal(dequantise(block, 12)[0], expected.astype(np.float32))

    def test_bf16_is_the_upper_half(self) -> None:
        """Bits 0x3FC0 are 1.5, 0x8000 is -0, 0x7F80 is infinity."""
        values = bf16_to_f32(np.array([0x3FC0, 0x8000, 0x7F80], np.uint16))
        assert (values[0], np.signbit(values[1]), values[2]) == (1.5, True, np.inf)

    def test_integers_are_refused(self, tmp_path: Path) -> None:
        """A tensor of integers is named, not read as if it were floats."""
        path = gguf_file(tmp_path / "w.gguf", gguf_tensors())
        blob = path.read_bytes()
        name = b"output_norm.weight"
        at = blob.index(name) + len(name) + 4 + 8
        assert blob[at:at + 4] == bytes(4)
        path.write_bytes(blob[:at] + (26).to_bytes(4, "little") + blob[at + 4:])

        with pytest.raises(LanelockError, match=r"'output_norm\.weight' has type I32"):
            load(path).tensor("on")


class TestArchitectures:
    """The head map is chosen by architecture."""

    @pytest.mark.parametrize("architecture", ["qwen35moe", "llama", "Qwen35"])
    def test_others_are_refused_by_name(self, tmp_path: Path, architecture: str) -> None:
        """Any other architecture is named in the refusal."""
        path = gguf_file(tmp_path / "w.gguf", gguf_tensors(), architecture=architecture)
        with pytest.raises(LanelockError, match=f"architecture '{architecture}'"):
            load(path)

    def _grouped(self, path: Path, fused: bool) -> tuple[Any, dict[str, Any]]:
        tensors = gguf_tensors(value_heads=4)
        # two key heads of 16 need 64 rows of Q and K.
        rng = np.random.default_rng(5)
        for name, shape in (("attn_qkv.weight", (128, 32)), ("ssm_conv1d.weight", (128, 4))):
            tensors[f"blk.0.{name}"] = rng.normal(scale=0.1, size=shape).astype(np.float32)
        if fused:
            b, a = tensors.pop("blk.0.ssm_beta.weight"), tensors.pop("blk.0.ssm_alpha.weight")
            # per key head: its two rows of b, then its two of a.
            tensors["blk.0.ssm_ba.weight"] = np.concatenate([b[:2], a[:2], b[2:], a[2:]])
            tensors = {**tensors, "b": b, "a": a}
        written = {name: value for name, value in tensors.items() if name not in ("a", "b")}
        sizes = {"ssm__group_count": 2, "ssm__time_step_rank": 4, "ssm__inner_size": 64}
        return load(gguf_file(path, written, architecture="qwen3next", **sizes)), tensors

    @pytest.mark.parametrize("fused", [True, False])
    def test_qwen3next_is_grouped(self, tmp_path: Path, fused: bool) -> None:  # a pytest parameter
        """Value heads of qwen3next, grouped 0 1 | 2 3 by key head, come out tiled as 0 2 1 3, in every tensor."""
        weights, tensors = self._grouped(tmp_path / "w.gguf", fused)
        order = [0, 2, 1, 3]
        rows = np.concatenate([np.arange(16) + 16 * head for head in order])
        b = tensors["b"] if fused else tensors["blk.0.ssm_beta.weight"]
        a = tensors["a"] if fused else tensors["blk.0.ssm_alpha.weight"]
        qkv, z = tensors["blk.0.attn_qkv.weight"], tensors["blk.0.attn_gate.weight"]

        assert np.array_equal(weights.tensor("layers.0.ba"), np.concatenate([b[order], a[order]]))
        assert np.array_equal(weights.tensor("layers.0.Al"), tensors["blk.0.ssm_a"][order])
        assert same(weights.tensor("layers.0.qkvz"), q8_0_encode(np.concatenate([qkv[:64], qkv[64:][rows], z[rows]])))
        assert same(weights.tensor("layers.0.Wo"), q8_0_encode(tensors["blk.0.ssm_out.weight"][:, rows]))

    def test_codes_of_half_a_block_cannot_move(self, tmp_path: Path) -> None:
        """Grouped heads of 16 share Q8_0 blocks of 32 along out_proj, so such codes are refused, not requantised."""
        tensors = {**gguf_tensors(value_heads=4)}
        for name, shape in (("attn_qkv.weight", (128, 32)), ("ssm_conv1d.weight", (128, 4))):
            tensors[f"blk.0.{name}"] = np.ones(shape, np.float32)
        path = gguf_file(tmp_path / "w.gguf", tensors, {"blk.0.ssm_out.weight": "Q8_0"}, "qwen3next",
                         ssm__group_count=2, ssm__time_step_rank=4, ssm__inner_size=64)
        with pytest.raises(LanelockError, match="heads that are no whole Q8_0 blocks"):
            load(path).tensor("layers.0.Wo")


class TestGgufRefusals:
    """Metadata and tensors that do not fit one another."""

    @pytest.mark.parametrize(("key", "value", "fault"), [
        ("rope__freq_base", None, "lacks metadata 'qwen35.rope.freq_base'"),
        ("rope__dimension_count", None, "lacks metadata 'qwen35.rope.dimension_count'"),
        ("embedding_length", 64, "has shape"), ("embedding_length", 1.5, "not an integer"),
        ("attention__head_count", 3, "rows, but no tensor is wider"), ("ssm__inner_size", 64, "size other than 32"),
        ("attention__value_length", 16, "value_length other than 32"), ("nextn_predict_layers", 2, "2 nextn layers"),
        ("nextn_predict_layers", 0, "lacks tensor"), ("block_count", 2**31, "2147483647 layers"),
        ("block_count", 10**6, "999999 layers"), ("block_count", 4, "lacks tensor"),
        ("ssm__conv_kernel", 3, "conv_taps"),
        ("full_attention_interval", 3, "lacks tensor"), ("attention__layer_norm_rms_epsilon", 0.0, "eps must be"),
        ("attention__layer_norm_rms_epsilon", float("nan"), "eps must be"), ("rope__freq_base", 10, "a float"),
        ("rope__dimension_sections", (3, 1, 1, 0), "not half of the rope width"),
        ("attention__recurrent_layers", (True, True, False), "do not repeat by 2"),
        ("rope__scaling__type", "yarn", "rope scaling 'yarn'")])
    def test_metadata_that_does_not_fit_is_named(self, tmp_path: Path, key: str, value: object, fault: str) -> None:
        """A missing key, a size that the tensors contradict, or a formula that is not computed is one sentence."""
        path = gguf_file(tmp_path / "w.gguf", gguf_tensors(), **{key: value})
        with pytest.raises(LanelockError, match=fault) as caught:
            load(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(("name", "fault"), [
        ("blk.0.ssm_a", "lacks tensor 'blk.0.ssm_a'"), ("blk.2.nextn.enorm.weight", "lacks tensor 'blk.2.nextn.enorm"),
        ("token_embd.weight", "lacks tensor 'token_embd.weight'")])
    def test_missing_tensors_are_named(self, tmp_path: Path, name: str, fault: str) -> None:
        """A tensor that the model needs and the file lacks is named."""
        tensors = gguf_tensors()
        del tensors[name]
        with pytest.raises(LanelockError, match=fault):
            load(gguf_file(tmp_path / "w.gguf", tensors))

    def test_unknown_tensors_are_named(self, tmp_path: Path) -> None:
        """A tensor that no recipe uses is named, also one of a draft head with its own embedding."""
        extra = {"blk.2.nextn.embed_tokens.weight": np.ones((8, 32), np.float32)}
        with pytest.raises(LanelockError, match=r"unknown tensor 'blk.2.nextn.embed_tokens.weight'"):
            load(gguf_file(tmp_path / "w.gguf", {**gguf_tensors(), **extra}))

    def test_output_may_be_absent_when_tied(self, tmp_path: Path) -> None:
        """Without output.weight the embedding is the head."""
        tensors = gguf_tensors()
        del tensors["output.weight"]
        assert load(gguf_file(tmp_path / "w.gguf", tensors)).config.tied

    def test_epsilon_is_the_shortest_decimal(self, tmp_path: Path) -> None:
        """float32 metadata 9.999999974752427e-07 is 1e-06, 1e-05 is 1e-05, and theta is 1e7."""
        for eps in (1e-6, 1e-5):
            path = gguf_file(tmp_path / "w.gguf", gguf_tensors(), attention__layer_norm_rms_epsilon=eps)
            assert (load(path).config.eps, load(path).config.rope_theta) == (eps, 1e7)

    def test_matrix_beyond_fp16_scales_is_named(self, tmp_path: Path) -> None:
        """An F32 matrix whose block needs an infinite scale is refused by the name in the file."""
        tensors = gguf_tensors()
        tensors["output.weight"][3, 1] = 8.4e6
        with pytest.raises(LanelockError, match=r"tensor 'output.weight': row 3"):
            QuantisedWeights(load(gguf_file(tmp_path / "w.gguf", tensors))).tensor("Wout")
