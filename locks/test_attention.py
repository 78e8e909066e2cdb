"""Locks of the attention room: every form of causal softmax attention writes one set of bits."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from harness.device import Device
from kernels.attention import (
    ATTENTION,
    ATTENTION_CLUSTER,
    ATTENTION_SPLIT,
    ATTENTION_TEAMS,
    CHUNK,
    LINE,
    static_bytes,
    teams,
)
from kernels.attention_combine import ATTENTION_COMBINE, ATTENTION_COMBINE_FAR
from kernels.attention_form import Form, Pass, choose
from kernels.attention_prefill import PREFILL, PREFILL_SPLIT
from kernels.catalogue import kernel
from kernels.entry import Geometry, Kernel, buffer_extent, instance, resolve
from kernels.lowering import Machine
from kernels.tuning import Tuning
from locks.far import assert_same_far_away
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_stored_once,
    assert_within,
    normal,
    rng,
)
from locks.test_compile import compiled, instances
from oracle import attention as truth
from oracle.bits.attention import attention
from oracle.bits.fma import fma
from oracle.bits.functions import exp
from oracle.errors import LanelockError

WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
CACHES = pytest.mark.parametrize("kv", ["f32", "f16"])
full = pytest.mark.full
#: Of what takes long, the least and the largest by day.
END_WIDTHS = pytest.mark.parametrize("D", [32, pytest.param(64, marks=full), pytest.param(128, marks=full), 256])
#: Of what takes longest, each cache with one of them.
ENDS = pytest.mark.parametrize(
    ("D", "kv"),
    [
        pytest.param(D, kv, marks=() if (D, kv) in ((32, "f32"), (256, "f16")) else full)
        for D in (32, 64, 128, 256)
        for kv in ("f32", "f16")
    ],
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Queries [B, T, HQ, D] of sequences that stand at `positions`, and caches [slots, HKV, context, D]."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    slots: tuple[int, ...]
    positions: tuple[int, ...]
    lengths: tuple[int, ...]

    def case(self, G: int = 1, Q: int | None = None) -> Case:
        """The problem as one launch of the kernel that walks the whole context; Q is G unless it is said."""
        B, T, HQ, D = self.queries.shape
        pool, HKV, context, _ = self.keys.shape
        dims = {"T": T, "B": B, "slots": pool, "HQ": HQ, "HKV": HKV, "context": context, "G": G}
        inputs = {
            "queries": token_major(self.queries).reshape(T * B, -1),
            "keys": self.keys,
            "values": self.values,
            "parts": None,
            "summaries": None,
            **placed(self.slots, self.positions, self.lengths),
        }
        kv = "f16" if self.keys.dtype == np.float16 else "f32"
        return Case(ATTENTION, dims, inputs, {"D": D, "Q": Q or G, "KV": kv})

    def prefill(self, G: int, W: int) -> Case:
        """The problem as one launch of the kernel for many tokens: W warps of 8 tokens, for G heads."""
        few = self.case(G)
        return Case(PREFILL, few.dims, few.inputs, {"D": few.template["D"], "W": W, "KV": few.template["KV"]})

    def form(self, name: str) -> Case:
        """The problem as one launch of a form, by name."""
        whole = self.case(2)
        split = in_blocks(whole, 2, ATTENTION_SPLIT)
        forms = {"whole": whole, "split": split, "cluster": self.clustered(8, 2), "teams": self.teamed(2)}
        return {**forms, "prefill": self.prefill(2, 2)}[name]

    def run(self, device: Device, G: int = 1, Q: int | None = None) -> np.ndarray:
        """The output [B, T, HQ, D]."""
        return self.shaped(self.case(G, Q).run(device)["out"])

    def run_prefill(self, device: Device, G: int, W: int) -> np.ndarray:
        """The same by the kernel for many tokens."""
        return self.shaped(self.prefill(G, W).run(device)["out"])

    def run_split(self, device: Device, blocks: int, G: int = 1, Q: int | None = None) -> np.ndarray:
        """The same with blocks along the context, then combined."""
        return self.combined(device, self.case(G, Q), blocks, ATTENTION_SPLIT)

    def clustered(self, blocks: int, G: int = 1, Q: int | None = None) -> Case:
        """The problem as one launch of clusters of so many blocks."""
        whole = self.case(G, Q)
        return Case(ATTENTION_CLUSTER, {**whole.dims, "blocks": blocks}, whole.inputs, whole.template)

    def teamed(self, G: int = 1, Q: int | None = None) -> Case:
        """The problem as one launch of blocks of several teams."""
        whole = self.case(G, Q)
        return Case(ATTENTION_TEAMS, whole.dims, whole.inputs, whole.template)

    def run_teams(self, device: Device, G: int = 1, Q: int | None = None) -> np.ndarray:
        """The output of that launch."""
        return self.shaped(self.teamed(G, Q).run(device)["out"])

    def combined(self, device: Device, whole: Case, blocks: int, kernel: Kernel) -> np.ndarray:
        """A form with blocks along the context in place of one that walks it whole, and the combination."""
        cases = self.to_combine(device, whole, blocks, kernel)
        few, *more = [self.shaped(case.run(device)["out"]) for case in cases]
        for i, out in enumerate(more):
            assert_same_bits(out, few, f"combination {i + 1} of more chunks")
        return few

    def to_combine(self, device: Device, whole: Case, blocks: int, kernel: Kernel) -> list[Case]:
        """The launches that combine what such a form leaves."""
        parts = in_blocks(whole, blocks, kernel).run(device)
        where = {k: whole.inputs[k] for k in ("slot", "position", "length")}
        dims = {k: whole.dims[k] for k in ("T", "B", "slots", "HQ")} | {"chunks": -(-self.keys.shape[2] // CHUNK)}
        return combinations(int(whole.template["D"]), dims, {**parts, **where})

    def shaped(self, out: np.ndarray) -> np.ndarray:
        """Rows of a launch as [B, T, HQ, D]."""
        return by_sequence(out, len(self.slots)).reshape(self.queries.shape)

    def contract(self) -> np.ndarray:
        """What the contract says; rows that do not exist hold poison, as a launch leaves them."""
        out = np.full(self.queries.shape, np.nan, np.float32)
        for b, (slot, start, length) in enumerate(zip(self.slots, self.positions, self.lengths, strict=True)):
            if slot >= 0 and length > 0:
                k, v = (np.moveaxis(c[slot], 0, 1)[None, : start + length] for c in (self.keys, self.values))
                out[b, :length] = attention(self.queries[b : b + 1, :length], k, v, start)[0]
        return out

    def token(self, t: int) -> "Problem":
        """Token t of every sequence alone, at its own position."""
        return replace(
            self,
            queries=np.ascontiguousarray(self.queries[:, t : t + 1]),
            positions=tuple(p + t for p in self.positions),
            lengths=tuple(int(n > t) for n in self.lengths),
        )


def in_blocks(whole: Case, blocks: int, kernel: Kernel) -> Case:
    """The kernel with blocks along the context in place of one that walks it whole: parts and summaries for `out`."""
    inputs = {k: v for k, v in whole.inputs.items() if k not in ("parts", "summaries")}
    return Case(kernel, {**whole.dims, "blocks": blocks}, {**inputs, "out": None}, whole.template)


def problem(
    seed: int,
    D: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    heads: tuple[int, int] = (2, 1),
    kv: str = "f32",
    context: int = 0,
) -> Problem:
    """Random sequences in slots of their own, in descending order, with one slot that nobody holds.

    Rows of the cache that no query may see hold NaN.
    """
    g = rng(seed, D, len(positions))
    B, T, context = len(positions), max(lengths), context or max(p + n for p, n in zip(positions, lengths, strict=True))
    dtype = np.float16 if kv == "f16" else np.float32
    keys, values = (normal(g, B + 1, heads[1], context, D).astype(dtype) for _ in range(2))
    slots = tuple(range(B, 0, -1))
    for slot, start, length in zip(slots, positions, lengths, strict=True):
        keys[slot, :, start + length :] = np.nan
        values[slot, :, start + length :] = np.nan
    keys[0], values[0] = np.nan, np.nan
    return Problem(normal(g, B, T, heads[0], D), keys, values, slots, tuple(positions), tuple(lengths))


def bound(p: Problem, b: int) -> np.ndarray:
    """First-order error of the output of sequence b, an element [T, HQ, D], against float64 on the same cache.

    A score is a dot of D products, chains of D/32 fma and 5 adds, then one product with a scale that is rounded once.
    Relative errors of the weights: the absolute error of a score against that of the maximum (both enter exp), one
    subtraction, exp with 4 ulp. A sum of a chunk adds 8 + 5 terms; a chunk's weighted values add up to 256 fma; each
    later chunk rescales: two exponentials of 4 ulp and their arguments, three roundings. The quotient rounds once.
    """
    start, length, slot = p.positions[b], p.lengths[b], p.slots[b]
    D, group = p.queries.shape[-1], p.queries.shape[2] // p.keys.shape[1]
    k, v = (np.repeat(c[slot, :, : start + length].astype(np.float64), group, axis=0) for c in (p.keys, p.values))
    q = p.queries[b, :length].astype(np.float64)
    out = np.empty(q.shape)
    for t in range(length):
        sizes = np.abs(q[t])[:, None] * np.abs(k[:, : start + t + 1])
        score_error = (sizes.sum(axis=-1) * (D // 32 + 5 + 2) * U / np.sqrt(D)).max(axis=-1)
        scores = (q[t][:, None] * k[:, : start + t + 1]).sum(axis=-1) / np.sqrt(D)
        spread = scores.max(axis=-1) - scores.min(axis=-1)
        chunks = (start + t) // CHUNK + 1
        weight = 2 * score_error + (spread + 8) * U
        chain = min(start + t + 1, CHUNK) + 8 + 5 + (chunks - 1) * (3 + 16 + 2 * spread)
        probability = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probability /= probability.sum(axis=-1, keepdims=True)
        size = np.einsum("hp,hpd->hd", probability, np.abs(v[:, : start + t + 1]))
        # numerator and denominator both carry the errors of the weights and of their sums
        out[t] = size * (2 * weight + 2 * chain * U + U)[:, None]
    return out


def combinations(D: int, dims: Mapping[str, int], inputs: Mapping[str, np.ndarray | None]) -> list[Case]:
    """The launches that combine the same chunks: for few, for many and for very many."""
    given = [Case(ATTENTION_COMBINE, dims, inputs, {"D": D, "LONG": long}) for long in (False, True)]
    return [*given, Case(ATTENTION_COMBINE_FAR, dims, inputs, {"D": D})]


@pytest.mark.verify
class TestValue:
    """The kernel computes causal softmax attention."""

    @CACHES
    @pytest.mark.parametrize("positions", [(0, 126, 127), (254, 255, 511), (257, 256, 600)])
    def test_output_is_within_its_bound(
        self, device: Device, share: Share, kv: str, positions: tuple[int, ...]
    ) -> None:
        """Every element lies within the derived bound of float64. Red: a scale dropped, a position dropped."""
        p = problem(1, 64, positions, (1, 2, 2), kv=kv)
        got = p.run(device, G=2)

        for b, (slot, start, length) in enumerate(zip(p.slots, p.positions, p.lengths, strict=True)):
            k, v = (np.moveaxis(c[slot], 0, 1)[None, : start + length].astype(np.float64) for c in (p.keys, p.values))
            expected = truth.attention(p.queries[b : b + 1, :length].astype(np.float64), k, v, start)[0]
            assert_within(share, f"{kv} at {start}", got[b, :length], expected, bound(p, b))


@full
class TestLongContexts:
    """The context that the model knows, to its end."""

    @pytest.mark.parametrize(("position", "kv"), [(4095, "f32"), (65535, "f16"), (131071, "f32"), (262143, "f16")])
    def test_every_form_is_within_its_bound(self, device: Device, share: Share, position: int, kv: str) -> None:
        """A token far behind the start is the contract, within its bound of float64, in every form.

        Red: an offset in 32 bits, the 1024th chunk forgotten, a maximum of 32 chunks taken for that of all.
        """
        p = problem(26, 32, (position, 300), (1, 1), heads=(2, 1), kv=kv)
        got = p.run(device, G=2)
        for b, (slot, start) in enumerate(zip(p.slots, p.positions, strict=True)):
            k, v = (np.moveaxis(c[slot], 0, 1)[None, : start + 1].astype(np.float64) for c in (p.keys, p.values))
            expected = truth.attention(p.queries[b : b + 1].astype(np.float64), k, v, start)[0]
            assert_within(share, f"{kv} at {start}", got[b], expected, bound(p, b))

        assert_same_bits(got, p.contract())
        assert_same_bits(p.run_split(device, 7, G=2), got, "split")
        assert_same_bits(p.run_teams(device, G=2), got, "teams")
        assert_same_bits(p.run_prefill(device, 2, 2), got, "prefill")
        assert_same_bits(p.combined(device, p.prefill(1, 2), 5, PREFILL_SPLIT), got, "split prefill")


    def test_every_form_agrees_on_a_context_of_the_27b(self, device: Device) -> None:
        """Six heads of 256 behind 131072 positions (1024 on the host), by as many blocks as an H200 has SMs.

        Red: a tile's offset in 32 bits of bytes, a block with no chunk that leaves parts.
        """
        position, blocks = (131071, 132) if device.properties.kind == "cuda" else (1023, 5)
        p = problem(32, 256, (position,), (1,), heads=(6, 1), kv="f16")
        whole = p.run(device, 6)

        assert_same_bits(p.run_split(device, blocks, 6), whole, "split")
        assert_same_bits(p.run_teams(device, 6), whole, "teams")
        assert_same_bits(p.combined(device, p.prefill(6, 6), blocks, PREFILL_SPLIT), whole, "split prefill")


@pytest.mark.verify
class TestContract:
    """The kernels are the contract, bit for bit."""

    @WIDTHS
    @CACHES
    def test_decode_is_the_contract(self, device: Device, D: int, kv: str) -> None:
        """Tokens at either side of a chunk's end follow the contract.

        Red: an addition swapped, a decay after the sum.
        """
        p = problem(2, D, (0, 255, 256, 257), (1, 1, 1, 1), kv=kv)

        assert_same_bits(p.run(device, G=2), p.contract())

    @pytest.mark.parametrize(("D", "lengths"), [(32, (5, 1, 3)), (256, (2, 3, 0))])
    def test_prefill_is_the_contract(self, device: Device, D: int, lengths: tuple[int, ...]) -> None:
        """A chunk of tokens across a chunk's end follows the contract, each sequence with its own length and position.

        Red: the tile's last token sees one position too few, or a token takes a chunk it does not reach.
        """
        p = problem(3, D, (0, 254, 255), lengths, heads=(4, 2))

        assert_same_bits(p.run(device, G=2, Q=4), p.contract())

    @WIDTHS
    @CACHES
    def test_many_tokens_are_the_contract(self, device: Device, D: int, kv: str) -> None:
        """Runs of 8 tokens that begin, cross and end chunks follow the contract, whole or short.

        Red: a run's last position for all of its tokens, a running output that a later chunk replaces.
        """
        p = problem(21, D, (0, 244, 500), (9, 20, 13), heads=(4, 2), kv=kv)

        assert_same_bits(p.run_prefill(device, G=2, W=4), p.contract())

    @pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 2)])
    def test_every_ratio_of_heads_is_the_contract(self, device: Device, heads: tuple[int, int]) -> None:
        """Query head h reads KV head h // ratio, at ratios 1, 2, 3, in every form. Red: h % HKV."""
        p, G = problem(30, 32, (258, 3), (2, 2), heads=heads), heads[0] // heads[1]
        expected = p.contract()

        assert_same_bits(p.run(device, G), expected)
        assert_same_bits(p.run_split(device, 2, G), expected, "split")
        assert_same_bits(p.shaped(p.clustered(2, G).run(device)["out"]), expected, "cluster")
        assert_same_bits(p.run_teams(device, G), expected, "teams")
        assert_same_bits(p.run_prefill(device, G, 6), expected, "prefill")

    @pytest.mark.parametrize("sizes", [(1, 2, 3), (3, 2, 1), (1, 3, 2)])
    def test_chunks_of_any_sizes_are_the_contract(self, device: Device, sizes: tuple[int, int, int]) -> None:
        """Chunks whose scores grow, shrink, or grow and shrink follow the contract: either side is rescaled.

        Red: the product of the running sum or output rounded before the addition, where a later chunk is larger.
        """
        p = problem(6, 64, (599,), (1,))
        for chunk, size in enumerate(sizes):
            p.keys[:, :, 256 * chunk : 256 * (chunk + 1)] *= size

        assert_same_bits(p.run(device), p.contract())

    @pytest.mark.parametrize("grows", [True, False])
    @pytest.mark.parametrize("chunks", [1, 2, 31, 32, 33, 70, 256, 513, 600])
    def test_chunks_are_combined_ascending(self, device: Device, chunks: int, grows: bool) -> None:
        """Any number of chunks is combined one after the other, whether their maximum grows or is that of an early one.

        Red: a maximum of a neighbour's chunk or of the last turn alone, the end of chunks that are taken at once for
        the end of all, a first chunk of those whose running sum is not rescaled, chunks copied over others.
        """
        g, HQ, D = rng(25, chunks), 3, 64
        parts = normal(g, 1, HQ, chunks, D)
        summaries = np.stack([normal(g, 1, HQ, chunks) * 5, np.abs(normal(g, 1, HQ, chunks))], axis=-1)
        for c in range(256, chunks, 256):  # a little above all before: what was added must be rescaled, and not vanish
            summaries[:, :, c, 0] = summaries[:, :, :c, 0].max(axis=-1) + 1
        if not grows:  # the largest maximum is that of the first chunks to the end
            summaries[:, :, min(3, chunks - 1), 0] = summaries[..., 0].max() + 1
        top, total, out = summaries[:, :, 0, 0], summaries[:, :, 0, 1], parts[:, :, 0]
        for c in range(1, chunks):
            m, part = summaries[:, :, c, 0], summaries[:, :, c, 1]
            new = np.maximum(top, m)
            a, b = exp(top - new), exp(m - new)
            total, top = fma(total, a, part * b), new
            out = fma(out, a[..., None], parts[:, :, c] * b[..., None])
        dims = {"T": 1, "B": 1, "slots": 1, "HQ": HQ, "chunks": chunks}
        inputs = {"parts": parts, "summaries": summaries, **placed((0,), (chunks * CHUNK - 1,), (1,))}
        for i, case in enumerate(combinations(D, dims, inputs)):
            got = case.run(device)["out"]
            assert_same_bits(got, (out / total[..., None]).reshape(1, -1), f"combination {i}")

    @pytest.mark.parametrize("context", [1, 127, 128, pytest.param(4096, marks=full)])
    def test_contexts_of_case_18_are_the_contract(self, device: Device, context: int) -> None:
        """Contexts of 1, 127, 128 and 4096 positions follow the contract. Red: a partial chunk summed in full."""
        p = problem(4, 128, (context - 1,), (1,))

        assert_same_bits(p.run(device), p.contract())


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    def test_equal_scores_average_the_values(self, device: Device) -> None:
        """Keys of zero weigh every position alike: integers that add up to a multiple of the count give their mean.

        Red: one position lost or counted twice, at a chunk's end too.
        """
        p = problem(5, 32, (511,), (1,))
        values = rng(5).integers(-8, 8, p.values.shape).astype(np.float32)
        values[1, :, 0] -= values[1].sum(axis=1) % 512
        p = replace(p, keys=np.zeros_like(p.keys), values=values)

        assert_same_bits(p.run(device)[0, 0, 0], values[1, 0].sum(axis=0) / np.float32(512))

    def test_one_hot_score_picks_its_value(self, device: Device) -> None:
        """A score that stands 200 above all others gives its own position's value. Red: a neighbour's row."""
        p = problem(6, 32, (299,), (1,))
        for at in (0, 255, 256, 299):
            keys = np.zeros_like(p.keys)
            keys[1, 0, at] = p.queries[0, 0, 0] * 200
            got = replace(p, keys=keys).run(device)[0, 0, 0]

            assert_same_bits(got, p.values[1, 0, at])


