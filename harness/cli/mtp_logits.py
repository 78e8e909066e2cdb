"""`lanelock mtp-logits`: the draft head's logits, row t made of hidden state t and token t + 1."""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.cli.engine_input import add_engine_options, as_request, chosen, engine_run
from harness.cli.logits import say
from harness.cli.model_input import add_model_options, oracle_run, read_tokens, write_npy
from harness.cli.output import check_output
from harness.engine import draft_logits
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
    add_engine_options(sub)
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Compute, write, and say what was written."""
    start = time.monotonic()
    check_output(args.out, args.weights, args.config)
    tokens = read_tokens(args.tokens)
    if tokens.size < 2:
        raise LanelockError("--tokens: the draft head's first row is made of two tokens, and there is one.")
    config, logits = (from_oracle if args.engine == "oracle" else from_engine)(args, tokens)
    logits = logits if args.all else logits[-1:]
    write_npy(args.out, logits)
    say(args, config, logits, time.monotonic() - start)


def from_oracle(args: argparse.Namespace, tokens: NDArray[np.int64]) -> tuple[str, NDArray[np.float64]]:
    """Config name and rows from the oracle."""
    with oracle_run(args, "mtp-logits") as oracle:
        if not oracle.config.mtp:
            raise LanelockError(f"model {oracle.config.name} has no draft head.")
        hidden = forward(oracle, tokens[None], rows="none").hidden
        cache = empty_cache(oracle.config, 1)
        return oracle.config.name, mtp_forward(oracle, tokens[None, 1:], hidden[:, :-1], cache).logits[0]


def from_engine(args: argparse.Namespace, tokens: NDArray[np.int64]) -> tuple[str, NDArray[np.float64]]:
    """Config name and rows from a device, fed token by token."""
    with engine_run(args, chosen(args, limit=len(tokens), chunk=1, drafts=1), [as_request(tokens)]) as engine:
        return engine.setting.config.name, draft_logits(engine, tokens.tolist()).astype(np.float64)
