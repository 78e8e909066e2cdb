"""`lanelock bisect`: the first launch at which two runs of one prompt write different bits."""

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace

from harness.bisect import Run, Side, bisect
from harness.cli.model_input import add_model_options, open_weights, read_tokens
from harness.commits import CommitRun, sources_of, trace_words
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, opened
from kernels.tuning import tuning
from oracle.errors import LanelockError
from oracle.model_weights import Weights


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("bisect", help="the first launch at which two runs differ")
    add_model_options(sub)
    sub.add_argument("--tokens", required=True, metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--n", type=int, default=8, metavar="N", help="tokens to make (default: 8)")
    sub.add_argument("--drafts", type=int, default=0, metavar="K", help="drafts a step")
    sub.add_argument("--chunk", type=int, default=16, metavar="N", help="prompt tokens a pass (16)")
    sub.add_argument("--against", metavar="DEVICE", help="another device, such as cuda")
    sub.add_argument("--against-tuning", metavar="JSON", help="other lowerings, such as {\"lowering\": \"gemm_dp4a\"}")
    sub.add_argument("--against-batch", type=int, metavar="B", help="beside B - 1 other prompts")
    sub.add_argument("--against-commit", metavar="REV", help="the sources of another commit, in a process of its own")
    sub.add_argument("--tolerance", type=float, default=0.0, metavar="R",
                     help="bounded lanes: differences up to this share of a buffer's largest value (default: none)")
    sub.set_defaults(func=run, engine="host")


def run(args: argparse.Namespace) -> int:
    """Exit 1 where the runs differ. Raises LanelockError where nothing is compared."""
    if not 0 <= args.tolerance < 1:
        raise LanelockError(f"--tolerance: {args.tolerance} is not a share, at least 0 and below 1")
    args.lane = args.lane or "a15"
    tokens = tuple(int(t) for t in read_tokens(args.tokens))
    request, longest = Request(tokens, args.n), len(tokens) + args.n
    weights = open_weights(args)
    choice = Choice(args.lane, 1, longest, min(args.chunk, longest), args.drafts)
    first = Side(args.engine, lambda: _open(args.engine, weights, choice, (request,)), (request,))
    with _other(args, weights, choice, request) as second:
        verdict = bisect(first, second, args.tolerance)
    found = verdict.difference
    if args.json:
        print(json.dumps({"compared": verdict.compared, "skipped": verdict.skipped, "tokens": verdict.tokens,
                          "difference": None if found is None else asdict(found)}))  # fmt: skip
    elif found is None:
        how = f"within {args.tolerance:g} of their largest value" if args.tolerance else "to the bit"
        print(f"{verdict.compared} written buffers agree {how} ({verdict.skipped} have another shape)")
    else:
        print(found.sentence(first.name, second.name))
    return 0 if found is None else 1


@contextmanager
def _other(args: argparse.Namespace, weights: Weights, choice: Choice, request: Request) -> Iterator[Run]:
    """The run to compare with: exactly one of the four ways."""
    ways = (args.against, args.against_tuning, args.against_batch, args.against_commit)
    if sum(way is not None for way in ways) != 1:
        raise LanelockError("bisect takes one of --against, --against-tuning, --against-batch and --against-commit")
    if args.against_commit is None:
        yield _other_here(args, weights, choice, request)
        return
    words = trace_words(args.engine, args.weights, args.config, choice.lane, request.prompt, request.count,
                        choice.drafts, choice.chunk)  # fmt: skip  # a trace's options
    with sources_of(args.against_commit) as (commit, folder):
        yield CommitRun(f"commit {commit}", folder, words)


def _other_here(args: argparse.Namespace, weights: Weights, choice: Choice, request: Request) -> Side:
    """The same sources, on another device, by other lowerings or in a batch."""
    if args.against is not None:
        return Side(args.against, lambda: _open(args.against, weights, choice, (request,)), (request,))
    if args.against_tuning is not None:
        other = replace(choice, tuning=tuning(args.against_tuning, "--against-tuning"))
        forms = f"{args.engine} {args.against_tuning}"
        return Side(forms, lambda: _open(args.engine, weights, other, (request,)), (request,))
    B, V = args.against_batch, weights.config.vocab
    # other tokens and other lengths, which leave after their first token
    others = tuple(Request(tuple((t + 7 * b) % V for t in request.prompt[b:] or (0,)), 1) for b in range(1, B))
    wide, name = replace(choice, B=B), f"{args.engine} in a batch of {B}"
    return Side(name, lambda: _open(args.engine, weights, wide, (*others, request)), (*others, request), B - 1)


def _open(
    device: str, weights: Weights, choice: Choice, requests: tuple[Request, ...]
) -> AbstractContextManager[Engine]:
    return opened(open_device(device), weights, choice, requests)
