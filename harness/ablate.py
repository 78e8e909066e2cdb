"""A program with a part of every layer left out, to time that part by difference. What is left computes nothing."""

from collections.abc import Sequence

from kernels.plan import Launch
from oracle.errors import LanelockError

#: The parts of a layer. Each has its own projections, so that with what stands outside the layers they are the program.
GROUPS = ("gdn", "conv", "attn", "norm", "ffn")
OUTSIDE = "other"  # embedding, draft head's input, final norm's copies, head, picks

#: Last word of a launch's label -> its part; a mixer's output projection and gate belong to the mixer of its layer.
_PARTS = {
    "norm1": "norm", "norm2": "norm", "on": "norm", "shnorm": "norm", "conv": "conv", "gu": "ffn", "swiglu": "ffn",
    "Wd": "ffn", "qkvz": "gdn", "ba": "gdn", "gates": "gdn", "scan": "gdn", "delta": "gdn", "qgkv": "attn",
    "rope": "attn", "split": "attn", "attention": "attn",
}  # fmt: skip  # a map
_MIXER = ("gated", "Wo")


def groups(program: Sequence[Launch]) -> list[str]:
    """The part that each launch of a program belongs to: one of GROUPS, or `other`."""
    attending = {_layer(item) for item in program if _word(item) == "qgkv"}
    return [_group(item, _layer(item) in attending) for item in program]


def without(program: Sequence[Launch], group: str) -> tuple[Launch, ...]:
    """The program less one part. Raises LanelockError for a part that there is not."""
    if group not in GROUPS:
        raise LanelockError(f"ablate: there is no part {group!r}; the parts are {', '.join(GROUPS)}")
    return tuple(item for item, part in zip(program, groups(program), strict=True) if part != group)


def _group(item: Launch, attending: bool) -> str:
    word = _word(item)
    if word in _MIXER:
        return "attn" if attending else "gdn"
    return _PARTS.get(word, OUTSIDE)


def _word(item: Launch) -> str:
    return item.label.rpartition(".")[2]


def _layer(item: Launch) -> str:
    """What stands in front of the layer's own word: `layers.3.`, `mtp.`, or nothing."""
    parts = item.label.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else parts[0] if len(parts) > 1 else ""
