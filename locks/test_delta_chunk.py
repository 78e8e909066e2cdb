"""Locks of the chunked delta rule: bounded, finite at any decay, and one sequence's own in any batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.engine import Choice, Request, decode
from kernels.delta_chunk import DELTA_CHUNK, LENGTHS, pieces, shared_bytes
from kernels.delta_rule import DELTA_RULE
from kernels.entry import Geometry, instance, resolve
from kernels.plan import Launch
from locks.far import assert_same_far_away
from locks.models import CONFIG, engine, prompt, run, tokens
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    PROPERTY,
    ULP,
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_within,
    normal,
    rng,
)
from oracle import delta_rule as truth
from oracle.errors import LanelockError

WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
STATES = pytest.mark.parametrize("state", ["f32", "f16"])
DTYPES = {"f32": np.float32, "f16": np.float16}
CHUNKS = pytest.mark.parametrize("chunk", LENGTHS)


@dataclass(frozen=True, slots=True)
class Problem:
    """Queries, keys [B, T, HK, D], values [B, T, HV, D], log decays and beta [B, T, HV], states [slots, HV, D, D]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    pool: np.ndarray
    positions: tuple[int, ...]
    lengths: tuple[int, ...]
    slots: tuple[int, ...]

    def case(self, chunk: int, first: int = 0) -> Case:
        """Tokens first to first + chunk - 1 of every sequence as one launch."""
        B, T, HK, D = self.q.shape
        dims = {"T": T, "B": B, "slots": len(self.pool), "HK": HK, "HV": self.v.shape[2], "first": first}
        qkv = np.concatenate([a.reshape(B, T, -1) for a in (self.q, self.k, self.v)], axis=-1)
        inputs = {
            "qkv": token_major(qkv),
            "g": token_major(self.g),
            "beta": token_major(self.beta),
            "state": self.pool,
            **placed(self.slots, self.positions, self.lengths),
        }
        state = "f16" if self.pool.dtype == np.float16 else "f32"
        return Case(DELTA_CHUNK, dims, inputs, {"D": D, "CHUNK": chunk, "STATE": state})

    def run(self, device: Device, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Outputs [B, T, HV, D] and states behind chunks of these lengths, one launch each."""
        o, pool, first = np.full(self.v.shape, np.nan, np.float32), self.pool, 0
        for chunk in lengths:
            got = replace(self, pool=pool).case(chunk, first).run(device)
            rows = by_sequence(got["o"], len(self.slots)).reshape(o.shape)
            o[:, first : first + chunk] = rows[:, first : first + chunk]
            first, pool = first + chunk, got["state"]
        return o, pool

    def sequence(self, b: int) -> tuple[np.ndarray, ...]:
        """Queries, keys, values, g and beta of the existing tokens of one sequence in float64, keys by value head."""
        n, key_of = self.lengths[b], np.arange(self.v.shape[2]) % self.q.shape[2]
        q, k = (a[b, :n][:, key_of].astype(np.float64) for a in (self.q, self.k))
        return q, k, *(a[b, :n].astype(np.float64) for a in (self.v, self.g, self.beta))

    def first_state(self, b: int) -> np.ndarray:
        """The incoming state of one sequence in float64."""
        state: np.ndarray = self.pool[self.slots[b]].astype(np.float64) if self.positions[b] else 0.0
        return state if self.positions[b] else np.zeros(self.pool.shape[1:])


def problem(
    seed: int,
    D: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    T: int = 0,
    state: str = "f32",
    heads: tuple[int, int] = (1, 2),
) -> Problem:
    """Unit keys and queries, decays of a model; tokens that do not exist and the slot that nobody holds are NaN."""
    g, B, T, (HK, HV) = rng(seed, D, len(positions)), len(positions), T or max(lengths), heads
    q, k = (normal(g, B, T, HK, D) for _ in range(2))
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True).astype(np.float32) for a in (q, k))
    v, decay = normal(g, B, T, HV, D), -np.abs(normal(g, B, T, HV)) / 4
    beta = (1 / (1 + np.exp(-normal(g, B, T, HV)))).astype(np.float32)
    pool = normal(g, B + 1, HV, D, D).astype(DTYPES[state])
    pool[0] = np.nan
    for b, n in enumerate(lengths):
        for a in (q, k, v, decay, beta):
            a[b, n:] = np.nan
    return Problem(q, k, v, decay, beta, pool, tuple(positions), tuple(lengths), tuple(range(B, 0, -1)))


def bound(
    rows: tuple[np.ndarray, ...], S: np.ndarray, E: np.ndarray, half: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First-order errors of a chunk's outputs [T, HV, D] and of its state [HV, D, D], and the state itself.

    S is the incoming state, E the bound of its error. Every product over D dims is a chain of D fma. A decay rounds its
    exponent once, and exp adds 4 ulp. What a token learns is a chain of t fma over what earlier ones learned, and takes
    their errors; so do outputs and state. The scale is rounded once and multiplied once. An f16 state adds half a unit.
    """
    q, k, v, g, beta = rows
    T, D, chain = len(q), q.shape[-1], q.shape[-1] * U
    logs = np.where(np.tri(T, T, -1, dtype=bool)[..., None], g[:, None], 0.0).cumsum(axis=0)  # [t, j, HV]: j + 1..t
    between = np.where(np.tri(T, dtype=bool)[..., None], np.exp(logs), 0.0)
    since = np.cumsum(g, axis=0)
    with np.errstate(invalid="ignore"):
        loose = np.where(between > 0, np.abs(logs), 0.0) * U + 4 * ULP
        kept = np.exp(since)
        kept_loose = np.where(kept > 0, np.abs(since), 0.0) * U + 4 * ULP
    c, e = np.empty(v.shape), np.empty(v.shape)
    o = np.empty(v.shape)
    for t in range(T):
        A, a = kept[t][:, None], kept_loose[t][:, None]
        for row, into in ((k, "learned"), (q, "output")):
            size = (np.abs(S) * np.abs(row[t])[:, None]).sum(-1)
            read = (S * row[t][:, None]).sum(-1)
            error = chain * size + (E * np.abs(row[t])[:, None]).sum(-1)
            dots = np.einsum("jhd,hd->jh", k[: t + 1], row[t])
            sizes = np.einsum("jhd,hd->jh", np.abs(k[: t + 1]), np.abs(row[t]))
            mixed = between[t, : t + 1] * dots
            mixed_error = between[t, : t + 1] * chain * sizes + np.abs(mixed) * (loose[t, : t + 1] + 2 * U)
            if into == "learned":
                rest = v[t] - A * read
                right = beta[t][:, None] * rest
                mixed, mixed_error = beta[t] * mixed[:t], beta[t] * mixed_error[:t]
                parts = np.abs(mixed)[..., None] * np.abs(c[:t])
                c[t] = right - (mixed[..., None] * c[:t]).sum(0)
                own = beta[t][:, None] * (A * error + np.abs(A * read) * (a + U) + U * np.abs(rest)) + U * np.abs(right)
                e[t] = own + (np.abs(mixed)[..., None] * e[:t] + mixed_error[..., None] * np.abs(c[:t])).sum(0)
                e[t] += t * U * (np.abs(right) + parts.sum(0))
                continue
            parts = np.abs(mixed)[..., None] * np.abs(c[: t + 1])
            own = A * error + np.abs(A * read) * (a + U)
            carried = (np.abs(mixed)[..., None] * e[: t + 1] + mixed_error[..., None] * np.abs(c[: t + 1])).sum(0)
            o[t] = own + carried + (t + 3) * U * (np.abs(A * read) + parts.sum(0))
    last, last_loose = between[-1][..., None], loose[-1][..., None]
    left = kept[-1][:, None, None] * S
    learned = last * c
    learned_error = last * e + np.abs(learned) * (last_loose + U)
    parts = np.einsum("jhv,jhk->hvk", np.abs(learned), np.abs(k))
    after = left + np.einsum("jhv,jhk->hvk", learned, k)
    error = kept[-1][:, None, None] * E + np.abs(left) * (kept_loose[-1][:, None, None] + U)
    error += np.einsum("jhv,jhk->hvk", learned_error, np.abs(k)) + T * U * (np.abs(left) + parts)
    if half:
        error = error + 2.0**-11 * np.abs(after) + 2.0**-25
    return o / np.sqrt(D) * (1 + 2.0**-8) + 2.0**-140, error * (1 + 2.0**-8) + 2.0**-140, after


def check(share: Share, what: str, p: Problem, lengths: Sequence[int], got: tuple[np.ndarray, np.ndarray]) -> None:
    """Outputs and states against the token-by-token rule in float64, within bounds carried from chunk to chunk."""
    o, pool = got
    for b in range(len(p.slots)):
        rows, S = p.sequence(b), p.first_state(b)
        out, last = truth.sequential(*(a[None] for a in rows), S[None])
        E, allowed, first = np.zeros_like(S), [], 0
        for chunk in lengths:
            piece = tuple(a[first : first + chunk] for a in rows)
            if len(piece[0]):
                allowed_o, E, S = bound(piece, S, E, p.pool.dtype == np.float16)
                allowed.append(allowed_o)
            first += chunk
        n = p.lengths[b]
        assert_within(share, f"outputs, {what}", o[b, :n], out[0], np.concatenate(allowed))
        assert_within(share, f"state, {what}", pool[p.slots[b]], last[0], E)


@pytest.mark.verify
class TestValue:
    """The kernel computes the gated delta rule, within its bound of float64."""

    @CHUNKS
    @STATES
    def test_every_length_is_within_its_bound(self, device: Device, share: Share, chunk: int, state: str) -> None:
        """Each length that is built meets the bound, from a zero state and from one. Red: a decay off by one token."""
        p = problem(1, 32, (0, 9), (chunk, chunk), state=state)

        check(share, f"T = {chunk}, {state}", p, [chunk], p.run(device, [chunk]))

    @WIDTHS
    @pytest.mark.parametrize("chunk", [4, 16, 64])
    def test_every_width_is_within_its_bound(self, device: Device, share: Share, D: int, chunk: int) -> None:
        """Each head width meets the bound, in short chunks and in long ones. Red: dims of a last stage left out."""
        p = problem(2, D, (7,), (chunk,), heads=(1, 1))

        check(share, f"D = {D}, T = {chunk}", p, [chunk], p.run(device, [chunk]))

    @pytest.mark.parametrize("heads", [(1, 1), (2, 4), (1, 3)])
    def test_every_ratio_is_within_its_bound(self, device: Device, share: Share, heads: tuple[int, int]) -> None:
        """Value head h reads key head h modulo the key heads. Red: grouped order."""
        p = problem(3, 32, (7,), (8,), heads=heads)

        check(share, f"{heads} heads", p, [8], p.run(device, [8]))

    @pytest.mark.parametrize("g", [0.0, -np.inf, -20.0, -90.0, -119.0, -121.0, -200.0, -1e30, np.log1p(-(2.0**-12))])
    @pytest.mark.parametrize("at", [slice(0, 1), slice(15, 16), slice(5, 7), slice(0, 16)])
    def test_any_decay_is_within_its_bound(self, device: Device, share: Share, g: float, at: slice) -> None:
        """No forgetting, all of it, or nearly, on first, last, some or all tokens.

        Red: fault 23, 0/0 of products; a sum that keeps -1e30 and loses all later decays.
        """
        p = problem(4, 32, (3,), (16,))
        p.g[:, at] = g

        check(share, f"g = {g}", p, [16], p.run(device, [16]))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), chunk=st.sampled_from(LENGTHS), scale=st.floats(0, 40))
    def test_any_mix_of_decays_is_finite_and_within_its_bound(
        self, device: Device, share: Share, seed: int, chunk: int, scale: float
    ) -> None:
        """Random decays of any strength with resets among them meet the bound. Red: inf - inf at a reset."""
        p = problem(5, 32, (3,), (chunk,))
        g = rng(seed)
        p.g[:] = np.where(g.random(p.g.shape) < 0.2, -np.inf, -np.abs(normal(g, *p.g.shape)) * scale)

        check(share, f"T = {chunk}, scale {scale:.1f}", p, [chunk], p.run(device, [chunk]))

    @pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129])
    def test_any_length_through_the_split_is_within_its_bound(self, device: Device, share: Share, length: int) -> None:
        """Case 05: any length in pieces that exist meets the bound. Red: the last chunk's decay read from padding."""
        p = problem(6, 32, (0,), (length,), heads=(1, 1))

        check(share, f"{length} tokens", p, pieces(length), p.run(device, pieces(length)))

    def test_a_short_sequence_in_a_long_chunk_is_within_its_bound(self, device: Device, share: Share) -> None:
        """Sequences shorter than the chunk end where they end. Red: padded tokens that decay or learn."""
        p = problem(7, 32, (0, 5, 9), (16, 7, 1))

        check(share, "short", p, [16], p.run(device, [16]))


