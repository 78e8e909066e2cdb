"""Speed of a whole decode: time to the first token, milliseconds a step from replays of one graph, tokens a second.

Every timed run also says what it decoded: the streams of its first sequence, so that a batch is compared with the same
prompt alone, and a speculative run with a plain one. A run whose streams disagree has no speed.
"""

import hashlib
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.device import Device
from harness.engine import Choice, Engine, Request, opened
from harness.engine.decode import prefill, step_programs
from kernels.lanes import lane
from kernels.tuning import Tuning
from oracle.model_weights import Weights
from reports.bench_buffers import step_projections, weight_bytes


@dataclass(frozen=True, slots=True)
class Case:
    """One measured decode: lane, sequences, prompt and new tokens, prefill chunk, drafts a step."""

    lane: str
    B: int
    prompt: int = 512
    count: int = 128
    chunk: int = 512
    drafts: int = 0


#: Lane by lane the first sequence must make the same tokens, whatever else differs.
CASES = (
    Case("a8", 1), Case("a8", 1, chunk=192, drafts=1), Case("a8", 1, drafts=2),
    Case("a8+s16+kv16", 8), Case("a8+s16+kv16", 32), Case("a15", 1), Case("q4", 1),
)  # fmt: skip  # a line a lane


def prompts(case: Case, vocab: int, seed: int = 1) -> list[tuple[int, ...]]:
    """A prompt a sequence; sequence b has the same one in every batch."""
    return [
        tuple(int(t) for t in np.random.default_rng([seed, b]).integers(0, vocab, case.prompt))
        for b in range(case.B)
    ]


def measure_all(device: Device, weights: Weights, cases: Sequence[Case], read: float) -> list[dict[str, Any]]:
    """Every case with its share of the floor; a lane whose first streams disagree has no speed.

    Shapes: read is the read bandwidth of this run. Units: GB/s; share is the time that reading the weights of a step
    once takes, over the median of a step. Error: none. Source: `measure`, whose errors it raises.
    """
    rows = []
    for case in cases:
        run = measure(device, weights, case)
        q4, projections = lane(case.lane).q4, step_projections(weights.config)
        floor = sum(weight_bytes(p.N, p.K, 4 if q4 and p.q4 else 8) for p in projections) / read / 1e6
        label = f"{case.lane} B={case.B}" + (f" drafts={case.drafts}" if case.drafts else "")
        ms = run["ms_a_step_median"]
        rows.append({"name": label, "ms": ms, "share": floor / ms, **run})
    for row in rows:
        streams = {r["first_stream_sha256"] for r in rows if r["case"]["lane"] == row["case"]["lane"]}
        row["streams_agree"] = len(streams) == 1 and row["flags"] == [0]
    return [row if row["streams_agree"] else {k: v for k, v in row.items() if k not in SPEEDS} for row in rows]


#: What a run says of its speed.
SPEEDS = ("ms", "share", "ms_a_step_median", "ms_a_step_p99", "tokens_a_second", "prefill_ms")


def measure(device: Device, weights: Weights, case: Case, tuning: Tuning | None = None) -> dict[str, Any]:
    """Run a case: load, prefill twice (the second is timed), one graph replayed for every step.

    Times in milliseconds by device events for steps, by the wall clock for load and prefill.
    """
    start = time.perf_counter()
    limit = case.prompt + case.count + 1
    choice = Choice(case.lane, case.B, limit, case.chunk, case.drafts, tuning=tuning or Tuning())
    with opened(device, weights, choice) as engine:
        loaded = time.perf_counter()
        entering = {b: Request(p, case.count) for b, p in enumerate(prompts(case, weights.config.vocab))}
        enter(engine, entering, case)
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


def enter(engine: Engine, entering: Mapping[int, Request], case: Case) -> None:
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
        # with drafts over all replays, those after the last token too
        "tokens_a_second": case.B * 1e3 / median if case.drafts == 0 else made * 1e3 / sum(steps),
        "flags": sorted({int(f) for f in engine.read("flags")}),
        "distinct_tokens_of_first": len(set(streams[0].tolist())),
        "first_stream_sha256": digest,
        "first_tokens": streams[0][:8].tolist(),
    }
