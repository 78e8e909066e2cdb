"""Counted on the host: how often state and cache are read and written, whatever the length of a chunk."""

from dataclasses import replace

import numpy as np
import pytest

from harness.host import HostDevice
from harness.run import run_once
from kernels.attention import ATTENTION, ATTENTION_CLUSTER, ATTENTION_SPLIT, ATTENTION_TEAMS
from kernels.attention_prefill import PREFILL, PREFILL_SPLIT
from kernels.delta_chunk import DELTA_CHUNK
from kernels.delta_rule import DELTA_RULE
from kernels.entry import Buffer, Kernel, Param, instance
from locks.support import Case, normal, rng
from locks.test_attention import in_blocks

COUNTS = Buffer("counts", "i32", (2,), "rw")


def counting(kernel: Kernel, *params: Param) -> Kernel:
    """The kernel over a float that counts its loads and stores (locks/kernels/state_traffic.cu)."""
    args = tuple(replace(a, dtype="f32") if isinstance(a, Buffer) and a.dtype in ("STATE", "KV") else a
                 for a in kernel.args)  # fmt: skip
    name = f"{kernel.symbol}_traffic"
    room = "../locks/kernels/state_traffic"
    return replace(kernel, name=name, symbol=name, room=room, params=params, args=(*args, COUNTS))


SCAN = counting(DELTA_RULE, Param("D", (32, 64)), Param("STAGED", (False, True)), Param("ONE", (False, True)))
CHUNK = counting(DELTA_CHUNK, Param("D", (32, 64)), Param("CHUNK", (4, 16)))


@pytest.fixture(scope="module")
def host() -> HostDevice:
    """The host device: counting is its privilege."""
    return HostDevice()


def counted(host: HostDevice, case: Case) -> tuple[int, int]:
    """Loads and stores of one launch."""
    inputs = {**case.inputs, "counts": np.zeros(2, np.int32)}
    loads, stores = replace(case, inputs=inputs).run(host)["counts"]
    return int(loads), int(stores)


def place(positions: list[int], lengths: list[int]) -> dict[str, np.ndarray]:
    """Sequences in slots of their own."""
    named = {"slot": range(len(positions)), "position": positions, "length": lengths}
    return {n: np.array(v, np.int32) for n, v in named.items()}


def rule(kernel: Kernel, D: int, T: int, positions: list[int], **template: bool | int) -> Case:
    """A chunk of T tokens of sequences with one key head and two value heads."""
    B, g = len(positions), rng(D, T)
    inputs = {"qkv": normal(g, T * B, 4 * D), "beta": normal(g, T * B, 2), "state": normal(g, B, 2, D, D)}
    gate = {"g": -np.abs(normal(g, T * B, 2))} if kernel is CHUNK else {"alpha": normal(g, T * B, 2)}
    more = {} if kernel is CHUNK else {"replay": np.full(B, -1, np.int32)}
    dims = {"T": T, "B": B, "slots": B, "HK": 1, "HV": 2, "ROWS": 8}
    return Case(kernel, dims, {**inputs, **gate, **more, **place(positions, [T] * B)}, {"D": D, **template})


class TestState:
    """A chunk moves the state once."""

    @pytest.mark.parametrize("D", [32, 64])
    @pytest.mark.parametrize("staged", [False, True])
    @pytest.mark.parametrize("T", [1, 9])
    def test_scan_reads_and_writes_it_once(self, host: HostDevice, D: int, staged: bool, T: int) -> None:
        """Each element is loaded once and stored once, for one token as for nine. Red: a store a token."""
        moved = counted(host, rule(SCAN, D, T, [3, 7], STAGED=staged, ONE=T == 1 and not staged))

        assert moved == (2 * 2 * D * D, 2 * 2 * D * D)

    @pytest.mark.parametrize("D", [32, 64])
    @pytest.mark.parametrize("T", [4, 16])
    def test_chunked_rule_reads_and_writes_it_once(self, host: HostDevice, D: int, T: int) -> None:
        """The same for the chunked rule. Red: the state loaded again for its own decay."""
        moved = counted(host, rule(CHUNK, D, T, [3, 7], CHUNK=T))

        assert moved == (2 * 2 * D * D, 2 * 2 * D * D)

    @pytest.mark.parametrize("kernel", [SCAN, CHUNK], ids=lambda k: k.symbol)
    def test_a_sequence_that_begins_is_not_read(self, host: HostDevice, kernel: Kernel) -> None:
        """At position 0 nothing is loaded. Red: a load whose value is then thrown away."""
        template = {"STAGED": False, "ONE": False} if kernel is SCAN else {"CHUNK": 4}

        assert counted(host, rule(kernel, 32, 4, [0], **template)) == (0, 2 * 32 * 32)


