"""Locks of the attention room: every form of causal softmax attention writes one set of bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from harness.device import Device
from kernels.attention import ATTENTION, ATTENTION_COMBINE, ATTENTION_SPLIT, CHUNK
from kernels.entry import Geometry, buffer_extent, instance, resolve
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_within,
    normal,
    rng,
)
from oracle import attention as truth
from oracle.bits.attention import attention
from oracle.errors import LanelockError

WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
CACHES = pytest.mark.parametrize("kv", ["f32", "f16"])
full = pytest.mark.full


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

    def run(self, device: Device, G: int = 1, Q: int | None = None) -> np.ndarray:
        """The output [B, T, HQ, D]."""
        return self.shaped(self.case(G, Q).run(device)["out"])

    def run_split(self, device: Device, blocks: int, G: int = 1, Q: int | None = None) -> np.ndarray:
        """The same with blocks along the context, then combined."""
        whole = self.case(G, Q)
        inputs = {k: v for k, v in whole.inputs.items() if k not in ("parts", "summaries")}
        split = Case(ATTENTION_SPLIT, {**whole.dims, "blocks": blocks}, {**inputs, "out": None}, whole.template)
        parts = split.run(device)
        where = {k: inputs[k] for k in ("slot", "position", "length")}
        dims = {k: whole.dims[k] for k in ("T", "B", "slots", "HQ")} | {"chunks": -(-self.keys.shape[2] // CHUNK)}
        combined = Case(ATTENTION_COMBINE, dims, {**parts, **where}, {"D": whole.template["D"]}).run(device)
        return self.shaped(combined["out"])

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


@pytest.mark.verify
class TestValue:
    """The kernel computes causal softmax attention."""

    @CACHES
    @pytest.mark.parametrize("positions", [(0, 126, 127), (255, 256, 511)])
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

    @pytest.mark.parametrize("sizes", [(1, 2, 3), (3, 2, 1), (1, 3, 2)])
    def test_chunks_of_any_sizes_are_the_contract(self, device: Device, sizes: tuple[int, int, int]) -> None:
        """Chunks whose scores grow, shrink, or grow and shrink follow the contract: either side is rescaled.

        Red: the product of the running sum or output rounded before the addition, where a later chunk is larger.
        """
        p = problem(6, 64, (599,), (1,))
        for chunk, size in enumerate(sizes):
            p.keys[:, :, 256 * chunk : 256 * (chunk + 1)] *= size

        assert_same_bits(p.run(device), p.contract())

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

    @WIDTHS
    @CACHES
    def test_blocks_along_the_context_do_not_matter(self, device: Device, D: int, kv: str) -> None:
        """Any number of blocks along the context gives the bits of one. Red: chunks combined descending."""
        p = problem(8, D, (700, 255, 256), (2, 1, 1), heads=(2, 1), kv=kv)
        one = p.run(device, G=2)

        for blocks in (2, 3, 5):
            assert_same_bits(p.run_split(device, blocks, G=2), one, f"{blocks} blocks")

    @CACHES
    @pytest.mark.parametrize(("G", "Q"), [(1, 1), (1, 8), (2, 4), (2, 6)])
    def test_prefill_is_token_by_token(self, device: Device, kv: str, G: int, Q: int) -> None:
        """A chunk in tiles of any size equals its tokens one at a time. Red: a tile's first position for all of it."""
        p = problem(9, 32, (250, 0, 255), (9, 1, 4), heads=(2, 1), kv=kv)
        chunk = p.run(device, G, Q)

        tokens = np.concatenate([p.token(t).run(device) for t in range(9)], axis=1)
        for b, length in enumerate(p.lengths):
            assert_same_bits(chunk[b, :length], tokens[b, :length], f"sequence {b}")

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

    def test_split_sequences_stand_alone(self, device: Device) -> None:
        """The same where blocks share the context and chunks go to scratch. Red: parts of a neighbour."""
        p = replace(problem(13, 32, (257, 256, 5), (1, 1, 1)), slots=(3, -1, 1))
        split = p.run_split(device, 2)

        assert_same_bits(split, p.run(device))

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
        parts = {"parts": normal(rng(15), 4, 2, 2, 32), "summaries": normal(rng(16), 4, 2, 2, 2)}
        dims = {"T": 2, "B": 2, "slots": 2, "HQ": 2, "chunks": 2}
        inputs = {**parts, **placed((0, 1), (256, 2), (2, 1))}
        assert_pitch_free(device, Case(ATTENTION_COMBINE, dims, inputs, {"D": 32}))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree in every form. Red: a contraction, an approximate exponential."""
        host, cuda = both_devices
        for kv in ("f32", "f16"):
            p = problem(16, 256, (600, 255, 0), (4, 3, 1), heads=(12, 2), kv=kv)
            assert_same_bits(p.run(cuda, 6), p.run(host, 6))
            assert_same_bits(p.run_split(cuda, 3, 2, 4), p.run(host, 6))


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


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Five tokens in tiles of two, four heads in groups of two: three tiles a sequence, two groups.

        Red: fault 13, blocks whose work another block does again.
        """
        given = {"T": 5, "B": 2, "slots": 2, "HQ": 4, "HKV": 1, "context": 300, "G": 2}
        dims = resolve(instance(ATTENTION, D=32, Q=4, KV="f32"), given)

        assert ATTENTION.geometry(dims) == Geometry((6, 2, 1), (256, 1, 1))


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

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [({"out_pitch": 32}, "out_pitch = 32 is less"), ({"out_pitch": 66}, "out_pitch = 66 must be a multiple of 4"),
         ({"chunks": 0}, "chunks = 0 must be between"), ({"HQ": 0}, "HQ = 0 must be between")],
    )  # fmt: skip
    def test_unsupported_combine_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The same for the kernel that combines. Red: a pitch that tears a 16-byte store."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 2, "chunks": 2, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(ATTENTION_COMBINE, given, {}, {"D": 32}).run(device)
