"""Weights from what a user names: our file, a Hugging Face checkpoint, a GGUF, or `synthetic:SEED`."""

from dataclasses import replace
from pathlib import Path

from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.model_weights import Weights
from oracle.weights.assemble import AssembledWeights
from oracle.weights.gguf_file import MAGIC
from oracle.weights.gguf_model import open_gguf_model, requantised
from oracle.weights.hf import open_hf
from oracle.weights.safetensors_file import open_safetensors
from oracle.weights.stored import StoredWeights, is_stored, open_stored
from oracle.weights.synthetic import SyntheticWeights

SYNTHETIC = "synthetic:"


def load(spec: str | Path, config: ModelConfig | None = None) -> Weights:
    """Open weights; tensors are read when they are asked for.

    Shapes: those of `oracle.model_weights.specs`.
    Units:  our files, GGUF and synthetic weights give Q8_0 matrices; Hugging Face checkpoints the values as stored,
            which `QuantisedWeights` encodes as an import does.
    Error:  none for our files, Q8_0 and synthetic; else one float64 operation where norms and decay are folded.
    Source: each opener's docstring. Raises LanelockError naming the file and the fault; also where `config` is given
            and differs from the file's, or is not given for synthetic weights.
    """
    text = str(spec)
    if text.startswith(SYNTHETIC):
        return _synthetic(text.removeprefix(SYNTHETIC), config)
    path = Path(spec)
    if not path.exists():
        raise LanelockError(f"{path}: there is no such file or folder.")
    weights = _open(path, config)
    found = weights.config
    if config is not None and replace(config, name=found.name, context=found.context) != found:
        raise LanelockError(f"{path}: its config {_differences(found, config)}.")
    return weights


def kind(spec: str | Path) -> str:
    """What a spec is: synthetic, gguf, lanelock or hugging-face.  Raises LanelockError as `load` does."""
    text = str(spec)
    if text.startswith(SYNTHETIC):
        return "synthetic"
    path = Path(spec)
    if path.is_dir() or path.name.endswith(".json"):
        return "hugging-face"
    if is_gguf(path):
        return "gguf"
    return "lanelock" if is_stored(open_safetensors(path)) else "hugging-face"


def origin(spec: str | Path, weights: Weights) -> str:
    """One line on where weights came from and what was done to them.  Raises LanelockError as `kind` does."""
    if isinstance(weights, SyntheticWeights):
        return f"{SYNTHETIC}{weights.seed}"
    if isinstance(weights, StoredWeights):
        return weights.origin
    if kind(spec) == "hugging-face":
        return "Hugging Face safetensors, every matrix encoded to Q8_0"
    counts = requantised(weights) if isinstance(weights, AssembledWeights) else {}
    done = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"GGUF, dequantised and encoded to Q8_0 once: {done} matrices" if done else "GGUF, Q8_0 byte for byte"


def is_gguf(path: Path) -> bool:
    """Whether a file starts with GGUF's magic, in either byte order, or at least claims to be one by its name."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (MAGIC, MAGIC[::-1]) or path.suffix == ".gguf"
    except OSError as error:
        raise LanelockError(f"{path}: cannot be read ({error}).") from error


def _open(path: Path, config: ModelConfig | None) -> Weights:
    if path.is_dir() or path.name.endswith(".json"):
        return open_hf(path, _given(path, config))
    if is_gguf(path):
        return open_gguf_model(path)
    file = open_safetensors(path)
    return open_stored(file) if is_stored(file) else open_hf(path, _given(path, config))


def _given(path: Path, config: ModelConfig | None) -> ModelConfig | None:
    """The given config only where a checkpoint has none of its own."""
    folder = path if path.is_dir() else path.parent
    return None if (folder / "config.json").is_file() else config


def _synthetic(seed: str, config: ModelConfig | None) -> Weights:
    if not seed.isascii() or not seed.isdigit() or len(seed) > 20:
        raise LanelockError(f"{SYNTHETIC}{seed}: the seed must be a whole number of 0 to 2^64 - 1.")
    if config is None:
        raise LanelockError(f"{SYNTHETIC}{seed}: synthetic weights need a config.")
    return SyntheticWeights(config, int(seed))


def _differences(found: ModelConfig, wanted: ModelConfig) -> str:
    mine, theirs = found.to_dict(), wanted.to_dict()
    field = next(field for field in mine if field not in ("name", "context") and mine[field] != theirs[field])
    return f"has {field} {mine[field]!r}, but {theirs[field]!r} was asked for"
