"""GGUF containers, read and checked in full before a byte of any tensor is touched."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.weights.gguf_cursor import Cursor
from oracle.weights.gguf_types import TYPES
from oracle.weights.mapped import map_file, refusal

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4       # ggml's own limit, GGML_MAX_DIMS
MAX_NAME = 64      # GGML_MAX_NAME
UINT32, STRING, ARRAY = 4, 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    Shapes: shape row-major, that is GGUF's dimensions reversed.
    Units:  start and stop are bytes from the start of the file.
    """

    name: str
    type: int
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked container. Arrays of strings (a tokenizer) are walked, and kept only as their length."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    data_start: int
    content: NDArray[np.uint8]

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as [rows, bytes a row], a view of the mapped file; a vector is one row."""
        info = self.tensors[name]
        return self.content[info.start:info.stop].reshape(math.prod(info.shape[:-1]), -1)


def open_gguf(path: str | Path) -> GgufFile:
    """Map a file and check everything that it says about itself.

    Shapes: any.  Units: none.  Error: none, nothing is converted.
    Source: ggml's docs/gguf.md and gguf.cpp. Raises LanelockError, naming file, tensor or key, and fault.
    """
    path = Path(path)
    content = map_file(path)
    cursor = Cursor(path, content)
    _check_magic(path, cursor)
    tensor_count, key_count = cursor.number("<Q", "tensor count"), cursor.number("<Q", "metadata count")
    # a key is at least a length, a type and a byte; a tensor a length, dimensions, type, offset.
    cursor.check_count(key_count, 13, "metadata keys")
    metadata = _read_metadata(path, cursor, key_count)
    cursor.check_count(tensor_count, 32, "tensors")
    alignment = _alignment(path, metadata)
    raw = [_read_info(path, cursor) for _ in range(tensor_count)]
    data_start = round_up(cursor.at, alignment)
    if data_start > content.size and tensor_count:
        raise refusal(path, f"puts its data at byte {data_start} (alignment {alignment}) of a file of {content.size}")
    plain = {key: value for key, (_, value) in metadata.items()}
    return GgufFile(path, plain, _place(path, raw, data_start, alignment, content.size), data_start, content)


def round_up(position: int, alignment: int) -> int:
    """The next multiple of alignment, or the position itself if it is one."""
    return -(-position // alignment) * alignment


def _check_magic(path: Path, cursor: Cursor) -> None:
    magic = cursor.take(4, "magic")
    if magic == MAGIC[::-1]:
        raise refusal(path, "is a big-endian GGUF file (byte-swapped magic), which is not read")
    if magic != MAGIC:
        raise refusal(path, f"is not a GGUF file (magic {magic!r})")
    version = cursor.number("<I", "version")
    if version not in VERSIONS and int.from_bytes(struct.pack("<I", version), "big") in (1, *VERSIONS):
        raise refusal(path, "is a big-endian GGUF file (byte-swapped version), which is not read")
    if version not in VERSIONS:
        raise refusal(path, f"has GGUF version {version}; versions 2 and 3 are read")


def _read_metadata(path: Path, cursor: Cursor, count: int) -> dict[str, tuple[int, Any]]:
    metadata: dict[str, tuple[int, Any]] = {}
    for _ in range(count):
        key = cursor.string("metadata key")
        if key in metadata:
            raise refusal(path, f"has metadata key {key!r} twice")
        kind = cursor.number("<I", f"type of {key!r}")
        metadata[key] = (kind, cursor.array(key) if kind == ARRAY else cursor.value(kind, key))
    return metadata


def _alignment(path: Path, metadata: Mapping[str, tuple[int, Any]]) -> int:
    kind, alignment = metadata.get("general.alignment", (UINT32, DEFAULT_ALIGNMENT))
    if kind != UINT32:
        raise refusal(path, f"has general.alignment of value type {kind}; it must be uint32 (4)")
    # as ggml: a power of two. The bits of -1 read as uint32 are 4294967295, so they are refused here too.
    if alignment == 0 or alignment & (alignment - 1):
        raise refusal(path, f"has general.alignment {alignment}, which is not a power of two")
    return int(alignment)


def _read_info(path: Path, cursor: Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string("tensor name")
    if not name or len(name.encode()) > MAX_NAME:
        raise refusal(path, f"has a tensor name of {len(name.encode())} bytes; 1 to {MAX_NAME} are allowed")
    dims = cursor.number("<I", f"dimension count of tensor {name!r}")
    if not 1 <= dims <= MAX_DIMS:
        raise refusal(path, f"tensor {name!r} claims {dims} dimensions; 1 to {MAX_DIMS} are allowed")
    shape = tuple(cursor.number("<Q", f"shape of tensor {name!r}") for _ in range(dims))[::-1]
    kind = cursor.number("<I", f"type of tensor {name!r}")
    return name, kind, shape, cursor.number("<Q", f"offset of tensor {name!r}")


def _place(path: Path, raw: list[tuple[str, int, tuple[int, ...], int]], data_start: int, alignment: int,
           size: int) -> dict[str, TensorInfo]:
    placed: dict[str, TensorInfo] = {}
    expected = 0
    for name, kind, shape, offset in raw:
        if name in placed:
            raise refusal(path, f"has tensor {name!r} twice")
        length = _byte_length(path, name, kind, shape)
        if offset % alignment:
            raise refusal(path, f"tensor {name!r} has offset {offset}, not a multiple of the alignment {alignment}")
        # as ggml: tensors follow one another, each padded to the alignment. So none overlap and no byte is unnamed.
        if offset < expected:
            raise refusal(path, f"tensor {name!r} at offset {offset} overlaps the one before, which ends at {expected}")
        if data_start + offset + length > size:
            raise refusal(path, f"tensor {name!r} ends at byte {data_start + offset + length} of a file of {size}")
        if offset > expected:
            raise refusal(path, f"has a hole of {offset - expected} bytes before tensor {name!r}")
        placed[name] = TensorInfo(name, kind, shape, data_start + offset, data_start + offset + length)
        expected = round_up(offset + length, alignment)
    # the padding of the last tensor may be missing.
    if size > data_start + expected:
        raise refusal(path, f"has {size - data_start - expected} bytes after its last tensor")
    return placed


def _byte_length(path: Path, name: str, kind: int, shape: tuple[int, ...]) -> int:
    if kind not in TYPES:
        raise refusal(path, f"tensor {name!r} has unknown type {kind}")
    block = TYPES[kind]
    if 0 in shape:
        raise refusal(path, f"tensor {name!r} has a zero in its shape {shape}")
    if shape[-1] % block.elements:
        raise refusal(path, f"tensor {name!r} has rows of {shape[-1]}, not in {block.elements}s as {block.name} wants")
    return math.prod(shape) // block.elements * block.size