def answers(
    device: Device, g: Sequence[float], beta: float, v: Sequence[float], s0: float, k: Sequence[float] | float = 1.0
) -> tuple[np.ndarray, float]:
    """The handed cases' one-dimensional rule, zero-padded to a head of 32, with q of one: unscaled outputs, state."""
    T = len(g)
    q = np.zeros((1, T, 1, 32), np.float32)
    keys, values, pool = q.copy(), q.copy(), np.zeros((2, 1, 32, 32), np.float32)
    q[..., 0], keys[0, :, 0, 0], values[0, :, 0, 0], pool[1, 0, 0, 0] = 1, k, v, s0
    gates = (np.array(a, np.float32).reshape(1, T, 1) for a in (g, [beta] * T))
    o, pool = Problem(q, keys, values, *gates, pool, (40,), (T,), (1,)).run(device, [T])
    return o[0, :, 0, 0] * np.sqrt(np.float32(32)), float(pool[1, 0, 0, 0])


@pytest.mark.verify
class TestHandedCases:
    """The rule's small known answers."""

    @pytest.mark.parametrize(("v", "beta", "expected"), [(1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.5, 0.75)])
    def test_decay_comes_before_the_error(self, device: Device, v: float, beta: float, expected: float) -> None:
        """Case 01: with S = 1 and alpha = 0.5 output and state are as handed. Red: the state's decay left out, 0.5."""
        o, s = answers(device, [np.log(0.5)], beta, [v], 1.0)

        np.testing.assert_allclose([o[0], s], expected, atol=4 * ULP)

    @pytest.mark.parametrize("g", [-np.inf, -200.0, -1e30])
    @pytest.mark.parametrize(
        ("at", "s0", "expected"),
        [(2, 0, [0.5, 1.25, 1.5, 2.75]), (0, 100, [0.5, 1.25, 2.125, 3.0625]), (3, 100, [50.5, 26.25, 14.625, 2.0])],
    )
    def test_a_vanished_decay_is_a_clean_reset(
        self, device: Device, at: int, s0: float, expected: list[float], g: float
    ) -> None:
        """Case 03: a reset in the middle, at a chunk's first token and at its last, no NaN. Red: -inf minus -inf."""
        decays = [0.0] * 4
        decays[at] = g
        o, s = answers(device, decays, 0.5, [1, 2, 3, 4], s0)

        np.testing.assert_allclose(o, expected, rtol=1e-6)
        assert s == expected[-1]

    def test_beta_is_not_rounded_on_its_way(self, device: Device) -> None:
        """Case 10: with beta = sigmoid(0.5) a chunk leaves 0.62245933. Red: beta as bf16, 0.62109375."""
        s = answers(device, [0.0] * 4, 1 / (1 + np.exp(-0.5)), [1, 0, 0, 0], 0.0, k=[1, 0, 0, 0])[1]

        np.testing.assert_allclose(s, 0.62245933, atol=1e-7)

    @pytest.mark.parametrize(("T", "expected"), [(33, 0.0309031544), (63, 0.00131002051), (65, 0.00106111661)])
    def test_every_token_decays_the_state_once(self, device: Device, T: int, expected: float) -> None:
        """Case 05: a state of ones, keys of zero, alpha 0.9: 0.9^T. Red: 0.9^64 for 65 tokens, 0.9^32 for 33."""
        zeros = np.zeros((1, T, 1, 32), np.float32)
        g, beta = np.full((1, T, 1), np.log(0.9), np.float32), np.full((1, T, 1), 0.5, np.float32)
        p = Problem(zeros, zeros, zeros, g, beta, np.ones((2, 1, 32, 32), np.float32), (7,), (T,), (1,))

        # log 0.9 is rounded once, so T of them are off by T * |log 0.9| * U at most; each piece rounds a few times
        np.testing.assert_allclose(p.run(device, pieces(T))[1][1], expected, rtol=T * U + 40 * U)

    def test_a_later_pass_keeps_the_state(self, device: Device) -> None:
        """Case 06: a pass at position 40 with keys of zero and no decay leaves ones. Red: a zero start."""
        zeros, gates = np.zeros((1, 4, 1, 32), np.float32), np.zeros((1, 4, 1), np.float32)
        pool = np.ones((2, 1, 32, 32), np.float32)
        p = Problem(zeros, zeros, zeros, gates, gates + 1, pool, (40,), (4,), (1,))

        assert_same_bits(p.run(device, [4])[1], pool)


