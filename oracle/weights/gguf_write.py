"""Writing GGUF: a header from plain values, then tensors as a stream of bytes."""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from oracle.errors import LanelockError
from oracle.weights.atomic import written_whole
from oracle.weights.gguf_file import DEFAULT_ALIGNMENT, MAGIC, round_up
from oracle.weights.gguf_types import TYPES

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMS = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value; a tuple is an array of `kind`."""

    kind: int
    value: object


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor to come. Shapes: shape row-major; `type` is ggml's number."""

    name: str
    type: int
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Bytes without padding."""
        return math.prod(self.shape) // TYPES[self.type].elements * TYPES[self.type].size


def write_gguf(path: str | Path, metadata: Mapping[str, Value], tensors: Iterable[Described],
               content: Iterator[bytes]) -> None:
    """Write a version 3 file, whole or not at all.

    Shapes: `content` gives the bytes of all tensors in their order, in pieces of any size that end where tensors end.
    Source: ggml's docs/gguf.md. Raises LanelockError naming the file if it cannot be written, or if bytes are too
    few or too many.
    """
    described = list(tensors)
    with written_whole(path) as file:
        _write_header(file, metadata, described)
        _pad(file)
        for tensor in described:
            left = tensor.length
            while left > 0:
                left -= file.write(next(content, b"") or _short(path, tensor.name))
            if left < 0:
                raise LanelockError(f"{path}: tensor {tensor.name!r} was given {-left} bytes too many.")
            _pad(file)


def _short(path: str | Path, name: str) -> bytes:
    raise LanelockError(f"{path}: tensor {name!r} was given too few bytes.")


def _pad(file: BinaryIO) -> None:
    at = file.tell()
    file.write(bytes(round_up(at, DEFAULT_ALIGNMENT) - at))


def _write_header(file: BinaryIO, metadata: Mapping[str, Value], tensors: list[Described]) -> None:
    file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(value))
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        file.write(_string(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type, offset))
        offset = round_up(offset + tensor.length, DEFAULT_ALIGNMENT)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    if not isinstance(value.value, tuple):
        return struct.pack("<I", value.kind) + _one(value.kind, value.value)
    items = b"".join(_one(value.kind, item) for item in value.value)
    return struct.pack("<IIQ", ARRAY, value.kind, len(value.value)) + items


def _one(kind: int, item: object) -> bytes:
    return _string(str(item)) if kind == STRING else struct.pack(FORMS[kind], item)
