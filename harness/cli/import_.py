"""`lanelock import`: a checkpoint of any kind that is read, into one file of ours."""

import argparse
import time
from pathlib import Path

from harness.cli.output import check_output
from harness.progress import shown
from oracle.config import load as load_config
from oracle.weights import load, origin, save


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("import", help="read a Hugging Face or GGUF checkpoint into a weight file of ours")
    sub.add_argument("source", metavar="SRC", help="folder, .safetensors, index.json, .gguf, or synthetic:SEED")
    sub.add_argument("out", metavar="OUT", type=Path, help="file to write")
    sub.add_argument("--config", help="preset or JSON file, where the source brings none")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Import, and say what was done."""
    start = time.monotonic()
    check_output(args.out, args.source, args.config)
    weights = load(args.source, None if args.config is None else load_config(args.config))
    note = origin(args.source, weights)
    with shown("importing") as progress:
        save(weights, args.out, note, progress)
    config = weights.config
    print(f"{args.out}: {config.name}, {config.layers} layers, {'tied' if config.tied else 'untied'}, "
          f"{'with' if config.mtp else 'without'} MTP head; {note}; "
          f"{args.out.stat().st_size / 1e6:.1f} MB in {time.monotonic() - start:.1f} s")
