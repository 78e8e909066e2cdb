"""GGUF models of architecture qwen35 and qwen3next."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Tensor
from oracle.weights.assemble import AssembledWeights, check_complete, check_plausible, is_quantised
from oracle.weights.dialects import QWEN3NEXT, QWEN35
from oracle.weights.gguf_file import GgufFile, open_gguf
from oracle.weights.gguf_types import Q8_0 as Q8_0_TYPE
from oracle.weights.gguf_types import TYPES, dequantise
from oracle.weights.mapped import let_go, refusal
from oracle.weights.recipe import Index, recipes

DIALECTS = {"qwen35": QWEN35, "qwen3next": QWEN3NEXT}
COUNTS = {"d": "embedding_length", "ffn": "feed_forward_length", "q_heads": "attention.head_count",
          "kv_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
          "rope_dim": "rope.dimension_count", "k_heads": "ssm.group_count", "v_heads": "ssm.time_step_rank",
          "gdn_dim": "ssm.state_size", "conv_taps": "ssm.conv_kernel", "context": "context_length"}


@dataclass(frozen=True, slots=True)
class GgufSource:
    """Tensors of a checked GGUF file."""

    file: GgufFile

    @property
    def where(self) -> str:
        """The file's path."""
        return str(self.file.path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: info.shape for name, info in self.file.tensors.items()}

    def read(self, name: str, rows: Index | None) -> Tensor:
        """Those rows: Q8_0 byte for byte, any other type as float32."""
        info = self.file.tensors[name]
        let_go(self.file.content)
        blocks = self.file.blocks(name)
        if len(info.shape) == 1:
            values: NDArray[np.float32] = self._floats(name, blocks)[0]
            return values if rows is None else values[rows]
        if rows is not None:
            blocks = blocks[rows]
        if info.type != Q8_0_TYPE:
            return self._floats(name, np.ascontiguousarray(blocks))
        parts = blocks.reshape(blocks.shape[0], -1, 34)
        # copies, so that both are aligned and packed, as a device wants them.
        scales = np.ascontiguousarray(parts[:, :, :2]).view("<f2")[:, :, 0]
        return Q8_0(parts[:, :, 2:].reshape(blocks.shape[0], -1).view(np.int8), scales)

    def _floats(self, name: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        kind = self.file.tensors[name].type
        try:
            return dequantise(blocks, kind)
        except (NotImplementedError, ValueError) as error:
            raise refusal(self.file.path, f"tensor {name!r} has type {TYPES[kind].name}, which is not read") from error


def open_gguf_model(path: str | Path) -> AssembledWeights:
    """Open a GGUF model and check it against its own metadata before any tensor is read.

    Units:  Q8_0 tensors byte for byte; matrices of other types are dequantised and encoded to Q8_0, once.
    Error:  what `dequantise` and `q8_0_encode` say; none for Q8_0 and F32.
    Source: ggml's converter for Qwen3.5. Raises LanelockError naming file and tensor or key.
    """
    file = open_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in DIALECTS:
        raise refusal(file.path, f"has architecture {architecture!r}; {' and '.join(DIALECTS)} are read")
    dialect = DIALECTS[architecture]
    if architecture == "qwen3next":
        dialect = replace(dialect, fused_ba=any(name.endswith("ssm_ba.weight") for name in file.tensors))
    config, source = _config(file, architecture), GgufSource(file)
    check_plausible(source, config)
    _check_layers(file, architecture, config)
    table = recipes(config, dialect)
    check_complete(source, table)
    return AssembledWeights(config, source, table, encode=True)


def requantised(weights: AssembledWeights) -> dict[str, int]:
    """How many matrices of each type are not Q8_0 in the file, and so are dequantised and encoded, once."""
    matrices = {piece.source for name, pieces in weights.recipes.items() if is_quantised(name) for piece in pieces}
    kinds = [] if not isinstance(weights.source, GgufSource) else [
        TYPES[weights.source.file.tensors[name].type].name for name in sorted(matrices)]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds)) if kind != "Q8_0"}


def _config(file: GgufFile, architecture: str) -> ModelConfig:
    fields: dict[str, Any] = {name: _number(file, f"{architecture}.{key}") for name, key in COUNTS.items()}
    optional = {"drafts": ("nextn_predict_layers", 0), "period": ("full_attention_interval", 4)}
    extra = {name: _number(file, f"{architecture}.{key}", default) for name, (key, default) in optional.items()}
    blocks = _number(file, f"{architecture}.block_count")
    if extra["drafts"] not in (0, 1):
        raise refusal(file.path, f"has {extra['drafts']} nextn layers; none or one are read")
    for key, value in (("attention.value_length", fields["head_dim"]),
                       ("ssm.inner_size", fields["v_heads"] * fields["gdn_dim"])):
        if _number(file, f"{architecture}.{key}") != value:
            raise refusal(file.path, f"has {architecture}.{key} other than {value}, which the other sizes give")
    emb = file.tensors.get("token_embd.weight")
    if emb is None or len(emb.shape) != 2:
        raise refusal(file.path, "lacks tensor 'token_embd.weight', a matrix")
    name = file.metadata.get("general.name")
    try:
        config = ModelConfig(
            **fields, name=name if isinstance(name, str) and name else file.path.stem, vocab=emb.shape[0],
            layers=blocks - extra["drafts"], period=extra["period"], mtp=extra["drafts"] == 1,
            rope_theta=_float(file, f"{architecture}.rope.freq_base"),
            eps=_float(file, f"{architecture}.attention.layer_norm_rms_epsilon"),
            tied="output.weight" not in file.tensors)
    except LanelockError as error:
        raise LanelockError(f"{file.path}: {error}") from error
    return config


def _number(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if value is None:
        raise refusal(file.path, f"lacks metadata {key!r}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(file.path, f"has metadata {key!r} that is not an integer ({value!r})")
    return value


def _float(file: GgufFile, key: str) -> float:
    """A float32's shortest decimal: 9.999999974752427e-07 is what 1e-06 becomes in float32."""
    value = file.metadata.get(key)
    if not isinstance(value, float):
        raise refusal(file.path, f"lacks metadata {key!r}, a float")
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def _check_layers(file: GgufFile, architecture: str, config: ModelConfig) -> None:
    kinds = file.metadata.get(f"{architecture}.attention.recurrent_layers")
    wanted = tuple(not config.is_attention(layer) for layer in range(config.layers)) + (False,) * config.mtp
    if kinds is not None and kinds != wanted:
        raise refusal(file.path, f"has {architecture}.attention.recurrent_layers that do not repeat by {config.period}")
    sections = file.metadata.get(f"{architecture}.rope.dimension_sections")
    if sections is not None and not (isinstance(sections, tuple) and all(isinstance(n, int) for n in sections)
                                     and 2 * sum(sections) == config.rope_dim):
        raise refusal(file.path, f"has rope.dimension_sections {sections!r} that are not half of the rope width")
    scaling = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise refusal(file.path, f"has rope scaling {scaling!r}, which is not computed")
