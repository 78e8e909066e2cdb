"""`lanelock strength`: plant faults in a copy of the checkout and see whether the locks turn red."""

import argparse
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.cache import write_whole
from harness.cli.output import check_output
from harness.record import check_records, record
from reports.strength.campaign import Setting, measure
from reports.strength.plan import PER_ROOM, Choice, Planting, choose, in_turns, survivors_of
from reports.strength.result import EQUIVALENT, UNSEEN, Strength, Verdict, as_json, grouped, tally

ROOT = Path(__file__).resolve().parents[2]


def checkout() -> Path:
    """The folder that is tested: the working folder if it is a checkout, else where this command lies."""
    here = Path.cwd()
    return here if all((here / name).is_dir() for name in ("locks", "oracle", "kernels")) else ROOT


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("strength", help="plant faults in a copy of the checkout and count what the locks notice")
    sub.add_argument("--tier", default="host", help="the locks that run: host (default; no GPU)")
    sub.add_argument("--room", action="append", default=[], help="only this room; may be repeated")
    sub.add_argument("--file", action="append", default=[], metavar="PATTERN",
                     help="only faults of these sources, such as 'kernels/gemm_*'; may be repeated")  # fmt: skip
    sub.add_argument("--again", type=Path, metavar="FILE.json", help="only what survived in an earlier run's --out")
    sub.add_argument(
        "--class", dest="kind", action="append", default=[], help="only this class of faults; may be repeated"
    )
    sub.add_argument("--mutants", type=Path, help="a folder of TOML files with mutants, instead of the project's own")
    sub.add_argument("--per-room", type=int, default=PER_ROOM, help=f"generated mutants a room (default: {PER_ROOM})")
    sub.add_argument("--limit", type=int, help="at most this many mutants in all, rooms taking turns")
    sub.add_argument("--seconds", type=float, help="start no mutant after so long; rooms take turns")
    sub.add_argument("--seed", type=int, default=0, help="seed of the sample of generated mutants (default: 0)")
    sub.add_argument("--processes", type=int, default=0, help="workers, each with its own copy (default: processors)")
    sub.add_argument("--root", type=Path, help="the checkout to test (default: the working folder, or this one)")
    sub.add_argument("--list", action="store_true", help="list the mutants, run nothing")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--out", type=Path, help="write the JSON to a file as well")
    sub.add_argument("--record", action="store_true", help="write a record under reports/records/")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if every mutant was noticed and every anchor lives, 1 if one survived, an anchor is dead or none ran."""
    root = (args.root or checkout()).resolve()
    if args.out:
        check_output(args.out)
    if args.record:
        check_records()
    choice = Choice(
        rooms=tuple(args.room),
        files=tuple(args.file),
        ids=None if args.again is None else survivors_of(args.again),
        classes=tuple(args.kind),
        folder=args.mutants,
        per_room=args.per_room,
        limit=args.limit,
        seed=args.seed,
    )
    planting = choose(choice, root)
    if args.list:
        return show_list(planting, args.json)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is ended removes its copies too
    mutants = planting.mutants if args.seconds is None else in_turns(planting.mutants)
    setting = Setting(root, args.tier, args.processes, seconds=math.inf if args.seconds is None else args.seconds)
    with progress(len(mutants)) as (report, tell):
        verdicts, seconds = measure(setting, mutants, report, tell)
    strength = Strength(
        verdicts=tuple(verdicts),
        dead=planting.dead,
        operators=planting.operators,
        candidates=planting.candidates,
        sample={name: getattr(args, name) for name in ("seed", "per_room", "limit", "seconds")},
        planned=len(mutants),
        tier=args.tier,
        seconds=seconds,
    )
    result = as_json(strength)
    if args.out:
        write_whole(args.out, json.dumps(result, indent=1) + "\n")
    if args.record:
        record("strength", {name: figure for name, figure in result.items() if name != "mutants"})
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        show(strength)
    return 1 if strength.survivors or strength.dead or not strength.verdicts else 0


def show_list(planting: Planting, as_text: bool) -> int:
    """The mutants, one a line or as JSON; dead anchors make the exit code 1."""
    if as_text:
        rows = [{"id": m.id, "room": m.room, "file": m.file, "line": m.line, "class": m.kind, "sentence": m.sentence}
                for m in planting.mutants]  # fmt: skip
        dead = [{"id": d.id, "file": d.file, "reason": d.reason} for d in planting.dead]
        print(json.dumps({"total": len(rows), "mutants": rows, "dead": dead}, indent=1))
    else:
        for m in planting.mutants:
            print(f"{m.room:14} {m.file}:{m.line}  {m.kind}: {m.sentence}  [{m.id}]")
        for d in planting.dead:
            print(f"{d.room:14} DEAD {d.id}: {d.reason}")
    return 1 if planting.dead else 0


@contextmanager
def progress(total: int) -> Iterator[tuple[Callable[[Verdict], None], Callable[[str], None]]]:
    """A bar on a terminal, plain lines elsewhere, both on stderr, so that stdout is the result alone."""
    console = Console(stderr=True)
    counts = {"done": 0, "seen": 0}
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("baselines", total=total)

        def tell(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def report(verdict: Verdict) -> None:
            counts["done"] += 1
            counts["seen"] += verdict.seen
            bar.update(task, advance=1, description=f"{counts['seen']} noticed of {counts['done']}")
            if verdict.fate in UNSEEN:
                tell(f"SURVIVED ({verdict.fate}) {verdict.mutant.id}: {verdict.mutant.sentence}")
            elif not console.is_terminal and counts["done"] % 10 == 0:
                tell(f"{counts['done']}/{total}: {counts['seen']} noticed, {time.monotonic() - began:.0f} s")

        yield report, tell


def show(strength: Strength) -> None:
    """Tables by room and by class, the survivors, the dead anchors, and one line of sum."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    for title, attribute in (("room", "room"), ("class", "kind")):
        columns = ("total", "killed", "timed_out", "crashed", "killed_by_build", "survived", "not_compiled")
        table = Table(title, *(c.replace("_", " ") for c in columns), box=None)
        for name, group in grouped(strength.counted, attribute).items():
            figures = tally(group)
            table.add_row(name, *(str(figures[c]) for c in columns))
        console.print(table)
    for verdict in strength.survivors:
        m = verdict.mutant
        console.print(f"SURVIVED {m.id} {m.file}:{m.line} ({m.kind}) {m.sentence}; ran {', '.join(verdict.ran)}: "
                      f"{verdict.run.passed} passed, {verdict.run.skipped} skipped", markup=False)  # fmt: skip
    for dead in strength.dead:
        console.print(f"DEAD ANCHOR {dead.id}: {dead.reason} ({dead.sentence})", markup=False)
    figures = tally(strength.counted)
    equivalent = sum(v.fate == EQUIVALENT for v in strength.verdicts)
    unmade = figures["killed_by_build"] + figures["not_compiled"]
    console.print(
        f"{figures['killed']} of {figures['total']} killed ({strength.share:.1%} of those that compiled); {unmade} did "
        f"not compile, {equivalent} proven equivalent, {len(strength.dead)} dead anchors, {strength.not_started} not "
        f"started; seed {strength.sample['seed']}, {strength.seconds:.0f} s"
    )
