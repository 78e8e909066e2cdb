"""Safetensors headers, read and checked in full before a byte of any tensor is touched."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import json_text
from oracle.weights.mapped import map_file, refusal

MAX_HEADER = 100_000_000  # the published limit of the format
MAX_DIMS = 8

# bytes an element; a type that we never read is still measured, so that its bounds are checked too.
ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
              "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"), "I8": np.dtype("i1"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies.

    Shapes: shape as the file gives it, row-major.
    Units:  start and stop are bytes from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A checked header. `entries` are in file order and tile the file to its last byte, without a hole."""

    path: Path
    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]
    content: NDArray[np.uint8]

    def array(self, name: str) -> NDArray[Any]:
        """The tensor as a view of the mapped file, BF16 as its uint16 bits. Raises LanelockError for other types."""
        entry = self.entries[name]
        if entry.dtype not in NUMPY_TYPES:
            raise refusal(self.path, f"tensor {name!r} has type {entry.dtype}, which is not read")
        flat: NDArray[Any] = self.content[entry.start:entry.stop].view(NUMPY_TYPES[entry.dtype])
        return flat.reshape(entry.shape)


def open_safetensors(path: str | Path) -> SafetensorsFile:
    """Map a file and check its whole header: length, JSON, names, types, shapes, offsets.

    Shapes: any.  Units: none.  Error: none, nothing is converted.
    Source: the format's README (huggingface/safetensors). Raises LanelockError, naming file, tensor and fault.
    """
    path = Path(path)
    content = map_file(path)
    if content.size < 8:
        raise refusal(path, f"is {content.size} bytes long, too short for a safetensors header length")
    (length,) = struct.unpack("<Q", content[:8].tobytes())
    claim = f"read as safetensors, it claims a header of {length} bytes"  # any file without GGUF's magic comes here
    if length > MAX_HEADER:
        raise refusal(path, f"{claim}, above the limit of {MAX_HEADER}")
    if length > content.size - 8:
        raise refusal(path, f"{claim}, but only {content.size - 8} follow")
    header = _parse(path, content[8:8 + length].tobytes())
    metadata = _metadata(path, header.pop("__metadata__", {}))
    base = 8 + length
    found = [_entry(path, name, value, base, content.size) for name, value in header.items()]
    return SafetensorsFile(path, metadata, _tiled(path, found, base, content.size), content)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"key {twice!r} occurs twice")
        return seen

    try:
        header = json_text.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        raise refusal(path, f"has a safetensors header that is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise refusal(path, "has a safetensors header that is not a JSON object")
    return header


def _metadata(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise refusal(path, "has metadata that is not a map of strings")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _entry(path: Path, name: str, value: object, base: int, size: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise refusal(path, f"tensor {name!r} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise refusal(path, f"tensor {name!r} has unknown type {dtype!r}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_count, shape)):
        raise refusal(path, f"tensor {name!r} has an impossible shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise refusal(path, f"tensor {name!r} has impossible offsets {offsets!r}")
    start, stop = base + offsets[0], base + offsets[1]
    if start > stop or stop > size:
        raise refusal(path, f"tensor {name!r} spans bytes {start} to {stop} of a file of {size}")
    if math.prod(shape) * ITEM_BYTES[dtype] != stop - start:
        raise refusal(path, f"tensor {name!r} of shape {shape} and type {dtype} does not fill its {stop - start} bytes")
    return Entry(name, dtype, tuple(shape), start, stop)


def _tiled(path: Path, found: list[Entry], base: int, size: int) -> dict[str, Entry]:
    end, last = base, "the header"
    ordered = sorted(found, key=lambda entry: (entry.start, entry.stop))
    for entry in ordered:
        if entry.start < end:
            raise refusal(path, f"tensor {entry.name!r} overlaps {last}")
        if entry.start > end:
            raise refusal(path, f"has a hole of {entry.start - end} bytes before tensor {entry.name!r}")
        end, last = entry.stop, f"tensor {entry.name!r}"
    if end != size:
        raise refusal(path, f"has {size - end} bytes after {last}")
    return {entry.name: entry for entry in ordered}
