"""Locks of the conv room: four causal taps, silu, unit length of q and k heads, and the ring of past inputs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.host import HostDevice
from kernels.conv import CONV, RING
from kernels.entry import Geometry, instance, resolve
from locks.far import assert_same_far_away
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    OVERFLOWS,
    PROPERTY,
    ULP,
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_within,
    normal,
    overflowing_rows,
    rng,
    wild,
)
from oracle import conv as truth
from oracle.bits.conv import conv_silu_l2
from oracle.errors import LanelockError
from oracle.functions import silu

WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
PAST = 3  # inputs behind a token that its taps read


def case_of(
    x: np.ndarray,
    w: np.ndarray,
    ring: np.ndarray,
    D: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    slots: Sequence[int] | None = None,
    k_heads: int = 1,
) -> Case:
    """Inputs [B, T, C] of sequences, rings [slots, RING, C]; the first 2 k_heads heads get unit length."""
    B, T, C = x.shape
    dims = {"T": T, "B": B, "slots": len(ring), "C": C, "normed_heads": 2 * k_heads}
    slots = range(B, 0, -1) if slots is None else slots
    inputs = {"x": token_major(x), "w": w, "ring": ring, **placed(slots, positions, lengths)}
    return Case(CONV, dims, inputs, {"D": D})


def random_case(
    seed: int, D: int, positions: Sequence[int], lengths: Sequence[int], *, slots: Sequence[int] | None = None
) -> Case:
    """Random inputs of 3 heads; a ring holds what its sequence still needs, and NaN where nothing may be read."""
    g = rng(seed, D)
    B, C = len(positions), 3 * D
    slots = list(range(B, 0, -1)) if slots is None else slots
    ring = np.full((B + 1, RING, C), np.nan, np.float32)
    for slot, start in zip(slots, positions, strict=True):
        for p in range(max(0, start - PAST), start):
            ring[slot, p % RING] = normal(g, C)
    return case_of(normal(g, B, max(lengths), C), normal(g, 4, C) / 2, ring, D, positions, lengths, slots=slots)


def window(ring: np.ndarray, start: int) -> np.ndarray:
    """The last 3 inputs before `start` from a ring [RING, C], the oldest first; zeros before the sequence."""
    at = range(start - PAST, start)
    return np.stack([ring[p % RING] if p >= 0 else np.zeros_like(ring[0]) for p in at])


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes: rows that exist, and the ring's inputs of the last positions."""
    B, D = int(case.dims["B"]), int(case.template["D"])
    x, ring, w = by_sequence(case.inputs["x"], B), case.inputs["ring"].copy(), case.inputs["w"]
    y = np.full(x.shape, np.nan, np.float32)
    for b in range(B):
        slot, start, length = (int(case.inputs[n][b]) for n in ("slot", "position", "length"))
        if slot < 0 or length == 0:
            continue
        rows = x[b : b + 1, :length]
        past, k_heads = window(ring[slot], start)[None], int(case.dims["normed_heads"]) // 2
        y[b, :length] = conv_silu_l2(rows, past, w, k_heads, D)[0]
        for t in range(length):
            ring[slot, (start + t) % RING] = rows[0, t]
    return {"y": token_major(y), "ring": ring}


