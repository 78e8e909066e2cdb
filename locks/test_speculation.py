"""Locks of the speculation room: pack drafts, accept what plain decoding would have made, pick the last row."""

import itertools
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.speculation import PICK_ROWS, SPECULATION_ACCEPT, SPECULATION_PACK
from locks.support import PROPERTY, Case, assert_pitch_free, assert_same_bits, assert_same_outputs, normal, rng
from oracle import speculation as truth
from oracle.bits import greedy as plain
from oracle.bits.speculation import Lanes, accept, pack, pick_rows
from oracle.errors import LanelockError

V = 50  # tokens
LIMIT = 40


def i32(values: object) -> np.ndarray:
    """An int32 array."""
    return np.array(values, np.int32)


def lanes(
    B: int, T: int, *, position: Sequence[int] | None = None, flags: Sequence[int] | None = None, limit: int = LIMIT
) -> Lanes:
    """Sequences with recognisable rubbish in everything that an accept may or may not change."""
    g = rng(B, T)
    history = g.integers(-900, -800, (B, limit + 1)).astype(np.int32)
    where = i32(range(3, 3 + B) if position is None else position)
    return Lanes(
        i32(range(B)), i32([0] * B if flags is None else flags), where, history,
        g.integers(-700, -600, (T, B)).astype(np.int32), i32([-5] * B), i32([-6] * B),
    )  # fmt: skip


def accept_case(
    tokens: np.ndarray, picks: np.ndarray, pick_flags: np.ndarray, length: np.ndarray, state: Lanes, limit: int = LIMIT
) -> Case:
    """An accept of rows [T, B]; `taken` starts as rubbish of its own."""
    T, B = tokens.shape
    inputs = {"tokens": tokens, "picks": picks, "pick_flags": pick_flags, "length": length, "taken": i32([-7] * B)}
    held = {f.name: getattr(state, f.name) for f in fields(Lanes)}
    return Case(SPECULATION_ACCEPT, {"B": B, "T": T, "limit": limit}, {**inputs, **held})


def expected_of(case: Case, state: Lanes) -> dict[str, np.ndarray]:
    """What the contract makes of an accept."""
    given_rows = [case.inputs[n] for n in ("tokens", "picks", "pick_flags", "length")]
    after = accept(*given_rows, state, int(case.dims["limit"]))
    taken = np.where(case.inputs["length"] < 0, -7, after.pending).astype(np.int32)
    return {**{f.name: getattr(after, f.name) for f in fields(Lanes)}, "taken": taken}


def random_accept(seed: int, B: int, T: int) -> tuple[Case, Lanes]:
    """Rows that agree with probability 2/3; some picks are flagged, some sequences short, absent or near their end."""
    g = rng(seed, B, T)
    state = lanes(B, T, position=g.integers(0, LIMIT, B), flags=[0] * B)
    picks = g.integers(0, V, (T, B)).astype(np.int32)
    right, wrong = np.roll(picks, 1, axis=0), g.integers(0, V, (T, B))
    tokens = np.where(g.random((T, B)) < 2 / 3, right, wrong).astype(np.int32)
    flags = g.choice([0, 0, 0, 0, 0, 1, 2], (T, B)).astype(np.int32)
    picks[flags > 0] = 0
    return accept_case(tokens, picks, flags, g.integers(-1, T + 1, B).astype(np.int32), state), state


