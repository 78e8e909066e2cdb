"""`lanelock mtp-logits`: the draft head's logits, row t made of hidden state t and token t + 1."""

import argparse
import time
from pathlib import Path

from harness.cli.logits import say
from harness.cli.model_input import add_model_options, oracle_only, oracle_run, read_tokens, write_npy
from oracle.errors import LanelockError
from oracle.model import forward
from oracle.mtp import mtp_forward
from oracle.state import empty_cache


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("mtp-logits", help="the draft head's logits of a prompt into a NumPy file")
    add_model_options(sub)
    sub.add_argument("--tokens", required=True, metavar="T", help="1,2,3 or a file of tokens, at least two")
    sub.add_argument("--all", action="store_true", help="all rows (tokens less one), not the last alone")
    sub.add_argument("--out", required=True, metavar="FILE.npy", type=Path, help="file to write, float64 [rows, vocab]")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Compute, write, and say what was written."""
    oracle_only(args)
    start = time.monotonic()
    tokens = read_tokens(args.tokens)[None]
    if tokens.shape[1] < 2:
        raise LanelockError("--tokens: the draft head's first row is made of two tokens, and there is one.")
    with oracle_run(args, "mtp-logits") as oracle:
        if not oracle.config.mtp:
            raise LanelockError(f"model {oracle.config.name} has no draft head.")
        hidden = forward(oracle, tokens, rows="none").hidden
        logits = mtp_forward(oracle, tokens[:, 1:], hidden[:, :-1], empty_cache(oracle.config, 1)).logits[0]
    logits = logits if args.all else logits[-1:]
    write_npy(args.out, logits)
    say(args, oracle.config.name, logits, time.monotonic() - start)