class TestForms:
    """Every form writes the same bits."""

    @CACHES
    @pytest.mark.parametrize(("ratio", "shared"), [(6, (2, 3, 6)), (4, (2, 4)), (3, (3,)), (8, (8,))])
    def test_heads_a_block_do_not_matter(self, device: Device, kv: str, ratio: int, shared: tuple[int, ...]) -> None:
        """Every G that divides the ratio, with every tile that holds it, gives the bits of one head a block.

        Red: G heads of two KV heads in one block.
        """
        p = problem(7, 32, (258, 3), (2, 2), heads=(2 * ratio, 2), kv=kv)
        alone = p.run(device)

        for G in shared:
            for Q in (q for q in (2, 4, 6, 8) if q % G == 0):
                assert_same_bits(p.run(device, G, Q), alone, f"G = {G}, Q = {Q}")

    @END_WIDTHS
    @CACHES
    def test_blocks_along_the_context_do_not_matter(self, device: Device, D: int, kv: str) -> None:
        """Any number of blocks along the context gives the bits of one. Red: chunks combined descending."""
        p = problem(8, D, (700, 255, 256), (2, 1, 1), heads=(2, 1), kv=kv)
        one = p.run(device, G=2)

        for blocks in (2, 3, 5):
            assert_same_bits(p.run_split(device, blocks, G=2), one, f"{blocks} blocks")

    @ENDS
    def test_clusters_do_not_matter(self, device: Device, D: int, kv: str) -> None:
        """A block a chunk, combined in the cluster's shared memory, gives the bits of one, some without a chunk.

        Red: a chunk of the block itself for that of its neighbour, an output read before it is there.
        """
        p = problem(27, D, (700, 255, 3), (2, 3, 1), heads=(6, 2), kv=kv)
        one = p.run(device)

        assert_stored_once(device, p.clustered(3, 3, 6))
        for blocks, G, Q in ((3, 3, 6), (4, 1, 1), (8, 1, 2)):
            assert_same_bits(p.shaped(p.clustered(blocks, G, Q).run(device)["out"]), one, f"{blocks} blocks of {Q}")

    @ENDS
    def test_teams_do_not_matter(self, device: Device, D: int, kv: str) -> None:
        """Teams that share a block and take chunks by turns give the bits of one, some without a chunk.

        Red: a team that does not wait for the chunk before its own.
        """
        p = problem(28, D, (1540, 255, 3), (2, 3, 1), heads=(6, 2), kv=kv)
        one = p.run(device)

        for G, Q in ((3, 6), (1, 1), (1, 8)):
            assert_same_bits(p.run_teams(device, G, Q), one, f"G = {G}, Q = {Q}")

    @CACHES
    @pytest.mark.parametrize(("G", "Q"), [(1, 1), (1, 8), (2, 4), (2, 6)])
    def test_prefill_is_token_by_token(self, device: Device, kv: str, G: int, Q: int) -> None:
        """A chunk in tiles of any size equals its tokens one at a time. Red: a tile's first position for all of it."""
        p = problem(9, 32, (250, 0, 255), (9, 1, 4), heads=(2, 1), kv=kv)
        chunk = p.run(device, G, Q)

        tokens = np.concatenate([p.token(t).run(device) for t in range(9)], axis=1)
        for b, length in enumerate(p.lengths):
            assert_same_bits(chunk[b, :length], tokens[b, :length], f"sequence {b}")

    @CACHES
    @pytest.mark.parametrize(("ratio", "shapes"), [(2, [(1, 2), (2, 2), (2, 6), (1, 6)]), (6, [(3, 6), (6, 6)])])
    def test_warps_of_a_prefill_do_not_matter(
        self, device: Device, kv: str, ratio: int, shapes: list[tuple[int, int]]
    ) -> None:
        """Heads and runs of tokens by any warps give the bits of one token a block. Red: a warp's own head for all."""
        p = problem(22, 32, (250, 0), (19, 9), heads=(ratio, 1), kv=kv)
        alone = p.run(device)

        for G, W in shapes:
            assert_same_bits(p.run_prefill(device, G, W), alone, f"G = {G}, W = {W}")

    @CACHES
    def test_blocks_along_the_context_of_a_prefill_do_not_matter(self, device: Device, kv: str) -> None:
        """Blocks that leave their chunks to be combined give the bits of one. Red: parts of a neighbouring token."""
        p = problem(23, 32, (508, 3), (10, 9), heads=(4, 2), kv=kv)

        assert_same_bits(p.combined(device, p.prefill(2, 2), 2, PREFILL_SPLIT), p.run_prefill(device, 2, 4))

    def test_split_prefill_is_whole_prefill(self, device: Device) -> None:
        """A verify of five rows split along the context gives the same bits. Red: parts of another row."""
        p = problem(10, 64, (508, 700), (5, 4), heads=(4, 1))

        assert_same_bits(p.run_split(device, 3, G=4, Q=8), p.run(device, G=4))

    def test_longer_cache_does_not_matter(self, device: Device) -> None:
        """Rows of the cache behind a sequence do not show in its output. Red: a context taken as the length."""
        p = problem(11, 64, (100, 7), (1, 2))
        wide = [np.full((*c.shape[:2], 600, 64), np.nan, np.float32) for c in (p.keys, p.values)]
        for pool, cache in zip(wide, (p.keys, p.values), strict=True):
            pool[:, :, : cache.shape[2]] = cache

        assert_same_bits(replace(p, keys=wide[0], values=wide[1]).run(device), p.run(device))


