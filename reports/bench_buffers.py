"""Buffers and launches of the projections of a decode step, for timing them alone."""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.device import Argument, Device, Memory
from harness.record import gpu_state
from harness.run import arguments
from kernels.catalogue import kernel
from kernels.columns import by_columns, reads_columns, scales_by_columns
from kernels.entry import Geometry, Instance, Value, instance, resolve
from kernels.lowering import Projection
from kernels.rules import BLOCK, ceil_div
from oracle.config import ModelConfig

#: Vectors that a block of the update takes when no thread goes round twice.
UPDATE_VECTORS = 512 * 8
#: Timed replays of a burst. One more stands before them: from rest, a GPU starts late.
BURST = 2


def step_projections(c: ModelConfig) -> tuple[Projection, ...]:
    """The projections of one decode step in the order of their launches: four a layer, then the head."""
    found = []
    for i in range(c.layers):
        entry, inner = (c.attn_proj, c.q_width) if c.is_attention(i) else (c.gdn_proj, c.gdn_v)
        found += [
            Projection(f"{i}.entry", entry, c.d),
            Projection(f"{i}.out", c.d, inner, planes=True),
            Projection(f"{i}.gate_up", 2 * c.ffn, c.d),
            Projection(f"{i}.down", c.d, c.ffn, planes=True),
        ]
    return (*found, Projection("head", c.vocab, c.d, q4=False))


