"""What a campaign will plant: planted mutants of a folder, and a sample of generated ones a room."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from oracle import json_text
from oracle.errors import LanelockError
from reports.strength.generate import generated, sample
from reports.strength.mutant import Dead, Mutant, load_planted
from reports.strength.rooms import all_rooms, locks_of

PLANTED = "locks/mutants"
#: Generated mutants a room, unless asked otherwise: with the planted ones a room takes about two minutes.
PER_ROOM = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """What to plant. An empty tuple means all; folder is the outside folder of mutants, None the project's own.

    files are patterns of source files. ids, where given, are the only mutants that run, and nothing is sampled.
    """

    rooms: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    ids: frozenset[str] | None = None
    classes: tuple[str, ...] = ()
    folder: Path | None = None
    per_room: int = PER_ROOM
    limit: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Planting:
    """The mutants to run and the dead anchors; candidates counts what the operators could make, by room."""

    mutants: tuple[Mutant, ...]
    dead: tuple[Dead, ...]
    candidates: Mapping[str, int]

    @property
    def operators(self) -> dict[str, int]:
        """Generated mutants that run, by operator."""
        return dict(sorted(Counter(m.kind for m in self.mutants if not m.planted).items()))


def choose(choice: Choice, root: Path) -> Planting:
    """Planted mutants, then generated ones room by room; an outside folder brings its own and nothing is generated.

    Raises LanelockError for a room or class that does not exist, a faulty TOML file, or nothing to run.
    """
    folder = choice.folder or root / PLANTED
    alive, dead = load_planted(folder, root) if choice.folder or folder.is_dir() else ([], [])
    rooms = _rooms(choice, alive, dead, root)
    candidates = {} if choice.folder else {r: generated(r, root) for r in rooms}
    chosen = [m for m in alive if m.room in rooms and _wanted(m, choice)]
    for made in candidates.values():
        wanted = [m for m in made if _wanted(m, choice)]
        chosen += wanted if choice.ids is not None else sample(wanted, choice.per_room, choice.seed)
    dead = [d for d in dead if d.room in rooms and _wanted(d, choice)]
    if not chosen and not dead:
        raise LanelockError("no mutant matches the chosen rooms, files and classes")
    counts = {room: len(made) for room, made in candidates.items()}
    return Planting(tuple(_limited(chosen, choice)), tuple(dead), counts)


def _rooms(choice: Choice, alive: Sequence[Mutant], dead: Sequence[Dead], root: Path) -> list[str]:
    """The chosen rooms, in their order; all that have locks or mutants when none is chosen."""
    known = list(dict.fromkeys([*all_rooms(root), *(m.room for m in alive), *(d.room for d in dead)]))
    for room in choice.rooms:
        if room not in known:
            raise LanelockError(f"unknown room {room!r}; rooms with locks are {', '.join(known)}")
    rooms = [r for r in known if not choice.rooms or r in choice.rooms]
    for mutant in alive:
        if mutant.room in rooms and not mutant.locks:
            locks_of(mutant.room, root)  # refuse a planted mutant that nothing could kill
    return rooms


def _wanted(mutant: Mutant | Dead, choice: Choice) -> bool:
    return (
        (not choice.classes or mutant.kind in choice.classes)
        and (not choice.files or any(fnmatch(mutant.file, pattern) for pattern in choice.files))
        and (choice.ids is None or mutant.id in choice.ids)
    )


def survivors_of(path: Path) -> frozenset[str]:
    """Ids of the mutants that survived, by the JSON of an earlier run. Raises LanelockError if it is none."""
    try:
        return frozenset(row["id"] for row in json_text.loads(path.read_text(encoding="utf-8"))["survivors"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LanelockError(f"{path}: is not the JSON of a run of strength ({error!r})") from error


def _limited(chosen: Sequence[Mutant], choice: Choice) -> list[Mutant]:
    """The first `limit` mutants, rooms taking turns, in the order they came."""
    return [chosen[index] for index in sorted(_turns(chosen)[: choice.limit])]


def in_turns(chosen: Sequence[Mutant]) -> list[Mutant]:
    """All mutants, the first of every room before the second of any: a run that is cut short has seen every room."""
    return [chosen[index] for index in _turns(chosen)]


def _turns(chosen: Sequence[Mutant]) -> list[int]:
    place: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for index, mutant in enumerate(chosen):
        turns.append((place[mutant.room], index))
        place[mutant.room] += 1
    return [index for _, index in sorted(turns)]
