"""`lanelock plan`: the launches of a program, the bytes that each moves, and the least time that takes."""

import argparse
import dataclasses
import json

from rich.table import Table

from harness.cli.engine_input import add_tuning, knobs
from harness.cli.report import wide_console
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.programs import Setting
from kernels.steps import make_plan
from oracle.config import load
from oracle.errors import LanelockError
from reports.plan_floor import Floor, floors

#: What plans can be made for without the device: multiprocessors, shared memory a block (bytes), GB/s of its memory.
MACHINES = {
    "host": (Machine("x86-64-v3", 1, 232448), 10.0),
    "h200": (Machine("sm_90a", 132, 232448), 4800.0),
    "a100": (Machine("sm_80", 108, 166912), 2039.0),
    "rtx4090": (Machine("sm_89", 128, 101376), 1008.0),
}


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("plan", help="the launches of a program, with bytes and time floors")
    sub.add_argument("--config", default="qwen3.8-27b", help="preset or JSON file (default: qwen3.8-27b)")
    sub.add_argument("--lane", default="a8", help="exact lane (default: a8)")
    sub.add_argument("--machine", default="h200", choices=sorted(MACHINES), help="what it is made for (default: h200)")
    sub.add_argument("--program", default="step", help="step, verify, draft, commit, prefill.next, ...")
    sub.add_argument("--batch", type=int, default=1, metavar="B", help="sequences (default: 1)")
    sub.add_argument("--limit", type=int, default=2048, metavar="N", help="positions of a sequence (default: 2048)")
    sub.add_argument("--chunk", type=int, default=512, metavar="N", help="tokens of a prefill chunk (default: 512)")
    sub.add_argument("--drafts", type=int, default=1, metavar="K", help="drafts a step (default: 1)")
    sub.add_argument("--bandwidth", type=float, metavar="GB/S", help="measured bandwidth in place of the data sheet's")
    add_tuning(sub)
    sub.add_argument("--summary", action="store_true", help="a line a kernel instead of a line a launch")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> None:
    """Print the program."""
    machine, bandwidth = MACHINES[args.machine]
    B = args.batch
    setting = Setting(load(args.config), lane(args.lane), B, B, args.limit, machine, knobs(args))
    plan = make_plan(setting, args.chunk, args.drafts)
    if args.program not in plan.programs:
        names = ", ".join(n for n in plan.programs if not n.startswith("load."))
        raise LanelockError(f"--program: there is no {args.program!r} in this plan; its programs are {names}")
    found = floors(plan.programs[args.program], bandwidth if args.bandwidth is None else args.bandwidth)
    if args.json:
        memory = sum(b.nbytes for b in plan.buffers.values())
        print(json.dumps({"memory": memory, "launches": [dataclasses.asdict(f) for f in found]}))
        return
    wide_console().print(_summary(found) if args.summary else _table(found))
    moved = sum(f.read + f.written for f in found)
    print(f"{len(found)} launches, {moved / 1e9:.3f} GB, at least {sum(f.floor for f in found) / 1e3:.3f} ms")


def _table(found: list[Floor]) -> Table:
    table = Table("launch", "kernel", "grid", "block", "smem", "MB read", "MB written", "floor us", box=None)
    for f in found:
        grid = "x".join(map(str, f.grid))
        figures = (f"{f.read / 1e6:.3f}", f"{f.written / 1e6:.3f}", f"{f.floor:.2f}")
        table.add_row(f.label, f.kernel, grid, str(f.block), str(f.smem), *figures)
    return table


def _summary(found: list[Floor]) -> Table:
    table = Table("kernel", "launches", "MB", "floor us", box=None)
    for kernel in dict.fromkeys(f.kernel for f in found):
        mine = [f for f in found if f.kernel == kernel]
        moved = sum(f.read + f.written for f in mine) / 1e6
        table.add_row(kernel, str(len(mine)), f"{moved:.2f}", f"{sum(f.floor for f in mine):.1f}")
    return table
