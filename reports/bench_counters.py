"""What limits the projections of a step: counters of the chip for one launch of every shape, through Nsight Compute.

`python -m reports.bench_counters CONFIG CASES` launches every (case, shape) once, in order; it is the process that the
profiler watches. A launch is counted alone: its start and its tail, which the launches of a step hide in one another,
are in its time.
"""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.device import NotRun
from harness.devices import open_device
from harness.engine import machine_of
from harness.record import ROOT
from kernels.lanes import lane
from kernels.lowering import Lowering, Machine, Projection, choose
from kernels.tuning import Tuning
from oracle.config import ModelConfig
from oracle.config import load as load_config
from oracle.errors import LanelockError
from reports.bench_buffers import Bench, codes_for, step_projections
from reports.bench_projections import Case, layout

#: Name of a figure -> counter. Percentages are of what the chip could do in the time of the launch.
COUNTERS = {
    "us": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "multiprocessors": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "instructions": "smsp__inst_executed.sum",
}
#: Reasons why a warp that is there does not issue, in warps a cycle that issues.
STALLS = ("barrier", "branch_resolving", "dispatch_stall", "long_scoreboard", "math_pipe_throttle", "mio_throttle",
          "not_selected", "short_scoreboard", "sleeping", "wait")  # fmt: skip  # names
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def measure(config: str, cases: Sequence[Case], seconds: float = 120.0) -> list[dict[str, Any]]:
    """The counters of every shape of every case.

    Units:  microseconds; per cent of the chip's peak; instructions of warps a block of 16 weight rows by 32 elements.
    Error:  none beyond the profiler's; a launch that it replays has cold caches.
    Source: Nsight Compute. Raises NotRun where there is none, LanelockError where it refuses or stops.
    """
    profiler = shutil.which("ncu")
    if profiler is None:
        raise NotRun("Nsight Compute (ncu) is not installed")
    metrics = ",".join((*COUNTERS.values(), *(_STALL.format(name) for name in STALLS)))
    command = [profiler, "--clock-control", "none", "-k", "regex:^(projection|gemm|gemv)", "--metrics", metrics,
               "--csv", "--page", "raw", sys.executable, "-m", "reports.bench_counters", config,
               json.dumps([asdict(case) for case in cases])]  # fmt: skip  # a command line
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise LanelockError(f"Nsight Compute did not end within {seconds:g} s") from None
    launches = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@ ")]
    table = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))[1:]
    if done.returncode != 0 or not launches or len(table) != len(launches):
        last = [*(done.stdout + done.stderr).strip().splitlines(), "nothing"][-2 if done.stdout else -1]
        raise LanelockError(f"Nsight Compute counted {len(table)} of {len(launches)} launches: {last[:200]}")
    return [figures(launch, row) for launch, row in zip(launches, table, strict=True)]


def figures(launch: Mapping[str, Any], row: Mapping[str, str]) -> dict[str, Any]:
    """One launch: its counters by name, and what it is nearest to: memory, issue slots or shared memory."""
    values = {name: _number(row[counter]) for name, counter in COUNTERS.items()}
    stalls = {name: _number(row[_STALL.format(name)]) for name in STALLS}
    values["us"] /= 1e3  # nanoseconds
    values["instructions"] /= launch["blocks"]
    waits = max(stalls, key=lambda name: stalls[name])
    nearest = max(("memory", "issue", "shared"), key=lambda name: values[name])
    return {**launch, **values, "nearest": nearest, "waits_for": waits, "stalls": stalls}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def chosen(config: ModelConfig, case: Case, machine: Machine) -> list[tuple[Projection, Lowering]]:
    """One projection of every shape of a step, with its lowering."""
    shapes = {(p.N, p.K): p for p in reversed(step_projections(config))}
    return [(p, choose(p, case.rows, lane(case.lane), machine, Tuning(tiled=True))) for p in reversed(shapes.values())]


def launch_all(config: ModelConfig, cases: Sequence[Case], device_name: str = "cuda") -> list[dict[str, Any]]:
    """Launch every shape of every case once; what was launched, in order."""
    device = open_device(device_name)
    found = []
    for case in cases:
        for projection, lowering in chosen(config, case, machine_of(device)):
            bench = Bench(device)
            bits = 4 if "q4" in lowering.kernel else 8
            tiles = bench.panels([projection], bits)[projection.name]
            inputs = bench.activations(projection.K, case.rows, 1 if bits == 4 else lane(case.lane).words)
            codes = codes_for(lowering.instance, inputs)
            y = bench.alloc("y", lowering.planes * case.rows * projection.N * 4)
            dims = {k: v for k, v in lowering.dims.items() if k not in lowering.instance.template}
            bench.run([bench.call(lowering.instance, dims, {**codes, "tiles": tiles, "y": y})])
            device.synchronize()
            bench.close()
            found.append({
                "case": f"{case.lane} {case.rows} rows", "shape": f"{projection.N} x {projection.K}",
                "blocks": -(-projection.N // 16) * projection.K // 32, **layout(lowering),
            })  # fmt: skip  # a map
    return found


if __name__ == "__main__":
    for launched in launch_all(load_config(sys.argv[1]), [Case(**case) for case in json.loads(sys.argv[2])]):
        print("@ " + json.dumps(launched))
