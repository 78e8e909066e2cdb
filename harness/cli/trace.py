"""`lanelock trace`: each launch of a decode with a digest of what it wrote, or the arrays of one to a file."""

import argparse
import io
import json
from pathlib import Path

import numpy as np

from harness.cache import write_whole
from harness.cli.engine_input import add_engine_options, chosen, engine_run
from harness.cli.model_input import add_model_options, read_tokens
from harness.cli.output import check_output
from harness.engine import Request
from harness.trace import Written, arrays_at, trace
from oracle.errors import LanelockError


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("trace", help="a decode launch by launch; any launch's arrays to a file")
    add_model_options(sub)
    add_engine_options(sub)
    sub.set_defaults(engine="host")
    sub.add_argument("--tokens", required=True, metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--n", type=int, default=1, metavar="N", help="tokens to make (default: 1)")
    sub.add_argument("--drafts", type=int, default=0, metavar="K", help="drafts a step")
    sub.add_argument("--chunk", type=int, default=16, metavar="N", help="prompt tokens a pass (16)")
    sub.add_argument("--launch", metavar="LABEL", help="a launch, such as layers.3.qgkv")
    sub.add_argument("--pass", dest="at", type=int, default=0, metavar="N", help="of this pass (default: 0)")
    sub.add_argument("--number", type=int, metavar="N", help="of the launches of this label in the pass, from 0")
    sub.add_argument("--out", type=Path, metavar="FILE.npz", help="write what that launch wrote, by buffer")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """List the launches, or write one's arrays. Raises LanelockError, before anything runs, for a file or a label."""
    if args.out is not None:
        if args.launch is None:
            raise LanelockError("trace: --out needs --launch, the launch whose arrays it takes")
        check_output(args.out, args.weights, args.config)
    tokens = tuple(int(t) for t in read_tokens(args.tokens))
    request, longest = Request(tokens, args.n), len(tokens) + args.n
    choice = chosen(args, limit=longest, chunk=min(args.chunk, longest), drafts=args.drafts)
    with engine_run(args, choice, [request]) as engine:
        labels = {item.label for items in engine.plan.programs.values() for item in items}
        if args.launch is not None and args.launch not in labels:
            raise LanelockError(f"trace: the plan has no launch {args.launch!r}")
        _, written = trace(engine, [request])
        mine = [w for w in written if args.launch is None or _is_asked(args, w)]
        if not mine:
            count = "" if args.number is None else f" number {args.number}"
            raise LanelockError(f"trace: pass {args.at} has no launch {args.launch!r}{count}")
        if args.out is not None:
            file = io.BytesIO()
            np.savez(file, **arrays_at(engine, [request], mine[0].key))  # type: ignore[arg-type]  # arrays by name
            write_whole(args.out, file.getvalue())
    for w in mine:
        print(json.dumps(_row(w)) if args.json else f"{w.place} {list(w.shape)} {w.digest}")


def _is_asked(args: argparse.Namespace, w: Written) -> bool:
    at, _, label, number = w.key
    return (at, label) == (args.at, args.launch) and args.number in (None, number)


def _row(w: Written) -> dict[str, object]:
    at, program, label, number = w.key
    return {"pass": at, "program": program, "launch": label, "number": number, "kernel": w.kernel, "buffer": w.buffer,
            "shape": w.shape, "digest": w.digest}  # fmt: skip
