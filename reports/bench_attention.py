"""Speed of attention as a plan launches it: decode, verify and prefill, their bits against a second form.

Keys and values rotate through buffers beyond the second-level cache; every buffer is one attention layer of a graph.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.device import Memory
from harness.engine import machine_of
from kernels.catalogue import kernel
from kernels.entry import Value, instance
from kernels.lanes import lane
from kernels.plan import Launch, Ref
from kernels.programs import Rows, Setting, attend
from kernels.tuning import Tuning
from oracle.config import ModelConfig
from reports.bench_buffers import Bench, Call
from reports.bench_sdpa import BEYOND_CACHE

#: Most layers of one graph, and elements of the random piece that fills a cache.
LAYERS, PIECE = 64, (1 << 20) + 8


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """T rows of each of B sequences, the last of which sees `context` positions."""

    lane: str
    B: int
    T: int
    context: int

    @property
    def name(self) -> str:
        """How tables print it."""
        return f"attention {self.lane} B={self.B} T={self.T} context={self.context}"


def attention_cases() -> tuple[AttentionCase, ...]:
    """Decode over f16 and f32 caches, verifies of two rows, prefill of 512 rows."""
    half = "a8+s16+kv16"
    decode = [(32, 640), (32, 8192), (1, 131072), (1, 640), (1, 8192), (8, 640)]
    return (
        *(AttentionCase(half, B, 1, context) for B, context in decode),
        *(AttentionCase("a8", B, 1, context) for B, context in ((32, 640), (32, 8192), (1, 131072), (1, 640))),
        *(AttentionCase(half, B, 2, 640) for B in (1, 32)),
        *(AttentionCase(half, 1, 512, context) for context in (512, 8192)),
    )


def measure_attention(
    bench: Bench, config: ModelConfig, cases: Sequence[AttentionCase], repeats: int = 15, tuning: Tuning | None = None
) -> list[dict[str, Any]]:
    """Time every case.

    Shapes: one attention layer of the model a case.
    Units:  microseconds of a layer, GB/s of keys and values read once, TFLOP/s of visible positions (four operations
    a position, head and dim).
    Error:  a case whose bits differ from those of one head and one token a block, before or after, has no speed.
    Source: events of the device around replays. Raises LanelockError where memory does not suffice.
    """
    return [_measure(bench, config, case, repeats, tuning or Tuning()) for case in cases]


def cache_bytes(config: ModelConfig, case: AttentionCase) -> int:
    """Bytes of the keys and values that the batch's last rows see."""
    size = 2 if lane(case.lane).kv == "f16" else 4
    return 2 * case.B * config.kv_heads * case.context * config.head_dim * size


def operations(config: ModelConfig, case: AttentionCase) -> int:
    """Multiplications and additions of the products with keys and values."""
    visible = sum(case.context - case.T + 1 + t for t in range(case.T))
    return 4 * case.B * config.q_heads * config.head_dim * visible


def setting(bench: Bench, config: ModelConfig, case: AttentionCase, tuning: Tuning) -> Setting:
    """The setting of a plan whose caches just hold the context."""
    return Setting(config, lane(case.lane), case.B, case.B, case.context, machine_of(bench.device), tuning)


