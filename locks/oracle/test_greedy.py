"""Greedy pick: ties, infinities, and the rows that hold no token."""

import numpy as np
import pytest

from oracle.errors import LanelockError
from oracle.greedy import greedy, pick

V = 248320


def row(**entries: float) -> np.ndarray:
    """A row of -1 with entries such as at5=2.0."""
    x = np.full((1, V), -1.0)
    for name, value in entries.items():
        x[0, int(name.removeprefix("at"))] = value
    return x


class TestPick:
    """The token of a row of logits."""

    @pytest.mark.parametrize(("logits", "want"), [
        (row(at5=2.0, at248319=2.0), 5), (row(at248319=2.0), 248319), (row(at0=0.0, at7=-0.0), 0),
        (row(at3=-0.0, at7=0.0), 3), (row(at9=np.inf, at11=np.inf), 9), (np.full((1, V), -2e30), 0),
        (np.where(np.arange(V) == 248319, -1e38, -np.inf)[None], 248319)])
    def test_the_highest_wins_and_the_lowest_index_of_equals(self, logits: np.ndarray, want: int) -> None:
        """Ties, zeros of both signs, +inf, rows far below zero and a single finite logit (handed case 36)."""
        token, fault = greedy(logits)

        assert (token.tolist(), fault.tolist()) == ([want], [False])

    @pytest.mark.parametrize("logits", [
        row(at0=np.nan), row(at100=np.nan), row(at248319=np.nan), np.full((1, V), np.nan), np.full((1, V), -np.inf),
        row(at1=np.inf, at2=np.nan)])
    def test_a_row_without_a_token_is_a_fault(self, logits: np.ndarray) -> None:
        """Any NaN, or nothing above -inf, is flagged and stores the valid token 0 (handed case 36)."""
        token, fault = greedy(logits)

        assert (token.tolist(), fault.tolist()) == ([0], [True])

    def test_a_fault_leaves_the_other_rows(self) -> None:
        """Rows are picked apart from one another."""
        token, fault = greedy(np.array([[0, 1, 0.5], [np.nan, 9, 9], [2, 0, 2]]))

        assert token.tolist() == [1, 0, 0]
        assert fault.tolist() == [False, True, False]

    @pytest.mark.parametrize(("bad", "what"), [(np.nan, "a NaN"), (-np.inf, "no logit above -inf")])
    def test_a_fault_names_sequence_and_step(self, bad: float, what: str) -> None:
        """A decode stops with the sequence and the step, never with a token."""
        with pytest.raises(LanelockError, match=f"sequence 1, step 7: .*{what}"):
            pick(np.array([[0.0, 1.0], [bad, bad]]), 7)
