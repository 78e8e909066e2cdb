"""Counted on the host: how often state and cache are read and written, whatever the length of a chunk."""

from dataclasses import replace

import numpy as np
import pytest

from harness.host import HostDevice
from kernels.attention import ATTENTION
from kernels.delta_chunk import DELTA_CHUNK
from kernels.delta_rule import DELTA_RULE
from kernels.entry import Buffer, Kernel, Param
from locks.support import Case, normal, rng

COUNTS = Buffer("counts", "i32", (2,), "rw")


def counting(kernel: Kernel, *params: Param) -> Kernel:
    """The kernel over a float that counts its loads and stores (locks/kernels/state_traffic.cu)."""
    args = tuple(replace(a, dtype="f32") if isinstance(a, Buffer) and a.dtype in ("STATE", "KV") else a
                 for a in kernel.args)  # fmt: skip
    name = f"{kernel.symbol}_traffic"
    room = "../locks/kernels/state_traffic"
    return replace(kernel, name=name, symbol=name, room=room, params=params, args=(*args, COUNTS))


SCAN = counting(DELTA_RULE, Param("D", (32, 64)), Param("STAGED", (False, True)))
CHUNK = counting(DELTA_CHUNK, Param("D", (32, 64)), Param("CHUNK", (4, 16)))
ATTEND = counting(ATTENTION, Param("D", (256,)), Param("Q", (1, 2, 4, 8)))


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
        moved = counted(host, rule(SCAN, D, T, [3, 7], STAGED=staged))

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
        template = {"STAGED": False} if kernel is SCAN else {"CHUNK": 4}

        assert counted(host, rule(kernel, 32, 4, [0], **template)) == (0, 2 * 32 * 32)


class TestCache:
    """Prefill attention reads each chunk of keys and values once a query tile."""

    @pytest.mark.parametrize(("G", "Q"), [(1, 1), (1, 4), (2, 2), (2, 8), (4, 4)])
    def test_rows_are_read_once_a_tile(self, host: HostDevice, G: int, Q: int) -> None:
        """A tile loads the rows that its last token sees, keys and values once. Red: a read for each head or token.

        D is 256, where a value row has a thread a dim; narrower heads share a load among a block's threads.
        """
        T, HQ, start, g = 6, 4, 250, rng(G, Q)
        context = start + T
        inputs = {"queries": normal(g, T, HQ * 256), "keys": normal(g, 1, 1, context, 256),
                  "values": normal(g, 1, 1, context, 256), "parts": None, "summaries": None}  # fmt: skip
        dims = {"T": T, "B": 1, "slots": 1, "HQ": HQ, "HKV": 1, "context": context, "G": G}
        case = Case(ATTEND, dims, {**inputs, **place([start], [T])}, {"D": 256, "Q": Q})

        tile = Q // G
        rows = sum(start + min(t + tile, T) for t in range(0, T, tile)) * (HQ // G)
        assert counted(host, case) == (2 * rows * 256, 0)
