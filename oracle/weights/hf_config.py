"""A Hugging Face config.json of the qwen3_5 family as our config; whatever we do not compute is refused by name."""

from pathlib import Path
from typing import Any

from oracle import json_text
from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.weights.mapped import refusal

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")

# field: the only value that the formulas of this model allow; absent means that value.
FIXED: dict[str, Any] = {"hidden_act": "silu", "attn_output_gate": True, "attention_bias": False,
                         "mtp_use_dedicated_embeddings": False}
COUNTS = {"layers": "num_hidden_layers", "d": "hidden_size", "ffn": "intermediate_size", "vocab": "vocab_size",
          "q_heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
          "k_heads": "linear_num_key_heads", "v_heads": "linear_num_value_heads", "gdn_dim": "linear_key_head_dim",
          "conv_taps": "linear_conv_kernel_dim", "context": "max_position_embeddings"}


def read_hf_config(path: Path) -> ModelConfig:
    """The config that a checkpoint's config.json describes; `mtp` as it says there, before tensors are seen.

    Units:  eps and theta are read as JSON numbers, unrounded.
    Source: transformers' Qwen3_5TextConfig. Raises LanelockError naming the file and the field.
    """
    outer = _read(path)
    text = outer.get("text_config", outer)
    if not isinstance(text, dict):
        raise refusal(path, "has a text_config that is not an object")
    for name, level in (("model_type", outer), ("text_config.model_type", text)):
        if level.get("model_type") not in MODEL_TYPES:
            raise refusal(path, f"{name} is {level.get('model_type')!r}; {' and '.join(MODEL_TYPES)} are read")
    if outer.get("quantization_config") or text.get("quantization_config"):
        raise refusal(path, "has a quantization_config; only unquantised checkpoints are read")
    for field, value in FIXED.items():
        if text.get(field, value) != value:
            raise refusal(path, f"has {field} {text[field]!r}; only {value!r} is computed")
    counts = {ours: _field(path, text, theirs) for ours, theirs in COUNTS.items()}
    if text.get("linear_value_head_dim") != counts["gdn_dim"]:
        raise refusal(path, "has linear_value_head_dim other than linear_key_head_dim")
    tied = text.get("tie_word_embeddings", outer.get("tie_word_embeddings", False))
    rope_dim, theta = _rope(path, text, counts["head_dim"])
    drafts = text.get("mtp_num_hidden_layers", 0)
    if drafts not in (0, 1):
        raise refusal(path, f"has {drafts!r} MTP layers; none or one are read")
    eps = _real(path, "rms_norm_eps", _field(path, text, "rms_norm_eps"))
    fields = {**counts, "name": path.resolve().parent.name or "model", "rope_dim": rope_dim, "rope_theta": theta,
              "eps": eps, "period": _period(path, text, counts["layers"]), "tied": tied, "mtp": drafts == 1}
    try:
        return ModelConfig(**fields)
    except LanelockError as error:
        raise LanelockError(f"{path}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json_text.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refusal(path, f"is not a readable JSON config ({error})") from error
    if not isinstance(data, dict):
        raise refusal(path, "is not a JSON object")
    return data


def _field(path: Path, text: dict[str, Any], name: str) -> Any:
    if name not in text:
        raise refusal(path, f"lacks {name}")
    return text[name]


def _rope(path: Path, text: dict[str, Any], head_dim: object) -> tuple[int, float]:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise refusal(path, "has rope_parameters that are not an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise refusal(path, f"has rope_type {kind!r}; only the default is computed")
    theta = rope.get("rope_theta", text.get("rope_theta"))
    share = rope.get("partial_rotary_factor", text.get("partial_rotary_factor"))
    # the product is exact for every share in use (a quarter).
    width = _real(path, "head_dim", head_dim) * _real(path, "partial_rotary_factor", share)
    if not abs(width) < 2**31 or width != int(width):
        raise refusal(path, f"has partial_rotary_factor {share!r}, which gives no whole width of {head_dim!r}")
    sections = rope.get("mrope_section")
    if sections is not None and (not isinstance(sections, list) or 2 * sum(map(_count, sections)) != int(width)):
        raise refusal(path, f"has mrope_section {sections!r}, which does not add up to half of {int(width)}")
    return int(width), _real(path, "rope_theta", theta)


def _real(path: Path, name: str, value: object) -> float:
    # JSON integers have no limit; one beyond float64 must not overflow later.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise refusal(path, f"has {name} {str(value)[:40]}, which is not a number that we can hold")
    return float(value)


def _count(value: object) -> int:
    return value if isinstance(value, int) else -(2**31)


def _period(path: Path, text: dict[str, Any], layers: object) -> Any:
    period = text.get("full_attention_interval", 4)
    if isinstance(period, bool) or not isinstance(period, int) or not 0 < period < 2**31:
        raise refusal(path, f"has full_attention_interval {period!r}")
    kinds = text.get("layer_types")
    if kinds is None:
        return period
    # compared lengths first: a lying layer count must not make us build a long list.
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise refusal(path, f"has layer_types that are not a list of num_hidden_layers = {layers!r}")
    wanted = ["full_attention" if i % period == period - 1 else "linear_attention" for i in range(len(kinds))]
    if kinds != wanted:
        raise refusal(path, f"has layer_types that do not repeat every {period} layers")
    return period