class TestExactIntegers:
    """Where every step but one is exact the order of that one shows."""

    def test_sums_over_tokens_run_ascending(self, device: Device) -> None:
        """2^24 + 1 - 2^24 is 0 in ascending order, and 2^24 - 1 - 2^24 is -1. Red: descending, which gives 1 and 0.

        Three orthogonal keys of ones that share a dim, no decay and beta one: each token learns its value. The fourth
        token's key is that dim, so what it learns is its value, 0, less the same sum.
        """
        k = np.zeros((1, 4, 1, 32), np.float32)
        k[0, :, 0, :4] = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, 0, 0, 0]])
        q, v = np.zeros_like(k), np.zeros_like(k)
        q[..., 0], v[0, :, 0, 5] = 1, [2**24, 1, -(2**24), 0]
        g, beta = np.zeros((1, 4, 1), np.float32), np.ones((1, 4, 1), np.float32)
        p = Problem(q, k, v, g, beta, np.zeros((2, 1, 32, 32), np.float32), (0,), (4,), (1,))
        o, pool = p.run(device, [4])

        assert_same_bits(np.array([o[0, 2, 0, 5], pool[1, 0, 5, 0], pool[1, 0, 5, 1]]), np.float32([0, 0, -1]))

    def test_products_are_fused(self, device: Device) -> None:
        """(1 + 2^-12)^2 - 1 keeps its last bit, 2^-24, in what is read and in what is learned. Red: an fma in two."""
        q, v = np.zeros((1, 1, 1, 32), np.float32), np.zeros((1, 1, 1, 32), np.float32)
        q[..., :3] = 1, 1 + 2.0**-12, 1
        pool = np.zeros((2, 1, 32, 32), np.float32)
        pool[1, 0, 7, :2] = -1, 1 + 2.0**-12
        gates = [np.full((1, 1, 1), a, np.float32) for a in (0, 1)]
        p = Problem(q, q, v, *gates, pool, (3,), (1,), (1,))
        read = replace(p, beta=np.zeros((1, 1, 1), np.float32)).run(device, [1])[0][0, 0, 0, 7]

        learned = p.run(device, [1])[1][1, 0, 7, 2]

        exact = np.float32(2.0**-11 + 2.0**-24)
        assert_same_bits(np.array([read, learned]), np.array([exact * np.float32(32**-0.5), -exact]))

    def test_a_reset_forgets_exactly(self, device: Device) -> None:
        """Behind a reset the largest state and values leave no trace. Red: a decay of the smallest float for zero."""
        p = problem(16, 32, (3,), (8,), heads=(1, 1))
        p.g[:, 4] = -np.inf
        loud = replace(p, pool=np.full_like(p.pool, 1e38), v=p.v.copy())
        loud.v[:, :4] = 0.0
        quiet = replace(loud, pool=np.zeros_like(p.pool))

        (o, pool), (expected_o, expected_pool) = loud.run(device, [8]), quiet.run(device, [8])
        assert_same_bits(o[:, 4:], expected_o[:, 4:])
        assert_same_bits(pool[1], expected_pool[1])


