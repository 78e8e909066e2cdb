"""`lanelock report accuracy`: what each lane costs, in the terminal, as JSON, Markdown or an HTML page."""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from golden.check import check
from golden.sources import BOUNDED, LANES, source, sources
from golden.stream import Golden, read_all
from harness.cache import write_whole
from harness.cli.golden import opener
from harness.cli.output import check_output
from harness.device import Device
from harness.devices import open_device
from harness.engine import Choice, Request, decode, opened
from harness.progress import shown
from harness.record import check_records, circumstances, record
from oracle.error_bound import SAMPLES
from oracle.errors import LanelockError
from oracle.model_weights import Weights
from reports.accuracy import LaneAccuracy, measure, truth_of
from reports.accuracy_page import HEADER, Report, markdown, page, rows, summary
from reports.bench_decode import Case
from reports.bench_decode import measure as timed
from reports.lock_results import LockRun, doubt, read_run
from reports.state_drift import Mark, drift

POSITIONS = 96
WIDTH = 160
#: Lanes whose states are followed through a long decode: one a width.
DRIFTING = ("a15", "a15+s16")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("report", help="reports of what was measured")
    kinds = sub.add_subparsers(dest="kind", required=True, metavar="KIND")
    accuracy = kinds.add_parser("accuracy", help="what each lane costs against float64")
    accuracy.add_argument("--source", default="kjv", choices=[s.name for s in sources()], help="model (default: kjv)")
    accuracy.add_argument("--lane", action="append", metavar="L", help="this lane (may be given again; default: all)")
    accuracy.add_argument("--device", default="host", help="host, cuda or cuda:N (default: host)")
    accuracy.add_argument("--positions", type=int, default=POSITIONS, help=f"tokens of the text ({POSITIONS})")
    accuracy.add_argument("--samples", type=int, default=SAMPLES, metavar="N",
                          help=f"noisy runs that bounds are made of ({SAMPLES}; 0: no bounds)")
    accuracy.add_argument("--drift", type=int, default=0, metavar="N", help="follow the states through N tokens")
    accuracy.add_argument("--locks", type=Path, metavar="FILE", help="results of this commit's locks: without no speed")
    accuracy.add_argument("--json", action="store_true", help="print JSON")
    accuracy.add_argument("--markdown", type=Path, metavar="FILE.md", help="write Markdown")
    accuracy.add_argument("--html", type=Path, metavar="FILE.html", help="write one page with plots")
    accuracy.add_argument("--record", action="store_true", help="write a record")
    accuracy.set_defaults(func=run)


def text_of(device: Device, name: str, count: int) -> tuple[int, ...]:
    """The text a model is priced on: its first prompt and what lane a15 makes of it, `count` tokens in all.

    Raises LanelockError for fewer than two.
    """
    if count < 2:
        raise LanelockError(f"report: {count} positions are too few to compare")
    golden = next(g for g in read_all() if (g.source, g.lane) == (name, "a15"))
    text = golden.prompt + golden.tokens
    if len(text) < count:
        with opened(device, source(name).weights(), Choice("a15", 1, count, 16)) as engine:
            text = golden.prompt + tuple(decode(engine, [Request(golden.prompt, count - len(golden.prompt))])[0].tokens)
    return text[:count]


def collect(
    device: Device, name: str, lanes: Sequence[str], count: int, samples: int = 0
) -> tuple[list[LaneAccuracy], dict[str, str]]:
    """Accuracy of each lane, and whether its golden streams hold on this device.

    Raises LanelockError for no lane, or so few noisy runs that they have no spread.
    """
    if not lanes:
        raise LanelockError("report: there is no lane to price")
    if samples < 0 or samples == 1:
        raise LanelockError(f"report: {samples} noisy runs have no spread; ask for 0 or at least 2")
    weights, tokens = source(name).weights(), text_of(device, name, count)
    truth = truth_of(weights, tokens)
    results: list[LaneAccuracy] = []
    golden: dict[str, str] = {}
    with shown(f"accuracy on {device.properties.name}") as progress:
        for i, lane in enumerate(lanes):
            progress(lane, i, len(lanes))
            results.append(measure(device, weights, lane, tokens, truth, samples))
            recorded = [g for g in read_all() if (g.source, g.lane) == (name, lane)]
            if recorded:
                golden[lane] = _holds(device, recorded, weights)
    return results, golden


def _holds(device: Device, recorded: list[Golden], weights: Weights) -> str:
    problems = [o.problem for o in check(opener(device), weights, recorded) if o.problem]
    return problems[0] if problems else "holds"


