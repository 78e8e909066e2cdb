"""How each of our tensors is put together from the tensors of a foreign checkpoint, as data.

A recipe is a list of pieces, stacked along the first axis. The same recipes, read backwards, make the export.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from oracle.config import ModelConfig
from oracle.model_weights import specs

Index = NDArray[np.int64]


class Fold(Enum):
    """What is done to the values of a piece; everything but AS_IS is done in float64."""

    AS_IS = "as it is"
    PLUS_ONE = "checkpoint holds w - 1"
    NEGATIVE_EXP = "checkpoint holds log(-A)"
    TAPS_FIRST = "checkpoint holds [channel, ..., tap], we hold [tap, channel]"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one tensor of the file. None stands for all of them, in their order.

    Shapes: shape is what the file must give; rows and columns index it, in our order.
    """

    source: str
    shape: tuple[int, ...]
    rows: Index | None = None
    columns: Index | None = None
    fold: Fold = Fold.AS_IS

    @property
    def height(self) -> int:
        """Rows that this piece gives (channels, for a convolution)."""
        return self.shape[0] if self.rows is None else self.rows.size


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of files names and stores the tensors of a block.

    `names` maps the parts below to the file's names inside a block; `block` and `draft` are name formats of the prefix
    of a layer and of the MTP block. `grouped`: value heads of one key head lie side by side (Hugging Face); else in our
    tiled order.
    """

    names: Mapping[str, str]
    block: str
    draft: str
    grouped: bool
    norm: Fold
    decay: Fold
    conv_inner: tuple[int, ...]  # axes between channel and tap
    fused_ba: bool = False       # b and a of each key head's group side by side in one tensor


Recipes = dict[str, tuple[Piece, ...]]


def recipes(config: ModelConfig, dialect: Dialect) -> Recipes:
    """The recipe of every tensor of the model.

    Shapes: those of `oracle.model_weights.specs`; a file's shapes are in the pieces.
    Source: the Qwen3.5 modelling code for head order, interleaved gate and norms. Raises nothing.
    """
    top = dialect.names
    vector = (config.d,)
    table: Recipes = {"emb": (Piece(top["emb"], (config.vocab, config.d)),),
                      "on": (Piece(top["on"], vector, fold=dialect.norm),)}
    if not config.tied:
        table["Wout"] = (Piece(top["Wout"], (config.vocab, config.d)),)
    for layer in range(config.layers):
        build = _attention if config.is_attention(layer) else _gdn
        block = build(config, dialect, dialect.block.format(layer=layer))
        table |= {f"layers.{layer}.{name}": pieces for name, pieces in block.items()}
    if config.mtp:
        prefix = dialect.draft.format(layer=config.layers)
        table |= {f"mtp.{name}": pieces for name, pieces in _attention(config, dialect, prefix).items()}
        table |= _draft(config, dialect)
    return {name: table[name] for name in specs(config)}


def tiled_heads(config: ModelConfig) -> Index:
    """The grouped (Hugging Face) value head that our value head h is: r·(h % nk) + h // nk, r = nv/nk."""
    head = np.arange(config.v_heads)
    return config.ratio * (head % config.k_heads) + head // config.k_heads


def spread(heads: Index, width: int) -> Index:
    """Row numbers of whole heads.  Shapes: heads [H] -> [H · width]."""
    return (heads[:, None] * width + np.arange(width)).ravel()


def _draft(config: ModelConfig, dialect: Dialect) -> Recipes:
    def name(part: str) -> str:
        return dialect.names[part].format(layer=config.layers)

    table: Recipes = {"mtp.ehproj": (Piece(name("ehproj"), (config.d, 2 * config.d)),)}
    for part in ("enorm", "hnorm", "shnorm"):
        table[f"mtp.{part}"] = (Piece(name(part), (config.d,), fold=dialect.norm),)
    return table


def _shared(config: ModelConfig, dialect: Dialect, prefix: str) -> Recipes:
    def whole(part: str, *shape: int, fold: Fold = Fold.AS_IS) -> Piece:
        return Piece(prefix + dialect.names[part], shape, fold=fold)

    return {"an": (whole("an", config.d, fold=dialect.norm),), "fn": (whole("fn", config.d, fold=dialect.norm),),
            "gu": (whole("gate", config.ffn, config.d), whole("up", config.ffn, config.d)),
            "Wd": (whole("down", config.d, config.ffn),)}


def _attention(config: ModelConfig, dialect: Dialect, prefix: str) -> Recipes:
    def whole(part: str, *shape: int, fold: Fold = Fold.AS_IS) -> Piece:
        return Piece(prefix + dialect.names[part], shape, fold=fold)

    # head_dim rows of q, then head_dim of gate, head by head.
    rows = np.arange(2 * config.q_width).reshape(config.q_heads, 2, config.head_dim)
    both = prefix + dialect.names["q"], (2 * config.q_width, config.d)
    return _shared(config, dialect, prefix) | {
        "qgkv": (Piece(*both, rows=rows[:, 0].ravel()), Piece(*both, rows=rows[:, 1].ravel()),
                 whole("k", config.kv_width, config.d), whole("v", config.kv_width, config.d)),
        "Qn": (whole("Qn", config.head_dim, fold=dialect.norm),),
        "Kn": (whole("Kn", config.head_dim, fold=dialect.norm),),
        "Wo": (whole("o", config.d, config.q_width),)}


def _gdn(config: ModelConfig, dialect: Dialect, prefix: str) -> Recipes:
    def piece(part: str, *shape: int, rows: Index | None = None, columns: Index | None = None,
              fold: Fold = Fold.AS_IS) -> Piece:
        return Piece(prefix + dialect.names[part], shape, rows, columns, fold)

    heads = tiled_heads(config) if dialect.grouped else None
    values = None if heads is None else spread(heads, config.gdn_dim)
    channels = None if values is None else np.concatenate(
        [np.arange(2 * config.gdn_qk), 2 * config.gdn_qk + values])
    width = config.v_heads
    return _shared(config, dialect, prefix) | {
        "qkvz": (piece("qkv", config.conv_channels, config.d, rows=channels),
                 piece("z", config.gdn_v, config.d, rows=values)),
        "ba": _ba(config, dialect, prefix, heads),
        "Wc": (piece("conv", config.conv_channels, *dialect.conv_inner, config.conv_taps, rows=channels,
                     fold=Fold.TAPS_FIRST),),
        "Dt": (piece("dt", width, rows=heads),),
        "Al": (piece("A", width, rows=heads, fold=dialect.decay),),
        # the one norm that every checkpoint stores as w, and that all heads share.
        "Gn": (piece("Gn", config.gdn_dim),),
        "Wo": (piece("out", config.d, config.gdn_v, columns=values),)}


def _ba(config: ModelConfig, dialect: Dialect, prefix: str, heads: Index | None) -> tuple[Piece, ...]:
    if not dialect.fused_ba:
        shape = (config.v_heads, config.d)
        return tuple(Piece(prefix + dialect.names[part], shape, heads) for part in ("b", "a"))
    # per key head: r rows of b, then r rows of a.
    order = np.arange(config.v_heads) if heads is None else heads
    first = order // config.ratio * 2 * config.ratio + order % config.ratio
    source = prefix + dialect.names["ba"], (2 * config.v_heads, config.d)
    return Piece(*source, rows=first), Piece(*source, rows=first + config.ratio)
