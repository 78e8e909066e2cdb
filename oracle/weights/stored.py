"""Our own weight files: safetensors, one set of names, the config and a SHA-256 of every tensor in the metadata.

A Q8_0 tensor NAME is stored as `NAME.codes` (I8) and `NAME.scales` (F16), any other under its own name (F32). Float32
comes first, then scales, then codes, so that each lies aligned. Metadata: format, version, config (JSON), origin,
`sha256` of config, a newline and origin, and `sha256.` + stored name for each tensor.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import json_text
from oracle.config import BLOCK, ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, specs, take_rows
from oracle.weights.assemble import check_finite
from oracle.weights.mapped import let_go, refusal
from oracle.weights.safetensors_file import ITEM_BYTES, SafetensorsFile

FORMAT, VERSION = "lanelock", "1"
PLAIN_KEYS = {"format", "version", "config", "origin", "sha256"}


def layout(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every stored tensor, in file order.  Source: this module's docstring. Raises nothing."""
    table = specs(config)
    floats = {name: ("F32", spec.shape) for name, spec in table.items() if not spec.quantised}
    matrices = {name: spec.shape for name, spec in table.items() if spec.quantised}
    scales = {f"{name}.scales": ("F16", (n, k // BLOCK)) for name, (n, k) in matrices.items()}
    return floats | scales | {f"{name}.codes": ("I8", shape) for name, shape in matrices.items()}


def header(config: ModelConfig, origin: str, hashes: dict[str, str]) -> tuple[bytes, dict[str, int]]:
    """The file's bytes up to its first tensor, and where each stored tensor starts.

    Units:  starts are bytes from the start of the file. The length depends on the names alone, not on the hashes.
    Source: the safetensors format; padded with spaces to 8 bytes. Raises nothing.
    """
    text = json.dumps(config.to_dict())
    metadata = {"format": FORMAT, "version": VERSION, "config": text, "origin": origin, "sha256": _sum(text, origin)}
    table: dict[str, object] = {"__metadata__": metadata | {f"sha256.{name}": hashes[name] for name in layout(config)}}
    offsets, at = {}, 0
    for name, (dtype, shape) in layout(config).items():
        length = math.prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        offsets[name], at = at, at + length
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body, {name: 8 + len(body) + start for name, start in offsets.items()}


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """One of our files, mapped. A tensor's bytes are hashed when it is first asked for, and never again.

    Units:  as in the file; Q8_0 codes and scales are views of the mapping, so a large model streams.
    Raises LanelockError from `tensor` and `rows`, naming file and tensor, if bytes and hash differ.
    """

    config: ModelConfig
    file: SafetensorsFile
    hashes: dict[str, str]
    verified: set[str] = field(default_factory=set)

    @property
    def origin(self) -> str:
        """What the file was made from."""
        return self.file.metadata["origin"]

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        let_go(self.file.content)
        if f"{name}.codes" in self.hashes:
            return Q8_0(self._checked(f"{name}.codes"), self._checked(f"{name}.scales"))
        if name not in self.hashes or not is_model_name(name):
            raise LanelockError(f"{self.file.path}: the model has no tensor {name!r}.")
        return self._checked(name)

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix, in that order."""
        return take_rows(self.tensor(name), index)

    def _checked(self, stored: str) -> NDArray[Any]:
        values = self.file.array(stored)
        if stored not in self.verified:
            entry = self.file.entries[stored]
            if hashlib.sha256(self.file.content[entry.start:entry.stop].data).hexdigest() != self.hashes[stored]:
                raise refusal(self.file.path, f"tensor {stored!r} does not have the SHA-256 that the file states")
            if entry.dtype != "I8":
                check_finite(values, f"{self.file.path}: tensor {stored!r}")
            self.verified.add(stored)
        return values


def is_model_name(name: str) -> bool:
    """Whether a stored name is the model's own, not that of codes or scales."""
    return not name.endswith((".codes", ".scales"))


def is_stored(file: SafetensorsFile) -> bool:
    """Whether the metadata says that this is one of our files."""
    return file.metadata.get("format") == FORMAT


def open_stored(file: SafetensorsFile) -> StoredWeights:
    """Check config, names, types and shapes of one of our files; tensors are hashed later, when they are read.

    Source: this module's docstring. Raises LanelockError naming the file and the tensor or key.
    """
    path = file.path
    if file.metadata.get("version") != VERSION:
        raise refusal(path, f"is a weight file of version {file.metadata.get('version')!r}; {VERSION!r} is read")
    text, origin = file.metadata.get("config", ""), file.metadata.get("origin", "")
    if file.metadata.get("sha256") != _sum(text, origin):
        raise refusal(path, "has a config that does not have the SHA-256 that the file states")
    config = _config(path, text)
    if config.layers > len(file.entries):
        raise refusal(path, f"claims {config.layers} layers, but has {len(file.entries)} tensors")
    wanted = layout(config)
    stated = {f"sha256.{name}" for name in wanted} | PLAIN_KEYS
    for what, found, expected in (("tensor", set(file.entries), set(wanted)), ("metadata", set(file.metadata), stated)):
        for fault, names in (("lacks", expected - found), ("has unknown", found - expected)):
            if names:
                raise refusal(path, f"{fault} {what} {min(names)!r}")
    for name, (dtype, shape) in wanted.items():
        entry = file.entries[name]
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise refusal(path, f"tensor {name!r} is {entry.dtype} {list(entry.shape)}, not {dtype} {list(shape)}")
    return StoredWeights(config, file, {name: file.metadata[f"sha256.{name}"] for name in wanted})


def _sum(config: str, origin: str) -> str:
    return hashlib.sha256(f"{config}\n{origin}".encode("utf-8", "surrogatepass")).hexdigest()


def _config(path: Path, text: str) -> ModelConfig:
    try:
        data = json_text.loads(text)
    except ValueError as error:
        raise refusal(path, f"has a config that is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise refusal(path, "has a config that is not a JSON object")
    try:
        return ModelConfig.from_dict(data)
    except LanelockError as error:
        raise LanelockError(f"{path}: {error}") from error
