"""A mutant: one span of one file replaced, and the planted mutants read from TOML.

A planted mutant names its place by an anchor, a text that occurs exactly once in its file. An anchor that occurs
zero or several times is dead: it is reported by name and fails the run, so that a fault cannot fade away unseen.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.errors import LanelockError
from reports.strength.rooms import room_of

FIELDS = ("file", "anchor", "replacement", "class", "sentence")
OPTIONAL = ("room", "name", "locks")
#: Holds stored checks of equivalence, not mutants.
EQUIVALENT_FILE = "equivalent.toml"


@dataclass(frozen=True, slots=True)
class Mutant:
    """Text [start, end) of `file`, which reads `original`, becomes `replacement`.

    kind is the class of the fault; origin is the TOML file of a planted mutant, or the operator that made it.
    locks, when given, replaces the lock files of the room.
    """

    id: str
    room: str
    file: str
    start: int
    original: str
    replacement: str
    kind: str
    sentence: str
    origin: str
    line: int
    planted: bool = False
    locks: tuple[str, ...] = ()

    def apply(self, text: str) -> str:
        """The mutated text of the file.

        Raises LanelockError if the text at the span is not the original.
        """
        end = self.start + len(self.original)
        if text[self.start : end] != self.original:
            raise LanelockError(f"mutant {self.id}: {self.file} changed under it, {self.original!r} is gone")
        return text[: self.start] + self.replacement + text[end:]


@dataclass(frozen=True, slots=True)
class Dead:
    """A planted mutant whose anchor does not occur exactly once."""

    id: str
    room: str
    file: str
    kind: str
    sentence: str
    reason: str


def line_of(text: str, start: int) -> int:
    """Line number, from 1, of a position."""
    return text.count("\n", 0, start) + 1


def load_planted(folder: Path, root: Path) -> tuple[list[Mutant], list[Dead]]:
    """Every planted mutant of the TOML files of a folder, in the order of file names and tables.

    Each file holds a table array `[[mutant]]` with file (relative to the repository root), anchor, replacement,
    class, sentence, and optionally room, name and locks. Raises LanelockError if the folder or a field is missing.
    """
    if not folder.is_dir():
        raise LanelockError(f"the folder of mutants {folder} does not exist")
    alive: list[Mutant] = []
    dead: list[Dead] = []
    seen: set[str] = set()
    for path in sorted(folder.glob("*.toml")):
        if path.name == EQUIVALENT_FILE:
            continue
        for number, table in enumerate(_tables(path), start=1):
            found = _plant(path, number, table, root)
            if found.id in seen:
                raise LanelockError(f"{path.name}: two mutants are named {found.id}")
            seen.add(found.id)
            if isinstance(found, Dead):
                dead.append(found)
            else:
                alive.append(found)
    if not alive and not dead:
        raise LanelockError(f"the folder {folder} holds no mutant")
    return alive, dead


def _tables(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise LanelockError(f"{path.name} is not TOML: {error}") from error
    for key, tables in content.items():
        if key not in ("mutant", "mutants") or not isinstance(tables, list):
            raise LanelockError(f"{path.name}: {key!r} is not a table array named mutant")
        yield from tables


def _plant(path: Path, number: int, table: Mapping[str, Any], root: Path) -> Mutant | Dead:
    where = f"{path.name}, mutant {number}"
    for field in FIELDS:
        if not isinstance(table.get(field), str):
            raise LanelockError(f"{where}: the field {field!r} is missing or not a text")
    for field in table:
        if field not in FIELDS + OPTIONAL:
            raise LanelockError(f"{where}: unknown field {field!r}; known are {', '.join(FIELDS + OPTIONAL)}")
    file, anchor = table["file"], table["anchor"]
    name = str(table.get("name", f"{path.stem}-{number}"))
    room = str(table.get("room", "")) or room_of(file)
    target = (root / file).resolve()
    if not target.is_relative_to(root.resolve()):
        raise LanelockError(f"{where}: the file {file} is outside the repository")
    text = target.read_text(encoding="utf-8") if target.is_file() else None
    count = text.count(anchor) if text is not None and anchor else 0
    if text is None or count != 1:
        reason = f"{file} does not exist" if text is None else f"the anchor occurs {count} times in {file}"
        return Dead(name, room, file, table["class"], table["sentence"], reason)
    if table["replacement"] == anchor:
        raise LanelockError(f"{where}: the replacement equals the anchor, so nothing is mutated")
    start = text.index(anchor)
    return Mutant(
        id=name,
        room=room,
        file=file,
        start=start,
        original=anchor,
        replacement=table["replacement"],
        kind=table["class"],
        sentence=table["sentence"],
        origin=path.name,
        line=line_of(text, start),
        planted=True,
        locks=tuple(table.get("locks", ())),
    )