def cache_bytes(host: HostDevice, case: Case) -> int:
    """Bytes that a launch copies to shared memory; it has no other way to a key or a value."""
    run_once(host, instance(case.kernel, **case.template), case.dims, case.inputs)
    return int(host.counters["cp_async_bytes"])


def attend(kernel: Kernel, T: int, start: int, G: int, **template: str | int) -> Case:
    """T tokens of one sequence whose four query heads share a KV head of 64 dims."""
    g, context = rng(T, start), start + T
    dtype = np.float16 if template["KV"] == "f16" else np.float32
    cache = {name: normal(g, 1, 1, context, 64).astype(dtype) for name in ("keys", "values")}
    inputs = {"queries": normal(g, T, 4 * 64), **cache, "parts": None, "summaries": None, **place([start], [T])}
    dims = {"T": T, "B": 1, "slots": 1, "HQ": 4, "HKV": 1, "context": context, "G": G}
    return Case(kernel, dims, inputs, {"D": 64, **template})


class TestCache:
    """Attention reads each chunk of keys and values once a query tile, whoever shares the tile."""

    @pytest.mark.parametrize("kv", ["f32", "f16"])
    @pytest.mark.parametrize(("G", "Q"), [(1, 1), (1, 4), (2, 2), (2, 8), (4, 4)])
    def test_rows_are_read_once_a_tile(self, host: HostDevice, kv: str, G: int, Q: int) -> None:
        """A tile copies the rows that its last token sees, keys and values once. Red: a read for each head or token."""
        T, start, tile = 6, 250, Q // G
        rows = sum(start + min(t + tile, T) for t in range(0, T, tile)) * (4 // G)

        case = attend(ATTENTION, T, start, G, Q=Q, KV=kv)
        assert cache_bytes(host, case) == 2 * rows * 64 * (2 if kv == "f16" else 4)

    @pytest.mark.parametrize("kv", ["f32", "f16"])
    @pytest.mark.parametrize(("G", "W"), [(1, 2), (2, 2), (2, 6), (4, 4)])
    def test_rows_are_read_once_a_tile_of_a_prefill(self, host: HostDevice, kv: str, G: int, W: int) -> None:
        """The same for runs of 8 tokens by W warps: a block copies each row once. Red: each warp its own copy."""
        T, start, tile = 37, 250, W // G * 8
        rows = sum(start + min(t + tile, T) for t in range(0, T, tile)) * (4 // G)

        case = attend(PREFILL, T, start, G, W=W, KV=kv)
        assert cache_bytes(host, case) == 2 * rows * 64 * (2 if kv == "f16" else 4)

    @pytest.mark.parametrize("kernel", [ATTENTION_SPLIT, ATTENTION_CLUSTER, ATTENTION_TEAMS, PREFILL_SPLIT],
                             ids=lambda k: k.name)  # fmt: skip  # a line
    def test_rows_are_read_once_whoever_shares_the_context(self, host: HostDevice, kernel: Kernel) -> None:
        """Blocks and teams along a context of three chunks copy each row once between them. Red: a chunk of two."""
        T, start, G = 6, 550, 2
        template, tile = ({"W": 2}, 8) if kernel is PREFILL_SPLIT else ({"Q": 2}, 1)
        rows = sum(start + min(t + tile, T) for t in range(0, T, tile)) * (4 // G)

        case = attend(kernel, T, start, G, KV="f16", **template)
        shared = in_blocks(case, 3, kernel) if kernel in (ATTENTION_SPLIT, PREFILL_SPLIT) else case
        assert cache_bytes(host, replace(shared, dims={**shared.dims, "blocks": 3})) == 2 * rows * 64 * 2
