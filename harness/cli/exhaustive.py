"""`lanelock exhaustive`: all 2^32 float32 inputs of each function, on host and GPU and in the contract, bit for bit."""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.device import NotRun
from harness.devices import open_device
from harness.exhaustive import CONTRACT, INPUTS, Totals, pieces, run
from harness.record import RECORDS, check_records, record
from kernels.functions import FUNCTIONS
from oracle.bits import ARITHMETIC_VERSION
from oracle.errors import LanelockError


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("exhaustive", help="all 2^32 inputs of each function: host, GPU and contract agree")
    sub.add_argument("--function", action="append", choices=FUNCTIONS, help="only this one (may be repeated)")
    sub.add_argument("--device", default="all", help="host, cuda, cuda:N or all that are there (default)")
    sub.add_argument("--contract", action="store_true", help="compare with the NumPy transcription too")
    sub.add_argument("--truth", action="store_true", help="measure the largest error against float64 too")
    sub.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="worker processes")
    sub.add_argument("--first", type=lambda text: int(text, 0), default=0, help="first bit pattern (default 0)")
    sub.add_argument("--count", type=lambda text: int(text, 0), default=INPUTS, help="inputs a function (default 2^32)")
    sub.add_argument("--records", type=Path, default=RECORDS, help="folder of the record of a whole run")
    sub.add_argument("--json", action="store_true", help="print JSON, no progress")
    sub.set_defaults(func=main)


def ways_of(device: str, contract: bool) -> tuple[list[str], dict[str, str]]:
    """The ways to compute, and the reason for each that is not run. Raises LanelockError if fewer than two are left."""
    if device not in ("host", "all") and not device.startswith("cuda"):
        open_device(device)  # refuses it by name
    names = ["host", "cuda"] if device == "all" else [device]
    missing: dict[str, str] = {}
    if device == "all" and (reason := _no_gpu()):
        names, missing = ["host"], {"cuda": reason}
    names += [CONTRACT] if contract else []
    if len(names) < 2:
        why = "".join(f"; {name} not run: {reason}" for name, reason in missing.items())
        raise LanelockError(f"exhaustive: {names[0]} alone has nothing to be compared with; add --contract{why}")
    return names, missing


def _no_gpu() -> str | None:
    try:
        open_device("cuda")
    except NotRun as absent:
        return str(absent)
    return None


def figures(totals: Mapping[str, Totals], names: Sequence[str], *, measured: bool) -> dict[str, Any]:
    """The outcome a function, as JSON."""
    rows: dict[str, Any] = {}
    for function, t in totals.items():
        differ = {
            way: {"elements": n, "input": f"0x{x:08x}", names[0]: f"0x{a:08x}", way: f"0x{b:08x}"}
            for way, (n, x, a, b) in t.differences.items()
        }
        rows[function] = {
            "inputs": t.inputs,
            "sha256": t.sha256,
            "same_bits": {way: way not in t.differences for way in names[1:]},
            "differences": differ,
            "ns_per_input": {way: round(s / t.inputs * 1e9, 2) for way, s in t.seconds.items()},
        }
        if measured:
            rows[function]["largest_error"] = {
                "ulp": round(t.normal[0], 4), "at": f"0x{t.normal[1]:08x}",
                "steps_below_normal": round(t.below[0], 4), "below_at": f"0x{t.below[1]:08x}",
            }
    return rows


def main(args: argparse.Namespace) -> int:
    """Exit 0 only if every piece ran and every way gave the same bits; a whole run leaves a record."""
    if args.processes < 1 or not (0 <= args.first < INPUTS and 1 <= args.count <= INPUTS - args.first):
        raise LanelockError("exhaustive: --processes must be at least 1, and --first and --count lie within 2^32")
    names, missing = ways_of(args.device, args.contract)
    functions = tuple(dict.fromkeys(args.function or FUNCTIONS))
    whole = args.count == INPUTS and functions == FUNCTIONS
    if whole:
        check_records(args.records)
    plan = pieces(functions, args.first, args.count)
    totals = {f: Totals() for f in functions}
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), disable=args.json) as progress:
        tasks = {f: progress.add_task(f, total=sum(p.function == f for p in plan)) for f in functions}
        for result in run(plan, names, args.processes, measure=args.truth):
            totals[result.piece.function].add(result)
            progress.advance(tasks[result.piece.function])
    outcome = {
        "arithmetic_version": ARITHMETIC_VERSION,
        "ways": names,
        "not_run": missing,
        "processes": args.processes,
        "seconds": round(time.monotonic() - start, 1),
        "functions": figures(totals, names, measured=args.truth),
    }
    equal = not any(t.differences for t in totals.values())
    path = record("exhaustive", outcome, args.records) if whole else None
    if args.json:
        print(json.dumps({**outcome, "record": path and path.name}, indent=2))
    else:
        report(outcome, path)
    return 0 if equal else 1


def report(outcome: Mapping[str, Any], path: Path | None) -> None:
    """The outcome in words."""
    ways = outcome["ways"]
    for name, row in outcome["functions"].items():
        bad = row["differences"]
        state = "; ".join(f"{way} DIFFERS: {found}" for way, found in bad.items()) or f"{' = '.join(ways)}"
        error = row.get("largest_error")
        measured = f", error {error['ulp']} ulp, {error['steps_below_normal']} steps below normal" if error else ""
        print(f"{name:9s} {row['inputs']} inputs: {state}{measured}, sha256 {row['sha256'][:16]}")
    for way, reason in outcome["not_run"].items():
        print(f"{way} not run: {reason}")
    print(f"{outcome['seconds']} s with {outcome['processes']} processes" + (f", record {path.name}" if path else ""))