def _measure(bench: Bench, config: ModelConfig, case: AttentionCase, repeats: int, tuning: Tuning) -> dict[str, Any]:
    mark, s = len(bench.memories), setting(bench, config, case, tuning)
    nbytes = cache_bytes(config, case)
    layers = max(1, min(LAYERS, -(-BEYOND_CACHE // nbytes))) if bench.device.properties.kind == "cuda" else 2
    launches = _launches(s, case)
    shared = _shared(bench, config, case, launches)
    caches = [_cache(bench, s, i) for i in range(layers)]
    calls = [[_call(bench, item, {**shared, **cache}) for item in launches] for cache in caches]
    wanted = [_second_form(bench, s, launches[0], {**shared, **cache}) for cache in (caches[0], caches[-1])]
    right = {"before": _same(bench, shared, (calls[0], calls[-1]), wanted)}
    times = bench.times(bench.graph([c for layer in calls for c in layer]), repeats)
    right["after"] = _same(bench, shared, (calls[0], calls[-1]), wanted)
    bench.release(mark)
    found = {"name": case.name, "layers": layers, "bits": right, "launches": [_described(item) for item in launches]}
    if not all(right.values()):
        return found
    us = statistics.median(times) * 1e3 / layers
    p99 = float(np.quantile(times, 0.99)) * 1e3 / layers
    speed = {"GB_s": nbytes / us / 1e3, "TFLOP_s": operations(config, case) / us / 1e6}
    return found | {"ms": us / 1e3, "us": us, "us_p99": p99, **speed}


def _described(item: Launch) -> str:
    g = item.geometry
    return f"{item.instance.expression} grid {g.grid} threads {g.block[0]} shared {g.smem}"


def _launches(s: Setting, case: AttentionCase) -> tuple[Launch, ...]:
    c = s.config
    names = ("queries", "keys", "values", "slot", "position", "length")
    refs: dict[str, Ref | None] = {name: Ref(name) for name in names}
    heads: dict[str, Value] = {"T": case.T, "B": case.B, "slots": case.B, "HQ": c.q_heads, "HKV": c.kv_heads}
    rows = Rows(case.T, Ref("position"), Ref("length"))
    return tuple(attend(s, "", rows, refs, {**heads, "context": s.context}))


def _shared(
    bench: Bench, config: ModelConfig, case: AttentionCase, launches: Sequence[Launch]
) -> dict[str, Memory]:
    """Queries, places, scratch and output: every layer's."""
    g, rows = np.random.default_rng(1), case.T * case.B
    place = {"slot": np.arange(case.B), "position": np.full(case.B, case.context - case.T),
             "length": np.full(case.B, case.T)}  # fmt: skip  # a map
    values = {name: value.astype(np.int32) for name, value in place.items()}
    values["queries"] = g.standard_normal((rows, config.q_width)).astype(np.float32)
    made = {}
    for name, value in values.items():
        made[name] = bench.alloc(name, value.nbytes)
        bench.device.write(made[name], value)
    sizes: dict[str, int] = {"attention": rows * config.q_width}
    for use in (use for item in launches for use in item.uses):
        if use.ref.buffer not in (*values, "keys", "values"):
            sizes[use.ref.buffer] = max(sizes.get(use.ref.buffer, 0), use.extent)
    return made | {name: bench.alloc(name, size * 4) for name, size in sizes.items()}


def _cache(bench: Bench, s: Setting, seed: int) -> dict[str, Memory]:
    """Random keys and values: one random piece, over and over."""
    c, dtype = s.config, np.dtype(np.float16 if s.lane.kv == "f16" else np.float32)
    count = s.slots * c.kv_heads * s.context * c.head_dim
    made = {}
    for i, name in enumerate(("keys", "values")):
        piece = np.random.default_rng([seed, i]).standard_normal(min(count, PIECE), np.float32).astype(dtype)
        made[name] = bench.alloc(f"{name} {seed}", count * dtype.itemsize)
        for at in range(0, count, piece.size):
            bench.device.write(made[name], piece[: count - at], at * dtype.itemsize)
    return made


def _call(bench: Bench, item: Launch, memories: dict[str, Memory]) -> Call:
    dims = {k: v for k, v in item.dims.items() if k not in item.instance.template}
    return bench.call(item.instance, dims, {u.argument: memories[u.ref.buffer] for u in item.uses})


def _second_form(bench: Bench, s: Setting, chosen: Launch, memories: dict[str, Memory]) -> np.ndarray:
    """The output of one head and one token a block, each walking the context alone."""
    names = ("T", "B", "slots", "HQ", "HKV", "context")
    inst = instance(kernel("attention"), D=s.config.head_dim, Q=1, KV=s.lane.kv)
    buffers = {k: v for k, v in memories.items() if k not in ("parts", "summaries", "attention")}
    bench.device.fill(memories["attention"], 0xFF)
    dims: dict[str, Value] = {name: chosen.dims[name] for name in names}
    bench.run([bench.call(inst, {**dims, "G": 1}, {**buffers, "out": memories["attention"]})])
    return bench.device.read(memories["attention"])


def _same(
    bench: Bench, shared: dict[str, Memory], calls: Sequence[Sequence[Call]], wanted: Sequence[np.ndarray]
) -> bool:
    """Whether layers give these bits over poison."""
    right = True
    for layer, expected in zip(calls, wanted, strict=True):
        for name in ("attention", "parts", "summaries"):
            if name in shared:
                bench.device.fill(shared[name], 0xFF)
        bench.run(layer)
        right = bool((bench.device.read(shared["attention"]) == expected).all()) and right
    return right
