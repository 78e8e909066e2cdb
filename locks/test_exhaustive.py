"""Locks of the exhaustive comparison itself: it covers every input, and one wrong bit turns it red."""

import numpy as np
import pytest

from harness.cli.exhaustive import ways_of
from harness.device import DeviceError
from harness.exhaustive import (
    CONTRACT,
    INPUTS,
    PIECE,
    Piece,
    Totals,
    compare,
    errors,
    evaluate,
    inputs_of,
    open_ways,
    pieces,
    run,
)
from kernels.functions import FUNCTIONS
from oracle.bits import functions as contract
from oracle.errors import LanelockError

SMALL = Piece("softplus", 0x40000000, 5000)


def flipped(piece: Piece) -> np.ndarray:
    """The contract with the last bit of element 1234 flipped."""
    y = contract.FUNCTIONS[piece.function](inputs_of(piece))
    y.view(np.uint32)[1234] ^= 1
    return y


class TestPieces:
    """The cut of the inputs. Red if a piece is dropped, doubled, or ends one short."""

    @pytest.mark.parametrize(("first", "count"), [(0, INPUTS), (5, 1), (PIECE - 1, 2), (7, 3 * PIECE), (INPUTS - 3, 3)])
    def test_cover_every_input_once(self, first: int, count: int) -> None:
        """The pieces of a function are one unbroken run from the first input to the last."""
        plan = [p for p in pieces(FUNCTIONS, first, count) if p.function == "silu"]
        ends = [p.first + p.count for p in plan]

        assert [first, *ends] == [*(p.first for p in plan), first + count]
        assert max(p.count for p in plan) <= PIECE

    def test_inputs_are_the_bit_patterns(self) -> None:
        """Element i of a piece is the float32 whose bits are first + i, up to the last NaN."""
        bits = inputs_of(Piece("exp", INPUTS - 4, 4)).view(np.uint32)

        assert bits.tolist() == [0xFFFFFFFC, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF]


class TestComparison:
    """The comparer. Red if it accepts a NaN for a number, a wrong length, or nothing at all."""

    def test_one_flipped_bit_is_found(self) -> None:
        """A single last bit among thousands is counted, with its input and both bit patterns."""
        result = evaluate(SMALL, {"right": open_ways([CONTRACT])[CONTRACT], "wrong": flipped}, measure=False)
        count, at, right, wrong = result.differences["wrong"]

        assert (count, at, right ^ wrong) == (1, SMALL.first + 1234, 1)

    def test_any_nan_equals_any_nan_only(self) -> None:
        """Payloads are open; a NaN in place of a number, or a number in place of a NaN, is a difference."""
        x = np.zeros(3, np.float32)
        nans = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)

        assert compare(x, nans, nans[::-1]) is None
        assert compare(x, nans, x)
        assert compare(x, x, nans)

    def test_zeros_of_both_signs_differ(self) -> None:
        """Bits are compared, not values."""
        x = np.zeros(1, np.float32)

        assert compare(x, x, -x)

    @pytest.mark.parametrize("sizes", [(3, 2, 3), (3, 3, 2), (0, 0, 0)])
    def test_lengths_must_agree(self, sizes: tuple[int, int, int]) -> None:
        """A short output, or none, is an error and not an agreement."""
        x, a, b = (np.zeros(n, np.float32) for n in sizes)

        with pytest.raises(DeviceError, match="nothing can be compared"):
            compare(x, a, b)

    def test_digest_knows_order_and_values_but_no_payload(self) -> None:
        """The digest of a range changes with one bit and not with a NaN's payload."""

        def quiet(piece: Piece) -> np.ndarray:
            return np.full(piece.count, np.nan, np.float32)

        def other(piece: Piece) -> np.ndarray:
            return (quiet(piece).view(np.uint32) | 5).view(np.float32)

        right = evaluate(SMALL, {"a": open_ways([CONTRACT])[CONTRACT]}, measure=False).digest

        assert evaluate(SMALL, {"a": flipped}, measure=False).digest != right
        one, two = (evaluate(SMALL, {"a": way}, measure=False).digest for way in (quiet, other))
        assert one == two

    def test_errors_are_in_ulp_of_the_truth(self) -> None:
        """One flipped last bit moves the largest error by about one ulp; a NaN for a number is refused."""
        x = inputs_of(SMALL)
        y = flipped(SMALL)
        (ulp, at), _ = errors("softplus", x, y)

        assert 0.5 < ulp < 2
        assert at == SMALL.first + 1234
        y[7] = np.nan
        with pytest.raises(DeviceError, match="NaN"):
            errors("softplus", x, y)


class TestRun:
    """Worker processes and what is left out."""

    def test_workers_agree_with_one_process(self) -> None:
        """Two worker processes give the digest that this process gives."""
        plan = pieces(["exp"], 0x3F000000 - 40000, 60000)
        ways = open_ways([CONTRACT])
        here, there = Totals(), Totals()
        for piece in plan:
            here.add(evaluate(piece, ways, measure=False))
        for result in run(plan, [CONTRACT], 2, measure=False):
            there.add(result)

        assert len(plan) == 2
        assert (there.inputs, there.sha256) == (60000, here.sha256)

    def test_a_failing_worker_is_an_error(self) -> None:
        """A piece that cannot be computed ends the run with its reason."""
        with pytest.raises(DeviceError, match="KeyError"):
            list(run([Piece("tanh", 0, 4)], [CONTRACT], 1, measure=False))

    def test_one_way_alone_is_refused(self) -> None:
        """A device with nothing to be compared with is a refusal, not an agreement."""
        with pytest.raises(LanelockError, match="nothing to be compared with"):
            ways_of("host", contract=False)
