"""Locks of the greedy room: pick, and pick with advance; from logits, or from the keys of many blocks."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Kernel, Value
from kernels.greedy import (
    GREEDY_ADVANCE,
    GREEDY_ADVANCE_PARTS,
    GREEDY_PART,
    GREEDY_PICK,
    GREEDY_PICK_PARTS,
)
from locks.support import (
    PROPERTY,
    Case,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    normal,
    rng,
    wild,
)
from oracle import greedy as truth
from oracle.bits.greedy import CACHE_FULL, SAW_NAN, SAW_NOTHING, Sequences, advance, pick
from oracle.errors import LanelockError

V27 = 248320  # the 27B's vocabulary: its remainder by 1024 is 512
LIMIT = 16


def pick_case(logits: np.ndarray) -> Case:
    """Rows of logits to pick from, one block a row."""
    return Case(GREEDY_PICK, {"rows": logits.shape[0], "V": logits.shape[1]}, {"logits": logits})


def parts_of(device: Device, logits: np.ndarray, tile: int) -> np.ndarray:
    """The keys of the tiles of each row."""
    dims = {"rows": logits.shape[0], "V": logits.shape[1], "tile": tile}
    keys: np.ndarray = Case(GREEDY_PART, dims, {"logits": logits}).run(device)["parts"]
    return keys


def pick_from_parts(device: Device, logits: np.ndarray, tile: int) -> dict[str, np.ndarray]:
    """Token and flag through the two launches of many blocks a row."""
    parts = parts_of(device, logits, tile)
    dims = {"rows": parts.shape[0], "tiles": parts.shape[1]}
    return Case(GREEDY_PICK_PARTS, dims, {"parts": parts}).run(device)


def sequences(count: int, flagged: tuple[int, ...] = (), position: int = 3) -> Sequences:
    """Sequences with a token, a position and a history each."""
    flags = np.zeros(count, np.int32)
    flags[list(flagged)] = SAW_NAN
    tokens = np.arange(100, 100 + count, dtype=np.int32)
    history = np.arange(count * (LIMIT + 1), dtype=np.int32).reshape(count, LIMIT + 1) + 1000
    return Sequences(tokens, flags, np.full(count, position, np.int32), history)


def advance_case(logits: np.ndarray, state: Sequences) -> Case:
    """Sequences that pick from logits and advance."""
    dims = {"rows": logits.shape[0], "V": logits.shape[1], "limit": LIMIT}
    return Case(GREEDY_ADVANCE, dims, {"logits": logits, **asdict(state)})


def contract(logits: np.ndarray) -> dict[str, np.ndarray]:
    """What the contract picks."""
    tokens, flags = pick(logits)
    return {"tokens": tokens, "flags": flags}


def row(V: int = V27, fill: float = -1.0, **at: float) -> np.ndarray:
    """One row of a fill value with some places set, written as i5=1.0 for index 5."""
    logits = np.full(V, fill, np.float32)
    for place, value in at.items():
        logits[int(place[1:])] = value
    return logits


#: NaN of other payloads than the usual one. As float32: through a Python float a payload may be lost.
POISON = np.uint32(0xFFFFFFFF).view(np.float32)
SIGNALLING = np.uint32(0x7F800001).view(np.float32)

#: Case 36: rows of the 27B's vocabulary, the token that must be picked and the flag.
CASE_36 = [
    ("two maxima far apart", row(i5=2.0, i248319=2.0), 5, 0),
    ("a tie in one warp", row(i64=2.0, i65=2.0), 64, 0),
    ("a tie across warps, the later warp lower in its lane", row(i63=2.0, i96=2.0), 63, 0),
    ("a tie across turns of one thread", row(i1029=2.0, i5=2.0), 5, 0),
    ("a tie across blocks", row(i8191=2.0, i8192=2.0), 8191, 0),
    ("a tie of everything", row(), 0, 0),
    ("the highest in the tail of 512", row(i248000=2.0), 248000, 0),
    ("the highest last", row(i248319=2.0), 248319, 0),
    ("a NaN first", row(i0=np.nan, i7=2.0), 0, SAW_NAN),
    ("a NaN in the middle", row(i124160=np.nan, i7=2.0), 0, SAW_NAN),
    ("a NaN last", row(i248319=np.nan, i7=2.0), 0, SAW_NAN),
    ("a NaN of negative sign", row(i9=-np.nan, i7=2.0), 0, SAW_NAN),
    ("a NaN whose every bit is set, as in memory nobody wrote", row(i9=POISON, i7=2.0), 0, SAW_NAN),
    ("a signalling NaN", row(i9=SIGNALLING, i7=2.0), 0, SAW_NAN),
    ("only NaN", row(fill=np.nan), 0, SAW_NAN),
    ("only -inf", row(fill=-np.inf), 0, SAW_NOTHING),
    ("all -inf but the last", row(fill=-np.inf, i248319=-3.0), 248319, 0),
    ("all below -1e30", row(fill=-3e38, i77=-2e38), 77, 0),
    ("+inf", row(i9=np.inf, i11=np.inf), 9, 0),
    ("+inf and NaN together", row(i9=np.inf, i11=np.nan), 0, SAW_NAN),
    ("-0.0 before 0.0", row(i3=-0.0, i8=0.0), 3, 0),
    ("0.0 before -0.0", row(i3=0.0, i8=-0.0), 3, 0),
    ("the smallest subnormal above zero", row(fill=0.0, i9=2.0**-149), 9, 0),
    ("a subnormal below zero", row(fill=-(2.0**-148), i9=-(2.0**-149)), 9, 0),
]
TOKENS = np.array([token for _, _, token, _ in CASE_36], np.int32)
FLAGS = np.array([flag for _, _, _, flag in CASE_36], np.int32)
FAULTY = {"tokens": TOKENS, "flags": FLAGS}


def case_36() -> np.ndarray:
    """All rows of case 36."""
    return np.stack([logits for _, logits, _, _ in CASE_36])


@pytest.mark.verify
class TestValue:
    """The kernel picks the highest logit."""

    def test_token_is_the_argmax(self, device: Device) -> None:
        """Random logits of the 27B's vocabulary give the oracle's token. Red: one thread's share skipped."""
        logits = normal(rng(1), 3, V27)

        tokens, _ = truth.greedy(logits.astype(np.float64))
        assert_same_bits(pick_case(logits).run(device)["tokens"].astype(np.int64), tokens)


