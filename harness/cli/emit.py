"""`lanelock emit`: a decode as one CUDA C++ program that nvcc builds, with a file of the bytes that it reads."""

import argparse
from pathlib import Path

from harness.cache import write_whole
from harness.cli.engine_input import add_tuning, knobs
from harness.cli.model_input import open_weights, read_batch, read_tokens
from harness.cli.output import check_output
from harness.cli.plan import MACHINES
from harness.emit import program, recorded
from harness.engine import Request
from harness.engine.session import MOST_LANES
from kernels.lanes import lane
from kernels.programs import Setting
from kernels.steps import make_plan
from oracle.errors import LanelockError
from oracle.weights.atomic import written_whole


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("emit", help="a decode as one CUDA C++ program that nvcc builds")
    sub.add_argument("--weights", required=True, metavar="W", help="as for decode")
    sub.add_argument("--config", metavar="C", help="preset or JSON file, where the weights bring none")
    sub.add_argument("--lane", default="a8", metavar="L", help="exact lane (default: a8)")
    sub.add_argument("--machine", default="h200", choices=sorted(set(MACHINES) - {"host"}), help="GPU (default: h200)")
    sub.add_argument("--tokens", metavar="T", help="1,2,3 or a file of tokens")
    sub.add_argument("--batch", metavar="FILE.json", help="a JSON list of prompts, each a list of tokens")
    sub.add_argument("--n", required=True, type=int, metavar="N", help="tokens to make after each prompt")
    sub.add_argument("--drafts", type=int, default=0, metavar="K", help="drafts a step (0 to 4)")
    sub.add_argument("--chunk", type=int, default=16, metavar="N", help="prompt tokens a pass (16)")
    add_tuning(sub)
    sub.add_argument("--out", required=True, type=Path, metavar="FILE.cu", help="program to write, FILE.bin beside it")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Write both files, each whole. Raises LanelockError, before anything is written, for what does not fit."""
    source, data = args.out, args.out.with_suffix(".bin")
    check_output(source, args.weights, args.config)
    if source.suffix != ".cu":
        raise LanelockError(f"{source}: the program's name must end with .cu")
    check_output(data, args.weights, args.config)
    if (args.tokens is None) == (args.batch is None):
        raise LanelockError("emit takes either --tokens or --batch.")
    prompts = [read_tokens(args.tokens)] if args.batch is None else read_batch(args.batch)
    requests = [Request(tuple(int(t) for t in prompt), args.n) for prompt in prompts]
    weights, machine = open_weights(args), MACHINES[args.machine][0]
    B, limit = min(len(requests), MOST_LANES), max(len(r.prompt) for r in requests) + args.n - 1
    setting = Setting(weights.config, lane(args.lane), B, B, limit, machine, knobs(args))
    plan = make_plan(setting, min(args.chunk, limit), args.drafts)
    title = f"Model {weights.config.name}, lane {args.lane}, {B} sequences, {args.drafts} drafts a step."
    text, pieces = program(recorded(setting, plan, weights, requests), source.stem, machine.arch, title)
    with written_whole(data) as file:
        written = sum(file.write(piece) for piece in pieces)
    write_whole(source, text)
    launches = sum(len(items) for items in plan.programs.values())
    print(f"{source}: {launches} launches of {len(plan.programs)} programs; {data}: {written} bytes")
