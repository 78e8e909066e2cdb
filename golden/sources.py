"""The models and prompts that goldens are recorded on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oracle.errors import LanelockError
from oracle.model_weights import Weights
from oracle.weights import load

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "golden" / "checkpoint" / "kjv-1m.safetensors"
PEERS = ROOT / "locks" / "data" / "qwen35-ratio3"
LANES = tuple(base + extra for base in ("a15", "a8", "q4") for extra in ("", "+s16", "+kv16", "+s16+kv16"))
BOUNDED = tuple(f"{lane}+delta" for lane in ("a15", "a8", "q4", "a8+s16+kv16"))


@dataclass(frozen=True, slots=True)
class Source:
    """A model by name, its prompts, and how many tokens follow each."""

    name: str
    path: Path
    prompts: tuple[tuple[int, ...], ...]
    count: int

    def weights(self) -> Weights:
        """Its weights. Raises LanelockError if the file is not there."""
        return load(str(self.path))


def text(prompt: str) -> tuple[int, ...]:
    """Bytes of a text as tokens."""
    return tuple(prompt.encode("ascii"))


def peers() -> Source:
    """The random model of an independent implementation, and its own prompt."""
    tokens = np.load(PEERS / "reference.npz")["prompt"]
    return Source("peers", PEERS / "model-q8_0.gguf", (tuple(int(t) for t in tokens),), 24)


def trained() -> Source:
    """The small checkpoint, on two beginnings: one like its text, one unlike."""
    return Source("kjv", CHECKPOINT, (text("And the LORD said unto "), text("Reproducible bits: ")), 48)


def sources() -> tuple[Source, ...]:
    """Every model that goldens are recorded on."""
    return (peers(), trained())


def source(name: str) -> Source:
    """The source of that name. Raises LanelockError if there is none."""
    for found in sources():
        if found.name == name:
            return found
    raise LanelockError(f"golden: there is no source {name!r}; there are {', '.join(s.name for s in sources())}")
