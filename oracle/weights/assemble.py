"""Weights put together by recipe from the tensors of a foreign checkpoint, a few rows at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle.config import BLOCK, ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0, q8_0_decode, q8_0_encode
from oracle.model_weights import Tensor, take_rows
from oracle.weights.recipe import Fold, Index, Piece, Recipes


class Source(Protocol):
    """Tensors of a checked file, by the names that recipes use."""

    @property
    def where(self) -> str:
        """The file, for error messages."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor that must be used."""

    def read(self, name: str, rows: Index | None) -> Tensor:
        """Those rows: float32 or float64 values, or Q8_0 as stored."""


@dataclass(frozen=True, slots=True)
class AssembledWeights:
    """A checkpoint seen through its recipes; nothing is read before it is asked for.

    Units:  float tensors hold the file's values, folds added in float64; Q8_0 tensors hold the file's own codes.
            With `encode` every matrix that we hold as Q8_0 is one: parts that are not are encoded, once.
    Raises LanelockError from `tensor` and `rows`, naming file and tensor, for NaN, infinity or an unknown name.
    """

    config: ModelConfig
    source: Source
    recipes: Recipes
    encode: bool

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        return self._join([self._read(name, piece, None) for piece in self._recipe(name)])

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix, in that order."""
        parts, places, low = [], [], 0
        for piece in self._recipe(name):
            inside = np.flatnonzero((index >= low) & (index < low + piece.height))
            if inside.size:
                parts.append(self._read(name, piece, index[inside] - low))
                places.append(inside)
            low += piece.height
        if sum(place.size for place in places) != len(index):
            raise LanelockError(f"{self.source.where}: tensor {name!r} has {low} rows, and others were asked for.")
        if not parts:
            return take_rows(self.rows(name, np.zeros(1, np.int64)), index)
        return take_rows(self._join(parts), np.argsort(np.concatenate(places)))

    def _recipe(self, name: str) -> tuple[Piece, ...]:
        if name not in self.recipes:
            raise LanelockError(f"{self.source.where}: the model has no tensor {name!r}.")
        return self.recipes[name]

    def _read(self, name: str, piece: Piece, index: Index | None) -> Tensor:
        part = read_piece(self.source, piece, index)
        if not is_quantised(name):
            return q8_0_decode(part) if isinstance(part, Q8_0) else part
        if self.encode and not isinstance(part, Q8_0):
            return q8_0_encode(part, f"{self.source.where}: tensor {piece.source!r}")
        return part

    @staticmethod
    def _join(parts: list[Tensor]) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        coded = [part for part in parts if isinstance(part, Q8_0)]
        if coded:
            return Q8_0(np.concatenate([q.codes for q in coded]), np.concatenate([q.scales for q in coded]))
        return np.concatenate([np.asarray(part) for part in parts])


def is_quantised(name: str) -> bool:
    """Whether our files hold a tensor of this name as Q8_0."""
    return name.rpartition(".")[2] in {"emb", "Wout", "gu", "Wd", "qgkv", "Wo", "qkvz", "ehproj"}


def read_piece(source: Source, piece: Piece, index: Index | None) -> Tensor:
    """One piece, or those of its rows: gathered, checked to be finite, folded.

    Shapes: [index or all rows, columns]; a convolution is always whole.  Error: a fold is one float64 operation.
    Raises LanelockError naming file and tensor if a value or a scale is NaN or infinite.
    """
    rows = piece.rows if index is None else index if piece.rows is None else piece.rows[index]
    tensor = source.read(piece.source, rows)
    check_finite(tensor, f"{source.where}: tensor {piece.source!r}")
    if isinstance(tensor, Q8_0):
        return _columns(tensor, piece) if piece.fold is Fold.AS_IS else _fold(q8_0_decode(tensor), piece.fold)
    if piece.columns is not None:
        tensor = tensor[:, piece.columns]
    folded = _fold(tensor, piece.fold)
    check_finite(folded, f"{source.where}: tensor {piece.source!r}, {piece.fold.value},")
    return folded


def check_finite(tensor: Tensor, what: str) -> None:
    """Raise LanelockError if a value, or a scale, is NaN or infinite."""
    kind, values = ("scale", tensor.scales) if isinstance(tensor, Q8_0) else ("value", tensor)
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0].tolist()
        raise LanelockError(f"{what} has a {kind} that is NaN or infinite, at {bad}.")


def check_plausible(source: Source, config: ModelConfig) -> None:
    """Refuse a config whose counts exceed anything in the file, before tables of that size are made.

    Raises LanelockError naming the file.
    """
    shapes = source.shapes
    if config.layers > len(shapes):
        raise LanelockError(f"{source.where}: claims {config.layers} layers, but has {len(shapes)} tensors.")
    widest = max(size for shape in shapes.values() for size in (*shape, 1))
    kinds = {config.is_attention(layer) for layer in range(config.layers)} | ({True} if config.mtp else set())
    needed = max(2 * config.q_width * (True in kinds), config.conv_channels * (False in kinds))
    if needed > widest:
        raise LanelockError(f"{source.where}: its config asks for {needed} rows, but no tensor is wider than {widest}.")


def check_complete(source: Source, table: Recipes) -> None:
    """Every tensor of the file is used, every one that the model needs is there, and every shape fits.

    Raises LanelockError naming the file and the tensors.
    """
    needed = {piece.source: piece.shape for pieces in table.values() for piece in pieces}
    shapes = source.shapes
    missing, unused = needed.keys() - shapes.keys(), shapes.keys() - needed.keys()
    faults = [f"{what} {_some(names)}" for what, names in (("lacks", missing), ("has unknown", unused)) if names]
    if faults:
        raise LanelockError(f"{source.where}: " + " and ".join(faults) + ".")
    for name, shape in needed.items():
        if shapes[name] != shape:
            raise LanelockError(f"{source.where}: tensor {name!r} has shape {list(shapes[name])}, "
                                f"but the config asks for {list(shape)}.")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return f"tensor{'s' * (len(ordered) > 1)} " + ", ".join(map(repr, ordered[:4])) + more


def _fold(values: NDArray[Any], fold: Fold) -> NDArray[Any]:
    if fold is Fold.AS_IS:
        return values
    if fold is Fold.PLUS_ONE:
        return values.astype(np.float64) + 1.0
    if fold is Fold.NEGATIVE_EXP:
        # an infinity is refused by the caller, by name.
        with np.errstate(over="ignore"):
            return -np.exp(values.astype(np.float64))
    return np.ascontiguousarray(values.reshape(values.shape[0], -1).T)


def _columns(tensor: Q8_0, piece: Piece) -> Q8_0:
    if piece.columns is None:
        return tensor
    blocks = piece.columns.reshape(-1, BLOCK)
    if not (np.diff(blocks, axis=1) == 1).all() or (blocks[:, 0] % BLOCK).any():
        raise LanelockError(f"tensor {piece.source!r}: heads that are no whole Q8_0 blocks cannot be reordered.")
    return Q8_0(tensor.codes[:, piece.columns], tensor.scales[:, blocks[:, 0] // BLOCK])
