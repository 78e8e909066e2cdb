"""A bounded walk through a GGUF header: no read leaves the file, no count is believed before it fits."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.weights.mapped import refusal

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", BOOL: "<B", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(slots=True)
class Cursor:
    """A position in the mapped bytes of one file.

    Units: `at` and every length are bytes.
    Raises LanelockError from every method, naming the file and what was being read.
    """

    path: Path
    content: NDArray[np.uint8]
    at: int = 0

    def take(self, length: int, what: str) -> bytes:
        """The next bytes."""
        left = self.content.size - self.at
        if length > left:
            raise refusal(self.path, f"ends inside its header: {what} needs {length} bytes, {left} are left")
        self.at += length
        return self.content[self.at - length:self.at].tobytes()

    def number(self, form: str, what: str) -> Any:
        """One little-endian number of a struct format."""
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def check_count(self, count: int, least: int, what: str) -> None:
        """Refuse a count of things of at least so many bytes that cannot fit into the rest of the file."""
        left = self.content.size - self.at
        if count * least > left:
            raise refusal(self.path, f"claims {count} {what}, more than fit into the {left} bytes that are left")

    def string(self, what: str) -> str:
        """A length and that many bytes of UTF-8."""
        length = self.number("<Q", f"length of a {what}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise refusal(self.path, f"has a {what} that is not UTF-8 ({error})") from error

    def value(self, kind: int, key: str) -> Any:
        """One scalar or string."""
        if kind == STRING:
            return self.string(f"value of {key!r}")
        if kind not in SCALARS:
            raise refusal(self.path, f"metadata {key!r} has unknown value type {kind}")
        number = self.number(SCALARS[kind], f"value of {key!r}")
        return self._truth(number, key) if kind == BOOL else number

    def array(self, key: str) -> Any:
        """A tuple of scalars; of an array of strings only the length."""
        kind, count = self.number("<I", f"element type of {key!r}"), self.number("<Q", f"length of {key!r}")
        if kind == STRING:
            return self._walk_strings(count, key)
        if kind not in SCALARS:
            raise refusal(self.path, f"metadata {key!r} is an array of value type {kind}, which is not read")
        size = struct.calcsize(SCALARS[kind])
        self.check_count(count, size, f"elements of {key!r}")
        values = np.frombuffer(self.take(count * size, f"elements of {key!r}"), SCALARS[kind]).tolist()
        return tuple(self._truth(value, key) for value in values) if kind == BOOL else tuple(values)

    def _walk_strings(self, count: int, key: str) -> int:
        self.check_count(count, 8, f"strings of {key!r}")
        what = f"string of {key!r}"
        for _ in range(count):
            length = self.number("<Q", what)
            self.check_count(length, 1, f"bytes of a {what}")
            self.at += length
        return count

    def _truth(self, value: int, key: str) -> bool:
        if value not in (0, 1):
            raise refusal(self.path, f"metadata {key!r} has a boolean of {value}")
        return bool(value)
