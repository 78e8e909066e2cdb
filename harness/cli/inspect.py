"""`lanelock inspect`: what a weight file holds: config, tensors, hashes, and whether the values are sane."""

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.table import Table

from harness.progress import shown
from oracle.config import ModelConfig
from oracle.config import load as load_config
from oracle.weights import kind, load, origin
from oracle.weights.sanity import Examined, examine


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("inspect", help="config, tensors, hashes and sanity of a weight file")
    sub.add_argument("file", metavar="FILE", help="a weight file of ours, a checkpoint, or synthetic:SEED")
    sub.add_argument("--config", help="preset or JSON file, where the source brings none")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Read everything once, check every hash, and print."""
    weights = load(args.file, None if args.config is None else load_config(args.config))
    what, source = kind(args.file), origin(args.file, weights)
    with shown("reading") as progress:
        rows = list(examine(weights, progress))
    if args.json:
        print(json.dumps({"file": args.file, "kind": what, "origin": source, "config": weights.config.to_dict(),
                          "tensors": [dataclasses.asdict(row) for row in rows]}, indent=1))
        return
    _print(args.file, what, source, weights.config, rows)


def _print(file: str, what: str, source: str, config: ModelConfig, rows: list[Examined]) -> None:
    # a pipe has no width: wide enough for every column there.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    console.print(f"{file}: {what} ({source})", markup=False)
    console.print("config: " + ", ".join(f"{name} {value}" for name, value in config.to_dict().items()), markup=False)
    table = Table("tensor", "type", "shape", "lowest", "highest", "SHA-256", "remarks", box=None)
    for row in rows:
        table.add_row(row.name, row.dtype, " x ".join(map(str, row.shape)), f"{row.lowest:.4g}", f"{row.highest:.4g}",
                      row.sha256[:16], "; ".join(row.remarks))
    console.print(table)
    remarked = sum(bool(row.remarks) for row in rows)
    hashes = "every hash holds" if what == "lanelock" else "hashes are those of an import"
    console.print(f"{len(rows)} tensors, {hashes}, every value is finite, {remarked} with remarks")