class TestInvariance:
    """A sequence's bits are its own."""

    @CACHES
    def test_sequences_stand_alone(self, device: Device, kv: str) -> None:
        """Alone, permuted, in other slots, among NaN: the same bits; absent sequences write nothing.

        Red: B for slot.
        """
        p = problem(12, 32, (3, 256, 0, 5), (2, 1, 0, 3), heads=(2, 1), kv=kv)
        p = replace(p, slots=(4, 3, 2, -1))

        assert_sequences_stand_alone(device, p.case(2, 4))
        # in one chunk: over several the kernel for many tokens keeps its running output in `out`, a store a chunk
        short = replace(problem(12, 32, (3, 240, 0, 5), (2, 9, 0, 3), heads=(2, 1), kv=kv), slots=p.slots)
        assert_sequences_stand_alone(device, short.prefill(2, 2))
        assert_sequences_stand_alone(device, p.clustered(2, 2))
        assert_sequences_stand_alone(device, p.teamed(2, 4))

    def test_split_sequences_stand_alone(self, device: Device) -> None:
        """The same where blocks share the context and chunks go to scratch. Red: parts of a neighbour."""
        p = replace(problem(13, 32, (257, 256, 5), (2, 1, 3)), slots=(3, -1, 1))

        assert_same_bits(p.run_split(device, 2), p.run(device))
        assert_sequences_stand_alone(device, in_blocks(p.case(2), 2, ATTENTION_SPLIT))
        assert_sequences_stand_alone(device, in_blocks(p.prefill(2, 2), 2, PREFILL_SPLIT))
        for case in p.to_combine(device, p.case(2), 2, ATTENTION_SPLIT):
            assert_sequences_stand_alone(device, case)

    def test_wide_batch_is_each_alone(self, device: Device) -> None:
        """Each of 33 sequences gives the bits it has alone. Red: a block index wrapped at a warp."""
        p = problem(14, 32, tuple(range(33)), (1,) * 33)
        whole = p.run(device, G=2)

        for b in (0, 16, 31, 32):
            one = Problem(p.queries[b : b + 1], p.keys, p.values, p.slots[b : b + 1], p.positions[b : b + 1], (1,))
            assert_same_bits(one.run(device, G=2)[0], whole[b])

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows further apart give the same bits and keep their padding. Red: a pitch taken as the width."""
        p = problem(15, 32, (256, 2), (2, 1))

        assert_pitch_free(device, p.case(2))
        assert_pitch_free(device, p.prefill(2, 2))
        parts = {"parts": normal(rng(15), 4, 2, 2, 32), "summaries": normal(rng(16), 4, 2, 2, 2)}
        dims = {"T": 2, "B": 2, "slots": 2, "HQ": 2, "chunks": 2}
        inputs = {**parts, **placed((0, 1), (256, 2), (2, 1))}
        assert_pitch_free(device, Case(ATTENTION_COMBINE, dims, inputs, {"D": 32, "LONG": False}))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree in every form. Red: a contraction, an approximate exponential."""
        host, cuda = both_devices
        for kv in ("f32", "f16"):
            p = problem(16, 256, (600, 255, 0), (4, 3, 1), heads=(12, 2), kv=kv)
            assert_same_bits(p.run(cuda, 6), p.run(host, 6))
            assert_same_bits(p.run_split(cuda, 3, 2, 4), p.run(host, 6))
            assert_same_bits(p.run_teams(cuda, 3, 6), p.run(host, 6))
            assert_same_bits(p.run_prefill(cuda, 6, 6), p.run(host, 6))
            assert_same_bits(p.shaped(p.clustered(3, 6).run(cuda)["out"]), p.run(host, 6))
            assert_same_bits(p.combined(cuda, p.prefill(6, 6), 2, PREFILL_SPLIT), p.run(host, 6))


