"""Small checkpoints for the locks, written by code that shares nothing with the readers.

GGUF is written byte by byte with struct, so that every field can lie; safetensors by the published package.
"""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray
from safetensors.numpy import save_file

from oracle.formats import Q8_0

PEER = Path(__file__).parents[1] / "data" / "qwen35-ratio3"
PEER_GGUF = PEER / "model-q8_0.gguf"

UINT32, FLOAT32, STRING = 4, 6, 8


@dataclass(slots=True)
class Lie:
    """A GGUF of F32 tensors in which every field of the header can be given; the defaults are honest.

    `tensors`: name, dimensions as the file gives them, type, offset, bytes.
    """

    tensors: list[tuple[str, tuple[int, ...], int, int, bytes]] = field(default_factory=list)
    keys: list[tuple[str, int, bytes]] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    tensor_count: int | None = None
    key_count: int | None = None
    dims_count: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        """Everything before the padding."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        out = self.magic + self.version + struct.pack("<QQ", tensors, keys)
        for key, kind, value in self.keys:
            out += text(key) + struct.pack("<I", kind) + value
        for name, dims, kind, offset, _ in self.tensors:
            count = len(dims) if self.dims_count is None else self.dims_count
            out += text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)
        return out

    def data(self) -> bytes:
        """Tensors one after another, each padded."""
        return b"".join(raw + bytes(-len(raw) % self.alignment) for *_, raw in self.tensors)

    def to(self, path: Path) -> Path:
        """Write the file."""
        head = self.header()
        path.write_bytes(head + bytes(-len(head) % self.alignment) + self.data())
        return path


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def floats(*values: float) -> bytes:
    """Little-endian float32."""
    return np.asarray(values, "<f4").tobytes()


def two_tensors(**changes: Any) -> Lie:
    """An honest file of two vectors, `a` = 1..8 and `b` = 9..16, 32 bytes each."""
    return Lie(tensors=[("a", (8,), 0, 0, floats(*range(1, 9))), ("b", (8,), 0, 32, floats(*range(9, 17)))], **changes)


def hf_config(**changes: Any) -> dict[str, Any]:
    """A config.json of the small model."""
    text_config = {
        "model_type": "qwen3_5_text", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32,
        "vocab_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "full_attention_interval": 2, "hidden_act": "silu", "tie_word_embeddings": False,
        "mtp_num_hidden_layers": 1, "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    return {"model_type": "qwen3_5", "text_config": {**text_config, **changes}}


def hf_shapes(prefix: str = "model.language_model.") -> dict[str, tuple[int, ...]]:
    """Names and shapes of the small model as Hugging Face writes them, spelled out."""
    layer = prefix + "layers."
    block = {"input_layernorm.weight": (32,), "post_attention_layernorm.weight": (32,),
             "mlp.gate_proj.weight": (32, 32), "mlp.up_proj.weight": (32, 32), "mlp.down_proj.weight": (32, 32)}
    attention = {"self_attn.q_proj.weight": (64, 32), "self_attn.k_proj.weight": (32, 32),
                 "self_attn.v_proj.weight": (32, 32), "self_attn.o_proj.weight": (32, 32),
                 "self_attn.q_norm.weight": (32,), "self_attn.k_norm.weight": (32,)}
    gdn = {"linear_attn.in_proj_qkv.weight": (64, 32), "linear_attn.in_proj_z.weight": (32, 32),
           "linear_attn.in_proj_b.weight": (2, 32), "linear_attn.in_proj_a.weight": (2, 32),
           "linear_attn.conv1d.weight": (64, 1, 4), "linear_attn.A_log": (2,), "linear_attn.dt_bias": (2,),
           "linear_attn.norm.weight": (16,), "linear_attn.out_proj.weight": (32, 32)}
    return {
        prefix + "embed_tokens.weight": (8, 32), prefix + "norm.weight": (32,), "lm_head.weight": (8, 32),
        **{f"{layer}0.{name}": shape for name, shape in {**block, **gdn}.items()},
        **{f"{layer}1.{name}": shape for name, shape in {**block, **attention}.items()},
        "mtp.fc.weight": (32, 64), "mtp.norm.weight": (32,), "mtp.pre_fc_norm_embedding.weight": (32,),
        "mtp.pre_fc_norm_hidden.weight": (32,),
        **{f"mtp.layers.0.{name}": shape for name, shape in {**block, **attention}.items()}}


def hf_tensors(prefix: str = "model.language_model.") -> dict[str, NDArray[np.float32]]:
    """Random values for the small model."""
    rng = np.random.default_rng(11)
    return {name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in hf_shapes(prefix).items()}


def hf_folder(folder: Path, tensors: dict[str, NDArray[Any]] | None = None, **config: Any) -> Path:
    """Write a checkpoint of one file and its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(**config)))
    save_file(hf_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def sharded(folder: Path, tensors: dict[str, NDArray[Any]], shards: int = 3) -> Path:
    """Write the same as shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config()))
    names = sorted(tensors)
    where = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
    for shard in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == shard}, folder / shard)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def plain_safetensors(path: Path, header: dict[str, Any] | bytes, data: bytes, length: int | None = None) -> Path:
    """Write a safetensors file whose header says whatever is given."""
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body) if length is None else length) + body + data)
    return path


def same(ours: Any, theirs: Any) -> bool:
    """Equal to the bit, codes and scales too."""
    if isinstance(ours, Q8_0):
        return np.array_equal(ours.codes, theirs.codes) and np.array_equal(ours.scales, theirs.scales)
    return np.array_equal(ours, theirs)


GGUF_KEYS: dict[str, Any] = {
    "block_count": 3, "context_length": 4096, "embedding_length": 32, "feed_forward_length": 32,
    "attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 32,
    "rope.dimension_count": 8, "rope.freq_base": 1e7, "attention.layer_norm_rms_epsilon": 1e-6,
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 32,
    "full_attention_interval": 2, "nextn_predict_layers": 1}


def gguf_tensors(value_heads: int = 2) -> dict[str, NDArray[np.float32]]:
    """Random values for the small model under GGUF's names, spelled out; key heads stay 1."""
    v = 16 * value_heads
    block = {"attn_norm.weight": (32,), "post_attention_norm.weight": (32,), "ffn_gate.weight": (32, 32),
             "ffn_up.weight": (32, 32), "ffn_down.weight": (32, 32)}
    attention = {"attn_q.weight": (64, 32), "attn_k.weight": (32, 32), "attn_v.weight": (32, 32),
                 "attn_output.weight": (32, 32), "attn_q_norm.weight": (32,), "attn_k_norm.weight": (32,)}
    gdn = {"attn_qkv.weight": (32 + v, 32), "attn_gate.weight": (v, 32), "ssm_beta.weight": (value_heads, 32),
           "ssm_alpha.weight": (value_heads, 32), "ssm_conv1d.weight": (32 + v, 4), "ssm_a": (value_heads,),
           "ssm_dt.bias": (value_heads,), "ssm_norm.weight": (16,), "ssm_out.weight": (32, v)}
    draft = {"nextn.eh_proj.weight": (32, 64), "nextn.enorm.weight": (32,), "nextn.hnorm.weight": (32,),
             "nextn.shared_head_norm.weight": (32,)}
    shapes = {"token_embd.weight": (8, 32), "output.weight": (8, 32), "output_norm.weight": (32,),
              **{f"blk.0.{name}": shape for name, shape in {**block, **gdn}.items()},
              **{f"blk.1.{name}": shape for name, shape in {**block, **attention}.items()},
              **{f"blk.2.{name}": shape for name, shape in {**block, **attention, **draft}.items()}}
    rng = np.random.default_rng(12)
    return {name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in shapes.items()}


def gguf_file(path: Path, tensors: dict[str, NDArray[Any]], types: dict[str, str] | None = None,
              architecture: str = "qwen35", **keys: Any) -> Path:
    """Write a GGUF by the gguf package: F32, or the type given for a name, as the package encodes it.

    A key given as None is left out; dots in keys are spelled as two underscores.
    """
    writer = GGUFWriter(path, architecture)
    for key, value in {**GGUF_KEYS, **{key.replace("__", "."): value for key, value in keys.items()}}.items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, tuple: writer.add_array, str: writer.add_string}
            add[type(value)](f"{architecture}.{key}", value)
    for name, value in tensors.items():
        kind = GGMLQuantizationType[(types or {}).get(name, "F32")]
        data = value if kind is GGMLQuantizationType.F32 else quants.quantize(value, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
