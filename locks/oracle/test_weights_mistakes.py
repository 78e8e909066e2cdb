"""Locks: each single mistake of mapping makes the import of the safetensors differ from the GGUF of the same model.

The GGUF was written by the published converter, so agreement with it is independent of our recipes. Every mistake here
is one change of the recipes; a mistake that went unseen would mean that the comparison no longer guards that line.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from locks.oracle.checkpoints import PEER, PEER_GGUF, same
from oracle.config import ModelConfig, preset
from oracle.model_weights import specs
from oracle.weights import QuantisedWeights, load
from oracle.weights.assemble import AssembledWeights, is_quantised
from oracle.weights.dialects import HUGGING_FACE, QWEN35
from oracle.weights.hf import open_hf
from oracle.weights.recipe import Dialect, Fold, Piece, Recipes, recipes, spread, tiled_heads

CHECKPOINT, CONVERTED = open_hf(PEER), load(PEER_GGUF)
C = CHECKPOINT.config
ORDER = np.array([0, 3, 1, 4, 2, 5])
# a quantisation step moves `ba` by 5e-3 of its size; swapped heads or parts move it by as much as it is.
BA_TOLERANCE = 0.05


def differing(table: Recipes) -> set[str]:
    """Names of our tensors that differ between the safetensors read by these recipes and the GGUF."""
    ours = QuantisedWeights(AssembledWeights(C, CHECKPOINT.source, table, encode=False))
    return {name for name in specs(C) if not _agree(name, ours.tensor(name), CONVERTED.tensor(name))}


def _agree(name: str, a: object, b: object) -> bool:
    if is_quantised(name):
        return same(a, b)
    ours, theirs = np.asarray(a, np.float64), np.asarray(b, np.float64)
    tolerance = BA_TOLERANCE if name.endswith(".ba") else 2.0**-23
    return bool(ours.shape == theirs.shape and np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs))


def pieces(name: str, change: Callable[[Piece], Piece]) -> Recipes:
    """The recipes with every piece of tensors of that name changed."""
    return {ours: tuple(change(piece) for piece in stack) if ours.rpartition(".")[2] == name else stack
            for ours, stack in recipes(C, HUGGING_FACE).items()}


def stacks(name: str, change: Callable[[tuple[Piece, ...]], tuple[Piece, ...]]) -> Recipes:
    """The recipes with the order of pieces changed in tensors of that name."""
    return {ours: change(stack) if ours.rpartition(".")[2] == name else stack
            for ours, stack in recipes(C, HUGGING_FACE).items()}


def swapped(first: str, second: str) -> Recipes:
    """The recipes with two names exchanged, in every layer."""
    table = recipes(C, HUGGING_FACE)

    def other(name: str) -> str:
        head, dot, part = name.rpartition(".")
        return head + dot + {first: second, second: first}.get(part, part)

    return {name: table.get(other(name), table[name]) for name in table}


def dialect(**changes: object) -> Recipes:
    """The recipes of a dialect that is wrong in one convention."""
    wrong: Dialect = replace(HUGGING_FACE, **changes)  # type: ignore[arg-type]  # names and values come in pairs
    return recipes(C, wrong)


def _heads(order: np.ndarray) -> Recipes:
    """Value heads in another order everywhere."""
    table = recipes(C, HUGGING_FACE)
    values, channels = spread(order, C.gdn_dim), np.arange(2 * C.gdn_qk)
    changes = {"qkvz": lambda s: (replace(s[0], rows=np.concatenate([channels, 2 * C.gdn_qk + values])),
                                  replace(s[1], rows=values))}
    return {name: changes.get(name.rpartition(".")[2], lambda s: s)(stack) for name, stack in table.items()}


def _rows(first: int, order: np.ndarray) -> Callable[[Piece], Piece]:
    """Rows from `first` on in another order."""
    def change(piece: Piece) -> Piece:
        rows = np.arange(piece.shape[0]) if piece.rows is None else piece.rows.copy()
        rows[first:first + order.size] = rows[first + order]
        return replace(piece, rows=rows)

    return change


def _halved(piece: Piece) -> Piece:
    """Of q_proj: q from the first half, gate from the second, as if they were not interleaved."""
    if piece.rows is None:
        return piece
    return replace(piece, rows=np.arange(C.q_width) + (C.q_width if piece.rows[0] else 0))


MISTAKES: dict[str, tuple[Callable[[], Recipes], set[str]]] = {
    "value heads left grouped": (lambda: dialect(grouped=False), {"qkvz", "ba", "Wc", "Dt", "Al", "Wo"}),
    "value heads permuted the wrong way": (lambda: _heads(np.argsort(ORDER)), {"qkvz"}),
    "Z not permuted": (lambda: stacks("qkvz", lambda s: (s[0], replace(s[1], rows=None))), {"qkvz"}),
    "V not permuted": (lambda: stacks("qkvz", lambda s: (replace(s[0], rows=None), s[1])), {"qkvz"}),
    "Q permuted too": (lambda: stacks("qkvz", lambda s: (_rows(0, np.arange(64)[::-1])(s[0]), s[1])), {"qkvz"}),
    "K permuted too": (lambda: stacks("qkvz", lambda s: (_rows(64, np.arange(64)[::-1])(s[0]), s[1])), {"qkvz"}),
    "out_proj columns not permuted": (lambda: pieces("Wo", lambda p: replace(p, columns=None)), {"Wo"}),
    "out_proj rows permuted": (lambda: pieces("Wo", _rows(0, np.arange(96)[::-1])), {"Wo"}),
    "conv channels not permuted": (lambda: pieces("Wc", lambda p: replace(p, rows=None)), {"Wc"}),
    "conv not transposed": (lambda: pieces("Wc", lambda p: replace(p, fold=Fold.AS_IS)), {"Wc"}),
    "b and a rows not permuted": (lambda: pieces("ba", lambda p: replace(p, rows=None)), {"ba"}),
    "A_log not permuted": (lambda: pieces("Al", lambda p: replace(p, rows=None)), {"Al"}),
    "dt_bias not permuted": (lambda: pieces("Dt", lambda p: replace(p, rows=None)), {"Dt"}),
    "b and a exchanged": (lambda: stacks("ba", lambda s: s[::-1]), {"ba"}),
    "gate and up exchanged": (lambda: stacks("gu", lambda s: s[::-1]), {"gu"}),
    "K and V exchanged": (lambda: stacks("qgkv", lambda s: (*s[:2], s[3], s[2])), {"qgkv"}),
    "q and gate exchanged": (lambda: stacks("qgkv", lambda s: (s[1], s[0], *s[2:])), {"qgkv"}),
    "q and gate not interleaved": (lambda: pieces("qgkv", _halved), {"qgkv"}),
    "A without exp": (lambda: dialect(decay=Fold.AS_IS), {"Al"}),
    "norms without 1": (lambda: dialect(norm=Fold.AS_IS), {"an", "fn", "on", "Qn", "Kn", "enorm", "hnorm", "shnorm"}),
    "GDN norm with 1": (lambda: pieces("Gn", lambda p: replace(p, fold=Fold.PLUS_ONE)), {"Gn"}),
    "norms of a block exchanged": (lambda: swapped("an", "fn"), {"an", "fn"}),
    "q_norm and k_norm exchanged": (lambda: swapped("Qn", "Kn"), {"Qn", "Kn"}),
    "norms of the draft head exchanged": (lambda: swapped("enorm", "hnorm"), {"enorm", "hnorm"}),
    "final norm of the draft head": (lambda: _taken("on", "mtp.shnorm"), {"on"}),
    "head and embedding exchanged": (lambda: swapped("emb", "Wout"), {"emb", "Wout"}),
    "halves of fc exchanged": (lambda: pieces("ehproj", lambda p: replace(p, columns=np.r_[96:192, 0:96])), {"ehproj"}),
    "next layer": (lambda: _taken("layers.0.gu", "layers.1.gu"), {"gu"}),
}


def _taken(name: str, other: str) -> Recipes:
    table = recipes(C, HUGGING_FACE)
    return {**table, name: table[other]}


class TestMappingMistakes:
    """The comparison of two files of one model sees each mistake, and sees it where it is."""

    def test_right_recipes_agree(self) -> None:
        """With the recipes as they are, every tensor agrees."""
        assert differing(recipes(C, HUGGING_FACE)) == set()

    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_mistake_is_seen(self, mistake: str) -> None:
        """A mistake makes exactly the tensors that it touches differ."""
        table, touched = MISTAKES[mistake]

        assert {name.rpartition(".")[2] for name in differing(table())} == touched

    def test_gguf_is_not_converted_twice(self) -> None:
        """Reading the GGUF with the checkpoint's conventions would permute, add 1 and take -exp again; all are seen."""
        again = replace(QWEN35, grouped=True, norm=Fold.PLUS_ONE, decay=Fold.NEGATIVE_EXP)
        assert isinstance(CONVERTED, AssembledWeights)
        twice = AssembledWeights(C, CONVERTED.source, recipes(C, again), encode=True)
        seen = {name.rpartition(".")[2] for name in specs(C) if not same(twice.tensor(name), CONVERTED.tensor(name))}

        assert seen == {"qkvz", "ba", "Wc", "Dt", "Al", "an", "fn", "on", "Qn", "Kn", "enorm", "hnorm", "shnorm", "Wo"}

    def test_tensor_count_of_the_27b(self) -> None:
        """The 27B is 851 tensors of a file and 15 more of the draft head, in either dialect."""
        large = preset("qwen3.8-27b")
        for dialect in (HUGGING_FACE, QWEN35):
            files = [{piece.source for stack in recipes(config, dialect).values() for piece in stack}
                     for config in (replace(large, mtp=False), large)]
            assert [len(names) for names in files] == [851, 866]

    def test_head_order_for_every_ratio(self) -> None:
        """Our head h is HF head r·(h % nk) + h // nk, so that its key head is h % nk; each head occurs once."""
        for k_heads, ratio in ((1, 2), (2, 1), (2, 3), (16, 3), (16, 1), (16, 2)):
            config = _with_heads(k_heads, ratio)
            order = tiled_heads(config)
            assert sorted(order) == list(range(config.v_heads))
            assert all(order[h] // ratio == h % k_heads for h in range(config.v_heads))


def _with_heads(k_heads: int, ratio: int) -> ModelConfig:
    return replace(C, k_heads=k_heads, v_heads=k_heads * ratio)
