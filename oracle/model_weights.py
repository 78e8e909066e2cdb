"""What the model asks of its weights: tensors by name, one at a time, so that a large model can stream.

Names: `emb`, `Wout` (absent when tied), `on`; `layers.I.` and then `an fn gu Wd` in every layer, `qgkv Qn Kn Wo` in an
attention layer, `qkvz ba Wc Dt Al Gn Wo` in a GDN layer; `mtp.` and then `ehproj enorm hnorm shnorm` and the names of
one attention layer. Heads are in tiled order, norms hold w (not w - 1), `Al` holds A = -exp(A_log) < 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle.config import BLOCK, ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0

# a float array is float32 or float64; a projection may be one too (an import kept unquantised).
Tensor = NDArray[Any] | Q8_0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape of a tensor and whether our files hold it as Q8_0 (else float32)."""

    shape: tuple[int, ...]
    quantised: bool


class Weights(Protocol):
    """Named tensors of one model. A caller asks for one tensor at a time and lets it go."""

    @property
    def config(self) -> ModelConfig:
        """Sizes that every tensor fits."""

    def tensor(self, name: str) -> Tensor:
        """The whole tensor. Raises LanelockError, naming it, if there is none."""

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix, in that order, without holding the rest (embedding rows; the head in blocks)."""


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Weights held in memory."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. Raises LanelockError if there is none."""
        if name not in self.tensors:
            raise LanelockError(f"weights of {self.config.name} have no tensor {name!r}.")
        return self.tensors[name]

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix."""
        return take_rows(self.tensor(name), index)


def take_rows(tensor: Tensor, index: NDArray[np.int64] | slice) -> Tensor:
    """Those rows of a tensor, in that order."""
    if isinstance(tensor, Q8_0):
        return Q8_0(tensor.codes[index], tensor.scales[index])
    return tensor[index]


def specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of a model, in file order: top level, layers ascending, MTP."""
    table = {"emb": _matrix(config.vocab, config.d)}
    if not config.tied:
        table["Wout"] = _matrix(config.vocab, config.d)
    table["on"] = _vector(config.d)
    for layer in range(config.layers):
        block = _attention(config) if config.is_attention(layer) else _gdn(config)
        table |= {f"layers.{layer}.{name}": spec for name, spec in block.items()}
    if config.mtp:
        table["mtp.ehproj"] = _matrix(config.d, 2 * config.d)
        table |= {f"mtp.{name}": _vector(config.d) for name in ("enorm", "hnorm", "shnorm")}
        table |= {f"mtp.{name}": spec for name, spec in _attention(config).items()}
    return table


def head_name(config: ModelConfig) -> str:
    """The tensor that makes logits: the embedding itself when tied."""
    return "emb" if config.tied else "Wout"


def _matrix(rows: int, columns: int) -> TensorSpec:
    assert columns % BLOCK == 0
    return TensorSpec((rows, columns), quantised=True)


def _vector(*shape: int) -> TensorSpec:
    return TensorSpec(shape, quantised=False)


def _shared(config: ModelConfig) -> dict[str, TensorSpec]:
    return {"an": _vector(config.d), "fn": _vector(config.d),
            "gu": _matrix(2 * config.ffn, config.d), "Wd": _matrix(config.d, config.ffn)}


def _attention(config: ModelConfig) -> dict[str, TensorSpec]:
    return _shared(config) | {
        "qgkv": _matrix(config.attn_proj, config.d), "Qn": _vector(config.head_dim), "Kn": _vector(config.head_dim),
        "Wo": _matrix(config.d, config.q_width)}


def _gdn(config: ModelConfig) -> dict[str, TensorSpec]:
    return _shared(config) | {
        "qkvz": _matrix(config.gdn_proj, config.d), "ba": _vector(2 * config.v_heads, config.d),
        "Wc": _vector(config.conv_taps, config.conv_channels), "Dt": _vector(config.v_heads),
        "Al": _vector(config.v_heads), "Gn": _vector(config.gdn_dim), "Wo": _matrix(config.d, config.gdn_v)}
