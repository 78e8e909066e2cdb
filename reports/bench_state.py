"""Speed of the Gated DeltaNet kernels over all layers of a step as one graph, with the bits before and after.

A scan is held to its other form (its tokens in shared memory, or not) over every layer's whole state, by digest, and to
the contract in NumPy on one head. The chunked rule is bounded: it is held to itself and to float64.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from harness.device import Memory
from kernels.catalogue import kernel
from kernels.delta_chunk import pieces
from kernels.delta_rule import STAGED_FROM, scan_form
from kernels.entry import Value, instance
from kernels.rules import ceil_div
from oracle.bits.conv import conv_silu_l2
from oracle.bits.delta_rule import scan
from oracle.bits.gates import gates
from oracle.config import ModelConfig
from oracle.delta_rule import sequential
from reports import bench_fla
from reports.bench_buffers import Bench, Call
from reports.state_inputs import Tokens, tokens

#: Bytes of token rows that one graph goes through: several times what the second-level cache of an H200 holds.
BEYOND_CACHE = 400 << 20
#: Most tokens that the contract in NumPy is asked for, and the value heads on which an error is measured.
CONTRACT_TOKENS, MEASURED_HEADS = 8, 3
ITEM = {"f32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class StateCase:
    """B sequences of T tokens through one kernel of the room, with a state of that type."""

    kind: Literal["scan", "chunked", "conv", "gates"]
    B: int
    T: int = 1
    state: str = "f32"

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.kind} B={self.B} T={self.T}" + (f" {self.state}" if self.kind in ("scan", "chunked") else "")


def state_cases(most: int, prefill: Sequence[int]) -> list[StateCase]:
    """Decode at batches up to `most` with either state, and prefills of these lengths."""
    batches = [B for B in (1, 8, 32, 64) if most >= B]
    decode = [StateCase("scan", B, state=state) for B in batches for state in ("f32", "f16")]
    whole = [StateCase(kind, 1, T) for T in prefill for kind in ("scan", "chunked")]
    small = [StateCase(kind, B) for kind in ("conv", "gates") for B in batches]
    return [*decode, *whole, *small, *(StateCase(kind, 1, T) for kind in ("conv", "gates") for T in prefill)]


@dataclass(slots=True)
class Layers:
    """What one case launches, layer by layer.

    calls: in order; written: every layer's memories that it writes; check: whether the bits are right after so many
    passes over all layers; nbytes: what a layer moves at least; figures: what else was found.
    """

    calls: list[Call]
    check: Callable[[int], bool]
    nbytes: int
    layers: int
    figures: dict[str, Any]


def measure_state(
    bench: Bench, config: ModelConfig, update: float, cases: Sequence[StateCase], repeats: int = 15
) -> list[dict[str, Any]]:
    """Time the cases.

    Shapes: those of the config; a graph goes once through every layer, each with buffers of its own.
    Units:  ms of the graph, us of a layer, GB/s of what a layer must read and write; share is of `update`, the read and
    write bandwidth of this run. rel_L2 is against float64 from a state of zero.
    Error:  a case whose bits are wrong has no speed.
    Source: events of the device around replays. Raises LanelockError where memory does not suffice.
    """
    rows = []
    for case in cases:
        mark = len(bench.memories)
        rows.append(_measure(bench, _layers(bench, config, case), case, repeats, update))
        bench.release(mark)
    return rows


def _measure(bench: Bench, found: Layers, case: StateCase, repeats: int, update: float) -> dict[str, Any]:
    warm = 3
    bench.run(found.calls)
    right = {"before": found.check(1)}
    times = bench.times(bench.graph(found.calls), repeats, warm)
    right["after"] = found.check(1 + warm + repeats)
    row = {"name": case.name, **asdict(case), "layers": found.layers, "bits": right, **found.figures}
    ms = statistics.median(times)
    if not all(right.values()):
        return row
    rate = found.nbytes * found.layers / ms / 1e6
    speed = {"ms": ms, "ms_p99": float(np.quantile(times, 0.99)), "us": ms * 1e3 / found.layers, "GB_s": rate}
    return row | speed | {"share": rate / update}


def _layers(bench: Bench, c: ModelConfig, case: StateCase) -> Layers:
    return {"scan": _rule, "chunked": _rule, "conv": _conv, "gates": _gates}[case.kind](bench, c, case)


def _count(c: ModelConfig, nbytes: int) -> int:
    """Layers of a graph: the model's, or as many as go beyond the cache."""
    return min(_gdn_layers(c), max(1, ceil_div(BEYOND_CACHE, nbytes)))