class TestFaults:
    """A fault in the cache is loud."""

    @pytest.mark.parametrize("at", [0, 255, 256, 258])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_key_that_is_not_finite_spoils_who_sees_it(self, device: Device, at: int, value: float) -> None:
        """A score that is not finite makes every output that sees it NaN, and no other. Red: an infinite key whose
        position is dropped by the maximum, or exp(-inf) = 0 hiding it.
        """
        p = problem(17, 32, (255,), (4,))
        p.keys[1, 0, at] = value * np.sign(p.queries[0, 0, 0]) if np.isinf(value) else value
        got, split = p.run(device, G=2), p.run_split(device, 2, G=2)
        assert_same_bits(p.shaped(p.clustered(2, 2).run(device)["out"]), got)

        assert_same_bits(p.run_prefill(device, 2, 2), got)
        blind = np.array([at > 255 + t for t in range(4)])
        assert_same_bits(np.isfinite(got[0, :, 0]).all(axis=-1), blind)
        assert_same_bits(np.isnan(got[0, :, 0]).all(axis=-1), ~blind)
        assert_same_bits(split, got)

    def test_faulty_scores_are_the_contract(self, device: Device) -> None:
        """Overflowing, infinite and NaN keys and values follow the contract.

        Red: NaN of V times a weight of zero lost.
        """
        p = problem(18, 32, (300,), (3,), heads=(2, 1))
        p.values[1, 0, 100, 5] = np.nan
        p.values[1, 0, 301, 6] = np.inf
        p.keys[1, 0, 302] = np.finfo(np.float32).max

        assert_same_bits(p.run(device, G=2), p.contract())

    def test_weights_that_vanish_are_zero(self, device: Device) -> None:
        """A chunk far below the maximum adds nothing, before and behind it. Red: 0/0 of an all-underflowing chunk."""
        for loud in (3, 300):
            p = problem(19, 32, (400,), (1,))
            p.keys[1, 0, loud] = p.queries[0, 0, 0] * 500
            assert_same_bits(p.run(device), p.contract())

    def test_a_slot_entered_again_is_clean(self, device: Device) -> None:
        """What a cache held at later positions, NaN included, does not show at position 0. Red: a whole chunk read."""
        p = problem(20, 32, (0,), (1,), context=300)

        assert_same_bits(p.run(device)[0, 0, 0], p.values[1, 0, 0])


