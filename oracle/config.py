"""Sizes of a Qwen3.5-family model, from a preset or a JSON file, checked before anything is allocated."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from oracle import json_text
from oracle.errors import LanelockError

BLOCK = 32  # a Q8_0 block along K; every projection's input width is a whole number of blocks


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model.

    Shapes: counts and widths are elements; `head_dim` is attention's, `gdn_dim` that of GDN keys and values.
    Units:  eps has the unit of a mean square; rope_theta is a pure number.
    Source: the text part of the qwen3_5 architecture. Raises LanelockError, naming the field, if sizes do not fit.
    """

    name: str
    layers: int
    d: int
    ffn: int
    vocab: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_theta: float
    k_heads: int
    v_heads: int
    gdn_dim: int
    conv_taps: int = 4
    eps: float = 1e-6
    context: int = 262144
    period: int = 4
    tied: bool = False
    mtp: bool = True

    def __post_init__(self) -> None:
        _check_types(self)
        _check_sizes(self)

    @property
    def q_width(self) -> int:
        """Width of all query heads side by side."""
        return self.q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads side by side; values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def attn_proj(self) -> int:
        """Rows of attention's entry projection: Q, gate, K, V."""
        return 2 * self.q_width + 2 * self.kv_width

    @property
    def gdn_qk(self) -> int:
        """Width of all GDN key heads; queries have the same."""
        return self.k_heads * self.gdn_dim

    @property
    def gdn_v(self) -> int:
        """Width of all GDN value heads; Z has the same."""
        return self.v_heads * self.gdn_dim

    @property
    def conv_channels(self) -> int:
        """Channels that the causal convolution runs over: Q, K, V."""
        return 2 * self.gdn_qk + self.gdn_v

    @property
    def gdn_proj(self) -> int:
        """Rows of the GDN entry projection: Q, K, V, Z."""
        return self.conv_channels + self.gdn_v

    @property
    def ratio(self) -> int:
        """Value heads per key head."""
        return self.v_heads // self.k_heads

    def is_attention(self, layer: int) -> bool:
        """Whether this layer is attention; the others are Gated DeltaNet."""
        return layer % self.period == self.period - 1

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    def to_json(self) -> str:
        """All fields as one JSON object, which `from_json` reads back to an equal config."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "config") -> "ModelConfig":
        """A config from its fields; fields with a default may be absent. Raises LanelockError on any other."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise LanelockError(f"{where}: unknown field {unknown[0]!r}.")
        missing = sorted(known - set(data) - set(_DEFAULTED))
        if missing:
            raise LanelockError(f"{where}: field {missing[0]!r} is missing.")
        return cls(**data)

    @classmethod
    def from_json(cls, path: str | Path) -> "ModelConfig":
        """A config from a JSON file of fields. Raises LanelockError if the file cannot be read or does not fit."""
        try:
            data = json_text.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LanelockError(f"{path}: not a readable JSON config ({error}).") from error
        if not isinstance(data, dict):
            raise LanelockError(f"{path}: a config is a JSON object, not a {type(data).__name__}.")
        return cls.from_dict(data, str(path))


_DEFAULTED = ("conv_taps", "eps", "context", "period", "tied", "mtp")
_COUNTS = ("layers", "d", "ffn", "vocab", "q_heads", "kv_heads", "head_dim", "rope_dim",
           "k_heads", "v_heads", "gdn_dim", "conv_taps", "context", "period")


def _check_types(config: ModelConfig) -> None:
    if not isinstance(config.name, str) or not config.name:
        raise LanelockError("config: name must be a non-empty string.")
    for field in _COUNTS:
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise LanelockError(f"config {config.name}: {field} must be a positive 32-bit integer, not {value!r}.")
    for field in ("tied", "mtp"):
        if not isinstance(getattr(config, field), bool):
            raise LanelockError(f"config {config.name}: {field} must be true or false.")
    for field, low in (("eps", 0.0), ("rope_theta", 1.0)):
        value = getattr(config, field)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # compared as they are: JSON integers have no limit, and one beyond float64 must not overflow here.
        if not number or not low < value < 1e300:
            raise LanelockError(f"config {config.name}: {field} must be a finite number above {low:g}, not {value!r}.")


def _check_sizes(config: ModelConfig) -> None:
    rules = (
        (config.conv_taps == 4, "conv_taps must be 4"),
        (config.q_heads % config.kv_heads == 0, "q_heads must be a multiple of kv_heads"),
        (config.v_heads % config.k_heads == 0, "v_heads must be a multiple of k_heads"),
        (config.rope_dim % 2 == 0, "rope_dim must be even"),
        (config.rope_dim <= config.head_dim, "rope_dim must not exceed head_dim"),
        (config.d % BLOCK == 0, "d must be a multiple of 32"),
        (config.ffn % BLOCK == 0, "ffn must be a multiple of 32"),
        (config.q_width % BLOCK == 0, "q_heads * head_dim must be a multiple of 32"),
        (config.gdn_v % BLOCK == 0, "v_heads * gdn_dim must be a multiple of 32"),
    )
    for holds, sentence in rules:
        if not holds:
            raise LanelockError(f"config {config.name}: {sentence}.")


def _family(name: str, layers: int, d: int, ffn: int, q_heads: int, kv_heads: int, v_heads: int,
            tied: bool) -> ModelConfig:
    return ModelConfig(name, layers, d, ffn, 248320, q_heads, kv_heads, 256, 64, 1e7, 16, v_heads, 128, tied=tied)


_PRESETS = {config.name: config for config in (
    _family("qwen3.8-27b", 64, 5120, 17408, 24, 4, 48, tied=False),
    _family("qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 16, tied=True),
    _family("qwen3.5-2b", 24, 2048, 6144, 8, 2, 16, tied=True),
    _family("qwen3.5-4b", 32, 2560, 9216, 16, 4, 32, tied=True),
    _family("qwen3.5-9b", 32, 4096, 12288, 16, 4, 32, tied=False),
    # real head dims and value/key ratio, everything else small and no width but the heads' a multiple of 256.
    ModelConfig("mini", 8, 320, 544, 1056, 6, 2, 256, 64, 1e7, 2, 6, 128),
    # for the host device: 32-wide heads, four layers.
    ModelConfig("tiny", 4, 96, 160, 256, 6, 2, 32, 8, 1e7, 2, 6, 32),
)}

PRESETS = tuple(_PRESETS)


def preset(name: str) -> ModelConfig:
    """The config of that name. Raises LanelockError, listing the names, if there is none."""
    if name not in _PRESETS:
        raise LanelockError(f"there is no config {name!r}; presets are {', '.join(PRESETS)}.")
    return _PRESETS[name]


def load(spec: str) -> ModelConfig:
    """A preset by name or else a config from a JSON file. Raises LanelockError if it is neither."""
    return _PRESETS[spec] if spec in _PRESETS else _from_file(spec)


def _from_file(spec: str) -> ModelConfig:
    if not Path(spec).exists():
        raise LanelockError(f"{spec!r} is neither a config preset ({', '.join(PRESETS)}) nor a file.")
    return ModelConfig.from_json(spec)
