"""`lanelock decode`: greedy tokens after one prompt or a batch of prompts."""

import argparse
import json
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cli.engine_input import add_engine_options, chosen, engine_lane, engine_run
from harness.cli.model_input import add_model_options, oracle_run, read_batch, read_tokens
from harness.engine import Request, Stream, decode
from harness.engine.session import MOST_LANES
from oracle.blocks import Run
from oracle.config import ModelConfig
from oracle.decode import greedy_stream
from oracle.errors import LanelockError

Sequence = dict[str, Any]


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("decode", help="greedy tokens after a prompt or a batch of prompts")
    add_model_options(sub)
    sub.add_argument("--tokens", metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--batch", metavar="FILE.json", help="a JSON list of prompts, each a list of tokens")
    sub.add_argument("--n", required=True, type=int, metavar="N", help="tokens to make after each prompt")
    sub.add_argument("--stop", metavar="T", help="host, cuda: tokens that end a sequence early")
    sub.add_argument("--drafts", type=int, default=0, metavar="K", help="host, cuda: drafts a step (0 to 4)")
    sub.add_argument("--chunk", type=int, default=16, metavar="N", help="host, cuda: prompt tokens a pass (16)")
    add_engine_options(sub)
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Decode and print the tokens: a line a prompt, or one JSON object."""
    if (args.tokens is None) == (args.batch is None):
        raise LanelockError("decode takes either --tokens or --batch.")
    prompts = [read_tokens(args.tokens)] if args.batch is None else read_batch(args.batch)
    start = time.monotonic()
    config, sequences = (from_oracle if args.engine == "oracle" else from_engine)(args, prompts)
    for i, sequence in enumerate(sequences):
        if sequence.get("stopped", "count") not in ("count", "stop token"):
            raise LanelockError(f"sequence {i}, token {len(sequence['tokens'])}: {sequence['stopped']}.")
    if not args.json:
        for sequence in sequences:
            print(",".join(map(str, sequence["tokens"])))
        return
    print(json.dumps({"engine": args.engine, "lane": engine_lane(args), "config": config,
                      "sequences": sequences, "seconds": round(time.monotonic() - start, 3)}))


def from_oracle(args: argparse.Namespace, prompts: list[NDArray[np.int64]]) -> tuple[str, list[Sequence]]:
    """Config name and sequences from the oracle."""
    if args.drafts or args.stop:
        raise LanelockError("--drafts and --stop are for --engine host or cuda; the oracle decodes plainly.")
    with oracle_run(args, "decoding", passes=args.n * len(prompts)) as oracle:
        for i, prompt in enumerate(prompts):
            check_prompt(oracle.config, prompt, args.n, i)
        # one after another: prompts differ in length, and float64 has no speed to win from a batch.
        return oracle.config.name, [decode_one(oracle, prompt, args.n) for prompt in prompts]


def check_prompt(config: ModelConfig, prompt: NDArray[np.int64], count: int, number: int) -> None:
    """Raises LanelockError, naming the sequence, where a prompt does not fit the model."""
    outside = np.flatnonzero(prompt >= config.vocab)
    if outside.size:
        raise LanelockError(f"sequence {number}, token {outside[0]} is {prompt[outside[0]]}, outside the vocabulary of "
                            f"{config.vocab}.")  # fmt: skip
    if len(prompt) + count - 1 > config.context:
        raise LanelockError(f"sequence {number}: {len(prompt)} tokens and {count} more overrun the context of "
                            f"{config.context}.")  # fmt: skip


def from_engine(args: argparse.Namespace, prompts: list[NDArray[np.int64]]) -> tuple[str, list[Sequence]]:
    """Config name and sequences from a device; prompts beyond the batch wait for one to leave."""
    stops = frozenset(int(t) for t in read_tokens(args.stop, "--stop")) if args.stop else frozenset()
    requests = [Request(tuple(int(t) for t in prompt), args.n, stops) for prompt in prompts]
    # the last token is made and not consumed
    limit = max(len(prompt) for prompt in prompts) + args.n - 1
    chunk = min(args.chunk, limit)
    choice = chosen(args, B=min(len(prompts), MOST_LANES), limit=limit, chunk=chunk, drafts=args.drafts)
    margins: dict[int, list[str]] = {i: [] for i in range(len(prompts))}

    def watch(i: int, _token: int, logits: np.ndarray) -> None:
        margins[i].append(margin(logits))

    with engine_run(args, choice, requests) as engine:
        streams = decode(engine, requests, watch)
        return engine.setting.config.name, [_sequence(s, margins[i]) for i, s in enumerate(streams)]


def _sequence(stream: Stream, margins: list[str]) -> Sequence:
    return {"prompt": list(stream.request.prompt), "tokens": stream.tokens, "margins": margins,
            "accepted": stream.accepted, "stopped": stream.stopped}


def margin(logits: np.ndarray) -> str:
    """How far the highest logit stands above the second, in hex."""
    second, first = np.sort(logits)[-2:].astype(np.float64)
    return float(first - second).hex()


def decode_one(oracle: Run, prompt: NDArray[np.int64], count: int) -> Sequence:
    """Prompt, tokens, and how far the highest logit stood above the second, in hex."""
    tokens: list[int] = []
    margins: list[str] = []
    for token, logits in greedy_stream(oracle, prompt[None], count):
        tokens.append(int(token[0]))
        margins.append(margin(logits[0]))
    return {"prompt": prompt.tolist(), "tokens": tokens, "margins": margins}