def bound(line: np.ndarray, w: np.ndarray, D: int, normed: int) -> np.ndarray:
    """First-order error of a row [C] from its four inputs [4, C].

    Four fma in a chain, each of at most the sum of sizes; silu grows that by at most 1.1 and adds 4 ulp. Unit length:
    the error of each element over the length, the length's own error from all of them, a chain of D/32 fma and 5 adds
    of positive terms, eps, half of that by the root and its rounding, and the quotient.
    """
    acc = (w * line).sum(axis=0)
    error = 1.1 * 4 * U * np.abs(w * line).sum(axis=0)
    y = silu(acc)
    error += 4 * ULP * np.abs(y)
    heads, errors = y.reshape(-1, D), error.reshape(-1, D)
    length = np.sqrt((heads**2).sum(axis=-1, keepdims=True) + truth.L2_EPS)
    unit = np.abs(heads) / length
    drift = (np.abs(heads) * errors).sum(axis=-1, keepdims=True) / length**2
    scaled = errors / length + unit * (drift + ((D // 32 + 5 + 1) / 2 + 2) * U)
    return np.where(np.arange(len(heads))[:, None] < normed, scaled, errors).reshape(-1) * (1 + 2.0**-10)


@pytest.mark.verify
class TestValue:
    """The kernel convolves, gates and scales."""

    @WIDTHS
    def test_rows_are_within_their_bound(self, device: Device, share: Share, D: int) -> None:
        """Every element lies within the derived bound of float64. Red: taps reversed, eps outside the root."""
        case = random_case(1, D, (0, 5), (4, 4))
        got = by_sequence(case.run(device)["y"], 2)

        w = case.inputs["w"].astype(np.float64)
        for b, (slot, start) in enumerate([(2, 0), (1, 5)]):
            x = by_sequence(case.inputs["x"], 2)[b].astype(np.float64)
            past = window(case.inputs["ring"][slot], start).astype(np.float64)
            expected, _ = truth.conv_silu_l2(x[None], past[None], w, 1, D)
            line = np.concatenate([past, x])
            allowed = np.stack([bound(line[t : t + 4], w, D, 2) for t in range(4)])
            assert_within(share, f"sequence at {start}", got[b], expected[0], allowed)

    @pytest.mark.parametrize(
        ("entry", "expected"), [(1e-4, 0.0662266179), (1e-5, 0.00993660792), (0.0, 0.0)]
    )
    def test_epsilon_lies_inside_the_root_under_the_sum(self, device: Device, entry: float, expected: float) -> None:
        """Case 08: equal entries of 128 come out as handed. Red: eps in a maximum, 0.0884; in the mean, 0.0088."""
        x = np.full((1, 1, 256), np.float32(silu_inverse(entry)))
        w = np.concatenate([np.zeros((3, 256)), np.ones((1, 256))]).astype(np.float32)
        got = case_of(x, w, np.zeros((2, RING, 256), np.float32), 128, [0], [1]).run(device)["y"]

        np.testing.assert_allclose(got, expected, rtol=2e-6)

    def test_a_one_hot_head_keeps_its_place(self, device: Device) -> None:
        """Case 08: one entry alone gets length one, all others stay zero. Red: a neighbour's sum."""
        x = np.zeros((1, 1, 256), np.float32)
        x[..., 77] = 30.0
        w = np.concatenate([np.zeros((3, 256)), np.ones((1, 256))]).astype(np.float32)
        got = case_of(x, w, np.zeros((2, RING, 256), np.float32), 128, [0], [1]).run(device)["y"][0]

        assert_same_bits(got, (np.arange(256) == 77).astype(np.float32))


def silu_inverse(y: float) -> float:
    """The small x with silu(x) = y, by fixed-point steps in float64."""
    x = 2 * y
    for _ in range(50):
        x = y * (1 + np.exp(-x))
    return float(x)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @WIDTHS
    def test_chunks_at_every_start_are_the_contract(self, device: Device, D: int) -> None:
        """Sequences at positions 0 to 9 follow the contract, ring included. Red: an fma split, a tap off by one."""
        positions = (0, 1, 2, 3, 4, 7, 8, 9)
        case = random_case(2, D, positions, (4, 1, 3, 2, 4, 1, 2, 3))

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("length", [7, 8, 9, 19])
    def test_ring_takes_the_last_inputs(self, device: Device, length: int) -> None:
        """The ring ends with the chunk's last 8 inputs, each at its position modulo 8. Red: the ring rotated by one."""
        case = random_case(3, 32, (5, 0), (length, length))

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize(("start", "length"), [(0, 1), (5, 2), (9, 3), (6, 11)])
    def test_ring_is_the_contracts_window(self, device: Device, start: int, length: int) -> None:
        """Behind a chunk the ring holds the three inputs that the contract hands on. Red: those of the start."""
        case = random_case(16, 32, (start,), (length,))
        past, x = window(case.inputs["ring"][1], start), case.inputs["x"]
        _, expected = conv_silu_l2(x[None], past[None], case.inputs["w"], 1, 32)

        assert_same_bits(window(case.run(device)["ring"][1], start + length), expected[0])

    @pytest.mark.parametrize("position", [255, 256, 257, 131071, 262143])
    def test_far_positions_are_the_contract(self, device: Device, position: int) -> None:
        """The ring's places follow the position anywhere in the context. Red: a ring indexed from the chunk's start."""
        case = random_case(4, 32, (position,), (1,))

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("k_heads", [0, 1, 2])
    def test_only_q_and_k_get_unit_length(self, device: Device, k_heads: int) -> None:
        """Values pass as silu left them. Red: one head too many, or too few, scaled."""
        g = rng(5)
        x, w = normal(g, 1, 2, 5 * 64), normal(g, 4, 5 * 64)
        case = case_of(x, w, np.zeros((2, RING, 5 * 64), np.float32), 64, [0], [2], k_heads=k_heads)

        assert_same_outputs(case.run(device), contract(case))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), D=st.sampled_from([32, 64, 128, 256]))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, D: int) -> None:
        """Values from subnormal to the largest follow the contract. Red: a flushed subnormal, an infinity dropped."""
        g = rng(seed)
        case = case_of(wild(g, 1, 3, 3 * D), wild(g, 4, 3 * D), wild(g, 2, RING, 3 * D), D, [9], [3])

        assert_same_outputs(case.run(device), contract(case))


    def test_positions_to_the_end_of_the_context_are_the_contract(self, device: Device) -> None:
        """Sequences at the first, around 256 and at the last positions find their own inputs in the ring.

        Red: a place in the ring that is not the position's, a position in 16 bits.
        """
        case = random_case(15, 32, (0, 255, 256, 257, 131071, 262141), (3, 1, 2, 3, 1, 3))

        assert_same_outputs(case.run(device), contract(case))


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    def test_each_tap_reads_its_own_token(self, device: Device) -> None:
        """Taps 1, 8, 64, 512 of large integer inputs show every token in its place. Red: taps reversed or shifted.

        Sums beyond 32 pass silu unchanged, because 1 + exp(-x) is then one.
        """
        x = (np.arange(1, 7)[None, :, None] * np.ones(32)).astype(np.float32)
        w = (np.array([1, 8, 64, 512])[:, None] * np.ones(32)).astype(np.float32)
        got = case_of(x, w, np.zeros((2, RING, 32), np.float32), 32, [0], [6], k_heads=0).run(device)["y"][:, 0]

        line = [0, 0, 0, 1, 2, 3, 4, 5, 6]
        expected = [sum(v * t for v, t in zip(line[i : i + 4], (1, 8, 64, 512), strict=True)) for i in range(6)]
        assert_same_bits(got, np.array(expected, np.float32))


