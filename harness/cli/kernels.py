"""`lanelock kernels [ROOM]`: the catalogue, and the places of a room."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.record import newest_record
from kernels.catalogue import KERNELS, by_room
from kernels.entry import Buffer, Kernel
from kernels.places import ROOT, places


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("kernels", help="the catalogue: rooms, their places, locks and last record")
    sub.add_argument("room", nargs="?", help="show one room")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def shown_places(room: str) -> dict[str, str | None]:
    """Role -> file of the room, relative to the checkout; None where the room has no such file."""
    found = places(room) | {"mutants": Path(f"locks/mutants/{room}.toml")}
    return {role: str(path) if (ROOT / path).exists() else None for role, path in found.items()}


def describe(kernel: Kernel) -> dict[str, object]:
    """A kernel as plain data: what it takes, writes and where it runs."""
    return {
        "name": kernel.name,
        "room": kernel.room,
        "doc": kernel.doc,
        "template": {p.name: list(p.values) for p in kernel.params},
        "arguments": [
            f"{a.name}: {a.dtype} {list(a.shape)} {a.access}" if isinstance(a, Buffer) else f"{a.name}: {a.ctype}"
            for a in kernel.args
        ],
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
        data = {"kernels": [describe(k) for k in chosen], "places": {r: shown_places(r) for r in rooms}, "record": record}
        print(json.dumps(data, indent=2))
        return 0
    console = Console()
    table = Table("kernel", "room", "template", "runs on", "what it does", box=None)
    for k in chosen:
        template = ", ".join(f"{p.name}={'|'.join(map(str, p.values))}" for p in k.params)
        table.add_row(k.name, k.room, template, " ".join(k.archs), k.doc)
    console.print(table)
    if args.room:
        for kernel in chosen:
            console.print(f"\n{kernel.name}({', '.join(str(a) for a in describe(kernel)['arguments'])})")  # type: ignore[attr-defined]  # a list
        for role, path in shown_places(args.room).items():
            console.print(f"{role:26s} {path or 'none'}")
    console.print(f"last record of the locks: {record or 'none'}")
    return 0