@pytest.mark.verify
class TestContract:
    """The kernels are the contract."""

    def test_case_36_one_block_a_row(self, device: Device) -> None:
        """Ties, NaN, infinities, zeros and the tail of a tile have their stated tokens. Red: last of a tie wins."""
        assert_same_outputs(pick_case(case_36()).run(device), FAULTY)

    def test_case_36_many_blocks_a_row(self, device: Device) -> None:
        """The same through tiles of 8192. Red: the padding of the last tile returned."""
        assert_same_outputs(pick_from_parts(device, case_36(), 8192), FAULTY)

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), V=st.integers(1, 3000), levels=st.integers(1, 4))
    def test_any_row_with_many_ties_is_the_contract(self, device: Device, seed: int, V: int, levels: int) -> None:
        """Rows of few different values, at any vocabulary, pick the first of the highest. Red: `>=` for `>`."""
        logits = normal(rng(seed), levels)[rng(seed, 1).integers(0, levels, (3, V))]

        assert_same_outputs(pick_case(logits).run(device), contract(logits))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), V=st.integers(1, 3000))
    def test_any_values_are_the_contract(self, device: Device, seed: int, V: int) -> None:
        """Logits of every size and sign are ordered as numbers. Red: negative values compared as bits."""
        logits = wild(rng(seed), 3, V)

        assert_same_outputs(pick_case(logits).run(device), contract(logits))

    def test_advance_is_the_contract(self, device: Device) -> None:
        """Live, flagged, faulty and full sequences each do what the contract says. Red: a frozen one advanced."""
        logits, state = normal(rng(2), 6, 1000), sequences(6, flagged=(1,))
        logits[2, 5], logits[3] = np.nan, -np.inf
        state.positions[4] = LIMIT - 1

        assert_same_outputs(advance_case(logits, state).run(device), asdict(advance(logits, state, LIMIT)))