@pytest.mark.verify
class TestPack:
    """Rows of a verify."""

    @pytest.mark.parametrize("T", [1, 2, 3, 4, 5])
    def test_rows_are_the_contract(self, device: Device, T: int) -> None:
        """The current token, then its drafts, as many rows as there is room for. Red: drafts of a neighbour."""
        g = rng(1, T)
        case = pack_case(
            g.integers(0, V, 133), g.integers(0, V, (T - 1, 133)), g.choice([0, 0, 0, 1, 3], 133),
            g.integers(0, 30, 133), g.integers(0, 30, 133),
        )  # fmt: skip
        tokens, length = pack(*(case.inputs[n] for n in ("current", "drafts", "flags", "position", "end")))

        assert_same_outputs(case.run(device), {"tokens": tokens, "length": length})

    @pytest.mark.parametrize("picks", [(2, 3), (2, 5), (1, 4)])
    def test_truth_needs_one_pick_more_than_drafts(self, picks: tuple[int, int]) -> None:
        """Three drafts meet four picks of the same sequences. Red: a last pick left out, unseen."""
        with pytest.raises(ValueError, match="do not fit picks"):
            truth.accept(np.zeros((2, 3), np.int64), np.zeros(picks, np.int64))

    def test_lengths_are_the_truth(self, device: Device) -> None:
        """A sequence has rows up to its end and no further. Red: one row too many at the end, or one too few."""
        end, position = np.arange(20), np.full(20, 8)
        got = pack_case(range(20), np.zeros((4, 20)), [0] * 20, position, end).run(device)["length"]

        assert_same_bits(got.astype(np.int64), truth.rows(end, position, 4))

    @pytest.mark.parametrize("flag", [1, 2, 3])
    def test_a_flagged_sequence_has_no_rows(self, device: Device, flag: int) -> None:
        """A sequence that failed or is full is not fed, its neighbours are. Red: the flag of another sequence."""
        got = pack_case([7, 8, 9], np.ones((1, 3)), [0, flag, 0], [0, 0, 0], [9, 9, 9]).run(device)["length"]

        assert_same_bits(got, i32([2, 0, 2]))

    def test_far_ends_do_not_wrap(self, device: Device) -> None:
        """Positions at the end of an int give rows, not a wrapped difference. Red: an end taken modulo 2^16."""
        top = 2**31 - 1
        got = pack_case([1, 1], np.ones((3, 2)), [0, 0], [top - 2, 0], [top, top]).run(device)["length"]

        assert_same_bits(got, i32([2, 4]))


def pack_case(current: object, drafts: object, flags: object, position: object, end: object) -> Case:
    """A pack of drafts [T - 1, B]."""
    names = ("current", "drafts", "flags", "position", "end")
    inputs = {n: i32(v) for n, v in zip(names, (current, drafts, flags, position, end), strict=True)}
    return Case(SPECULATION_PACK, {"B": len(inputs["current"]), "T": len(inputs["drafts"]) + 1}, inputs)


