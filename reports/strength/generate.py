"""Mutants made by operators, and a sample of them that a seed decides."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.strength.cuda_operators import cuda_edits
from reports.strength.mutant import Mutant, line_of
from reports.strength.python_operators import python_edits
from reports.strength.rooms import sources_of

_CPP = (".cu", ".cuh", ".cpp", ".hpp", ".h")


def generated(room: str, root: Path) -> list[Mutant]:
    """Every mutant that the operators make in the sources of a room, ordered by file and place."""
    found: dict[str, Mutant] = {}
    for file in sources_of(room, root):
        for mutant in _of_file(room, file, (root / file).read_text(encoding="utf-8")):
            found.setdefault(mutant.id, mutant)
    return sorted(found.values(), key=lambda m: (m.file, m.start, m.id))


def sample(candidates: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """At most count of them: files and classes take turns, so that no common operator crowds out a rare one.

    The same seed and sources give the same sample; ids carry the place, so a sample can be named.
    """
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in candidates:
        groups.setdefault((mutant.kind, mutant.file), []).append(mutant)
    order = sorted(groups)
    room = candidates[0].room if candidates else ""
    dice = random.Random(f"{seed}:{room}")  # noqa: S311  # a sample, not a secret
    dice.shuffle(order)
    for group in order:
        dice.shuffle(groups[group])
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(candidates)):
        for group in order:
            if groups[group] and len(chosen) < count:
                chosen.append(groups[group].pop())
    return sorted(chosen, key=lambda m: (m.file, m.start, m.id))


def _of_file(room: str, file: str, text: str) -> Iterator[Mutant]:
    edits = cuda_edits(text) if file.endswith(_CPP) else python_edits(text)
    for change in edits:
        original = text[change.start : change.end]
        line = line_of(text, change.start)
        # the id survives edits elsewhere in the file: it hashes the line, the column and the change, not the position
        begin = text.rfind("\n", 0, change.start) + 1
        context = text[begin : text.find("\n", change.end)]
        key = f"{context}\0{change.start - begin}\0{original}\0{change.replacement}"
        yield Mutant(
            id=f"{file}:{change.kind.replace(' ', '-')}:{hashlib.sha256(key.encode()).hexdigest()[:8]}",
            room=room,
            file=file,
            start=change.start,
            original=original,
            replacement=change.replacement,
            kind=change.kind,
            sentence=f"{change.kind}: {_short(original)} became {_short(change.replacement) or 'nothing'}",
            origin="operator",
            line=line,
        )


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."
