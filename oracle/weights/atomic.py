"""Files that exist whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from oracle.errors import LanelockError


@contextmanager
def written_whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file open for writing under a temporary name beside `path`, renamed when the block ends without an error.

    Raises LanelockError naming the path if it cannot be written; whatever the block raises passes, and nothing is left.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        raise LanelockError(f"{path}: cannot be written ({error.strerror}).") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise LanelockError(f"{path}: cannot be written ({error.strerror}).") from error
    finally:
        partial.unlink(missing_ok=True)