@pytest.mark.verify
class TestAccept:
    """Drafts stand as long as plain decoding would have made them."""

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_every_pattern_is_the_truth(self, device: Device, k: int) -> None:
        """All 2^k patterns of right and wrong drafts keep the rows up to the first wrong one. Red: a wrong draft's
        successors accepted because they agree again.
        """
        patterns = np.array(list(itertools.product([True, False], repeat=k)))
        B = len(patterns)
        picks = rng(2, k).integers(1, V, (B, k + 1))
        drafts = np.where(patterns, picks[:, :-1], 0)
        tokens = np.concatenate([np.zeros((B, 1)), drafts], axis=1)
        case = accept_case(i32(tokens.T), i32(picks.T), i32(np.zeros((k + 1, B))), i32([k + 1] * B), lanes(B, k + 1))
        got = case.run(device)

        kept, following = truth.accept(drafts, picks)
        assert_same_bits(got["pending"].astype(np.int64), kept)
        assert_same_bits(got["taken"].astype(np.int64), kept)
        assert_same_bits(got["current"].astype(np.int64), following)
        assert_same_bits(got["position"], i32(np.arange(3, 3 + B) + kept))

    @pytest.mark.parametrize(("B", "T"), [(1, 1), (40, 2), (40, 3), (40, 4), (200, 5)])
    def test_everything_is_the_contract(self, device: Device, B: int, T: int) -> None:
        """Flags, ends, short and absent sequences follow the contract, and the rest keeps its bytes.

        Red: `<` for `<=`.
        """
        case, state = random_accept(3, B, T)

        assert_same_outputs(case.run(device), expected_of(case, state))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), T=st.integers(1, 5))
    def test_any_rows_are_the_contract(self, device: Device, seed: int, T: int) -> None:
        """The same for any rows. Red: a walk that goes on behind a flagged pick."""
        case, state = random_accept(seed, 30, T)

        assert_same_outputs(case.run(device), expected_of(case, state))

    def test_a_sequence_without_a_part_keeps_everything(self, device: Device) -> None:
        """A length below zero changes nothing, a length of zero keeps no row.

        Red: the pending rows of a bystander lost.
        """
        zeros, state = i32(np.zeros((2, 2))), lanes(2, 2)
        case = accept_case(zeros, zeros, zeros, i32([-1, 0]), state)
        got = case.run(device)

        kept = {f.name: getattr(state, f.name).copy() for f in fields(Lanes)} | {"taken": i32([-7, 0])}
        kept["pending"][1], kept["began"][1] = 0, 4
        assert_same_outputs(got, kept)

    @pytest.mark.parametrize("flag", [1, 2])
    @pytest.mark.parametrize("row", [0, 1, 2])
    def test_a_flagged_pick_freezes_where_plain_decoding_would(self, device: Device, flag: int, row: int) -> None:
        """A NaN in row t stops the sequence behind row t - 1 with a valid token.

        Red: the flagged row counted as kept.
        """
        tokens, picks = i32([[5], [1], [2], [3]]), i32([[1], [2], [3], [4]])
        flags = i32(np.zeros((4, 1)))
        flags[row], picks[row] = flag, 0
        got = accept_case(tokens, picks, flags, i32([4]), lanes(1, 4)).run(device)

        assert (got["pending"][0], got["flags"][0], got["current"][0], got["position"][0]) == (row, flag, 0, 3 + row)

    @pytest.mark.parametrize("left", [1, 2, 3])
    def test_a_full_cache_stops_the_walk(self, device: Device, left: int) -> None:
        """The walk ends with the cache, the last pick is kept, and the flag says so. Red: a row behind the cache."""
        tokens, picks = i32([[5], [1], [2], [3]]), i32([[1], [2], [3], [4]])
        state = lanes(1, 4, position=[LIMIT - left])
        got = accept_case(tokens, picks, i32(np.zeros((4, 1))), i32([4]), state).run(device)

        assert (got["pending"][0], got["flags"][0], got["position"][0]) == (left, 3, LIMIT - 1)
        assert_same_bits(got["history"][0, LIMIT - left + 1 :], picks[:left, 0])

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_steps_give_the_stream_of_plain_decoding(self, device: Device, k: int) -> None:
        """Verifies of good and bad drafts leave history, position and flag of one pick at a time, to the cache's end.

        The model is a table: the token behind token x at position p is table[p, x]. Red: speculation that ends one
        token before, or behind, plain decoding.
        """
        g, B, limit = rng(4, k), 6, 17
        table = g.integers(0, V, (limit + 8, V)).astype(np.int32)
        state, expected = lanes(B, k + 1, limit=limit), plain_stream(table, lanes(B, k + 1, limit=limit), limit)
        for _ in range(limit):
            good = [state.current]
            for j in range(k):
                good.append(table[state.position + j, good[-1]])
            drafts = np.where(g.random((k, B)) < 0.7, np.stack(good[1:]), 0).astype(np.int32)
            ends = i32([limit] * B)
            packed = pack_case(state.current, drafts, state.flags, state.position, ends).run(device)
            rows, at = packed["tokens"], state.position + np.arange(k + 1)[:, None]
            picks = table[at, rows]
            length = np.where(state.flags == 0, packed["length"], -1).astype(np.int32)
            got = accept_case(rows, picks, np.zeros_like(picks), length, state, limit).run(device)
            state = Lanes(**{f.name: got[f.name] for f in fields(Lanes)})

        for name, value in expected.items():
            assert_same_bits(getattr(state, name), value, name)

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree. Red: a thread behind the batch that writes."""
        host, cuda = both_devices
        case, _ = random_accept(5, 300, 5)

        assert_same_outputs(case.run(cuda), case.run(host))

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """A history with longer rows gives the same, and its padding stays. Red: limit + 1 taken for the pitch."""
        assert_pitch_free(device, random_accept(6, 5, 3)[0])

    def test_rows_taken_need_not_be_counted(self, device: Device) -> None:
        """Without `taken` everything else is the same. Red: a null written."""
        case, state = random_accept(7, 5, 3)
        without = Case(case.kernel, case.dims, {**case.inputs, "taken": None}).run(device)

        assert_same_outputs(without, {n: v for n, v in expected_of(case, state).items() if n != "taken"})


def plain_stream(table: np.ndarray, state: Lanes, limit: int) -> dict[str, np.ndarray]:
    """The same decode one pick at a time, through the contract of pick and advance."""
    step = plain.Sequences(state.current, state.flags, state.position, state.history)
    while (step.flags == 0).any():
        logits = np.zeros((len(step.tokens), V), np.float32)
        logits[np.arange(len(logits)), table[step.positions, step.tokens]] = 1
        step = plain.advance(logits, step, limit)
    return {"current": step.tokens, "flags": step.flags, "position": step.positions, "history": step.history}


class TestPickRows:
    """The row a next draft starts from."""

    @pytest.mark.parametrize(("T", "B", "K"), [(1, 1, 1), (5, 3, 32), (5, 33, 200), (2, 2, 1312)])
    def test_rows_are_the_contract_and_the_truth(self, device: Device, T: int, B: int, K: int) -> None:
        """Each sequence gets its own last row. Red: fault 9, row 0 also where the draft was accepted."""
        g = rng(8, T, B, K)
        x, y, count = normal(g, T, B, K), normal(g, B, K), g.integers(1, T + 1, B).astype(np.int32)
        got = pick_case(x, count, y).run(device)["y"]

        assert_same_bits(got, pick_rows(x, count, y))
        assert_same_bits(got.astype(np.float64), truth.pick_rows(x.astype(np.float64), count))

    def test_a_sequence_that_took_none_keeps_its_row(self, device: Device) -> None:
        """A count of zero or below leaves the row, also a NaN. Red: row -1 of the chunk read."""
        x, y = normal(rng(9), 3, 3, 8), normal(rng(10), 3, 8)
        y[1] = np.nan

        assert_same_bits(pick_case(x, i32([2, 0, -1]), y).run(device)["y"], np.stack([x[1, 0], y[1], y[2]]))

    def test_rows_pass_any_bits(self, device: Device) -> None:
        """A row is copied, not computed with. Red: a NaN or a subnormal changed."""
        x = rng(11).integers(0, 2**32, (2, 2, 64), dtype=np.uint32).view(np.float32)
        got = pick_case(x, i32([1, 2]), np.zeros((2, 64), np.float32)).run(device)["y"]

        assert_same_bits(got.view(np.uint32), np.stack([x[0, 0], x[1, 1]]).view(np.uint32))

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Rows further apart give the same. Red: the input's pitch for the output's."""
        assert_pitch_free(device, pick_case(normal(rng(12), 3, 2, 40), i32([3, 1]), normal(rng(13), 2, 40)))


