"""Speed of a whole decode: time to the first token, milliseconds a step from replays of one graph, tokens a second.

Every timed run also says what it decoded: the streams of its first sequence, so that a batch is compared with the same
prompt alone, and a speculative run with a plain one. A run whose streams disagree has no speed.
"""

import hashlib
import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.device import Device
from harness.engine import Engine, Request, open_engine
from harness.engine.decode import prefill, step_programs
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from oracle.model_weights import Weights


@dataclass(frozen=True, slots=True)
class Case:
    """One measured decode: lane, sequences, prompt and new tokens, prefill chunk, drafts a step."""

    lane: str
    B: int
    prompt: int = 512
    count: int = 128
    chunk: int = 512
    drafts: int = 0


def prompts(case: Case, vocab: int, seed: int = 1) -> list[tuple[int, ...]]:
    """A prompt a sequence; sequence b has the same one in every batch."""
    return [
        tuple(int(t) for t in np.random.default_rng([seed, b]).integers(0, vocab, case.prompt))
        for b in range(case.B)
    ]


def open_case(device: Device, weights: Weights, case: Case, tuning: Tuning) -> Engine:
    """The engine of a case."""
    p = device.properties
    machine = Machine(p.arch, p.multiprocessors, p.shared_per_block)
    setting = Setting(weights.config, lane(case.lane), case.B, case.B, case.prompt + case.count + 1, machine, tuning)
    return open_engine(device, setting, make_plan(setting, case.chunk, case.drafts), weights)


def measure(device: Device, weights: Weights, case: Case, tuning: Tuning | None = None) -> dict[str, Any]:
    """Run a case: load, prefill twice (the second is timed), one graph replayed for every step.

    Times in milliseconds by device events for steps, by the wall clock for load and prefill.
    """
    start = time.perf_counter()
    engine = open_case(device, weights, case, tuning or Tuning())
    try:
        loaded = time.perf_counter()
        entering = {b: Request(p, case.count) for b, p in enumerate(prompts(case, weights.config.vocab))}
        _enter(engine, entering, case)
        first = time.perf_counter()
        prefill(engine, entering)
        device.synchronize()
        prefilled = time.perf_counter()
        steps = _replay(device, engine, case)
        return {
            "case": {name: getattr(case, name) for name in Case.__slots__},
            "load_s": loaded - start,
            "prefill_ms": (prefilled - first) * 1e3,
            **_figures(engine, case, steps),
        }
    finally:
        engine.close()


def _enter(engine: Engine, entering: Mapping[int, Request], case: Case) -> None:
    """Start values of every lane, and one untimed prefill that loads modules and warms clocks."""
    for name, value in (("slot", np.arange(case.B)), ("flags", 0), ("taken", 0), ("pending", 0)):
        if name in engine.plan.buffers:
            engine.write(name, np.broadcast_to(np.asarray(value, np.int32), case.B))
    engine.write("end", np.full(case.B, case.prompt + case.count - 1, np.int32))
    prefill(engine, dict(entering))
    engine.device.synchronize()


def _replay(device: Device, engine: Engine, case: Case) -> list[float]:
    with device.capture() as stream:
        for program in step_programs(engine):
            engine.run(program, stream)
    graph = stream.graph
    events = [device.event()]
    for _ in range(case.count - 1):
        graph.replay()
        events.append(device.event())
    device.synchronize()
    return [device.elapsed(a, b) for a, b in itertools.pairwise(events)]


def _figures(engine: Engine, case: Case, steps: list[float]) -> dict[str, Any]:
    # with drafts the last replays find every sequence at its end and do little: only full steps count
    positions = engine.read("position")
    history = engine.read("history").reshape(case.B, -1)
    streams = history[:, case.prompt : case.prompt + case.count]
    made = int((positions - case.prompt).sum())
    median = statistics.median(steps)
    digest = hashlib.sha256(np.ascontiguousarray(streams[0]).tobytes()).hexdigest()
    return {
        "steps": len(steps),
        "ms_a_step_median": median,
        "ms_a_step_p99": float(np.quantile(steps, 0.99)),
        "tokens_made": made,
        "tokens_a_second": case.B * 1e3 / median if case.drafts == 0 else None,
        "flags": sorted({int(f) for f in engine.read("flags")}),
        "distinct_tokens_of_first": len(set(streams[0].tolist())),
        "first_stream_sha256": digest,
        "first_tokens": streams[0][:8].tolist(),
    }
