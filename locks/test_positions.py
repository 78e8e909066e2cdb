"""Locks of the positions room: positions of a chunk's rows."""

import numpy as np
import pytest

from harness.device import Device
from kernels.positions import SET_POSITIONS
from locks.support import Case, assert_fully_written, assert_same_bits, rng
from oracle import positions as truth
from oracle.bits.positions import positions
from oracle.errors import LanelockError

SHAPES = [(1, 1), (3, 5), (33, 16), (64, 1), (1, 512), (64, 512)]


def case_of(start: np.ndarray, T: int) -> Case:
    """A chunk of T tokens for each sequence."""
    return Case(SET_POSITIONS, {"B": len(start), "T": T}, {"start": start.astype(np.int32)})


def starts(seed: int, B: int) -> np.ndarray:
    """Positions of a long context."""
    return rng(seed).integers(0, 262144 - 512, B)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract and the truth."""

    @pytest.mark.parametrize(("B", "T"), SHAPES)
    def test_positions_are_the_contract(self, device: Device, B: int, T: int) -> None:
        """Row t * B + b stands at start[b] + t. Red: rows taken sequence-major, a grid sized by B."""
        start = starts(1, B)

        assert_same_bits(case_of(start, T).run(device)["positions"], positions(start.astype(np.int32), T))

    def test_positions_are_the_truth(self, device: Device) -> None:
        """The oracle's positions are the same integers. Red: B and T exchanged."""
        start = starts(2, 3)

        got = case_of(start, 7).run(device)["positions"]
        assert_same_bits(got.astype(np.int64), truth.positions(start.astype(np.int64), 7, 262144))


class TestInvariance:
    """A sequence's positions are its own."""

    def test_sequence_does_not_depend_on_the_batch(self, device: Device) -> None:
        """Alone and as any of 64, a sequence has the same positions. Red: a neighbour's start."""
        start = starts(3, 64)
        together = case_of(start, 5).run(device)["positions"].reshape(5, 64)

        for b in (0, 31, 63):
            assert_same_bits(case_of(start[b : b + 1], 5).run(device)["positions"], together[:, b])

    def test_chunk_is_its_tokens_one_by_one(self, device: Device) -> None:
        """A chunk of T equals T chunks of one. Red: the first token counted twice."""
        start = starts(4, 3)
        single = [case_of(start + t, 1).run(device)["positions"] for t in range(4)]

        assert_same_bits(case_of(start, 4).run(device)["positions"], np.concatenate(single))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree. Red: a division by a variable that rounds."""
        host, cuda = both_devices
        case = case_of(starts(5, 33), 100)

        assert_same_bits(case.run(cuda)["positions"], case.run(host)["positions"])


class TestEdges:
    """The ends of the range."""

    def test_first_and_last_position_of_a_context(self, device: Device) -> None:
        """Position 0 and position 262143 are reached. Red: a start of zero taken as missing."""
        assert case_of(np.array([0, 262143]), 1).run(device)["positions"].tolist() == [0, 262143]


class TestMemory:
    """The output is written in full and nothing else is."""

    @pytest.mark.parametrize(("B", "T"), [(1, 1), (1, 129), (3, 43)])
    def test_output_is_fully_written(self, device: Device, B: int, T: int) -> None:
        """What the output held before shows nowhere, whatever part of a block is used. Red: `<` for `<=`."""
        assert_fully_written(device, case_of(starts(6, B), T))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"B": 0}, "B = 0 must be between 1 and 1048576, the sequences of a batch"),
            ({"T": 0}, "T = 0 must be between 1 and 1048576, the tokens of a chunk"),
            ({"B": 2**20, "T": 2**12}, "rows = 4294967296 do not fit an int"),
            # the first count that the last block of 128 threads would carry past an int
            ({"B": 2176, "T": 986895}, "rows = 2147483520 do not fit an int"),
            ({"B": 4080, "T": 526344}, "rows = 2147483520 do not fit an int"),
            ({"rows": 14}, r"rows = 14 is not B \* T = 3 \* 5"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            case_of(starts(7, 3), 5).with_dims(**dims).run(device)
