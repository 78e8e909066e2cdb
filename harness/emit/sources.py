"""The CUDA sources of a plan as one text: every room in a namespace of its own, what all share in front."""

import re
from collections.abc import Iterable

from harness.sources import KERNELS

_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n', re.MULTILINE)
_PRAGMA = re.compile(r"^#pragma once\n", re.MULTILINE)


def namespace(source: str) -> str:
    """The namespace of a room's kernels: rooms name their helpers alike."""
    return f"room_{source.removesuffix('.cu')}"


def sources(names: Iterable[str]) -> str:
    """Sources below kernels/ in order; a header of all rooms stands once, in front of the first that includes it.

    A header of a family of rooms (attention, the streaming projection) stands within each of them: two families may
    name a helper alike, and no translation unit but this one holds both.
    """
    done: set[str] = set()
    parts = []
    for name in sorted(names):
        front: list[str] = []
        text = _expanded(name, included := set(done), front)
        done |= {header for header in included if _of_all_rooms(header)}
        parts += [*front, f"namespace {namespace(name)} {{\n\n{text}\n}}  // namespace {namespace(name)}\n"]
    return "\n".join(parts)


def _of_all_rooms(header: str) -> bool:
    return "namespace lane {" in (KERNELS / header).read_text(encoding="utf-8")


def _expanded(name: str, done: set[str], front: list[str]) -> str:
    """A source with what it includes in its place; headers of all rooms go to front, where others include them.

    What is not below kernels/ is the host's and stays as it is.
    """

    def included(match: re.Match[str]) -> str:
        header = match[1]
        if not (KERNELS / header).is_file():
            return match[0]
        if header in done:
            return ""
        done.add(header)
        text = _expanded(header, done, front)
        if _of_all_rooms(header) and not _of_all_rooms(name):
            front.append(text)
            return ""
        return text

    return _QUOTED.sub(included, _PRAGMA.sub("", (KERNELS / name).read_text(encoding="utf-8")))
