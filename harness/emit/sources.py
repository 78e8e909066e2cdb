"""The CUDA sources of a plan as one text: every header once, every room in a namespace of its own."""

import re
from collections.abc import Iterable

from harness.sources import KERNELS

_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n', re.MULTILINE)
_PRAGMA = re.compile(r"^#pragma once\n", re.MULTILINE)


def namespace(source: str) -> str:
    """The namespace of a room's kernels: rooms name their helpers alike."""
    return f"room_{source.removesuffix('.cu')}"


def sources(names: Iterable[str]) -> str:
    """Sources below kernels/ in order; a header stands in front of the first room that includes it."""
    done: set[str] = set()
    parts = []
    for name in sorted(names):
        text = (KERNELS / name).read_text(encoding="utf-8")
        parts += [_expanded(header, done) for header in _QUOTED.findall(text)]
        parts.append(f"namespace {namespace(name)} {{\n\n{_QUOTED.sub('', text)}\n}}  // namespace {namespace(name)}\n")
    return "\n".join(part for part in parts if part)


def _expanded(header: str, done: set[str]) -> str:
    """A header with those it includes in their places; what is not below kernels/ is the host's and stays as it is."""
    if header in done:
        return ""
    done.add(header)

    def included(match: re.Match[str]) -> str:
        return _expanded(match[1], done) if (KERNELS / match[1]).is_file() else match[0]

    return _QUOTED.sub(included, _PRAGMA.sub("", (KERNELS / header).read_text(encoding="utf-8")))
