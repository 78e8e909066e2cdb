"""Whether a command may write its output, decided before it reads anything."""

from collections.abc import Iterator
from pathlib import Path

from harness.cache import check_writable
from oracle.errors import LanelockError


def check_output(out: Path, *sources: str | None) -> None:
    """Raises LanelockError, naming `out`, where it cannot be a new file or would overwrite what a source is read from.

    A symbolic link is refused: a file that is renamed into place would replace the link, and not what it leads to.
    """
    try:
        if out.is_symlink():
            raise LanelockError(f"{out}: is a symbolic link to {out.readlink()}; name the file that it leads to.")
        if out.is_dir():
            raise LanelockError(f"{out}: is a folder; name the file to write in it.")
        if not out.parent.is_dir():
            raise LanelockError(f"{out}: cannot be written, because there is no folder {out.parent}.")
        check_writable(out)
        if not out.exists():
            return
        if not out.is_file():
            raise LanelockError(f"{out}: is no regular file, and is not replaced by one.")
        for path in (path for source in sources if source for path in _files_of(Path(source))):
            if path.samefile(out):
                raise LanelockError(f"{out}: is the same file as {path}, which is read; name another file to write.")
    except OSError as error:
        raise LanelockError(f"{out}: cannot be written ({error.strerror}).") from error


def _files_of(source: Path) -> Iterator[Path]:
    """Every file that weights may be read from: of a folder or of an index's folder, or a file and its config."""
    if source.is_dir():
        yield from (path for path in source.iterdir() if path.is_file())
    elif source.is_file():
        beside = source.parent.iterdir() if source.suffix == ".json" else (source, source.parent / "config.json")
        yield from (path for path in beside if path.is_file())
