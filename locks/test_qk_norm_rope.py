"""Locks of the q/k norm and RoPE room: norm, rotation, and the one store of keys and values into the cache."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.qk_norm_rope import QK_NORM_ROPE
from locks.far import assert_same_far_away
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    OVERFLOWS,
    PROPERTY,
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_within,
    edge_rows,
    normal,
    overflowing_rows,
    rng,
    wild,
)
from oracle import qk_norm_rope as truth
from oracle.bits.qk_norm_rope import qk_norm_rope
from oracle.errors import LanelockError
from oracle.rope import table

EPS = 1e-6
THETA = 1e7
FAR = (0, 1, 255, 256, 257, 1000, 131071, 262143)
WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
CACHES = pytest.mark.parametrize("kv", ["f32", "f16"])
DTYPES = {"f32": np.float32, "f16": np.float16}


def angles(positions: Sequence[int], R: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the float32 table at positions of the full context; row p of the answer is that of positions[p]."""
    cos, sin = table(np.array(positions), R, THETA)
    return cos.astype(np.float32), sin.astype(np.float32)


def case_of(
    x: np.ndarray,
    w: np.ndarray,
    turns: tuple[np.ndarray, np.ndarray],
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    heads: tuple[int, int] = (2, 1),
    kv: str = "f32",
    slots: Sequence[int] | None = None,
) -> Case:
    """Projection rows [B, T, width] of sequences; wq is w[0], wk is w[1]; the cache is as long as the table."""
    B, T, _ = x.shape
    HQ, HKV = heads
    D, context = w.shape[1], len(turns[0])
    pool = B + 1
    dims = {"T": T, "B": B, "slots": pool, "HQ": HQ, "HKV": HKV, "R": 2 * turns[0].shape[1], "context": context,
            "eps": EPS}  # fmt: skip
    inputs = {
        "x": token_major(x),
        "wq": w[0],
        "wk": w[1],
        "cosine": turns[0],
        "sine": turns[1],
        **placed(range(B, 0, -1) if slots is None else slots, positions, lengths),
        "keys": normal(rng(90), pool, HKV, context, D).astype(DTYPES[kv]),
        "values": normal(rng(91), pool, HKV, context, D).astype(DTYPES[kv]),
    }
    return Case(QK_NORM_ROPE, dims, inputs, {"D": D, "KV": kv})