class TestForms:
    """A chunk is its tokens one by one."""

    @pytest.mark.parametrize("pieces", [(96,), (40, 56), (1, 95), (95, 1), (32, 64)])
    def test_any_split_gives_the_same_bits(self, device: Device, pieces: tuple[int, ...]) -> None:
        """Case 06: 96 tokens in any pieces give the same rows and the same ring.

        Red: a piece that starts from zeros.
        """
        case = random_case(6, 32, (0,), (96,))
        whole, x = case.run(device), case.inputs["x"]
        start, rows, ring = 0, [], case.inputs["ring"]
        for length in pieces:
            piece = case_of(x[None, start : start + length], case.inputs["w"], ring, 32, [start], [length])
            got = piece.run(device)
            rows.append(got["y"])
            start, ring = start + length, got["ring"]

        assert_same_outputs({"y": np.concatenate(rows), "ring": ring}, whole)

    def test_chunk_is_token_by_token(self, device: Device) -> None:
        """Twelve tokens one at a time equal the chunk, at any start. Red: the window shifted after the store."""
        case = random_case(7, 64, (0, 6), (12, 12))
        whole, x = case.run(device), by_sequence(case.inputs["x"], 2)
        rows, ring = [], case.inputs["ring"]
        for t in range(12):
            one = case_of(x[:, t : t + 1], case.inputs["w"], ring, 64, (t, 6 + t), (1, 1)).run(device)
            rows.append(one["y"])
            ring = one["ring"]

        assert_same_outputs({"y": np.concatenate(rows), "ring": ring}, whole)

    @pytest.mark.parametrize("rejected", [1, 2, 3, 4])
    def test_rejected_drafts_leave_the_window(self, device: Device, rejected: int) -> None:
        """After a verify whose last rows were rejected, the next token finds its own three inputs, with no roll-back.

        Red: fault 17, a ring restored from a checkpoint that nobody wrote; a ring of 4 that a verify of 5 overruns.
        """
        case = random_case(8, 32, (11,), (5,))
        kept = 5 - rejected
        after = case.run(device)["ring"]
        clean = case_of(case.inputs["x"][None, :kept], case.inputs["w"], case.inputs["ring"], 32, [11], [kept])
        x = normal(rng(9), 1, 2, 96)

        rolled = case_of(x, case.inputs["w"], after, 32, [11 + kept], [2]).run(device)["y"]
        plain = case_of(x, case.inputs["w"], clean.run(device)["ring"], 32, [11 + kept], [2]).run(device)["y"]
        assert_same_bits(rolled, plain)


class TestInvariance:
    """A sequence's bits are its own."""

    def test_sequences_stand_alone(self, device: Device) -> None:
        """Alone, permuted, in other slots, among NaN: the same bits; absent sequences touch nothing.

        Red: B for slot.
        """
        case = random_case(10, 32, (0, 9, 4, 2), (3, 1, 0, 2), slots=(4, 3, 1, -1))

        assert_sequences_stand_alone(device, case)

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows of a fused projection give the same bits, padding kept. Red: a pitch taken as the width."""
        assert_pitch_free(device, random_case(11, 64, (0, 5), (2, 2)))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: a contraction, an approximate quotient."""
        host, cuda = both_devices
        g = rng(12)
        case = case_of(wild(g, 3, 9, 10 * 128), wild(g, 4, 1280), wild(g, 4, RING, 1280), 128, (0, 9, 2), (9, 4, 1),
                       k_heads=2)  # fmt: skip

        assert_same_outputs(case.run(cuda), case.run(host))


