"""Hugging Face safetensors checkpoints: one file, a folder, or shards with an index."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oracle import json_text
from oracle.config import ModelConfig
from oracle.model_weights import Tensor
from oracle.weights.assemble import AssembledWeights, check_complete, check_plausible
from oracle.weights.dialects import HUGGING_FACE
from oracle.weights.gguf_types import bf16_to_f32
from oracle.weights.hf_config import read_hf_config
from oracle.weights.mapped import let_go, refusal
from oracle.weights.recipe import Index, recipes
from oracle.weights.safetensors_file import SafetensorsFile, open_safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PREFIXES = ("model.language_model.", "model.")  # the longer first
SKIPPED = ("model.visual.", "visual.")
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True, slots=True)
class HfSource:
    """Text tensors of a checkpoint. Keys have their prefix stripped; each leads to its file and its name there."""

    where: str
    places: Mapping[str, tuple[SafetensorsFile, str]]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every text tensor."""
        return {name: file.entries[full].shape for name, (file, full) in self.places.items()}

    def read(self, name: str, rows: Index | None) -> Tensor:
        """Those rows as float32 (float64 if the file has it); BF16 and F16 convert exactly."""
        file, full = self.places[name]
        let_go(file.content)
        values = file.array(full) if rows is None else file.array(full)[rows]
        kind = file.entries[full].dtype
        if kind == "BF16":
            return bf16_to_f32(values)
        return values if kind == "F64" else values.astype(np.float32)


def open_hf(path: str | Path, config: ModelConfig | None = None) -> AssembledWeights:
    """Open a checkpoint and check it against its config before any tensor is read.

    Shapes: path is a folder, a .safetensors file or an .index.json; config.json lies beside, unless config is given.
    Units:  values as stored, unquantised; norms + 1 and A = -exp(A_log) in float64.
    Source: transformers' Qwen3.5 naming. Raises LanelockError naming the file and the tensor or field.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = _files(path)
    source = HfSource(str(path), _places(path, files))
    config = read_hf_config(folder / "config.json") if config is None else config
    source, config = _tied_head(source, config), _with_mtp(source, config)
    check_plausible(source, config)
    table = recipes(config, HUGGING_FACE)
    check_complete(source, table)
    for file, full in source.places.values():
        if file.entries[full].dtype not in FLOATS:
            kind = file.entries[full].dtype
            raise refusal(file.path, f"tensor {full!r} has type {kind}; {', '.join(FLOATS)} are read")
    return AssembledWeights(config, source, table, encode=False)


def _files(path: Path) -> list[SafetensorsFile]:
    if path.is_dir():
        candidates = [path / INDEX, path / SINGLE]
        path = next((found for found in candidates if found.is_file()), path)
    if path.is_dir():
        raise refusal(path, f"has neither {SINGLE} nor {INDEX}{_others(path)}")
    if path.name.endswith(".json"):
        return _shards(path)
    return [open_safetensors(path)]


def _others(folder: Path) -> str:
    """The weights of a folder that its name does not open, for who may have meant one of them."""
    found = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".gguf"))
    return f"; to read a file, name it: {', '.join(found[:8])}{', ...' if found[8:] else ''}" if found else ""


def _shards(index: Path) -> list[SafetensorsFile]:
    try:
        table: Any = json_text.loads(index.read_text(encoding="utf-8"))["weight_map"]
        listed: dict[str, set[str]] = {}
        for name, shard in table.items():
            listed.setdefault(shard, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refusal(index, f"is not a readable index with a weight_map ({error!r})") from error
    files = []
    for shard in sorted(listed, key=str):
        # a name with a folder in it could lead outside the checkpoint.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise refusal(index, f"names a shard {shard!r} that is not a plain file name")
        file = open_safetensors(index.parent / shard)
        differing = sorted(listed[shard] ^ set(file.entries))
        if differing:
            raise refusal(index, f"and {shard} disagree on tensor {differing[0]!r}")
        files.append(file)
    return files


def _places(path: Path, files: list[SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, str]]:
    places: dict[str, tuple[SafetensorsFile, str]] = {}
    for file in files:
        for full in file.entries:
            if full.startswith(SKIPPED):
                continue
            prefix = next((prefix for prefix in PREFIXES if full.startswith(prefix)), "")
            name = full.removeprefix(prefix)
            # unprefixed, only these two belong to a checkpoint; others stay under their full name, and are named later.
            if not prefix and not name.startswith(("mtp.", "lm_head.")):
                name = f" {full}"
            if name in places:
                raise refusal(path, f"has both {places[name][1]!r} and {full!r}")
            places[name] = (file, full)
    return places


def _tied_head(source: HfSource, config: ModelConfig) -> HfSource:
    """Without the head of a tied model, which some checkpoints store a second time."""
    head, emb = "lm_head.weight", "embed_tokens.weight"
    if not config.tied or head not in source.places or emb not in source.places:
        return source
    (file, full), (twin, twin_full) = source.places[head], source.places[emb]
    same = file.entries[full].dtype == twin.entries[twin_full].dtype and np.array_equal(
        file.array(full).view(np.uint8), twin.array(twin_full).view(np.uint8))
    if not same:
        raise refusal(file.path, f"has tied embeddings, but {full!r} differs from {twin_full!r}")
    return replace(source, places={name: place for name, place in source.places.items() if name != head})


def _with_mtp(source: HfSource, config: ModelConfig) -> ModelConfig:
    """A checkpoint has the draft head if it has a tensor of it: saved-again ones often lost them all."""
    return replace(config, mtp=any(name.startswith("mtp.") for name in source.places))
