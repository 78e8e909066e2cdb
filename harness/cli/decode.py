"""`lanelock decode`: greedy tokens after one prompt or a batch of prompts."""

import argparse
import json
import time

import numpy as np
from numpy.typing import NDArray

from harness.cli.model_input import add_model_options, oracle_only, oracle_run, read_batch, read_tokens
from oracle.blocks import Run
from oracle.decode import greedy_stream
from oracle.errors import LanelockError


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("decode", help="greedy tokens after a prompt or a batch of prompts")
    add_model_options(sub)
    sub.add_argument("--tokens", metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--batch", metavar="FILE.json", help="a JSON list of prompts, each a list of tokens")
    sub.add_argument("--n", required=True, type=int, metavar="N", help="tokens to make after each prompt")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Decode and print the tokens: a line a prompt, or one JSON object."""
    oracle_only(args)
    if args.n < 1:
        raise LanelockError(f"--n: {args.n} tokens cannot be made; ask for at least one.")
    if (args.tokens is None) == (args.batch is None):
        raise LanelockError("decode takes either --tokens or --batch.")
    prompts = [read_tokens(args.tokens)] if args.batch is None else read_batch(args.batch)
    start = time.monotonic()
    with oracle_run(args, "decoding", passes=args.n * len(prompts)) as oracle:
        # one after another: prompts differ in length, and float64 has no speed to win from a batch.
        sequences = [decode_one(oracle, prompt, args.n) for prompt in prompts]
    if not args.json:
        for sequence in sequences:
            print(",".join(map(str, sequence["tokens"])))
        return
    print(json.dumps({"engine": args.engine, "lane": args.lane or "f64", "config": oracle.config.name,
                      "sequences": sequences, "seconds": round(time.monotonic() - start, 3)}))


def decode_one(oracle: Run, prompt: NDArray[np.int64], count: int) -> dict[str, list[int] | list[str]]:
    """Prompt, tokens, and how far the highest logit stood above the second, in hex."""
    tokens: list[int] = []
    margins: list[str] = []
    for token, logits in greedy_stream(oracle, prompt[None], count):
        second, first = np.sort(logits[0])[-2:]
        tokens.append(int(token[0]))
        margins.append(float(first - second).hex())
    return {"prompt": prompt.tolist(), "tokens": tokens, "margins": margins}