class TestFaults:
    """What a slot held before does not come back."""

    def test_a_slot_entered_again_is_clean(self, device: Device) -> None:
        """At position 0 a ring of NaN reads as zeros. Red: the ring read before the sequence began."""
        case = random_case(13, 32, (0,), (2,))
        nan = replace(case, inputs={**case.inputs, "ring": np.full_like(case.inputs["ring"], np.nan)})

        assert_same_bits(nan.run(device)["y"], case.run(device)["y"])

    def test_a_nan_stays_for_four_tokens(self, device: Device) -> None:
        """A NaN input shows in its own token and the three behind it, and no longer. Red: a NaN kept in a register."""
        case = random_case(14, 32, (5,), (8,))
        case.inputs["x"][2, 70] = np.nan
        got = case.run(device)["y"]

        assert_same_bits(np.isnan(got[:, 70]), np.isin(np.arange(8), [2, 3, 4, 5]))
        assert np.isfinite(np.delete(got, 70, axis=1)).all()

    @pytest.mark.parametrize("D", [32, 256])
    def test_a_length_that_overflows_is_loud(self, device: Device, D: int) -> None:
        """A finite query or key whose squares add up beyond float32 is NaN throughout; one a step below is not.

        Red: a head divided by an infinite length: a key of zeros, which the delta rule takes for a key like any other.
        """
        x = np.abs(np.concatenate([overflowing_rows(D)] * 3, axis=1))[None]
        x[..., 2 * D :] = 1
        w = np.float32([0, 0, 0, 1])[:, None] * np.ones(3 * D, np.float32)
        bad = np.isnan(case_of(x, w, np.zeros((2, RING, 3 * D), np.float32), D, [0], [3]).run(device)["y"])

        expected = OVERFLOWS[:, None] & (np.arange(3 * D) < 2 * D)
        assert_same_bits(bad.reshape(3, -1), expected)


class TestOffsets:
    """Offsets are counted in 64 bits."""

    def test_a_pool_beyond_32_bits_gives_the_same_bits(self, device: Device) -> None:
        """The last rings of a pool of the 27B with more than 2^31 elements. Red: an offset of a slot in an int."""
        g = rng(31)
        x, w, ring = normal(g, 1, 2, 10240), normal(g, 4, 10240), normal(g, 2, 8, 10240)

        assert_same_far_away(device, case_of(x, w, ring, 128, (9,), (2,), k_heads=16), slots=2**31 // (8 * 10240) + 8)

    @pytest.mark.parametrize("pitch", ["x_pitch", "y_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str) -> None:
        """Tokens 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, random_case(32, 32, (3,), (10,)), **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Ten heads of two sequences take three blocks of four warps each, for every 8 tokens.

        Red: fault 13, blocks whose work another block does again.
        """
        dims = resolve(instance(CONV, D=32), {"T": 33, "B": 2, "slots": 2, "C": 320})

        assert CONV.geometry(dims) == Geometry((3, 2, 5), (128, 1, 1))

    def test_each_row_is_made_once(self) -> None:
        """40 tokens of two normed heads take 80 sums through the warp, as a chunk of 40 and as one of 16 and 24.

        Red: fault 13, a segment that goes on to the end of the chunk.
        """
        host = HostDevice()
        shuffles = []
        for length in (40, 16, 24):
            random_case(33, 32, (3,), (length,)).run(host)
            shuffles.append(host.counters["shuffles"])

        assert shuffles == [2 * 40 * 5, 2 * 16 * 5, 2 * 24 * 5]


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"C": 80}, "C = 80 channels must be heads of D = 32"),
            ({"C": 0}, "C = 0 channels must be heads of D = 32"),
            ({"normed_heads": 4}, "normed_heads = 4 exceed C"),
            ({"normed_heads": -1}, "normed_heads = -1 exceed C"),
            ({"T": 0}, "T = 0 must be between 1 and"),
            ({"T": 2**20}, "T = 1048576 must be between 1 and 524280"),
            ({"B": 0}, "B = 0 must be between 1 and 65535"),
            ({"slots": 0}, "slots = 0 must be between 1 and"),
            ({"x_pitch": 92}, "x_pitch = 92 is less than the row"),
            ({"x_pitch": 98}, "x_pitch = 98 must be a multiple of 4"),
            ({"y_pitch": 64}, "y_pitch = 64 is less than the row"),
            ({"y_pitch": 98}, "y_pitch = 98 must be a multiple of 4"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"T": 1, "B": 1, "slots": 1, "C": 96, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(CONV, given, {}, {"D": 32}).run(device)