def speeds_of(
    device: Device, weights: Weights, lanes: Sequence[str], lock_run: LockRun | None, commit: str | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Tokens a second of one sequence in each lane that this commit's locks hold on this device; else why not.

    A run that raised a flag has no speed either.
    """
    speeds: dict[str, float] = {}
    withheld: dict[str, str] = {}
    for lane in lanes:
        why = doubt(lock_run, commit, (*LANES, *BOUNDED), lane, device.properties.kind)
        found = None if why else timed(device, weights, Case(lane, 1, prompt=64, count=128, chunk=64))
        if found is not None and found["flags"] == [0]:
            speeds[lane] = found["tokens_a_second"]
        else:
            withheld[lane] = why or "the timed run raised a flag"
    return speeds, withheld


def marks_of(count: int) -> tuple[int, ...]:
    """Where states are compared: 32, then half a decade apart, and at the end."""
    steps = (round(10 ** (p / 4)) for p in range(6, 40))
    return (*(s for s in steps if s < count), count)


def check_drift(count: int) -> None:
    """Raises LanelockError for so few tokens that no state drifts in them."""
    if count != 0 and count < 100:
        raise LanelockError(f"report: --drift {count} is too few tokens to drift in; ask for at least 100")


def drifts(device: Device, name: str, count: int) -> dict[str, list[Mark]]:
    """States of the model through `count` tokens, at either width; none for a count of 0."""
    made: dict[str, list[Mark]] = {}
    if count == 0:
        return made
    with shown(f"drift on {device.properties.name}") as progress:
        for lane in DRIFTING:
            tell = lambda mark, lane=lane: progress(lane, mark.tokens, count)  # noqa: E731  # a callback
            made[lane] = drift(device, source(name).weights(), lane, source(name).prompts[0], marks_of(count), tell)
    return made


def wide_console() -> Console:
    """A console that never cuts a figure: where there is no terminal, as wide as the table."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def table(report: Report) -> Table:
    """The table for a terminal."""
    shape = Table(*HEADER, box=None)
    for row in rows(report):
        shape.add_row(*row)
    return shape


def run(args: argparse.Namespace) -> int:
    """Print and write what was asked for. Exit 1 where a golden does not hold, a logit is out of bounds or is a NaN."""
    for out in filter(None, (args.markdown, args.html)):
        check_output(out)
    if args.html is not None and args.markdown == args.html:
        raise LanelockError(f"report: --markdown and --html are both {args.html}")
    if args.record:
        check_records()
    report, data = reported(args)
    if args.markdown:
        write_whole(args.markdown, markdown(report))
    if args.html:
        write_whole(args.html, page(report))
    if args.record:
        record("accuracy", brief(data))
    if args.json:
        print(json.dumps(data, allow_nan=False))
    else:
        wide_console().print(report.title, table(report))
        print(summary(report))
        print("\n".join(f"{lane}: no speed, {why}" for lane, why in report.withheld.items()))
    return 0 if holds(report) else 1


def holds(report: Report) -> bool:
    """Whether every lane is a number within its bounds and every golden stream holds."""
    numbers = all(math.isfinite(r.logits.total.rel_l2) for r in report.lanes)
    within = all(r.unexcused == 0 and (r.share is None or r.share <= 1) for r in report.lanes)
    return numbers and within and all(state == "holds" for state in report.golden.values())


def reported(args: argparse.Namespace) -> tuple[Report, dict[str, Any]]:
    """The report of a command line, and the same as JSON values, in which what is no number is null."""
    lock_run = None if args.locks is None else read_run(args.locks)
    check_drift(args.drift)
    lanes = tuple(dict.fromkeys(args.lane or (*LANES, *BOUNDED)))
    device, now = open_device(args.device), circumstances()
    results, golden = collect(device, args.source, lanes, args.positions, args.samples)
    speeds, withheld = ({}, {}) if device.properties.kind == "host" else speeds_of(
        device, source(args.source).weights(), lanes, lock_run, None if now["dirty"] else now["commit"]
    )  # fmt: skip  # two of a kind
    where = f"{device.properties.name}, compiler {device.properties.compiler}"
    report = Report(
        f"Accuracy of {args.source} on {device.properties.name}, {results[0].positions} positions",
        results, golden, speeds, withheld, drifts(device, args.source, args.drift),
        (where, f"commit {now['commit'] or 'unknown'}{' with changes' if now['dirty'] else ''}", f"CPU {now['cpu']}"),
    )  # fmt: skip  # fields in their order
    followed = {lane: [dataclasses.asdict(m) for m in marks] for lane, marks in report.drift.items()}
    data = {"source": args.source, "device": device.properties.name, "golden": golden, "tokens_a_second": speeds,
            "withheld": withheld, "lanes": [dataclasses.asdict(r) for r in results], "drift": followed}  # fmt: skip
    return report, finite(data)


def brief(data: dict[str, Any]) -> dict[str, Any]:
    """The same for a record: of a lane's drift only the root mean squares of four quarters of the text."""
    lanes = []
    for row in data["lanes"]:
        whole = {name: value for name, value in row.items() if name not in ("at", "drift")}
        quarters = np.array_split(np.array(row["drift"], np.float64), 4)
        means = [np.sqrt((part**2).mean(0)).tolist() for part in quarters if len(part)]
        lanes.append({**whole, "drift_by_quarter": finite(means)})
    return {**data, "lanes": lanes}


def finite(value: Any) -> Any:
    """The same with null for every float that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
