"""Speed of a whole decode: time to the first token, milliseconds a step from replays of one graph, tokens a second.

Every timed run also says what it decoded: the stream of its first sequence, so that a batch is compared with the same
prompt alone, a prompt in chunks with the prompt at once, and a speculative run with a plain one. A lane whose streams
disagree has no speed.
"""

import hashlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.device import Device
from harness.engine import Choice, Engine, Request, opened
from harness.engine.decode import prefill, step_programs
from kernels.tuning import Tuning
from oracle.model_weights import Weights
from reports.plan_floor import floors
from reports.step_profile import profile


@dataclass(frozen=True, slots=True)
class Case:
    """One measured decode: lane, sequences, prompt and new tokens, prefill chunk, drafts a step."""

    lane: str
    B: int
    prompt: int = 512
    count: int = 128
    chunk: int = 512
    drafts: int = 0


#: Every exact lane.
LANES = tuple(base + extra for base in ("a8", "a15", "q4") for extra in ("", "+s16", "+kv16", "+s16+kv16"))
#: Cases whose kernels are timed one by one, to name what holds the step back.
PROFILED = ("a8 B=1", "a8+s16+kv16 B=32")


def cases_of(lane: str) -> tuple[Case, ...]:
    """What is measured in a lane: three batches, and the prompt in chunks with a draft a step; one first stream."""
    return (Case(lane, 1), Case(lane, 8), Case(lane, 32), Case(lane, 1, chunk=192, drafts=1))


def prompts(case: Case, vocab: int, seed: int = 1) -> list[tuple[int, ...]]:
    """A prompt a sequence; sequence b has the same one in every batch."""
    return [
        tuple(int(t) for t in np.random.default_rng([seed, b]).integers(0, vocab, case.prompt))
        for b in range(case.B)
    ]


def measure_all(
    device: Device,
    weights: Weights,
    cases: Sequence[Case],
    read: float,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """Every case with its share of the floor; a lane whose first streams disagree has no speed.

    Shapes: read is the read bandwidth of this run. Units: GB/s; share is the time that moving every byte of a step once
    takes, over the median of a step. Error: none. Source: `measure`, whose errors it raises.
    """
    rows = []
    for i, case in enumerate(cases):
        progress(name(case), i, len(cases))
        rows.append({"name": name(case), **measure(device, weights, case, read)})
    for row in rows:
        mine = [r for r in rows if r["case"]["lane"] == row["case"]["lane"]]
        row["streams_agree"] = len({r["first_stream_sha256"] for r in mine}) == 1 and row["flags"] == [0]
        row["agrees_with"] = [r["name"] for r in mine if r is not row] if row["streams_agree"] else []
    return [row if row["streams_agree"] else {k: v for k, v in row.items() if k not in SPEEDS} for row in rows]


def name(case: Case) -> str:
    """Such as `a8 B=1 drafts=1`."""
    return f"{case.lane} B={case.B}" + (f" drafts={case.drafts}" if case.drafts else "")


#: What a run says of its speed.
SPEEDS = ("ms", "share", "floor_ms", "ms_a_step_p99", "tokens_a_second", "first_token_ms", "kernels")


def measure(
    device: Device, weights: Weights, case: Case, read: float = 1.0, tuning: Tuning | None = None
) -> dict[str, Any]:
    """Run a case: load, one prefill, one graph replayed for every step; then the kernels of a PROFILED one.

    Times in milliseconds by device events for steps, by the wall clock for load and first token (the whole prompt, its
    logits, the pick). floor_ms: every byte of a step moved once at `read` GB/s.
    """
    start = time.perf_counter()
    limit = case.prompt + case.count + 1
    choice = Choice(case.lane, case.B, limit, case.chunk, case.drafts, tuning=tuning or Tuning())
    with opened(device, weights, choice) as engine:
        loaded = time.perf_counter()
        enter(engine, case)
        first = time.perf_counter()
        prefill(engine, {b: Request(p, case.count) for b, p in enumerate(prompts(case, weights.config.vocab))})
        device.synchronize()
        prefilled = time.perf_counter()
        steps = _replay(device, engine, case)
        floor = sum(f.floor for p in step_programs(engine) for f in floors(engine.plan.programs[p], read)) / 1e3
        run = {
            "case": {name: getattr(case, name) for name in Case.__slots__},
            "load_s": loaded - start,
            "first_token_ms": (prefilled - first) * 1e3,
            "floor_ms": floor,
            "share": floor / statistics.median(steps),
            **_figures(engine, case, steps),
        }
        if name(case) in PROFILED:
            run["kernels"] = _held_back(engine, case, read)
        return run


def _held_back(engine: Engine, case: Case, read: float) -> list[dict[str, Any]]:
    """The kernels of a step in the middle of the stream, the one furthest above its floor first."""
    engine.write("position", np.full(case.B, case.prompt + case.count // 2, np.int32))
    rows = profile(engine, "step", read, 7, parts=False)["kernels"]
    return sorted(({**row, "over_ms": row["ms"] - row["floor_ms"]} for row in rows), key=lambda row: -row["over_ms"])


def enter(engine: Engine, case: Case) -> None:
    """One launch of every kernel with no sequence there, which loads them, and start values of every lane."""
    kernels = {}
    for program, items in engine.plan.programs.items():
        if not program.startswith("load."):
            kernels.update({item.instance.expression: item for item in items})
    for item in kernels.values():
        engine.launch(item)
    for buffer, value in (("slot", np.arange(case.B)), ("flags", 0), ("taken", 0), ("pending", 0)):
        if buffer in engine.plan.buffers:
            engine.write(buffer, np.broadcast_to(np.asarray(value, np.int32), case.B))
    engine.write("end", np.full(case.B, case.prompt + case.count - 1, np.int32))


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
    # with drafts the last replays may find sequences at their end and do little: the median is a full step
    positions = engine.read("position")
    history = engine.read("history").reshape(case.B, -1)
    streams = history[:, case.prompt : case.prompt + case.count]
    made = int((positions - case.prompt).sum())
    median = statistics.median(steps)
    digest = hashlib.sha256(np.ascontiguousarray(streams[0]).tobytes()).hexdigest()
    return {
        "steps": len(steps),
        "ms": median,
        "ms_a_step_p99": float(np.quantile(steps, 0.99)),
        "tokens_made": made,
        # with drafts over all replays, those after the last token too
        "tokens_a_second": case.B * 1e3 / median if case.drafts == 0 else made * 1e3 / sum(steps),
        "flags": sorted({int(f) for f in engine.read("flags")}),
        "distinct_tokens_of_first": len(set(streams[0].tolist())),
        "first_stream_sha256": digest,
        "first_tokens": streams[0][:8].tolist(),
    }
