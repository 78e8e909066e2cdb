"""`lanelock kernels [ROOM]`: the catalogue, and the places of a room."""

import argparse
import functools
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from harness.record import newest_record
from kernels.catalogue import KERNELS, by_room
from kernels.entry import Buffer, Kernel
from kernels.places import ROOT, places
from reports.strength.mutant import load_planted
from reports.strength.plan import PLANTED
from reports.strength.rooms import locks_by_words, locks_of, room_of


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("kernels", help="the catalogue: rooms, their places, locks and last record")
    sub.add_argument("room", nargs="?", help="show one room")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def shown_places(room: str) -> dict[str, str | None]:
    """Role -> file of the room (locks, mutants: several, with commas), relative to the checkout; None for none."""
    found = {role: str(path) if (ROOT / path).exists() else None for role, path in places(room).items()}
    return found | {"locks": ", ".join(lock_files(room)) or None, "mutants": ", ".join(mutant_files(room)) or None}


def lock_files(room: str) -> list[str]:
    """The room's own locks, then the others that `lanelock strength` runs for its source; none without a checkout."""
    if not (ROOT / PLANTED).is_dir():
        return []
    source = f"kernels/{room}.cu"
    others = (*locks_of(room_of(source), ROOT), *locks_by_words(ROOT / source))
    return list(dict.fromkeys((str(places(room)["locks"]), *others)))


def mutant_files(room: str) -> list[str]:
    """The files of planted faults that `lanelock strength` runs for the room's source; none without a checkout."""
    held = room_of(f"kernels/{room}.cu")  # several forms of one operation are one room of faults
    return sorted(f"{PLANTED}/{origin}" for of, origin in _planted() if of == held)


@functools.cache
def _planted() -> frozenset[tuple[str, str]]:
    """(room, file) of every planted fault of the checkout: all files are read for one."""
    if not (ROOT / PLANTED).is_dir():
        return frozenset()
    alive, _ = load_planted(ROOT / PLANTED, ROOT)
    return frozenset((mutant.room, mutant.origin) for mutant in alive)


def arguments(kernel: Kernel) -> list[str]:
    """Name and type of each argument, with shape and access of a buffer."""
    return [
        f"{a.name}: {a.dtype} {list(a.shape)} {a.access}" if isinstance(a, Buffer) else f"{a.name}: {a.ctype}"
        for a in kernel.args
    ]


def describe(kernel: Kernel) -> dict[str, object]:
    """A kernel as plain data: what it takes, writes and where it runs."""
    return {
        "name": kernel.name,
        "room": kernel.room,
        "doc": kernel.doc,
        "template": {p.name: list(p.values) for p in kernel.params},
        "arguments": arguments(kernel),
        "archs": list(kernel.archs),
        "limits": dict(kernel.limits or {}),
        "exact": kernel.exact,
    }


def run(args: argparse.Namespace) -> int:
    """Print the catalogue, or one room of it."""
    chosen = by_room(args.room) if args.room else KERNELS
    rooms = sorted({k.room for k in chosen})
    record = newest_record("locks")
    if args.json:
        where = {room: shown_places(room) for room in rooms}
        print(json.dumps({"kernels": [describe(k) for k in chosen], "places": where, "record": record}, indent=2))
        return 0
    show(chosen)
    if args.room:
        for kernel in chosen:
            print(f"\n{kernel.name}({', '.join(arguments(kernel))})")
        for role, path in shown_places(args.room).items():
            print(f"{role:26s} {path or 'none'}")
    print(f"last record of the locks: {record or 'none'}")
    return 0


def show(kernels: Sequence[Kernel]) -> None:
    """A table on a terminal, a line a kernel elsewhere; names are whole in both."""
    longest = max(len(k.name) for k in kernels)
    table = Table(Column("kernel", min_width=longest, no_wrap=True), "room", "template", "runs on", "what it does",
                  box=None)  # fmt: skip
    for k in kernels:
        template = ", ".join(f"{p.name}={'|'.join(map(str, p.values))}" for p in k.params)
        table.add_row(k.name, k.room, template, " ".join(k.archs), k.doc)
        if not sys.stdout.isatty():
            print(f"{k.name:{longest}}  {k.room}  {template or '-'}  {' '.join(k.archs)}  {k.doc}")
    if sys.stdout.isatty():
        Console().print(table)
