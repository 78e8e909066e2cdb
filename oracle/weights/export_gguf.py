"""Export to a GGUF of architecture qwen35 in Q8_0 that other engines load: the import's recipes, read backwards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.config import ModelConfig
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, Weights
from oracle.weights.assemble import is_quantised
from oracle.weights.dialects import QWEN35
from oracle.weights.gguf_types import F32
from oracle.weights.gguf_types import Q8_0 as Q8_0_TYPE
from oracle.weights.gguf_write import BOOL, FLOAT32, INT32, STRING, UINT32, Described, Value, write_gguf
from oracle.weights.quantised import QuantisedWeights
from oracle.weights.recipe import Piece, recipes
from oracle.weights.save import CHUNK, Progress
from oracle.weights.vocabulary import byte_vocabulary

MOSTLY_Q8_0 = 7  # general.file_type


def export_gguf(weights: Weights, path: str | Path, progress: Progress | None = None) -> None:
    """Write weights as a GGUF, whole or not at all, a few rows at a time.

    Shapes: every matrix Q8_0, byte for byte where it already is; `ba` (ssm_beta, ssm_alpha) and the rest float32.
    Error:  that of `QuantisedWeights`; none for weights that are ours.
    Source: ggml's converter for Qwen3.5. The tokenizer is a stand-in of 256 bytes. Raises LanelockError, naming the
    file.
    """
    view = QuantisedWeights(weights)
    parts = sources(view.config)
    described = [Described(source, Q8_0_TYPE if is_quantised(name) else F32, pieces[0][0].shape)
                 for source, (name, pieces) in parts.items()]
    total = sum(tensor.length for tensor in described)
    write_gguf(path, metadata(view.config), described, _content(view, progress, total))
    if progress is not None:
        progress("", total, total)


def sources(config: ModelConfig) -> dict[str, tuple[str, list[tuple[Piece, int]]]]:
    """For every tensor of the GGUF: ours that holds it, and its pieces there with the row each starts at."""
    table: dict[str, tuple[str, list[tuple[Piece, int]]]] = {}
    for name, pieces in recipes(config, QWEN35).items():
        low = 0
        for piece in pieces:
            table.setdefault(piece.source, (name, []))[1].append((piece, low))
            low += piece.height
    return table


def metadata(config: ModelConfig) -> dict[str, Value]:
    """Every key that the architecture needs, in the converter's order."""
    half = config.rope_dim // 2
    # positions of text are equal on all axes, so any split of the angles is the same rotation; this is the family's.
    sections = (*(half // 3 + (axis < half % 3) for axis in range(3)), 0)
    tokens, kinds, merges = byte_vocabulary(config.vocab)
    blocks = config.layers + config.mtp
    recurrent = tuple(not config.is_attention(i) and i < config.layers for i in range(blocks))
    numbers = {"block_count": blocks, "context_length": config.context, "embedding_length": config.d,
               "feed_forward_length": config.ffn, "attention.head_count": config.q_heads,
               "attention.head_count_kv": config.kv_heads, "attention.key_length": config.head_dim,
               "attention.value_length": config.head_dim, "ssm.conv_kernel": config.conv_taps,
               "ssm.state_size": config.gdn_dim, "ssm.group_count": config.k_heads,
               "ssm.time_step_rank": config.v_heads, "ssm.inner_size": config.gdn_v,
               "full_attention_interval": config.period, "rope.dimension_count": config.rope_dim}
    if config.mtp:
        numbers["nextn_predict_layers"] = 1
    floats = {"rope.freq_base": config.rope_theta, "attention.layer_norm_rms_epsilon": config.eps}
    return {
        "general.architecture": Value(STRING, "qwen35"), "general.type": Value(STRING, "model"),
        "general.name": Value(STRING, config.name), "general.file_type": Value(UINT32, MOSTLY_Q8_0),
        "general.quantization_version": Value(UINT32, 2),
        **{f"qwen35.{key}": Value(UINT32, number) for key, number in numbers.items()},
        **{f"qwen35.{key}": Value(FLOAT32, number) for key, number in floats.items()},
        "qwen35.rope.dimension_sections": Value(INT32, sections),
        "qwen35.attention.recurrent_layers": Value(BOOL, recurrent),
        "tokenizer.ggml.model": Value(STRING, "gpt2"), "tokenizer.ggml.pre": Value(STRING, "qwen2"),
        "tokenizer.ggml.tokens": Value(STRING, tokens), "tokenizer.ggml.token_type": Value(INT32, kinds),
        "tokenizer.ggml.merges": Value(STRING, merges),
        "tokenizer.ggml.bos_token_id": Value(UINT32, config.vocab - 1),
        "tokenizer.ggml.eos_token_id": Value(UINT32, config.vocab - 1),
        "tokenizer.ggml.add_bos_token": Value(BOOL, value=False),
    }


def blocks_of(tensor: Q8_0) -> NDArray[np.uint8]:
    """GGUF's blocks.  Shapes: [N, K/32 · 34] bytes: scale, then 32 codes.  Error: none.  Source: ggml's block_q8_0."""
    rows, columns = tensor.scales.shape
    out = np.empty((rows, columns, 34), np.uint8)
    out[:, :, :2] = np.ascontiguousarray(tensor.scales, "<f2").view(np.uint8).reshape(rows, columns, 2)
    out[:, :, 2:] = np.ascontiguousarray(tensor.codes).view(np.uint8).reshape(rows, columns, 32)
    return out.reshape(rows, -1)


def _content(weights: Weights, progress: Progress | None, total: int) -> Iterator[bytes]:
    done = 0
    for source, (name, pieces) in sources(weights.config).items():
        for tensor in _parts(weights, name, pieces):
            if progress is not None:
                progress(source, done, total)
            data = blocks_of(tensor).tobytes() if isinstance(tensor, Q8_0) else tensor.astype("<f4").tobytes()
            done += len(data)
            yield data


def _parts(weights: Weights, name: str, pieces: list[tuple[Piece, int]]) -> Iterator[Tensor]:
    shape = pieces[0][0].shape
    if len(shape) == 1 or name.endswith("Wc"):
        whole: NDArray[Any] = np.asarray(weights.tensor(name))
        yield whole.T if name.endswith("Wc") else whole
        return
    ours = np.empty(shape[0], np.int64)
    for piece, low in pieces:
        ours[slice(None) if piece.rows is None else piece.rows] = low + np.arange(piece.height)
    step = max(1, CHUNK // shape[1])
    for low in range(0, shape[0], step):
        yield weights.rows(name, ours[low:low + step])
