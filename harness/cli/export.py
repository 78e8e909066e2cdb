"""`lanelock export`: any weights as a GGUF that other engines load."""

import argparse
import time
from pathlib import Path

from harness.cli.output import check_output
from harness.progress import shown
from oracle.config import load as load_config
from oracle.weights import export_gguf, load


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("export", help="write weights as a GGUF (qwen35, Q8_0) that other engines load")
    sub.add_argument("source", metavar="SRC", help="a weight file of ours, a checkpoint, or synthetic:SEED")
    sub.add_argument("out", metavar="OUT.gguf", type=Path, help="file to write")
    sub.add_argument("--config", help="preset or JSON file, where the source brings none")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Export, and say what was written."""
    start = time.monotonic()
    check_output(args.out, args.source, args.config)
    weights = load(args.source, None if args.config is None else load_config(args.config))
    with shown("exporting") as progress:
        export_gguf(weights, args.out, progress)
    print(f"{args.out}: {weights.config.name}, architecture qwen35, Q8_0, a byte vocabulary in place of a tokenizer; "
          f"{args.out.stat().st_size / 1e6:.1f} MB in {time.monotonic() - start:.1f} s")