def _gdn_layers(c: ModelConfig) -> int:
    return sum(not c.is_attention(i) for i in range(c.layers))


def _put(bench: Bench, name: str, value: np.ndarray) -> Memory:
    memory = bench.alloc(name, value.nbytes)
    bench.device.write(memory, value)
    return memory


def _digest(bench: Bench, memory: Memory) -> bytes:
    """The xor of the words of each of the read kernel's blocks."""
    blocks = 8 * bench.device.properties.multiprocessors
    target = bench.alloc("digest", blocks * 4)
    dims: dict[str, Value] = {"vectors": memory.nbytes // 16, "blocks": blocks}
    bench.run([bench.call(instance(kernel("memory_read")), dims, {"x": memory, "y": target})])
    found = bench.device.read(target).tobytes()
    bench.release(len(bench.memories) - 1)
    return found


# ---- the delta rule


def _rule(bench: Bench, c: ModelConfig, case: StateCase) -> Layers:
    B, T = case.B, case.T
    given = tokens(c, B, T)
    size = B * c.v_heads * c.gdn_dim**2 * ITEM[case.state]
    rows = 4 * T * B * (c.conv_channels + c.gdn_v)
    count = _count(c, size if T == 1 else rows)
    shared = _rule_inputs(bench, given, B)
    outputs = [bench.alloc("o", 4 * T * B * c.gdn_v) for _ in range(1 if T == 1 else count)]
    wide = [shared["qkv"], *(_put(bench, "qkv", given.rows()) for _ in range(0 if T == 1 else count - 1))]
    pools = [bench.alloc("state", size) for _ in range(count)]

    def through(pool: Memory, i: int, begins: bool, reference: bool = False) -> list[Call]:
        own = {"state": pool, "qkv": wide[i % len(wide)], "o": outputs[i % len(outputs)]}
        position = shared["begins" if begins else "later"]
        return _rule_calls(bench, c, case, {**shared, **own, "position": position}, reference)

    for i, pool in enumerate(pools):
        bench.run(through(pool, i, begins=True))
    figures = _accuracy(bench, c, case, given, pools[0], outputs[0])
    right = [_contract_holds(bench, c, case, given, pools[-1], outputs[-1])] if case.kind == "scan" else []
    wanted = bench.alloc("wanted", size)
    bench.run(through(wanted, 0, begins=True, reference=True))
    done = 0

    def check(launched: int) -> bool:
        nonlocal done
        for _ in range(launched - done):
            bench.run(through(wanted, 0, begins=False, reference=True))
        done = launched
        same = {_digest(bench, pool) for pool in (*pools, wanted)}
        return all(right) and len(same) == 1 and len({_digest(bench, o) for o in outputs}) == 1

    calls = [call for i, pool in enumerate(pools) for call in through(pool, i, begins=False)]
    return Layers(calls, check, 2 * size + (rows if T > 1 else 0), count, figures)


def _rule_inputs(bench: Bench, given: Tokens, B: int) -> dict[str, Memory]:
    made = {name: _put(bench, name, value) for name, value in given.gates().items()}
    made |= {n: _put(bench, n, np.full(B, v, np.int32)) for n, v in (("begins", 0), ("later", 1), ("replay", -1))}
    made["length"] = _put(bench, "length", np.full(B, given.q.shape[1], np.int32))
    made["slot"] = _put(bench, "slot", np.arange(B - 1, -1, -1, dtype=np.int32))
    return made | {"qkv": _put(bench, "qkv", given.rows())}


def _rule_calls(
    bench: Bench, c: ModelConfig, case: StateCase, buffers: dict[str, Memory], reference: bool
) -> list[Call]:
    dims: dict[str, Value] = {"T": case.T, "B": case.B, "slots": case.B, "HK": c.k_heads, "HV": c.v_heads}
    if case.kind == "chunked":
        calls, first = [], 0
        for chunk in pieces(case.T):
            inst = instance(kernel("delta_chunk"), D=c.gdn_dim, CHUNK=chunk, STATE=case.state)
            calls.append(bench.call(inst, {**dims, "first": first}, buffers))
            first += chunk
        return calls
    # either form is the other's reference
    name, form = scan_form(case.T if not reference else 2 if case.T > 1 else STAGED_FROM, case.B)
    return [bench.call(instance(kernel(name), D=c.gdn_dim, STATE=case.state, **form), dims, buffers)]


def _accuracy(
    bench: Bench, c: ModelConfig, case: StateCase, given: Tokens, pool: Memory, o: Memory
) -> dict[str, float]:
    """rel_L2 of outputs and state of some heads of the first sequence, whose slot is the last."""
    if case.T == 1 or case.state != "f32":
        return {}
    state = bench.device.read(pool).view(np.float32).reshape(case.B, c.v_heads, c.gdn_dim, c.gdn_dim)[-1]
    out = bench.device.read(o).view(np.float32).reshape(case.T, case.B, c.v_heads, c.gdn_dim)[:, 0]
    return errors(given, out, state)


def errors(given: Tokens, out: np.ndarray, state: np.ndarray) -> dict[str, float]:
    """rel_L2 of outputs [T, HV, D] and of the state [HV, D, D] of sequence 0, on a few value heads."""
    heads = sorted({round(i * (out.shape[1] - 1) / (MEASURED_HEADS - 1)) for i in range(MEASURED_HEADS)})
    q, k, v, g, beta = given.of_heads(0, heads)
    true_o, true_s = sequential(q, k, v, g, beta, np.zeros((1, len(heads), *state.shape[1:])))
    return {
        "rel_L2": _relative(out[:, heads], true_o[0]),
        "state_rel_L2": _relative(state[heads], true_s[0]),
    }


def _relative(got: np.ndarray, true: np.ndarray) -> float:
    found = float(np.linalg.norm(got.astype(np.float64) - true) / np.linalg.norm(true))
    return found if math.isfinite(found) else 1e300  # JSON has no NaN; nothing of that size is an error one accepts


def _contract_holds(bench: Bench, c: ModelConfig, case: StateCase, given: Tokens, pool: Memory, o: Memory) -> bool:
    """Whether the last head of the last sequence, whose slot is 0, has the contract's outputs, and its state."""
    T, D, h = min(case.T, CONTRACT_TOKENS), c.gdn_dim, c.v_heads - 1
    zero = np.zeros((1, 1, D, D), np.float32)
    q, k, v, alpha, beta = given.contract_head(case.B - 1, h, T)
    true_o, true_s = scan(q, k, v, alpha, beta, zero, half=case.state == "f16")
    out = bench.device.read(o).view(np.float32).reshape(case.T, case.B, c.v_heads, D)[:T, -1, h]
    item = np.dtype(np.float16 if case.state == "f16" else np.float32)
    state = bench.device.read(pool, D * D * item.itemsize, h * D * D * item.itemsize).view(item)
    same_state = case.T > T or state.tobytes() == true_s.astype(item).tobytes()
    return same_state and out.tobytes() == true_o[0, :, 0].tobytes()


def faster(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Which of our two prefills is the faster one, by number of tokens."""
    found: dict[str, str] = {}
    for T in sorted({row["T"] for row in rows if row["kind"] == "chunked"}):
        timed = {row["kind"]: row["us"] for row in rows if row["T"] == T and row["B"] == 1 and "us" in row}
        of_rule = {kind: us for kind, us in timed.items() if kind in ("scan", "chunked")}
        if len(of_rule) == 2:  # both have right bits
            found[f"faster at {T} tokens"] = min(of_rule, key=of_rule.__getitem__)
    return found


def beside_fla(c: ModelConfig, decode: Sequence[int], prefill: Sequence[int]) -> dict[str, Any]:
    """Microseconds of a layer in flash-linear-attention, and its errors on the tokens that ours were measured on."""
    sizes = {"HK": c.k_heads, "HV": c.v_heads, "D": c.gdn_dim, "layers": _gdn_layers(c)}
    given = {T: tokens(c, 1, T) for T in prefill}
    arrays = {T: {n: getattr(t, n) for n in bench_fla.ARRAYS} for T, t in given.items()}
    found = bench_fla.beside(sizes, decode, arrays)
    made = found.pop("arrays", {})
    return found | {f"errors at {T} tokens": errors(given[T], a["o"], a["state"]) for T, a in made.items()}


# ---- what is around it


def _conv(bench: Bench, c: ModelConfig, case: StateCase) -> Layers:
    """Positions stand still, so that every pass writes the same: inputs of position 0 and later."""
    B, T, C, taps = case.B, case.T, c.conv_channels, c.conv_taps
    g = np.random.default_rng([B, T, C])
    x, w = (g.standard_normal(s).astype(np.float32) for s in ((T * B, C), (taps, C)))
    place = {"slot": np.arange(B), "position": np.zeros(B), "length": np.full(B, T)}
    shared = {n: _put(bench, n, v.astype(np.int32)) for n, v in place.items()} | {"w": _put(bench, "w", w)}
    nbytes = 4 * C * B * (2 * T + min(T, 8))
    count = _count(c, nbytes)
    dims: dict[str, Value] = {"T": T, "B": B, "slots": B, "C": C, "normed_heads": 2 * c.k_heads}
    calls, outputs = [], []
    for _ in range(count):
        own = {"x": _put(bench, "x", x), "ring": bench.alloc("ring", 32 * B * C), "y": bench.alloc("y", 4 * T * B * C)}
        calls.append(bench.call(instance(kernel("conv"), D=c.gdn_dim), dims, {**shared, **own}))
        outputs.append(own["y"])
    few = x[::B][:CONTRACT_TOKENS][None]
    wanted = conv_silu_l2(few, np.zeros((1, taps - 1, C), np.float32), w, c.k_heads, c.gdn_dim)[0][0]

    def check(_: int) -> bool:
        got = bench.device.read(outputs[-1]).view(np.float32).reshape(T * B, C)[::B][:CONTRACT_TOKENS]
        return got.tobytes() == wanted.tobytes() and len({_digest(bench, y) for y in outputs}) == 1

    return Layers(calls, check, nbytes, count, {})


def _gates(bench: Bench, c: ModelConfig, case: StateCase) -> Layers:
    rows, HV = case.B * case.T, c.v_heads
    g = np.random.default_rng([rows, HV])
    ba, A, dt = (g.standard_normal(s).astype(np.float32) for s in ((rows, 2 * HV), HV, HV))
    wanted = gates(ba, -np.abs(A), dt)
    shared = {"ba": _put(bench, "ba", ba), "A": _put(bench, "A", -np.abs(A)), "dt": _put(bench, "dt", dt)}
    nbytes = 4 * rows * 5 * HV
    count = _count(c, nbytes)
    outputs = [{n: bench.alloc(n, 4 * rows * HV) for n in ("beta", "g", "alpha")} for _ in range(count)]
    dims: dict[str, Value] = {"rows": rows, "HV": HV}
    calls = [bench.call(instance(kernel("gates")), dims, {**shared, **own}) for own in outputs]

    def check(_: int) -> bool:
        made = [[bench.device.read(own[n]).tobytes() for n in ("beta", "g", "alpha")] for own in outputs]
        return all(m == [w.tobytes() for w in wanted] for m in made)

    return Layers(calls, check, nbytes, count, {})