class TestExactIntegers:
    """Each index can be the pick."""

    def test_a_place_is_picked_where_it_is_highest(self, device: Device) -> None:
        """At every end of a warp, a block and a row the highest place wins. Red: a loop bound off by one."""
        places = np.array([0, 1, 31, 32, 33, 63, 64, 511, 991, 992, 1022, 1023, 1024, 1025, 2047, 2048, 2049], np.int32)
        logits = np.full((len(places), 2050), -1, np.float32)
        logits[np.arange(len(places)), places] = 1

        assert_same_bits(pick_case(logits).run(device)["tokens"], places)


class TestForms:
    """One block a row and many blocks a row give the same tokens."""

    @pytest.mark.parametrize(("V", "tile"), [(70, 1), (300, 31), (300, 32), (5000, 1024), (5000, 5000), (5000, 8192)])
    def test_any_tile_gives_the_same_pick(self, device: Device, V: int, tile: int) -> None:
        """Tiles of any width, also wider than the row, give the pick of one block. Red: a tile's end past V."""
        logits = rng(3).integers(0, 9, (3, V)).astype(np.float32)
        logits[1, V - 1] = np.nan

        assert_same_outputs(pick_from_parts(device, logits, tile), pick_case(logits).run(device))

    def test_advance_from_parts_is_advance(self, device: Device) -> None:
        """Advance from the keys of many blocks equals advance from logits. Red: history written one place off."""
        logits, state = normal(rng(4), 5, 1000), sequences(5, flagged=(3,))
        logits[1, 7] = np.nan
        parts = parts_of(device, logits, 300)
        dims = {"rows": 5, "tiles": parts.shape[1], "limit": LIMIT}

        two = Case(GREEDY_ADVANCE_PARTS, dims, {"parts": parts, **asdict(state)}).run(device)
        assert_same_outputs(two, advance_case(logits, state).run(device))

    def test_advance_picks_what_pick_picks(self, device: Device) -> None:
        """Pick and advance agree on token and flag of live sequences. Red: two orders of comparison."""
        logits = rng(5).integers(0, 9, (4, 1000)).astype(np.float32)
        logits[2, 0] = np.nan
        moved = advance_case(logits, sequences(4)).run(device)

        assert_same_outputs({n: moved[n] for n in ("tokens", "flags")}, pick_case(logits).run(device))


class TestAdvance:
    """A sequence moves one position a step, and stops where it must."""

    def test_token_is_written_behind_the_position(self, device: Device) -> None:
        """The token of position p + 1 lands in history[p + 1] and nowhere else. Red: history[p]."""
        state = sequences(1)
        got = advance_case(row(50, i42=1.0)[None], state).run(device)["history"]

        expected = state.history.copy()
        expected[0, 4] = 42
        assert_same_bits(got, expected)

    def test_a_flagged_sequence_is_frozen(self, device: Device) -> None:
        """Whatever its logits, nothing of a flagged sequence changes. Red: the flag cleared by a good step."""
        state = sequences(2, flagged=(0, 1))
        got = advance_case(normal(rng(6), 2, 50), state).run(device)

        assert_same_outputs(got, asdict(state))

    @pytest.mark.parametrize(("fault", "flag"), [(np.nan, SAW_NAN), (-np.inf, SAW_NOTHING)])
    def test_a_fault_freezes_only_its_sequence(self, device: Device, fault: float, flag: int) -> None:
        """A row without a pick gets its flag and a valid token and stays; the others go on. Red: all frozen."""
        logits = normal(rng(7), 3, 50)
        logits[1] = fault
        got = advance_case(logits, sequences(3)).run(device)

        assert (got["flags"].tolist(), got["positions"].tolist(), int(got["tokens"][1])) == ([0, flag, 0], [4, 3, 4], 0)

    def test_the_last_token_is_kept_and_the_sequence_stops(self, device: Device) -> None:
        """At the end of the cache the token is written, the position stays, and the flag says why. Red: p = limit."""
        got = advance_case(row(50, i42=1.0)[None], sequences(1, position=LIMIT - 1)).run(device)

        seen = (int(got["tokens"][0]), int(got["history"][0, LIMIT]), int(got["positions"][0]), int(got["flags"][0]))
        assert seen == (42, 42, LIMIT - 1, CACHE_FULL)

    def test_one_step_before_the_end_is_an_ordinary_step(self, device: Device) -> None:
        """From limit - 2 the sequence moves to limit - 1 and lives. Red: `<=` for `<`."""
        got = advance_case(row(50)[None], sequences(1, position=LIMIT - 2)).run(device)

        assert (int(got["positions"][0]), int(got["flags"][0])) == (LIMIT - 1, 0)


