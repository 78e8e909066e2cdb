"""`lanelock logits`: logits of a prompt's last position, or of all, into a NumPy file."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.cli.engine_input import add_engine_options, as_request, chosen, engine_lane, engine_run
from harness.cli.model_input import add_model_options, oracle_run, read_tokens, write_npy
from harness.cli.output import check_output
from harness.engine import prompt_logits
from oracle.model import forward


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("logits", help="logits of a prompt into a NumPy file")
    add_model_options(sub)
    sub.add_argument("--tokens", required=True, metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--all", action="store_true", help="rows of all positions, not of the last alone")
    sub.add_argument("--out", required=True, metavar="FILE.npy", type=Path, help="file to write, float64 [rows, vocab]")
    add_engine_options(sub)
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Compute, write, and say what was written."""
    start = time.monotonic()
    check_output(args.out, args.weights, args.config)
    tokens = read_tokens(args.tokens)
    config, logits = (from_oracle if args.engine == "oracle" else from_engine)(args, tokens)
    write_npy(args.out, logits)
    say(args, config, logits, time.monotonic() - start)


def from_oracle(args: argparse.Namespace, tokens: NDArray[np.int64]) -> tuple[str, NDArray[np.float64]]:
    """Config name and rows from the oracle."""
    with oracle_run(args, "logits") as oracle:
        return oracle.config.name, forward(oracle, tokens[None], rows="all" if args.all else "last").logits[0]


def from_engine(args: argparse.Namespace, tokens: NDArray[np.int64]) -> tuple[str, NDArray[np.float64]]:
    """Config name and rows from a device, fed token by token: the same bits as from any chunk."""
    with engine_run(args, chosen(args, limit=len(tokens), chunk=1), [as_request(tokens)]) as engine:
        rows = prompt_logits(engine, tokens.tolist()).astype(np.float64)
        return engine.setting.config.name, rows if args.all else rows[-1:]


def say(args: argparse.Namespace, config: str, logits: NDArray[np.float64], seconds: float) -> None:
    """Print what was written: one line, or one JSON object."""
    best = np.argmax(np.where(np.isnan(logits), -np.inf, logits), axis=-1).tolist()
    faults = np.flatnonzero(~np.isfinite(logits).all(axis=-1)).tolist()
    lane = engine_lane(args)
    if args.json:
        print(json.dumps({"engine": args.engine, "lane": lane, "config": config, "out": str(args.out),
                          "shape": list(logits.shape), "argmax": best, "not_finite_rows": faults,
                          "seconds": round(seconds, 3)}))
        return
    note = f"; rows that are not finite: {faults}" if faults else ""
    rows = "1 row" if logits.shape[0] == 1 else f"{logits.shape[0]} rows"
    print(f"{args.out}: {config}, {args.engine} {lane}, {rows} of {logits.shape[1]} logits, "
          f"highest in the last {best[-1]}, in {seconds:.1f} s{note}")
