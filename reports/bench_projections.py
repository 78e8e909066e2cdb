"""Speed of the projections of a step: all of them in layer order as one graph, and their bits before and after.

What is timed is what `lowering.choose` chooses, on weights that are pre-tiled as the engine holds them. Planes of a
split projection are written but not added: whoever reads them adds them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.device import Device, Memory
from harness.engine import machine_of
from kernels.catalogue import kernel
from kernels.entry import Instance, Value, instance
from kernels.lanes import lane
from kernels.lowering import Lowering, Projection, choose
from kernels.rules import ceil_div
from kernels.tuning import Tuning
from oracle.config import ModelConfig
from reports.bench_buffers import Bench, Call, codes_for, step_projections, weight_bytes

#: A run in which an H200's memory reads slower than this is disturbed: it has no speed. GB/s.
LEAST_READ = 4300.0
#: Rows checked at either end of a batch; every projection of every case is checked.
ENDS = 4
#: Most rows of a decode step; more are a chunk of a prompt, whose largest case has PREFILL_ROWS.
DECODE_ROWS, PREFILL_ROWS = 64, 512
#: How often the graph of a shape is timed, and that of a prefill, at most.
SHAPE_REPEATS, PREFILL_REPEATS = 6, 5
#: Launches of a shape that are timed together, at least.
LEAST_LAUNCHES = 4
#: What a layout of a launch is: these dims, where the kernel has them.
LAYOUT = ("grid", "splits", "warps", "stages", "span", "width", "held", "part")


@dataclass(frozen=True, slots=True)
class Case:
    """Activation rows in the codes of a lane."""

    lane: str
    rows: int


@dataclass(frozen=True, slots=True)
class Effort:
    """How often a decode step is timed between rests, and for how many milliseconds without one."""

    repeats: int = 16
    sustained: float = 1000.0


CASES = (
    *(Case("a8", n) for n in (1, 2, 4, 8, 32, 64)), *(Case("a15", n) for n in (1, 2, 4, 8, 32)),
    Case("q4", 1), *(Case("a8", n) for n in (96, 256, 512)), Case("a15", 512), Case("q4", 512),
)  # fmt: skip  # a line for decode, one for the rest


@dataclass(slots=True)
class Step:
    """The launches of one case. outputs: projection name -> what it writes; planes: how many planes. layouts: kernel,
    template and layout.
    """

    case: Case
    calls: dict[str, Call]
    references: dict[str, Call]
    outputs: dict[str, Memory]
    planes: dict[str, int]
    layouts: dict[str, dict[str, Value]]
    lowerings: tuple[str, ...]
    reference: Memory


def measure(
    device: Device, config: ModelConfig, cases: Sequence[Case], effort: Effort | None = None
) -> dict[str, Any]:
    """Time the cases on one set of weights.

    Shapes: every case is one step of the model, its head left out from prefill.
    Units:  milliseconds of one step, GB/s of weight codes and scales, TOPS (two operations a product); shares are of
    the read bandwidth of this run. Shapes and decode steps are timed between rests, decode steps once more, as
    "sustained", without; a prefill is timed without.
    Error:  a case whose bits are wrong has no speed; a run is valid from LEAST_READ on.
    Source: events of the device around replays. Raises LanelockError where memory does not suffice.
    """
    bench = Bench(device)
    try:
        projections = step_projections(config)
        panels = {bits: bench.panels(projections, bits) for bits in sorted({_bits(c) for c in cases}, reverse=True)}
        read = bench.read_speed(next(iter(panels.values()))["head"], device.properties.multiprocessors)
        rows = [_measure(bench, projections, panels[_bits(c)], c, effort or Effort(), read) for c in cases]
        valid = read >= LEAST_READ
        return {"config": config.name, "read_GB_s": read, "valid": valid, "rows": rows}
    finally:
        bench.close()


def _bits(case: Case) -> int:
    return 4 if lane(case.lane).q4 else 8


def _measure(
    bench: Bench,
    projections: Sequence[Projection],
    tiles: Mapping[str, Memory],
    case: Case,
    effort: Effort,
    read: float,
) -> dict[str, Any]:
    # prefill makes logits of its last row alone: its head is no part of the matrix work
    decode = case.rows <= DECODE_ROWS
    timed = projections if decode else projections[:-1]
    mark = len(bench.memories)
    step = _step(bench, timed, tiles, case)
    wanted = {p.name: _reference(bench, step, p) for p in timed}
    right = {"before": _alone(bench, step, timed, wanted)}
    graph = bench.graph(list(step.calls.values()))
    times = bench.rested(graph, effort.repeats) if decode else bench.times(graph, min(effort.repeats, PREFILL_REPEATS))
    ms = statistics.median(times)
    long = None
    if decode and effort.sustained > 0:
        long = bench.sustained(graph, max(2, round(effort.sustained / ms)), effort.sustained / 1e3)
    shapes = _shapes(bench, step, timed, min(effort.repeats, SHAPE_REPEATS), read)
    # a role's output was last written by its last layer in the chain
    left = {step.outputs[p.name].name: p for p in timed}.values()
    right["chained"] = all(_same(bench, step, p, wanted[p.name]) for p in left)
    right["after"] = _alone(bench, step, timed, wanted)
    bench.release(mark)
    nbytes = sum(weight_bytes(p.N, p.K, _bits(case) if p.q4 else 8) for p in timed)
    row = {
        "name": f"{case.lane} {case.rows} rows",
        "projections": len(timed),
        "lowerings": list(step.lowerings),
        "bits": right,
    }
    if not all(right.values()):
        return row
    if long is not None:
        row |= {"sustained": long, "sustained_ms": long["ms"], "sustained_share": nbytes / long["ms"] / 1e6 / read}
    return row | {
        "ms": ms,
        "ms_p99": float(np.quantile(times, 0.99)),
        "GB_s": nbytes / ms / 1e6,
        "share": nbytes / ms / 1e6 / read,
        "TOPS": 2 * case.rows * sum(p.N * p.K for p in timed) / ms / 1e9,
        "shapes": shapes,
    }


def _shapes(
    bench: Bench, step: Step, projections: Sequence[Projection], repeats: int, read: float
) -> list[dict[str, Any]]:
    """Each shape of the step by itself, all its layers as one graph: microseconds a launch, the share of the read."""
    found = []
    for N, K in dict.fromkeys((p.N, p.K) for p in projections):
        names = [p.name for p in projections if (p.N, p.K) == (N, K)]
        calls = [step.calls[name] for name in names] * ceil_div(LEAST_LAUNCHES, len(names))
        us = 1e3 * statistics.median(bench.rested(bench.graph(calls), repeats)) / len(calls)
        nbytes = weight_bytes(N, K, 4 if "q4" in str(step.layouts[names[0]]["kernel"]) else 8)
        found.append({
            "shape": f"{N} x {K}", "launches": len(names), "us": us, "share": nbytes / us / 1e3 / read,
            **step.layouts[names[0]],
        })  # fmt: skip  # a map
    return found


def layout(lowering: Lowering) -> dict[str, Value]:
    """A lowering in short: kernel, template, and the dims that lay it over the machine."""
    dims = {name: lowering.dims[name] for name in LAYOUT if name in lowering.dims}
    return {"kernel": lowering.kernel, **lowering.instance.template, **dims}


def _step(bench: Bench, projections: Sequence[Projection], tiles: Mapping[str, Memory], case: Case) -> Step:
    machine, chosen_lane = machine_of(bench.device), lane(case.lane)
    most = max(p.N for p in projections) * case.rows * 4
    step = Step(case, {}, {}, {}, {}, {}, (), bench.alloc("reference", most))
    inputs = {K: bench.activations(K, case.rows, chosen_lane.words) for K in sorted({p.K for p in projections})}
    shared: dict[str, Memory] = {}
    for projection in projections:
        chosen = choose(projection, case.rows, chosen_lane, machine, Tuning(tiled=True))
        role = projection.name.split(".")[-1]
        size = chosen.planes * case.rows * max(q.N for q in projections if q.name.split(".")[-1] == role) * 4
        if role not in shared:
            shared[role] = bench.alloc(f"y {role}", size)
        dims = {k: v for k, v in chosen.dims.items() if k not in chosen.instance.template}
        buffers = {**inputs[projection.K], "tiles": tiles[projection.name]}
        step.calls[projection.name] = _call(bench, chosen.instance, dims, {**buffers, "y": shared[role]})
        step.references[projection.name] = _reference_call(bench, projection, case, {**buffers, "y": step.reference})
        step.outputs[projection.name], step.planes[projection.name] = shared[role], chosen.planes
        step.layouts[projection.name] = layout(chosen)
        step.lowerings = tuple(dict.fromkeys((*step.lowerings, chosen.kernel)))
    return step


def _reference_call(bench: Bench, p: Projection, case: Case, buffers: dict[str, Memory]) -> Call:
    """The first tensor-core tile on the same weights, one plane."""
    cols = 8 if case.rows <= 8 else 64  # sequences of a tile
    template: dict[str, Value] = {"WORDS": lane(case.lane).words, "BITS": 8, "COLS": cols, "STAGES": 3}
    name = "gemm_tc_tiled"
    if _bits(case) == 4 and p.q4:
        name, template = "gemm_tc_tiled_q4", template | {"BITS": 4}
    known = {q.name for q in kernel(name).params}
    inst = instance(kernel(name), **{k: v for k, v in template.items() if k in known})
    return _call(bench, inst, {"rows": case.rows, "N": p.N, "K": p.K}, buffers)


def _call(bench: Bench, inst: Instance, dims: dict[str, Value], buffers: dict[str, Memory]) -> Call:
    return bench.call(inst, dims, {**codes_for(inst, buffers), "tiles": buffers["tiles"], "y": buffers["y"]})


def _reference(bench: Bench, step: Step, p: Projection) -> np.ndarray:
    bench.device.fill(step.reference, 0xFF)
    bench.run([step.references[p.name]])
    return _ends(bench, step.reference, 1, step.case.rows, p.N)


def _ends(bench: Bench, y: Memory, planes: int, rows: int, N: int) -> np.ndarray:
    """The first and last rows of an output, its planes added in order."""
    count = min(ENDS, rows)
    total = np.zeros((2, count, N), np.float32)
    for plane in range(planes):
        for i, row in enumerate((0, rows - count)):
            part = bench.device.read(y, count * N * 4, (plane * rows + row) * N * 4).view(np.float32)
            total[i] = part.reshape(count, N) if planes == 1 else total[i] + part.reshape(count, N)
    return total


def _same(bench: Bench, step: Step, p: Projection, wanted: np.ndarray) -> bool:
    got = _ends(bench, step.outputs[p.name], step.planes[p.name], step.case.rows, p.N)
    return bool((got.view(np.uint32) == wanted.view(np.uint32)).all())


def _alone(bench: Bench, step: Step, projections: Sequence[Projection], wanted: Mapping[str, np.ndarray]) -> bool:
    """Whether every projection, launched by itself over poison, gives the bits of the reference."""
    right = True
    for p in projections:
        bench.device.fill(step.outputs[p.name], 0xFF)
        bench.run([step.calls[p.name]])
        right = _same(bench, step, p, wanted[p.name]) and right
    return right


def at_most(cases: Sequence[Case], rows: int, prefill: int) -> list[Case]:
    """The decode cases of no more rows; prefill cases with so many in place of PREFILL_ROWS, others in proportion."""
    found = [c if c.rows <= DECODE_ROWS else replace(c, rows=c.rows * prefill // PREFILL_ROWS) for c in cases]
    return [f for c, f in zip(cases, found, strict=True) if c.rows > DECODE_ROWS or c.rows <= rows]
