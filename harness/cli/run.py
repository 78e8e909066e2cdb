"""`lanelock run KERNEL`: one kernel on a chosen device, schedule, copy order, seed and shape.

Every red lock prints such a line, so that a failure is reproduced without pytest.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np

from harness.devices import open_device
from harness.inputs import checked_dims, random_inputs
from harness.reproduce import load_inputs
from harness.run import HOST_VARIANTS, run_kernel
from kernels.catalogue import kernel as find_kernel
from kernels.entry import Value
from oracle.errors import LanelockError


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("run", help="one kernel on seeded inputs: hash and head of everything it wrote")
    sub.add_argument("kernel", help="catalogue name (lanelock kernels)")
    sub.add_argument("--device", default="host", help="host, cuda or cuda:N")
    sub.add_argument("--dims", default="", help="such as rows=3,K=160 (template values by the same names)")
    sub.add_argument("--seed", type=int, default=1, help="seed of the inputs")
    sub.add_argument("--inputs", type=Path, help="a file of inputs that a red lock wrote, instead of seeded ones")
    sub.add_argument("--schedule", help="host: ascending, descending or a seed (default: all three kinds)")
    sub.add_argument("--copies", help="host: eager, late or a seed")
    sub.add_argument("--align", choices=("end", "start"), help="host: side of the guard page")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def parse_value(text: str) -> Value:
    """A dim or template value: true/false, an integer, a float, or a dtype name."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_dims(text: str) -> dict[str, Value]:
    """`a=1,b=2` as a dict. Raises LanelockError naming the part that is no assignment, or a name given twice."""
    dims: dict[str, Value] = {}
    for part in text.split(",") if text else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value:
            raise LanelockError(f"--dims: {part!r} is not NAME=VALUE")
        if name in dims:
            raise LanelockError(f"--dims: {name} is given twice")
        dims[name] = parse_value(value)
    return dims


def variants(args: argparse.Namespace) -> tuple[dict[str, str | int], ...]:
    """The host variants asked for; all of them when none is named."""
    chosen = {k: getattr(args, k) for k in ("schedule", "copies", "align") if getattr(args, k) is not None}
    if not chosen:
        return HOST_VARIANTS
    numbered = {k: int(v) if str(v).lstrip("-").isdigit() else v for k, v in chosen.items()}
    return ({**HOST_VARIANTS[0], **numbered},)


def run(args: argparse.Namespace) -> int:
    """Run the kernel once through every chosen variant and print what it wrote."""
    entry = find_kernel(args.kernel)
    given = parse_dims(args.dims)
    template = {p.name: given.pop(p.name) if p.name in given else p.values[0] for p in entry.params}
    inputs = None if args.inputs is None else load_inputs(args.inputs)
    checked_dims(entry, given, template)
    device = open_device(args.device)
    if inputs is None:
        inputs = random_inputs(entry, given, template, args.seed)
    start = time.perf_counter()
    outputs = run_kernel(device, entry, given, inputs, template, variants(args))
    elapsed = time.perf_counter() - start
    rows = [
        {
            "argument": name,
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
            "head": [str(v) for v in value.reshape(-1)[:4]],
        }
        for name, value in outputs.items()
    ]
    if args.json:
        print(json.dumps({"kernel": entry.name, "device": device.properties.name, "outputs": rows}, indent=2))
        return 0
    print(f"{entry.name} on {device.properties.name}: {elapsed * 1e3:.1f} ms with checks")
    for row in rows:
        digest = str(row["sha256"])[:16]
        print(f"  {row['argument']:10s} {row['dtype']} {row['shape']} sha256 {digest} head {row['head']}")
    return 0
