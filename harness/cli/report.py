"""`lanelock report accuracy`: what each lane costs, in the terminal, as JSON, Markdown or an HTML page."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

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
from harness.progress import shown
from harness.record import check_records, record
from oracle.errors import LanelockError
from oracle.model_weights import Weights
from reports.accuracy import LaneAccuracy, measure, truth_of
from reports.accuracy_page import HEADER, markdown, page, rows

POSITIONS = 96
WIDTH = 130


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("report", help="reports of what was measured")
    kinds = sub.add_subparsers(dest="kind", required=True, metavar="KIND")
    accuracy = kinds.add_parser("accuracy", help="what each lane costs against float64")
    accuracy.add_argument("--source", default="kjv", choices=[s.name for s in sources()], help="model (default: kjv)")
    accuracy.add_argument("--lane", action="append", metavar="L", help="this lane (may be given again; default: all)")
    accuracy.add_argument("--device", default="host", help="host, cuda or cuda:N (default: host)")
    accuracy.add_argument("--positions", type=int, default=POSITIONS, help=f"tokens of the text ({POSITIONS})")
    accuracy.add_argument("--json", action="store_true", help="print JSON")
    accuracy.add_argument("--markdown", type=Path, metavar="FILE.md", help="write Markdown")
    accuracy.add_argument("--html", type=Path, metavar="FILE.html", help="write one page with plots")
    accuracy.add_argument("--record", action="store_true", help="write a record")
    accuracy.set_defaults(func=run)


def text_of(name: str, count: int) -> tuple[int, ...]:
    """The text a model is priced on: its first golden's prompt and stream in lane a15, cut to `count` tokens."""
    golden = next(g for g in read_all() if (g.source, g.lane) == (name, "a15"))
    tokens = golden.prompt + golden.tokens
    if count < 2:
        raise LanelockError(f"report: {count} positions are too few to compare")
    return tokens[:count]


def collect(device: Device, name: str, lanes: list[str], count: int) -> tuple[list[LaneAccuracy], dict[str, str]]:
    """Accuracy of each lane, and whether its golden streams hold on this device."""
    weights, tokens = source(name).weights(), text_of(name, count)
    truth = truth_of(weights, tokens)
    results: list[LaneAccuracy] = []
    golden: dict[str, str] = {}
    with shown(f"accuracy on {device.properties.name}") as progress:
        for i, lane in enumerate(lanes):
            progress(lane, i, len(lanes))
            results.append(measure(device, weights, lane, tokens, truth))
            recorded = [g for g in read_all() if (g.source, g.lane) == (name, lane)]
            if recorded:
                golden[lane] = _holds(device, recorded, weights)
    return results, golden


def _holds(device: Device, recorded: list[Golden], weights: Weights) -> str:
    problems = [o.problem for o in check(opener(device), weights, recorded) if o.problem]
    return problems[0] if problems else "holds"


def wide_console() -> Console:
    """A console that never cuts a figure: where there is no terminal, as wide as the table."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def table(results: list[LaneAccuracy], golden: dict[str, str]) -> Table:
    """The table for a terminal."""
    shape = Table(*HEADER, box=None)
    for row in rows(results, golden):
        shape.add_row(*row)
    return shape


def run(args: argparse.Namespace) -> int:
    """Print and write what was asked for. Exit 1 where a golden does not hold."""
    for out in filter(None, (args.markdown, args.html)):
        check_output(out)
    if args.record:
        check_records()
    device = open_device(args.device)
    results, golden = collect(device, args.source, args.lane or [*LANES, *BOUNDED], args.positions)
    title = f"Accuracy of {args.source} on {device.properties.name}, {results[0].positions} positions"
    if args.markdown:
        write_whole(args.markdown, markdown(title, results, golden))
    if args.html:
        write_whole(args.html, page(title, results, golden))
    data = {"source": args.source, "device": device.properties.name, "golden": golden,
            "lanes": [dataclasses.asdict(r) for r in results]}  # fmt: skip
    if args.record:
        record("accuracy", data)
    if args.json:
        print(json.dumps(data))
    else:
        wide_console().print(title, table(results, golden))
    return 1 if any(v != "holds" for v in golden.values()) else 0
