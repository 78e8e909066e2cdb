"""`lanelock golden`: record streams with a reason, check them, list them, show what differs."""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from golden.check import Outcome, Reference, check, commit_reference, device_reference, difference, stale
from golden.record import Decoded, Opener, decoded, record
from golden.sources import BOUNDED, LANES, source, sources
from golden.stream import FOLDER, Golden, read_all, replace
from harness.commits import commit_of
from harness.device import Device, NotRun
from harness.devices import available, check_choice, open_device
from harness.engine import Choice, Engine, Request, opened
from harness.progress import shown
from harness.record import check_records
from harness.record import record as write_record
from oracle.errors import LanelockError
from oracle.model_weights import Weights


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("golden", help="record, check, list or compare golden streams")
    actions = sub.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, func, text in (
        ("record", run_record, "decode and write goldens; needs a reason"),
        ("check", run_check, "decode again and compare; never writes a golden"),
        ("list", run_list, "what is recorded, and what has gone unchecked"),
        ("diff", run_diff, "every step of a golden beside what comes now"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("--source", choices=[s.name for s in sources()], help="one model alone")
        action.add_argument("--lane", action="append", metavar="L", help="this lane (may be given again; default: all)")
        every = ", or all" if name == "check" else ""
        action.add_argument("--device", default="host", help=f"host, cuda or cuda:N{every} (default: host)")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(func=func)
        if name == "record":
            action.add_argument("--reason", required=True, help="why these bits are the right ones")
        if name == "check":
            action.add_argument("--record", action="store_true", help="write a record of this check")
            action.add_argument("--against-commit", metavar="REV", help="bisect a mismatch against this commit")
        if name in ("check", "list"):
            action.add_argument("--max-age", type=float, metavar="DAYS", help="fail goldens unchecked for so long")


def opener(device: Device) -> Opener:
    """Engines of a device."""

    def open_on(weights: Weights, choice: Choice) -> AbstractContextManager[Engine]:
        return opened(device, weights, choice)

    return open_on


def selected(args: argparse.Namespace) -> dict[tuple[str, str], list[Golden]]:
    """The goldens asked for, by source and lane. Raises LanelockError if there is none."""
    groups: dict[tuple[str, str], list[Golden]] = defaultdict(list)
    for golden in read_all():
        if args.source in (None, golden.source) and (not args.lane or golden.lane in args.lane):
            groups[golden.source, golden.lane].append(golden)
    if not groups:
        raise LanelockError("golden: no recorded stream is of this source and lane")
    return groups


def run_record(args: argparse.Namespace) -> None:
    """Record every prompt of every source and lane asked for.

    Files are written when all streams are decoded: a fault leaves every golden as it was, and each is recorded from the
    tree as it was found.
    """
    check_records(FOLDER)
    device = open_device(args.device)
    goldens: list[Golden] = []
    with shown("recording") as progress:
        for one in sources() if args.source is None else (source(args.source),):
            weights = one.weights()
            requests = [Request(p, one.count) for p in one.prompts]
            lanes = args.lane or (*LANES, *BOUNDED)
            for i, lane in enumerate(lanes):
                progress(f"{one.name} {lane}", i, len(lanes))
                goldens += record(opener(device), device, one.name, weights, lane, requests, args.reason)
    notes = {g.name: _succession(g, replace(g)) for g in goldens}
    print(json.dumps(notes) if args.json else "\n".join(f"{name}: {note}" for name, note in notes.items()))


def _succession(golden: Golden, old: Golden | None) -> str:
    """What a new golden has in common with the one whose place it took."""
    if old is None:
        return "recorded"
    now = Decoded(list(golden.tokens), list(golden.logits), list(golden.margins), list(golden.accepted), golden.build)
    same = "within its bounds" if golden.bounds else "the same tokens, logits and accept pattern"
    return f"takes the place of {old.name}: {difference(old, now) or same}"


def references_of(device: Device, revision: str | None) -> list[Reference]:
    """What a mismatch is bisected against: the host, a named commit, or the last commit and the one that recorded."""
    host = [] if device.properties.kind == "host" else [device_reference("the host", opener(open_device("host")))]
    return host + [commit_reference(r) for r in ([revision] if revision else ["HEAD", None])]


def check_all(
    groups: dict[tuple[str, str], list[Golden]], device: Device, revision: str | None = None
) -> list[Outcome]:
    """Check every group on a device; a mismatch is bisected."""
    references = references_of(device, revision)
    outcomes: list[Outcome] = []
    with shown(f"checking on {device.properties.name}") as progress:
        for i, ((name, lane), goldens) in enumerate(sorted(groups.items())):
            progress(f"{name} {lane}", i, len(groups))
            outcomes += check(opener(device), source(name).weights(), goldens, references)
    return outcomes


def run_check(args: argparse.Namespace) -> int:
    """Exit 1 if any stream differs or has gone unchecked. Raises NotRun where no device could be opened."""
    groups = selected(args)
    if args.record:
        check_records()
    if args.against_commit is not None:
        commit_of(args.against_commit)
    opened_, missing = devices_of(args.device)
    checks = {d.properties.name: check_all(groups, d, args.against_commit) for d in opened_.values()}
    rows = {name: {"passed": [o.golden.name for o in outcomes if not o.problem],
                   "problems": {o.golden.name: o.problem for o in outcomes if o.problem}}
            for name, outcomes in checks.items()}  # fmt: skip  # a map
    every = [g for group in groups.values() for g in group]
    if args.record:
        passed = [g.name for g in every if all(g.name in row["passed"] for row in rows.values())]
        write_record("golden", {"passed": passed, "devices": rows, "not_run": missing})
    late = stale(every, args.max_age) if args.max_age is not None else []
    if args.json:
        print(json.dumps({"devices": rows, "not_run": missing, "stale": late}))
    else:
        print("\n".join(_check_lines(rows, missing, late, args.max_age)))
    return 1 if late or any(row["problems"] for row in rows.values()) else 0


def devices_of(choice: str) -> tuple[dict[str, Device], dict[str, str]]:
    """The devices of a choice and the reason for each that is not here. Raises NotRun if there is none."""
    check_choice(choice)
    found, missing = available(choice)
    if not found:
        raise NotRun("; ".join(missing.values()))
    return found, missing


def _check_lines(
    rows: dict[str, dict[str, Any]], missing: dict[str, str], late: list[str], days: float | None
) -> Iterator[str]:
    for name, row in rows.items():
        yield from (f"FAILED {golden} on {name}: {problem}" for golden, problem in row["problems"].items())
        yield f"{len(row['passed'])} golden streams hold on {name}, {len(row['problems'])} differ"
    yield from (f"{name} not run: {reason}" for name, reason in missing.items())
    yield from (f"STALE {name}: not checked for {days:g} days" for name in late)


def run_list(args: argparse.Namespace) -> int:
    """Print the goldens; exit 1 where one has gone unchecked for too long."""
    goldens = [g for group in selected(args).values() for g in group]
    late = stale(goldens, args.max_age) if args.max_age is not None else []
    if args.json:
        print(json.dumps([{"name": g.name, "lane": g.lane, "tokens": len(g.tokens), "arithmetic": g.arithmetic,
                           "stale": g.name in late, **g.provenance} for g in goldens]))
    else:
        for g in goldens:
            least = min(float.fromhex(m) for m in g.margins)
            note = "  STALE" if g.name in late else ""
            print(f"{g.name}: {len(g.tokens)} tokens, smallest margin {least:.2g}, {g.provenance['reason']}{note}")
    return 1 if late else 0


def run_diff(args: argparse.Namespace) -> int:
    """Print the steps that differ."""
    device = open_device(args.device)
    different = 0
    for (name, lane), goldens in sorted(selected(args).items()):
        requests = [Request(g.prompt, len(g.tokens)) for g in goldens]
        found = decoded(opener(device), source(name).weights(), lane, requests)
        for golden, one in zip(goldens, found, strict=True):
            rows = _rows(golden, one.tokens, one.logits)
            different += len(rows)
            print("\n".join([f"{golden.name}: {len(rows)} of {len(golden.tokens)} steps differ", *rows]))
    return 1 if different else 0


def _rows(golden: Golden, tokens: Sequence[int], logits: Sequence[str]) -> list[str]:
    """A line for each step whose token or logits differ."""
    steps = enumerate(zip(golden.tokens, tokens, golden.logits, logits, golden.margins, strict=True))
    return [
        f"  step {i}: token {a} recorded, {b} now; logits {x[:12]} and {y[:12]}; margin {float.fromhex(m):.3g}"
        for i, (a, b, x, y, m) in steps
        if (a, x) != (b, y)
    ]
