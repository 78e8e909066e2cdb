"""`lanelock verify`: build the kernels, run every room on the best device, print what was compared.

The rooms are held by locks marked `verify` (value within its bound, contract to the bit, exact integers). Their
sentences, outcomes and shares of bounds are the report.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from golden.sources import BOUNDED, LANES
from harness.cli.report import collect, holds, table, wide_console
from harness.devices import available, check_choice
from oracle.errors import LanelockError
from reports.accuracy import LaneAccuracy
from reports.accuracy_page import Report
from reports.lock_results import LockResult, by_room

ROOT = Path(__file__).resolve().parents[2]
POSITIONS = 48  # of the text that lanes are priced on


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("verify", help="build, run every room on the best device, print shares of bounds")
    sub.add_argument("--device", default="best", help="best (default: both if there is a GPU), host, cuda or all")
    sub.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="worker processes")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def best_device() -> tuple[str, str]:
    """The device choice for this machine, and a line that says why."""
    opened, missing = available("all")
    if "cuda" in opened:
        return "all", f"host and {opened['cuda'].properties.name}"
    return "host", f"host only; GPU not run: {missing['cuda']}"


def run_locks(device: str, processes: int, quiet: bool) -> list[LockResult]:
    """Run the locks marked `verify` in worker processes. Raises LanelockError if they could not be run at all."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "results.json"
        command = [sys.executable, "-m", "pytest", str(ROOT / "locks"), "-m", "verify", "-q", "--no-header"]
        command += ["-n", str(processes), "--device", device, "--results", str(target)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if not target.exists():
            said = (done.stdout + done.stderr)[-2000:]
            raise LanelockError(f"the locks could not be run (pytest exit code {done.returncode}): {said}")
        if done.returncode and not quiet:
            print(done.stdout, file=sys.stderr)
        rows: list[dict[str, Any]] = json.loads(target.read_text())["locks"]
    return [LockResult(**row) for row in rows]


def table_of(results: list[LockResult]) -> Table:
    """One line a room: how many locks passed, failed, were not run, and the largest share of a bound."""
    table = Table("room", "passed", "failed", "not run", "largest share of a bound", box=None)
    for room, rows in by_room(results).items():
        counts = [sum(r.outcome == outcome for r in rows) for outcome in ("passed", "failed", "not run")]
        shares = [(v, k) for r in rows for k, v in r.shares.items()]
        worst = f"{max(shares)[0]:.3f} ({max(shares)[1]})" if shares else "exact bits"
        table.add_row(room, *map(str, counts), worst)
    return table


def decode_stage(choice: str) -> dict[str, tuple[list[LaneAccuracy], dict[str, str]]]:
    """The trained checkpoint decoded in every lane on each device: accuracy, and whether its goldens hold."""
    opened, _ = available(choice)
    return {name: collect(device, "kjv", [*LANES, *BOUNDED], POSITIONS) for name, device in opened.items()}


def run(args: argparse.Namespace) -> int:
    """Exit 0 only if at least one lock ran, none failed, every golden stream holds and every lane is a number."""
    device, why = best_device() if args.device == "best" else (args.device, args.device)
    check_choice(device)
    priced = decode_stage(device)
    results = run_locks(device, args.processes, args.json)
    failed = [r for r in results if r.outcome == "failed"]
    passed = sum(r.outcome == "passed" for r in results)
    if args.json:
        rows = [{"lock": r.node, "sentence": r.sentence, "outcome": r.outcome, "shares": r.shares} for r in results]
        decodes = {n: {"golden": golden, "lanes": [asdict(r) for r in lanes]} for n, (lanes, golden) in priced.items()}
        data = {"device": why, "passed": passed, "failed": len(failed), "decodes": decodes, "locks": rows}
        print(json.dumps(data, indent=2))
    else:
        print(f"device: {why}")
        Console().print(table_of(results))
        for name, (lanes, golden) in priced.items():
            wide_console().print(f"\nthe trained checkpoint on {name}, {POSITIONS} positions, against float64")
            wide_console().print(table(Report("", lanes, golden)))
        for row in failed:  # a lock's parameters stand in brackets, which a console takes for a style
            print(f"FAILED {row.node}: {row.sentence}")
        print(f"{passed} locks passed, {len(failed)} failed, {len(results) - passed - len(failed)} not run")
    held = all(holds(Report("", lanes, golden)) for lanes, golden in priced.values())
    return 0 if passed and not failed and held else 1