def weight_bytes(N: int, K: int, bits: int = 8) -> int:
    """Bytes of codes and scales that a projection reads."""
    return N * (K * bits // 8 + 2 * (K // BLOCK))


@dataclass(frozen=True, slots=True)
class Call:
    """One launch that is ready to go."""

    built: Any
    geometry: Geometry
    args: tuple[Argument, ...]


@contextmanager
def _followed_by_rest() -> Iterator[None]:
    began = time.perf_counter()
    yield
    time.sleep(time.perf_counter() - began)


def _state_in(seconds: float) -> list[dict[str, str | None]] | None:
    time.sleep(seconds)
    return gpu_state()


def codes_for(inst: Instance, inputs: dict[str, Memory]) -> dict[str, Memory]:
    """Activations (see `Bench.activations`) as a kernel reads them."""
    order = "columns" if reads_columns(inst.kernel) else "rows"
    return {name: inputs[f"{name} by {order}"] for name in ("codes", "scales")}


@dataclass(slots=True)
class Bench:
    """A device with the memory that calls refer to. Everything is given back by `close`."""

    device: Device
    memories: list[Memory] = field(default_factory=list)
    seed: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def alloc(self, name: str, nbytes: int) -> Memory:
        """Poisoned memory that lives until `close`."""
        self.memories.append(self.device.alloc(name, nbytes))
        return self.memories[-1]

    def release(self, mark: int) -> None:
        """Give back what was allocated after there were `mark` memories; guards are checked."""
        while len(self.memories) > mark:
            self.device.free(self.memories.pop())

    def close(self) -> None:
        """Give everything back; guards are checked."""
        self.release(0)

    def call(self, inst: Instance, dims: dict[str, Value], buffers: dict[str, Memory]) -> Call:
        """A launch with these buffers by argument name."""
        full = resolve(inst, dims)
        return Call(self.device.build(inst), inst.kernel.geometry(full), tuple(arguments(inst.kernel, full, buffers)))

    def run(self, calls: Sequence[Call], stream: Any = None) -> None:
        """Launch them in order."""
        for c in calls:
            self.device.launch(c.built, c.geometry, c.args, stream)

    def panels(self, projections: Sequence[Projection], bits: int) -> dict[str, Memory]:
        """Pre-tiled synthetic weights of every projection, made on the device."""
        most = max(p.N * p.K for p in projections)
        staged = [self.device.alloc(f"staged {n}", most // d) for n, d in (("codes", 1), ("scales", 16))]
        staged += [self.device.alloc(f"packed {n}", most // d) for n, d in (("codes", 2), ("scales", 16))]
        made = {p.name: self._make(p, bits if p.q4 else 8, staged) for p in projections}
        self.device.synchronize()
        for memory in staged:
            self.device.free(memory)
        return made

    def _make(self, p: Projection, bits: int, staged: Sequence[Memory]) -> Memory:
        codes, scales, packed, packed_scales = staged
        keys = {"code_key": next(self.seed) * 0x9E3779B97F4A7, "scale_key": next(self.seed) * 0x9E3779B97F4A7}
        lowest = int(np.float16(1 / 80 / np.sqrt(p.K)).view(np.uint16))
        dims: dict[str, Value] = {**keys, "lowest_scale": lowest, "blocks": p.N * p.K // BLOCK}
        calls = [self.call(instance(kernel("synthetic")), dims, {"codes": codes, "scales": scales})]
        source, sizes = {"codes": codes, "ws": scales}, {"N": p.N, "K": p.K}
        if bits == 4:  # bits of a code
            given = {"codes": codes, "scales": scales, "packed": packed, "packed_scales": packed_scales}
            calls.append(self.call(instance(kernel("q8_to_q4")), dict(sizes), given))
            source = {"codes": packed, "ws": packed_scales}
        tile = instance(kernel("pretile_q4" if bits == 4 else "pretile"))
        full = resolve(tile, dict(sizes))
        size = int(np.prod([int(full[n]) for n in ("panels", "chunks", "panel_bytes")])) * 8
        tiles = self.alloc(f"{p.name} q{bits}", size)
        calls.append(self.call(tile, dict(sizes), {**source, "tiles": tiles}))
        self.run(calls)
        return tiles

    def activations(self, K: int, rows: int, words: int) -> dict[str, Memory]:
        """Random activation codes and scales, by rows and by columns."""
        g = np.random.default_rng([K, rows, words])
        codes = g.integers(-127, 128, (rows, words, K)).astype(np.int8)
        if words == 2:  # A15: the low word
            codes[:, 1] = g.integers(-64, 64, (rows, K))
        scales = (0.01 * (0.25 + g.random((rows, K // BLOCK)))).astype(np.float32)
        made = {}
        orders: dict[str, np.ndarray] = {
            "codes by rows": codes,
            "scales by rows": scales,
            "codes by columns": by_columns(codes),
            "scales by columns": scales_by_columns(scales),
        }
        for name, value in orders.items():
            made[name] = self.alloc(f"{name} {rows} x {K}", value.nbytes)
            self.device.write(made[name], value)
        return made

    def graph(self, calls: Sequence[Call]) -> Any:
        """The calls as one graph."""
        with self.device.capture() as stream:
            self.run(calls, stream)
        return stream.graph

    def times(self, graph: Any, repeats: int, warm: int = 3) -> list[float]:
        """Milliseconds of every replay."""
        for _ in range(warm):
            graph.replay()
        events = [self.device.event()]
        for _ in range(repeats):
            graph.replay()
            events.append(self.device.event())
        self.device.synchronize()
        return [self.device.elapsed(a, b) for a, b in itertools.pairwise(events)]

    def rested(self, graph: Any, repeats: int) -> list[float]:
        """Milliseconds of replays in bursts, with a rest after each for as long as it took.

        Without rests steps of 32 and 64 rows bring an H200 to its power limit, and the time is that of the clock which
        is left then (reports/projections.md).
        """
        found: list[float] = []
        while len(found) < repeats:
            with _followed_by_rest():
                found += self.times(graph, BURST, warm=1)
        return found[:repeats]

    def sustained(self, graph: Any, count: int, seconds: float) -> dict[str, Any]:
        """Replays without a rest, of so many seconds, and a rest of the same time behind them.

        ms: the median of their later half. gpus: what nvidia-smi reads in the middle.
        """
        with _followed_by_rest(), ThreadPoolExecutor(1) as pool:
            state = pool.submit(_state_in, seconds / 2)
            times = self.times(graph, count, warm=0)
            return {"ms": statistics.median(times[count // 2 :]), "replays": count, "gpus": state.result()}

    def read_speed(self, source: Memory, multiprocessors: int) -> float:
        """GB/s of the fastest of a few launch shapes of our own read kernel."""
        return self._memory_speed("memory_read", source, [n * multiprocessors for n in (2, 4, 8, 16)])

    def update_speed(self, source: Memory, multiprocessors: int) -> float:
        """GB/s, read and written, of the fastest of a few launch shapes of our own update in place.

        The words are as before in the end: every shape goes through them an even number of times.
        """
        whole = ceil_div(source.nbytes // 16, UPDATE_VECTORS)
        return self._memory_speed("memory_update", source, [*(n * multiprocessors for n in (2, 4, 8, 16)), whole])

    def _memory_speed(self, name: str, source: Memory, grids: Sequence[int]) -> float:
        target = self.alloc("read", max(grids) * 4)
        best = 0.0
        for blocks in grids:
            dims: dict[str, Value] = {"vectors": source.nbytes // 16, "blocks": blocks}
            found = {"x": source, "y": target} if name == "memory_read" else {"x": source}
            call = self.call(instance(kernel(name)), dims, found)
            ms = float(np.median(self.times(self.graph([call] * 4), 7)))
            best = max(best, 4 * source.nbytes / ms / 1e6)
        return best if name == "memory_read" else 2 * best


def rounds(count: int, nbytes: int, least: int) -> int:
    """How many of `count` buffers make at least so many bytes."""
    return min(count, max(1, ceil_div(least, nbytes)))