def pick_case(x: np.ndarray, count: np.ndarray, y: np.ndarray) -> Case:
    """Rows [T, B, K] of which each sequence keeps one."""
    T, B, K = x.shape
    return Case(PICK_ROWS, {"T": T, "B": B, "K": K}, {"x": x, "count": count, "y": y})


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (SPECULATION_PACK, {"B": 0, "T": 2}, "B = 0 must be between 1 and"),
            (SPECULATION_PACK, {"B": 1, "T": 6}, "T = 6 must be between 1 and 5, the rows of a verify"),
            (SPECULATION_PACK, {"B": 1, "T": 0}, "T = 0 must be between 1 and 5"),
            (SPECULATION_ACCEPT, {"B": 2**21, "T": 2, "limit": 8}, "B = 2097152 must be between 1 and"),
            (SPECULATION_ACCEPT, {"B": 1, "T": 6, "limit": 8}, "T = 6 must be between 1 and 5"),
            (SPECULATION_ACCEPT, {"B": 1, "T": 2, "limit": 0}, "limit = 0 must be between 1 and"),
            (SPECULATION_ACCEPT, {"B": 1, "T": 2, "limit": 2**31 - 1}, "limit = 2147483647 must be between 1 and"),
            (SPECULATION_ACCEPT, {"B": 1, "T": 2, "limit": 8, "columns": 8}, "columns = 8 must be limit \\+ 1"),
            (SPECULATION_ACCEPT, {"B": 1, "T": 2, "limit": 8, "history_pitch": 8}, "history_pitch = 8 is less"),
            (PICK_ROWS, {"B": 0, "T": 2, "K": 8}, "B = 0 must be between 1 and"),
            (PICK_ROWS, {"B": 1, "T": 0, "K": 8}, "T = 0 must be between 1 and"),
            (PICK_ROWS, {"B": 1, "T": 2, "K": 0}, "K = 0 must be between 1 and"),
            (PICK_ROWS, {"B": 1, "T": 2, "K": 8, "x_pitch": 7}, "x_pitch = 7 is less than the row"),
            (PICK_ROWS, {"B": 1, "T": 2, "K": 8, "y_pitch": 7}, "y_pitch = 7 is less than the row"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: object, dims: dict[str, int], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, dims, {}).run(device)  # type: ignore[arg-type]  # one of three kernels