class TestForms:
    """What does not change the bits."""

    def test_a_launch_writes_its_own_tokens_only(self, device: Device) -> None:
        """Tokens before and behind the chunk keep their poison. Red: `first` left out of a row."""
        p = problem(8, 32, (3,), (24,))
        o = p.case(8, 8).run(device)["o"]

        assert_same_bits(np.isnan(o).all(axis=1), np.repeat([True, False, True], 8))

    def test_a_sequence_that_ended_keeps_its_state(self, device: Device) -> None:
        """A chunk behind a sequence's last token changes nothing of it. Red: a state decayed by padding."""
        p = problem(9, 32, (3, 0), (8, 20))
        got = p.case(8, 8).run(device)

        assert_same_bits(got["state"][2], p.pool[2])
        assert np.isnan(by_sequence(got["o"], 2)[0]).all()

    def test_f16_state_is_the_nearest(self, device: Device) -> None:
        """An f16 state is the f16 nearest to what a float32 state becomes. Red: two roundings."""
        half = problem(10, 64, (3,), (16,), state="f16")
        wide = replace(half, pool=half.pool.astype(np.float32))

        assert_same_bits(half.run(device, [16])[1][1], wide.run(device, [16])[1][1].astype(np.float16))


class TestInvariance:
    """A sequence's bits are its own, on one device."""

    @STATES
    def test_sequences_stand_alone(self, device: Device, state: str) -> None:
        """Alone, permuted, in other slots, among NaN: the same bits; absent sequences touch nothing.

        Red: B for slot.
        """
        p = problem(11, 32, (0, 9, 4, 2), (8, 1, 3, 2), T=8, state=state)
        p = replace(p, lengths=(8, 1, 0, 2), slots=(4, 3, 1, -1))

        assert_sequences_stand_alone(device, p.case(8))

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows further apart give the same bits and keep their padding. Red: a pitch taken as the width."""
        assert_pitch_free(device, problem(12, 32, (0, 5), (4, 4)).case(4))


class TestFaults:
    """What a slot held before does not come back, and a fault does not spread backwards."""

    def test_a_slot_entered_again_is_clean(self, device: Device) -> None:
        """At position 0 a state of NaN reads as zeros, in the first chunk only. Red: zero times NaN."""
        p = problem(13, 32, (0,), (8,))
        nan = replace(p, pool=np.full_like(p.pool, np.nan))

        assert_same_bits(nan.run(device, [4, 4])[0], p.run(device, [4, 4])[0])

    def test_no_position_but_the_first_begins_a_sequence(self, device: Device) -> None:
        """At 255, 256, 65536, 131071 and 262143 the state goes on as at 1. Red: a position in 8 or 16 bits."""
        p = problem(19, 32, (1,), (4,), heads=(1, 1))
        expected = p.run(device, [4])

        for position in (255, 256, 65536, 131071, 262143):
            o, pool = replace(p, positions=(position,)).run(device, [4])
            assert_same_bits(o, expected[0], f"outputs at {position}")
            assert_same_bits(pool, expected[1], f"states at {position}")

    @pytest.mark.parametrize("name", ["k", "g", "beta", "v", "q"])
    def test_a_nan_reaches_later_tokens_only(self, device: Device, name: str) -> None:
        """A NaN at token 5 leaves the outputs before it as they are. Red: a masked product with NaN added anyway."""
        p = problem(14, 32, (3,), (8,), heads=(1, 1))
        clean = p.run(device, [8])[0]
        getattr(p, name)[0, 5] = np.nan
        o = p.run(device, [8])[0]

        assert_same_bits(o[0, :5], clean[0, :5])
        assert np.isnan(o[0, 5]).all()

    def test_an_overflow_is_loud(self, device: Device) -> None:
        """A state beyond f16 becomes infinite. Red: saturation to 65504."""
        p = problem(15, 32, (3,), (1,), state="f16", heads=(1, 1))
        p.pool[1, 0, 3], p.g[:], p.beta[:] = 60000.0, 0.25, 0.0

        assert np.isinf(p.run(device, [1])[1][1, 0, 3]).all()


class TestSplit:
    """The plan splits a pass into lengths that exist."""

    @pytest.mark.parametrize("length", [1, 3, 4, 63, 64, 65, 127, 512, 1023])
    def test_pieces_add_up(self, length: int) -> None:
        """Pieces are lengths that exist, largest first, and add up. Red: a remainder of 2 in a chunk of 4."""
        made = pieces(length)

        assert sum(made) == length
        assert list(made) == sorted(made, reverse=True)
        assert set(made) <= set(LENGTHS)

    def test_shared_memory_fits_every_device(self) -> None:
        """The largest chunk of the widest head fits the 99 KB that a block can have on every architecture named."""
        assert max(shared_bytes(D, T) for D in (32, 64, 128, 256) for T in LENGTHS) <= 99 * 1024


class TestOffsets:
    """Offsets are counted in 64 bits."""

    @STATES
    def test_a_pool_beyond_32_bits_gives_the_same_bits(self, device: Device, state: str) -> None:
        """The last slots of a pool of the 27B with more than 2^31 elements. Red: an offset of a slot in an int."""
        p = problem(17, 128, (3,), (4,), state=state, heads=(16, 48))

        assert_same_far_away(device, p.case(4), slots=2**31 // (48 * 128 * 128) + 8)

    @pytest.mark.parametrize("pitch", ["qkv_pitch", "o_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str) -> None:
        """Tokens 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, problem(18, 32, (3,), (16,)).case(16), **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Two heads of 64 rows take two blocks of 32 rows each, a sequence.

        Red: fault 13, blocks whose work another block does again.
        """
        given = {"T": 4, "B": 3, "slots": 3, "HK": 1, "HV": 2}
        dims = resolve(instance(DELTA_CHUNK, D=64, STATE="f32", CHUNK=4), given)

        assert DELTA_CHUNK.geometry(dims) == Geometry((2, 3, 2), (128, 1, 1), shared_bytes(64, 4))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize("chunk", [0, 2, 3, 5, 63, 128])
    def test_a_length_that_is_not_built_is_refused(self, chunk: int) -> None:
        """A chunk of another length is refused with those that exist. Red: a partial chunk computed in part."""
        with pytest.raises(LanelockError, match=f"CHUNK={chunk} is not built; choose from"):
            instance(DELTA_CHUNK, D=32, CHUNK=chunk, STATE="f32")

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"T": 7}, "tokens 0 to 0 \\+ 8 are not among the T = 7 tokens"),
            ({"first": 9}, "tokens 9 to 9 \\+ 8 are not among the T = 16 tokens"),
            ({"first": -1}, "tokens -1 to -1 \\+ 8 are not among"),
            ({"HK": 2, "HV": 3}, "HV = 3 heads must be a positive multiple of HK = 2"),
            ({"B": 0}, "B = 0 must be between 1 and 65535"),
            ({"slots": 0}, "slots = 0 must be between 1 and"),
            ({"qkv_pitch": 100}, "qkv_pitch = 100 is less than the row"),
            ({"qkv_pitch": 130}, "qkv_pitch = 130 must be a multiple of 4"),
            ({"o_pitch": 63}, "o_pitch = 63 is less than the row"),
            ({"HK": 2**24, "HV": 2**25}, "a row of 2147483648 elements exceeds what an int can count"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given_dims = {"T": 16, "B": 1, "slots": 1, "HK": 1, "HV": 2, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(DELTA_CHUNK, given_dims, {}, {"D": 32, "CHUNK": 8, "STATE": "f32"}).run(device)


class TestLane:
    """The +delta lane: prefill goes through chunks, everything else is the exact lane."""

    def test_prefill_takes_the_chunks_of_its_width(self, device: Device) -> None:
        """A prefill of 21 tokens is chunks of 16, 4 and 1 a layer; a step, a verify and a replay are scans.

        Red: a replay of accepted rows through chunks, whose bits are not those that were verified.
        """
        with engine(device, Choice("a15+delta", 1, 40, 21, 2)) as e:
            programs = e.plan.programs

        rules = {}
        for name, items in programs.items():
            rules[name] = [i.instance for i in items if i.label.endswith((".scan", ".delta"))]
        assert [i.template["CHUNK"] for i in rules["prefill.next"]] == [16, 4, 1] * 3
        for name in ("step", "verify", "commit"):
            assert {i.kernel.name for i in rules[name]} == {DELTA_RULE.name}

    def test_prompt_leaves_a_state_within_the_bound(self, device: Device, share: Share) -> None:
        """The first layer's state and outputs behind a prompt of 20 tokens lie within the chunks' bound of float64.

        Red: `first` of a later chunk dropped, alpha for its logarithm.
        """
        seen: dict[str, np.ndarray] = {}
        with engine(device, Choice("a15+delta", 1, 40, 21)) as e:

            def after(program: str, item: Launch) -> None:
                if program.startswith("prefill") and item.label == "layers.0.gated":
                    seen.update({n: e.read(n).copy() for n in ("conv", "g", "beta", "scan", "state.0")})

            decode(replace(e, after=after), [Request(prompt(20), 1)])
        c = CONFIG
        wide = seen["conv"][: 20 * c.conv_channels].reshape(1, 20, c.conv_channels)
        q, k, v = np.split(wide, [c.gdn_qk, 2 * c.gdn_qk], axis=-1)
        q, k, v = (a.reshape(1, 20, -1, c.gdn_dim) for a in (q, k, v))
        gates = (seen[n][: 20 * c.v_heads].reshape(1, 20, c.v_heads) for n in ("g", "beta"))
        pool = seen["state.0"].reshape(1, c.v_heads, c.gdn_dim, c.gdn_dim)
        p = Problem(q, k, v, *gates, pool, (0,), (20,), (0,))

        check(share, "layer 0", p, [16, 4], (seen["scan"][: v.size].reshape(v.shape), pool))

    def test_speculation_is_greedy_behind_the_same_prefill(self, device: Device) -> None:
        """With drafts and without, the +delta lane makes one stream of tokens. Red: a verify through chunks."""
        requests = [Request(prompt(20), 8), Request(prompt(5, 3), 8)]
        plain, drafted = (run(device, Choice("a8+delta", 2, 40, 9, drafts), requests) for drafts in (0, 3))

        assert tokens(plain) == tokens(drafted)