class TestInvariance:
    """A row's token is its own."""

    def test_pick_does_not_depend_on_the_batch(self, device: Device) -> None:
        """A row gives its token alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, pick_case(normal(rng(8), 3, 100)))

    def test_advance_does_not_depend_on_the_batch(self, device: Device) -> None:
        """The same with state. Red: a neighbour's flag read."""
        assert_stands_alone(device, advance_case(normal(rng(9), 3, 100), sequences(3)))

    @pytest.mark.parametrize("extra", [1, 8, 128])
    def test_pick_does_not_depend_on_the_pitch(self, device: Device, extra: int) -> None:
        """Rows further apart, also unaligned, give the same tokens. Red: padding read as logits."""
        case = pick_case(normal(rng(10), 3, 101))

        assert_same_outputs(case.with_pitch(extra).run(device), case.run(device))

    def test_advance_does_not_depend_on_pitches(self, device: Device) -> None:
        """The same for logits and history. Red: the history's pitch taken as its width."""
        assert_pitch_free(device, advance_case(normal(rng(11), 3, 101), sequences(3)))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on case 36, keys included. Red: an order of two's complement on one device."""
        host, cuda = both_devices

        assert_same_bits(parts_of(cuda, case_36(), 8192), parts_of(host, case_36(), 8192))


class TestMemory:
    """Outputs are written in full and nothing else is."""

    def test_pick_is_fully_written(self, device: Device) -> None:
        """Tokens and flags do not show what was there, for a flagged row either. Red: a flagged row left as it was."""
        logits = normal(rng(12), 3, 50)
        logits[1] = np.nan
        assert_fully_written(device, pick_case(logits))

    def test_keys_are_fully_written(self, device: Device) -> None:
        """The same for the keys of tiles. Red: the last tile's key not stored."""
        dims = {"rows": 2, "V": 1500, "tile": 400}
        assert_fully_written(device, Case(GREEDY_PART, dims, {"logits": normal(rng(13), 2, 1500)}))


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (GREEDY_PICK, {"V": 0}, "V = 0 must be between 1 and"),
            (GREEDY_PICK, {"V": 2**31 - 1024}, "V = 2147482624 must be between 1 and 2147482623"),
            (GREEDY_PART, {"tile": 2**30 + 1, "tiles": 1}, "tile = 1073741825 must be between 1 and 1073741824"),
            (GREEDY_ADVANCE, {"limit": 2**31 - 1}, "limit = 2147483647 must be between 1 and 2147483646"),
            (GREEDY_PICK, {"rows": 0}, "rows = 0 must be between 1 and"),
            (GREEDY_PICK, {"logits_pitch": 49}, "logits_pitch = 49 is less than the row it has to hold, V = 50"),
            (GREEDY_PART, {"tile": 0}, "tile = 0 must be between 1 and"),
            (GREEDY_PART, {"tiles": 2, "tile": 10}, "2 tiles of 10 do not cover V = 50 logits exactly"),
            (GREEDY_PART, {"V": 2**21, "tile": 1}, "tiles = 2097152 must be between 1 and 65535"),
            (GREEDY_PICK_PARTS, {"tiles": 0}, "tiles = 0 must be between 1 and 65535"),
            (GREEDY_ADVANCE, {"limit": 0}, "limit = 0 must be between 1 and"),
            (GREEDY_ADVANCE, {"columns": 16}, r"columns = 16 must be limit \+ 1, limit = 16"),
            (GREEDY_ADVANCE_PARTS, {"history_pitch": 16}, "history_pitch = 16 is less than the row"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: Kernel, dims: dict[str, Value], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given_dims: dict[str, Value] = {"rows": 3, "V": 50, "tiles": 4, "limit": LIMIT}
        if kernel is GREEDY_PART:
            del given_dims["tiles"]

        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, {**given_dims, **dims}, {}).run(device)
