"""`lanelock ablate`: what a part of a program costs, by leaving it out. What is left is timed and is no stream."""

import argparse
import json

from rich.table import Table

from harness.ablate import GROUPS, OUTSIDE
from harness.cli.report import wide_console
from harness.devices import open_device
from harness.engine.session import Choice, plan_of
from harness.progress import shown
from kernels.lanes import lane
from oracle.config import load as load_config
from oracle.errors import LanelockError
from oracle.weights import load
from reports.bench_decode import Case
from reports.bench_step import measure

BANDWIDTH = 1.0  # GB/s, of floors that are not shown
NOTE = "times by difference; a program with a part left out computes nothing and is no stream"


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("ablate", help="what a part of a program costs, by leaving it out; never a stream")
    sub.add_argument("--weights", default="synthetic:1", metavar="W", help="as for decode (default: synthetic:1)")
    sub.add_argument("--config", default="tiny", metavar="C", help="preset or JSON file (default: tiny)")
    sub.add_argument("--device", default="host", help="host (default), cuda or cuda:N")
    sub.add_argument("--lane", default="a8", metavar="L", help="exact lane (default: a8)")
    sub.add_argument("--batch", type=int, default=1, metavar="B", help="sequences (default: 1)")
    sub.add_argument("--prompt", type=int, default=32, metavar="N", help="tokens before the program (default: 32)")
    sub.add_argument("--drafts", type=int, default=0, metavar="K", help="drafts a step")
    sub.add_argument("--program", default="step", help="step, verify, draft or commit (default: step)")
    sub.add_argument("--skip", action="append", choices=GROUPS, help="this part (may be given again; default: all)")
    sub.add_argument("--repeats", type=int, default=5, metavar="N", help="replays behind each median (default: 5)")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Print a line a part. Raises LanelockError for a program that is none, a missing device."""
    lane(args.lane)
    device, weights = open_device(args.device), load(args.weights, load_config(args.config))
    case = Case(args.lane, args.batch, args.prompt, 8, min(args.prompt, 512), args.drafts)
    limit = case.prompt + case.count + 1
    programs = plan_of(device, weights.config, Choice(case.lane, case.B, limit, case.chunk, case.drafts)).programs
    if args.program.startswith("load.") or args.program not in programs:
        names = ", ".join(name for name in programs if not name.startswith("load."))
        raise LanelockError(f"--program: there is no {args.program!r} in this plan; its programs are {names}")
    with shown("ablate") as progress:
        progress(args.program, 0, 1)
        found = measure(device, weights, case, args.program, BANDWIDTH, args.repeats)
    wanted = args.skip or (*GROUPS, OUTSIDE)
    parts = [row for row in found["parts"] if row["name"] in wanted]
    if args.json:
        rows = [{k: v for k, v in row.items() if k != "floor_ms"} for row in parts]
        print(json.dumps({"device": device.properties.name, "note": NOTE, "ms": found["ms"], "parts": rows}, indent=1))
        return
    table = Table("left out", "launches", "ms it costs", "share", "ms alone", box=None)
    for row in parts:
        figures = (f"{row['ms']:.4f}", f"{row['ms'] / found['ms']:.1%}", f"{row['ms_alone']:.4f}")
        table.add_row(row["name"], str(row["launches"]), *figures)
    wide_console().print(table)
    print(f"{args.program} on {device.properties.name}: {found['ms']:.4f} ms whole; {NOTE}")