class TestOffsets:
    """Offsets at full size are counted in 64 bits."""

    def test_full_caches_lie_beyond_32_bits(self) -> None:
        """16 slots of 262144 positions are more elements than an int can count, and the entry takes them."""
        inst = instance(ATTENTION, D=256, Q=6, KV="f16")
        dims = {"T": 1, "B": 16, "slots": 16, "HQ": 24, "HKV": 4, "context": 262144, "G": 6}
        full_dims = resolve(inst, dims)
        keys = next(b for b in ATTENTION.buffers if b.name == "keys")

        assert buffer_extent(keys, full_dims) == 16 * 4 * 262144 * 256 > 2**31

    @pytest.mark.parametrize("form", ["whole", "split", "cluster", "teams", "prefill"])
    def test_the_last_slots_of_a_full_cache_give_the_same_bits(self, device: Device, form: str) -> None:
        """Slots of the 27B behind 2^31 elements of keys, and as many of values, are slots like any other.

        Red: a slot or a head times its stride in an int, which reads before the cache or at its start.
        """
        p = problem(28, 256, (300,), (2,), heads=(24, 4), kv="f16", context=2048)

        assert_same_far_away(device, p.form(form), slots=2**31 // (4 * 2048 * 256) + 8)

    @pytest.mark.parametrize("form", ["whole", "teams", "prefill"])
    def test_a_cache_of_the_27b_at_its_own_size_gives_the_same_bits(self, device: Device, form: str) -> None:
        """The last of 16 slots of 262144 positions: a head begins 2^26 elements behind the one before.

        Red: a head's place from the positions that are in use.
        """
        p = problem(31, 256, (300,), (2,), heads=(24, 4), kv="f16", context=512)

        assert_same_far_away(device, p.form(form), kept=("context",), slots=16, context=262144)

    @pytest.mark.parametrize("form", ["whole", "cluster", "teams", "prefill"])
    @pytest.mark.parametrize("pitch", ["queries_pitch", "out_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str, form: str) -> None:
        """Tokens 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, problem(29, 32, (3,), (10,)).form(form), **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Five tokens in tiles of two, four heads in groups of two: three tiles a sequence, two groups.

        Red: fault 13, blocks whose work another block does again.
        """
        given = {"T": 5, "B": 2, "slots": 2, "HQ": 4, "HKV": 1, "context": 300, "G": 2}
        dims = resolve(instance(ATTENTION, D=32, Q=4, KV="f32"), given)
        ring, running = 3 * 32 * 32 * 4, 4 * 32 * 4

        assert ATTENTION.geometry(dims) == Geometry((12, 1, 1), (128, 1, 1), ring + running)

    def test_grid_of_a_prefill_has_no_block_too_many(self) -> None:
        """33 tokens in blocks of 16, four heads in groups of two: three tiles a sequence, two groups. Red: fault 13."""
        given = {"T": 33, "B": 2, "slots": 2, "HQ": 4, "HKV": 1, "context": 300, "G": 2}
        dims = resolve(instance(PREFILL, D=32, W=4, KV="f32"), given)
        ring, scores = 3 * 32 * 32 * 4, 4 * 8 * 260 * 4

        assert PREFILL.geometry(dims) == Geometry((12, 1, 1), (128, 1, 1), ring + scores)

    def test_grids_of_a_combination_have_no_block_too_many(self) -> None:
        """Three heads of 256: four dims a lane take two warps a head, one dim eight, and a block of far chunks 32 dims.

        Red: fault 13, warps behind the last head.
        """
        given = {"T": 2, "B": 2, "slots": 2, "HQ": 3, "chunks": 2}
        short, long, far = (case.kernel.geometry(resolve(instance(case.kernel, **case.template), given))
                            for case in combinations(256, given, {}))  # fmt: skip  # a line

        assert short == Geometry((4, 2, 1), (128, 1, 1))
        assert long == Geometry((4, 6, 1), (128, 1, 1))
        assert far == Geometry((4, 24, 1), (256, 1, 1), 2 * 256 * 32 * 4)


class TestMachineCode:
    """What only the compiled kernels show."""

    def test_tiles_begin_at_a_line(self) -> None:
        """What a kernel declares of shared memory fills lines, and its tiles lie behind it.

        Red: tiles 16 bytes off, whose copies all straddle lines: right, and slow.
        """
        programs = {room: compiled(room, "sm_90a") for room in ("attention", "attention_prefill")}
        expressions = {i.expression: room for room in programs for i in instances(room, "sm_90a")}

        assert {e: used for e, room in expressions.items() if (used := programs[room].report(e).smem) % LINE} == {}


    def test_forms_are_chosen_by_what_kernels_declare(self) -> None:
        """The choice of a form counts a kernel's own shared memory as the compiler does; a cluster needs no more.

        Red: a form that is chosen for more blocks an SM than fit.
        """
        program, counted, found = compiled("attention", "sm_90a"), {}, {}
        for inst in instances("attention", "sm_90a"):
            given = {k: inst.template[k] for k in ("D", "Q", "KV")}
            counted[inst.expression] = declared(Form(inst.kernel.name, given, {}, 1, parts=False))
            found[inst.expression] = program.report(inst.expression).smem
            if inst.kernel is ATTENTION_CLUSTER and found[inst.expression] <= counted[inst.expression]:
                counted[inst.expression] = found[inst.expression]

        assert counted == found


H200 = Machine("sm_90a", 132, 232448)


def chosen(T: int, B: int, context: int, tuning: Tuning | None = None) -> tuple[str, dict[str, int]]:
    """Kernel and numbers of the form that the 27B's attention takes on an H200."""
    form = choose(Pass(T, B, 24, 4, 256, context, "f16"), H200, tuning or Tuning())
    return form.kernel, {k: int(v) for k, v in {**form.template, **form.dims}.items() if k not in ("D", "KV", "shared")}


def declared(form: Form) -> int:
    """Shared memory that a form's kernel declares."""
    D, Q, kv = int(form.template["D"]), int(form.template["Q"]), str(form.template["KV"])
    return static_bytes(D, Q, teams(Q, kv) if form.kernel == "attention_teams" else 1)


class TestForm:
    """The form of a pass is chosen by what its work leaves of the device."""

    def test_full_machine_shares_every_row(self) -> None:
        """Where there is work for every SM six heads read a row together, by as many blocks as stay. Red: G of one."""
        alone = Tuning(attention_teams=False)

        assert chosen(1, 32, 8192, alone) == ("attention_split", {"Q": 6, "G": 6, "blocks": 4})
        assert chosen(1, 1, 131072) == ("attention_split", {"Q": 6, "G": 6, "blocks": 132})
        assert chosen(1, 256, 640, alone) == ("attention", {"Q": 6, "G": 6})

    def test_blocks_as_many_as_processors_have_teams(self) -> None:
        """128 blocks for 132 SMs, or twice as many, have several teams each; fewer leave SMs to other forms. Red: a
        block of one team alone on its SM.
        """
        assert all(chosen(1, B, 8192) == ("attention_teams", {"Q": 6, "G": 6}) for B in (32, 64))
        assert chosen(1, 40, 8192)[0] == "attention_split"

    def test_empty_machine_shares_less(self) -> None:
        """One sequence at a short context takes a block two heads and chunk. Red: 12 blocks at work."""
        assert chosen(1, 1, 640) == ("attention_cluster", {"Q": 2, "G": 2, "blocks": 3})

    def test_prompts_take_the_form_for_many_tokens(self) -> None:
        """Six heads of 8 tokens a block; blocks share a context where tokens are few. Red: a tile of one warp."""
        assert chosen(512, 1, 8192) == ("attention_prefill", {"W": 6, "G": 6})
        assert chosen(16, 1, 8192) == ("attention_prefill_split", {"W": 6, "G": 6, "blocks": 32})

    def test_parts_take_a_gibibyte_at_most(self) -> None:
        """At the context's end 40 tokens leave parts of 1.0 GB to be combined, and 48 none. Red: 13 GB for 512."""
        assert chosen(40, 1, 262144)[0] == "attention_prefill_split"
        assert chosen(48, 1, 262144) == ("attention_prefill", {"W": 6, "G": 6})

    def test_every_pass_has_a_form_that_its_kernel_takes(self) -> None:
        """Head counts, widths, tokens and knobs of all kinds give a form whose geometry the entry accepts. Red: a tile
        that no kernel was built for, scratch beyond its bound.
        """
        heads = [(1, 1), (4, 2), (6, 1), (24, 4), (8, 1), (10, 2), (14, 2)]
        passes = list(itertools.product((1, 2, 5, 8, 40), (1, 70), (32, 256), (9, 5000), ("f32", "f16")))
        for HQ, HKV in heads:
            for T, B, D, context, kv in passes:
                for machine in (H200, Machine("sm_86", 84, 101376), Machine("x86-64-v3", 1, 232448)):
                    p = Pass(T, B, HQ, HKV, D, context, kv)
                    form = choose(p, machine, Tuning())
                    given = {"T": T, "B": B, "slots": B, "HQ": HQ, "HKV": HKV, "context": context, **form.dims}
                    inst = instance(kernel(form.kernel), **form.template)
                    geometry = inst.kernel.geometry(resolve(inst, given))
                    static = declared(form) if T < 8 else 0
                    assert geometry.smem + static <= machine.shared_per_block
                    assert geometry.grid[2] * geometry.cluster == form.blocks <= p.chunks

    def test_blocks_spread_over_the_machine(self) -> None:
        """As many blocks fit an SM as it gets if all get alike. Red: launches that overlap crowd on the SMs that end
        first, four blocks on some and one on others.
        """
        form = choose(Pass(1, 32, 24, 4, 256, 644, "f16"), H200, Tuning(attention_teams=False))
        inst = instance(kernel(form.kernel), **form.template)
        given = {"T": 1, "B": 32, "slots": 32, "HQ": 24, "HKV": 4, "context": 644, **form.dims}
        smem = inst.kernel.geometry(resolve(inst, given)).smem + static_bytes(256, 6) + 1024

        assert H200.shared_per_block // smem == 3 == -(-32 * 4 * 3 // 132)

    def test_knobs_change_the_form(self) -> None:
        """Heads, blocks, clusters, teams and the form of prefill follow their knobs. Red: a field that nobody reads."""
        assert chosen(1, 1, 640, Tuning(attention_heads=6))[1] == {"Q": 6, "G": 6, "blocks": 3}
        assert chosen(1, 1, 640, Tuning(attention_heads=1))[1] == {"Q": 1, "G": 1, "blocks": 3}
        assert chosen(1, 1, 640, Tuning(attention_cluster=False))[0] == "attention_split"
        assert chosen(1, 32, 8192, Tuning(attention_blocks=2, attention_teams=False))[1]["blocks"] == 2
        assert chosen(1, 32, 640, Tuning(attention_units=64))[1]["G"] < 6
        assert chosen(1, 32, 8192, Tuning(attention_teams=False))[0] == "attention_split"
        assert chosen(512, 1, 8192, Tuning(attention_prefill=513, attention_teams=False))[0] == "attention"


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"HQ": 6, "HKV": 4}, "HQ = 6 heads must be a positive multiple of HKV = 4"),
            ({"G": 4}, "G = 4 query heads a block do not divide the 12 / 2 heads"),
            ({"G": 0}, "G = 0 query heads a block do not divide"),
            ({"G": 3}, "Q = 2 queries a block are no whole tokens of G = 3 heads"),
            ({"context": 0}, "context = 0 must be between 1 and"),
            ({"context": 2**19}, "context = 524288 must be between 1 and"),
            ({"chunks": 1}, "chunks = 1 of 256 do not hold the context"),
            ({"chunks": 1026}, "chunks = 1026 must be between 1 and 1025"),
            ({"T": 0}, "T = 0 must be between 1 and"),
            ({"B": 0}, "B = 0 must be between 1 and 65535"),
            ({"queries_pitch": 380}, "queries_pitch = 380 is less than the row"),
            ({"queries_pitch": 386}, "queries_pitch = 386 must be a multiple of 4"),
            ({"out_pitch": 383}, "out_pitch = 383 is less than the row"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 12, "HKV": 2, "context": 300, "G": 2, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(ATTENTION, given, {}, {"D": 32, "Q": 2, "KV": "f32"}).run(device)

    def test_a_split_of_one_block_is_refused(self, device: Device) -> None:
        """One block along the context writes the output itself. Red: parts that nobody writes are combined."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 2, "HKV": 1, "context": 300, "G": 1, "blocks": 1}

        with pytest.raises(LanelockError, match="blocks = 1 must be between 2 and"):
            Case(ATTENTION_SPLIT, given, {}, {"D": 32, "Q": 1, "KV": "f32"}).run(device)

    def test_heads_that_share_no_warps_are_refused(self, device: Device) -> None:
        """Four warps hold no whole tokens of three heads. Red: a head that no warp takes."""
        given = {"T": 9, "B": 1, "slots": 1, "HQ": 6, "HKV": 1, "context": 300, "G": 3}

        with pytest.raises(LanelockError, match="W = 4 warps a block are no whole tokens of G = 3 heads"):
            Case(PREFILL, given, {}, {"D": 32, "W": 4, "KV": "f32"}).run(device)
        with pytest.raises(LanelockError, match="blocks = 1 must be between 2 and"):
            Case(PREFILL_SPLIT, {**given, "blocks": 1}, {}, {"D": 32, "W": 6, "KV": "f32"}).run(device)

    def test_clusters_that_do_not_take_every_chunk_are_refused(self, device: Device) -> None:
        """Three chunks want three blocks, and a cluster has eight at most. Red: a chunk that no block takes."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 2, "HKV": 1, "context": 600, "G": 1}
        template = {"D": 32, "Q": 1, "KV": "f32"}

        with pytest.raises(LanelockError, match="blocks = 2 of a cluster do not take 3 chunks"):
            Case(ATTENTION_CLUSTER, {**given, "blocks": 2}, {}, template).run(device)
        with pytest.raises(LanelockError, match="blocks = 9 must be between 2 and 8"):
            Case(ATTENTION_CLUSTER, {**given, "blocks": 9}, {}, template).run(device)

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [({"out_pitch": 32}, "out_pitch = 32 is less"), ({"out_pitch": 66}, "out_pitch = 66 must be a multiple of 4"),
         ({"chunks": 0}, "chunks = 0 must be between"), ({"HQ": 0}, "HQ = 0 must be between")],
    )  # fmt: skip
    def test_unsupported_combine_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The same for the kernel that combines. Red: a pitch that tears a 16-byte store."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 2, "chunks": 2, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(ATTENTION_COMBINE, given, {}, {"D": 32, "LONG": True}).run(device)