def random_case(
    seed: int, D: int, positions: Sequence[int], lengths: Sequence[int], *, kv: str = "f32", **more: object
) -> Case:
    """Random rows and weights, a quarter of each head rotated, a cache that just holds the last position."""
    heads = more.get("heads", (2, 1))
    assert isinstance(heads, tuple)
    g = rng(seed, D)
    x = normal(g, len(positions), max(lengths), 2 * sum(heads) * D)
    context = max(p + n for p, n in zip(positions, lengths, strict=True))
    turns = angles(range(context), D // 4)
    return case_of(x, 1 + normal(g, 2, D) / 8, turns, positions, lengths, kv=kv, **more)  # type: ignore[arg-type]  # heads and slots


def split(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Raw queries, keys and values [B, T, heads, D] of a case's projection rows [Q | gate | K | V]."""
    HQ, HKV, D = (int(v) for v in (case.dims["HQ"], case.dims["HKV"], case.template["D"]))
    x = by_sequence(case.inputs["x"], int(case.dims["B"]))
    heads = x.reshape(*x.shape[:2], -1, D)
    return heads[:, :, :HQ], heads[:, :, 2 * HQ : 2 * HQ + HKV], heads[:, :, 2 * HQ + HKV :]


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes: queries in rows, keys and values in their places of the cache, the rest as it was."""
    q, k, v = split(case)
    B, kv = int(case.dims["B"]), DTYPES[str(case.template["KV"])]
    out = np.full(q.shape, np.nan, np.float32)
    keys, values = case.inputs["keys"].copy(), case.inputs["values"].copy()
    for b in range(B):
        slot, start, length = (int(case.inputs[n][b]) for n in ("slot", "position", "length"))
        if slot < 0:
            continue
        at = np.arange(start, start + length)
        turns = case.inputs["cosine"][at], case.inputs["sine"][at]
        out[b, :length] = qk_norm_rope(q[b, :length], case.inputs["wq"], *turns, EPS)
        with np.errstate(over="ignore"):
            keys[slot, :, at] = qk_norm_rope(k[b, :length], case.inputs["wk"], *turns, EPS).astype(kv)
            values[slot, :, at] = v[b, :length].astype(kv)
    return {"q": token_major(out).reshape(len(case.inputs["x"]), -1), "keys": keys, "values": values}


def bound(pair: np.ndarray, D: int) -> np.ndarray:
    """First-order error of a rotated element, from the length of its normed pair.

    The norm: a chain of D/32 fma and 5 adds of positive terms, the division by D, the add of eps; the root halves that
    and rounds; a quotient and a product. The rotation: one rounding of each table entry, one of the inner product, one
    of the fma, each of at most the pair's length.
    """
    norm = (D // 32 + 5 + 2) / 2 + 3
    return pair * (2 * norm + 4) * U * (1 + 2.0**-10)


@pytest.mark.verify
class TestValue:
    """The kernel norms and rotates."""

    @WIDTHS
    def test_heads_are_within_their_bound(self, device: Device, share: Share, D: int) -> None:
        """Queries and keys lie within the derived bound of float64, and values are kept.

        Red: the pair's signs swapped.
        """
        case = random_case(1, D, (0, 5), (3, 2))
        got = case.run(device)
        cos, sin = table(np.arange(len(case.inputs["cosine"])), D // 4, THETA)
        q, k, v = split(case)

        out = by_sequence(got["q"], 2).reshape(q.shape)
        for b, (start, length, slot) in enumerate([(0, 3, 2), (5, 2, 1)]):
            at = slice(start, start + length)
            for name, raw, mine, w in (
                ("queries", q, out[b, :length], "wq"),
                ("keys", k, np.moveaxis(got["keys"][slot][:, at], 0, 1), "wk"),
            ):
                x, weight = raw[b, :length].astype(np.float64), case.inputs[w].astype(np.float64)
                eps = float(np.float32(EPS))
                expected = truth.qk_norm_rope(x, weight, cos[at], sin[at], eps)
                normed = np.abs(truth.rms_norm(x, weight, eps))
                pair = np.maximum(normed, np.roll(normed, D // 8, -1)) + np.roll(normed, -(D // 8), -1)
                assert_within(share, f"{name} of {b}", mine, expected, bound(pair, D))
            assert_same_bits(np.moveaxis(got["values"][slot][:, at], 0, 1), v[b, :length])

    @pytest.mark.parametrize("position", FAR)
    def test_far_positions_turn_by_their_own_angle(self, device: Device, share: Share, position: int) -> None:
        """Case 21's kind at the far end of the context: the angle is the position's own, in queries as in keys.

        Red: fault 16, queries rotated at position 0; an exponent over the head width; a partner D/2 away.
        """
        x = np.zeros((1, 1, 6 * 256), np.float32)
        x[..., 1] = x[..., 4 * 256 + 1] = 1.0
        got = case_of(x, np.full((2, 256), 2.0**-4, np.float32), angles([position], 64), [0], [1]).run(device)

        angle = position * THETA ** (-2 / 64)
        unit = 1 / np.sqrt(1 + 256 * EPS)  # one-hot of one over 256 dims has a mean square of 1/256, and w is 1/16
        expected = np.zeros(256)
        expected[[1, 33]] = np.cos(angle) * unit, np.sin(angle) * unit
        # the plain float64 angle is off by 2e-11 at most; the norm's and the rotation's roundings are of size one
        assert_within(share, f"query at {position}", got["q"][0, :256], expected, bound(np.ones(256), 256))
        assert_within(share, f"key at {position}", got["keys"][1, 0, 0], expected, bound(np.ones(256), 256))

    @pytest.mark.parametrize(("position", "low", "high"), [(1, 0.82290208, 0.56818322), (1000, 0.44412335, 0.89596565)])
    def test_a_one_hot_turns_as_handed(self, device: Device, position: int, low: float, high: float) -> None:
        """Case 21: index 1 of 256 with 64 rotated at theta 1e7 lands on indices 1 and 33.

        Red: theta or partner wrong.
        """
        x = np.zeros((1, 1, 6 * 256), np.float32)
        x[..., 1] = 256.0  # large, so that eps does not show
        q = case_of(x, np.full((2, 256), 2.0**-4, np.float32), angles([position], 64), [0], [1]).run(device)["q"][0]

        np.testing.assert_allclose(q[[1, 33]], [low, high], atol=2e-7)
        assert np.count_nonzero(q[:256]) == 2

    @pytest.mark.parametrize("index", [64, 65, 255])
    def test_dims_behind_the_rotated_pass_untouched(self, device: Device, index: int) -> None:
        """Case 21: dims 64 to 255 are what the norm made of them, bit for bit.

        Red: a rotated width of the whole head.
        """
        x = np.zeros((1, 1, 6 * 256), np.float32)
        x[..., index] = 3.0
        w = np.ones((2, 256), np.float32)
        turned, at_zero = (case_of(x, w, angles([p], 64), [0], [1]).run(device)["q"] for p in (1000, 0))

        assert_same_bits(turned.reshape(2, 256)[:, 64:], at_zero.reshape(2, 256)[:, 64:])

    def test_index_63_turns_with_31(self, device: Device) -> None:
        """Case 21: the last rotated dim has partner 31, at the lowest frequency. Red: an interleaved pairing."""
        x = np.zeros((1, 1, 6 * 256), np.float32)
        x[..., 63] = 256.0
        q = case_of(x, np.full((2, 256), 2.0**-4, np.float32), angles([200000], 64), [0], [1]).run(device)["q"][0]

        angle = 200000 * THETA ** (-62 / 64)
        np.testing.assert_allclose(q[[31, 63]], [-np.sin(angle), np.cos(angle)], atol=2e-7)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @WIDTHS
    @CACHES
    def test_rows_and_cache_are_the_contract(self, device: Device, D: int, kv: str) -> None:
        """Queries, keys and values follow the contract, and nothing else of the cache changes. Red: an fma split."""
        case = random_case(2, D, (0, 4, 2), (3, 1, 0), kv=kv, heads=(6, 3))

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("R", [16, 32, 64, 256])
    def test_any_rotated_width_is_the_contract(self, device: Device, R: int) -> None:
        """Rotated widths of one lane to the whole head follow the contract. Red: a partner in the wrong lane."""
        g = rng(3, R)
        case = case_of(normal(g, 2, 2, 6 * 256), 1 + normal(g, 2, 256), angles(range(4), R), (0, 2), (2, 2))

        assert_same_outputs(case.run(device), contract(case))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), D=st.sampled_from([32, 64, 128, 256]), kv=st.sampled_from(["f32", "f16"]))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, D: int, kv: str) -> None:
        """Values from subnormal to the largest follow the contract, also where f16 overflows. Red: a flushed value."""
        g = rng(seed)
        case = case_of(wild(g, 1, 2, 6 * D), wild(g, 2, D), angles(range(2), D // 4), [0], [2], kv=kv)

        assert_same_outputs(case.run(device), contract(case))

    @CACHES
    def test_edge_rows_are_the_contract(self, device: Device, kv: str) -> None:
        """Zero, largest, infinite and NaN rows follow the contract. Red: a NaN or an infinity swallowed."""
        x = edge_rows(6 * 32)[None]
        case = case_of(x, np.ones((2, 32), np.float32), angles(range(x.shape[1]), 8), [0], [x.shape[1]], kv=kv)

        assert_same_outputs(case.run(device), contract(case))


class TestOneRounding:
    """The cache rounds once."""

    def test_keys_are_rounded_once(self, device: Device) -> None:
        """An f16 key is the f16 nearest to the float32 key of a wide cache, every one of them.

        Red: fault 20, the raw key stored to f16, then normed and rotated in place.
        """
        wide, narrow = (random_case(4, 128, (0, 3), (4, 4), kv=kv, heads=(2, 2)).run(device) for kv in ("f32", "f16"))

        for name in ("keys", "values"):
            at = {2: slice(0, 4), 1: slice(3, 7)}
            for slot, rows in at.items():
                assert_same_bits(narrow[name][slot, :, rows], wide[name][slot, :, rows].astype(np.float16), name)

    @pytest.mark.parametrize("part", ["key", "value"])
    def test_an_overflow_is_loud(self, device: Device, part: str) -> None:
        """What f16 cannot hold becomes an infinity in the cache, not a number. Red: saturation to 65504."""
        x = np.ones((1, 1, 6 * 32), np.float32)
        w = np.ones((2, 32), np.float32)
        if part == "key":
            w[1, 20] = 70000.0
        else:
            x[..., 5 * 32 + 20] = 70000.0
        got = case_of(x, w, angles([0], 8), [0], [1], kv="f16").run(device)

        assert got["keys" if part == "key" else "values"][1, 0, 0, 20] == np.inf

    @pytest.mark.parametrize("D", [32, 256])
    def test_a_sum_of_squares_that_overflows_is_loud(self, device: Device, D: int) -> None:
        """A finite head whose squares add up beyond float32 is NaN throughout; one a step below is not.

        Red: a key divided by an infinite root: zeros, which attention takes for a key like any other.
        """
        x = np.concatenate([overflowing_rows(D)] * 6, axis=1)[None]
        got = case_of(x, np.ones((2, D), np.float32), angles(range(3), D // 4), [0], [3]).run(device)

        queries = np.isnan(got["q"]).reshape(3, -1)
        keys = np.isnan(got["keys"][1, :, :3]).transpose(1, 0, 2).reshape(3, -1)
        for bad in (queries, keys):
            assert_same_bits(bad, np.broadcast_to(OVERFLOWS[:, None], bad.shape).copy())


class TestForms:
    """A chunk is its tokens one by one."""

    @CACHES
    def test_chunk_is_token_by_token(self, device: Device, kv: str) -> None:
        """Queries and cache of a chunk equal those of single tokens. Red: the chunk's first position for all rows."""
        chunk = random_case(5, 64, (2, 0), (3, 2), kv=kv)
        whole = chunk.run(device)
        x, cache = by_sequence(chunk.inputs["x"], 2), {n: chunk.inputs[n] for n in ("keys", "values")}
        w, turns = np.stack([chunk.inputs[n] for n in ("wq", "wk")]), (chunk.inputs["cosine"], chunk.inputs["sine"])
        rows = []
        for t in range(3):
            one = case_of(x[:, t : t + 1], w, turns, (2 + t, t), (1, int(t < 2)), kv=kv)
            got = Case(one.kernel, one.dims, {**one.inputs, **cache}, one.template).run(device)
            cache = {n: got[n] for n in cache}
            rows.append(got["q"])

        assert_same_outputs({"q": np.concatenate(rows), **cache}, whole)


class TestInvariance:
    """A sequence's bits are its own."""

    @CACHES
    def test_sequences_stand_alone(self, device: Device, kv: str) -> None:
        """Alone, permuted, in other slots, among NaN: the same bits; absent sequences touch nothing.

        Red: B for slot.
        """
        case = random_case(6, 32, (0, 3, 1, 2), (2, 3, 0, 1), kv=kv, slots=(4, 2, 1, -1))

        assert_sequences_stand_alone(device, case)

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows further apart give the same bits and keep their padding. Red: a pitch taken as the width."""
        assert_pitch_free(device, random_case(7, 64, (0, 1), (2, 2)))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: a contraction of the rotation."""
        host, cuda = both_devices
        g = rng(8)
        case = case_of(wild(g, 3, 4, 6 * 256), wild(g, 2, 256), angles(range(9), 64), (0, 5, 2), (4, 4, 3), kv="f16")

        assert_same_outputs(case.run(cuda), case.run(host))


class TestOffsets:
    """Offsets are counted in 64 bits."""

    def test_a_cache_of_full_size_gives_the_same_bits(self, device: Device) -> None:
        """The last positions of 16 slots of 262144, 2^32 elements of keys and as many values.

        Red: a slot, a head or a position times its stride in an int.
        """
        case = random_case(31, 256, (2,), (2,), kv="f16", heads=(4, 4))

        assert_same_far_away(device, case, slots=16, context=262144)

    @pytest.mark.parametrize("pitch", ["x_pitch", "q_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str) -> None:
        """Tokens 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, random_case(32, 32, (3,), (10,)), **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Six rows of four heads to norm and two to store take two blocks of four warps each.

        Red: fault 13, blocks whose work another block does again.
        """
        given = {"T": 3, "B": 2, "slots": 2, "HQ": 2, "HKV": 2, "R": 8, "context": 9, "eps": EPS}
        dims = resolve(instance(QK_NORM_ROPE, D=32, KV="f32"), given)

        assert QK_NORM_ROPE.geometry(dims) == Geometry((6, 2, 1), (128, 1, 1))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"R": 0}, "R = 0 rotated dims must be at most D = 256 and a multiple of D / 16"),
            ({"R": 40}, "R = 40 rotated dims must be at most D = 256 and a multiple of D / 16"),
            ({"R": 272}, "R = 272 rotated dims must be at most D = 256"),
            ({"HQ": 3, "HKV": 2}, "HQ = 3 heads must be a positive multiple of HKV = 2"),
            ({"HKV": 0}, "HQ = 2 heads must be a positive multiple of HKV = 0"),
            ({"context": 0}, "context = 0 must be between 1 and"),
            ({"context": 2**19}, "context = 524288 must be between 1 and"),
            ({"T": 0}, "T = 0 must be between 1 and"),
            ({"B": 65536}, "B = 65536 must be between 1 and 65535"),
            ({"slots": 0}, "slots = 0 must be between 1 and"),
            ({"T": 2**20, "B": 2**12}, "rows exceed a grid axis"),
            ({"x_pitch": 1532}, "x_pitch = 1532 is less than the row"),
            ({"x_pitch": 1538}, "x_pitch = 1538 must be a multiple of 4"),
            ({"q_pitch": 508}, "q_pitch = 508 is less than the row"),
            ({"q_pitch": 514}, "q_pitch = 514 must be a multiple of 4"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"T": 1, "B": 1, "slots": 1, "HQ": 2, "HKV": 1, "R": 64, "context": 4, "eps": EPS, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(QK_NORM_ROPE, given, {}, {"D": 256, "KV": "f32"}).run(device)
