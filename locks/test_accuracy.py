"""The whole model against float64: every logit within its derived bound, every rounding where it should be."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from golden.sources import LANES, trained
from harness.device import Device
from harness.engine import Choice, opened
from harness.observed import Observed, observed
from locks.following import excesses
from locks.models import CONFIG, prompt, weights
from locks.models import LANES as QUICK
from locks.support import assert_within, rng
from oracle.blocks import Run
from oracle.error_bound import Bound, bound_of, factor, gap_bound, norm_factor
from oracle.formats import Q8_0, q4_decode, q4_from_q8_0
from oracle.model import forward
from oracle.model_weights import HeldWeights, Weights, specs

Share = Callable[[str, float, float], float]
TEXT = prompt(24, 11)
DELTA = ("a15+delta", "a8+s16+kv16+delta")


@cache
def seen(device: Device, lane: str) -> Observed:
    """TEXT, fed token by token to the small model; through the chunked rule in chunks of 16."""
    with opened(device, weights(), Choice(lane, 1, len(TEXT), 16 if lane in DELTA else 1)) as e:
        return observed(e, TEXT)


def assert_logits_within(share: Share, found: Observed, w: Weights, lane: str, text: tuple[int, ...]) -> None:
    """Logits, their rows' norms, and best tokens."""
    bound = bound_of(w, lane, text, found.positions)
    assert_within(share, "a logit", found.logits, bound.truth, bound.reach)
    worst = float(bound.norm_shares(found.logits).max())
    assert share("a row of logits", worst, 1.0) <= 1.0
    assert bound.disagreements(found.logits)[1] == 0


class TestLogits:
    """Logits behind every token of a text."""

    @pytest.mark.parametrize("lane", [*QUICK, *DELTA])
    def test_lie_within_the_bound_of_their_lanes_roundings(self, device: Device, lane: str, share: Share) -> None:
        """Every logit and row; another best token only where the margin is smaller than the two bounds.

        Red: a rounding too many or too coarse anywhere, and every gross fault: a wrong scale, head, gate or position.
        """
        assert_logits_within(share, seen(device, lane), weights(), lane, TEXT)

    @pytest.mark.nightly
    @pytest.mark.parametrize("lane", [*LANES, *(f"{lane}+delta" for lane in LANES)])
    def test_of_the_trained_checkpoint_do_too(self, device: Device, lane: str, share: Share) -> None:
        """The same on real weights and text, in every lane."""
        text = tuple(b"And the LORD said unto Moses, Stretch out thine hand")
        with opened(device, trained().weights(), Choice(lane, 1, len(text), 16 if "delta" in lane else 1)) as e:
            found = observed(e, text)

        assert_logits_within(share, found, trained().weights(), lane, text)


class TestEveryRounding:
    """The oracle follows the device's codes, so that no error lives longer than to the next of them."""

    @pytest.mark.parametrize("lane", QUICK)
    def test_is_of_the_value_that_float64_has_there(self, device: Device, lane: str, share: Share) -> None:
        """Codes, scales, half-width states and cache rows of every projection and token, residuals and logits.

        Each lies within its own rounding, and the arithmetic since the last one, of the oracle on the codes before it;
        the shares are of the arithmetic. Red: an error of half a step of A15, one part in 2**15, in any norm, gate,
        head or state, which a bound on logits could not see.
        """
        found, names = seen(device, lane), []
        for name, excess, arithmetic in excesses(found, weights(), lane, TEXT):
            assert_within(share, name, excess, np.zeros_like(excess), arithmetic)
            names.append(name)

        assert {n for n in names if n.endswith("scales")} == {f"{n}, scales" for n in found.scales}
        assert len(found.scales) == 4 * weights().config.layers + 1
        halves = {n for n in found.given if n not in found.scales}
        assert all(any(n == h or n.startswith(f"{h}.") for n in names) for h in halves)
        assert len(halves) == (5 if lane == "a8+s16+kv16" else 0)


class TestBound:
    """What a bound says of logits."""

    BOUND = Bound(np.array([[1.0, 0.0, 0.9], [0.0, 1.0, 0.5]]), np.full((2, 3), 0.06), np.array([0.1, 0.1]))

    def test_excuses_another_best_token_only_within_both_reaches(self) -> None:
        """A margin of 0.1 under two reaches of 0.06 is excused, one of 0.5 is not."""
        near = np.array([[0.94, 0.0, 0.95], [0.0, 1.0, 0.5]])
        far = np.array([[1.0, 0.0, 0.9], [0.0, 1.0, 1.1]])
        touching = Bound(np.array([[1.0, 0.5]]), np.full((1, 2), 0.25), np.ones(1))

        assert touching.disagreements(np.array([[0.0, 1.0]])) == (1, 0)
        assert self.BOUND.disagreements(self.BOUND.truth) == (0, 0)
        assert self.BOUND.disagreements(near) == (1, 0)
        assert self.BOUND.disagreements(far) == (0, 1)

    def test_a_nan_is_infinitely_far_and_no_best_token(self) -> None:
        """Whatever stands beside it; and logits of another shape are refused."""
        rows = self.BOUND.truth.copy()
        rows[0, 0] = np.nan  # where the best one stands

        assert np.isinf(self.BOUND.shares(rows)).sum() == 1
        assert np.isinf(self.BOUND.norm_shares(rows)).sum() == 1
        assert self.BOUND.disagreements(rows) == (0, 1)
        with pytest.raises(ValueError, match="are not compared"):
            self.BOUND.shares(rows[:1])

    def test_is_about_the_weights_as_the_lane_converts_them(self) -> None:
        """The truth of q4 is float64 on Q4 weights: their conversion is exact, and no part of what may err.

        Red: a bound so wide that it holds the truth of other weights.
        """
        w = weights()
        converted = {n: w.tensor(n) for n in specs(CONFIG)}
        for name, value in converted.items():
            if isinstance(value, Q8_0) and name not in ("emb", "Wout", "mtp.ehproj"):
                converted[name] = q4_decode(q4_from_q8_0(value))
        truth = forward(Run(HeldWeights(CONFIG, converted)), np.array([TEXT]), rows="all").logits[0]

        assert np.allclose(bound_of(w, "q4", TEXT, range(len(TEXT)), 2).truth, truth, rtol=0, atol=1e-12)

    def test_of_the_chunked_rule_is_wider(self) -> None:
        """Its sums are chains where the scan's are trees; codes aside. Red: the one's roundings for the other's."""
        plain, delta = (bound_of(weights(), lane, TEXT, range(len(TEXT)), 8).norm for lane in ("f64", "f64+delta"))

        assert (delta[1:] > plain[1:]).all()

    def test_of_a_gap_is_of_the_row_that_its_token_was_picked_from(self) -> None:
        """One for each token that was made; later tokens do not change it. Red: a row beside, a token beside."""
        w, other = weights(), (*TEXT[:21], *prompt(3, 12))
        first, second = (gap_bound(w, "a15+delta", text, 20, 4) for text in (TEXT, other))

        assert first.shape == (4,)
        assert (first > 0).all()
        assert first[0] == second[0]
        assert first[1] != second[1]

    @pytest.mark.parametrize(("samples", "events", "risk"), [(8, 1, 0.02), (16, 1000, 1e-6), (10**9, 7, 1e-3)])
    def test_factors_are_what_the_module_derives(self, samples: int, events: int, risk: float) -> None:
        """Half of the risk for the sum, half for its measure, among all events alike: Hoeffding's or Hsu's deviations
        over the root of c, where (c exp(1 - c))^(n/2) is the risk of a shortfall below c. Red: a half lost.
        """
        s = np.log(2 * events / risk)
        for found, size in (
            (factor(samples, events, risk), 2 * np.log(4 * events / risk)),
            (norm_factor(samples, events, risk), 1 + 2 * np.sqrt(s) + 2 * s),
        ):
            c = size / found**2

            assert 0 < c < 1 + 1e-9
            assert np.isclose(samples / 2 * (np.log(c) + 1 - c), np.log(risk / (2 * events)), rtol=1e-5)

    @pytest.mark.parametrize("samples", [8, 64])
    def test_factors_hold_what_they_promise(self, samples: int) -> None:
        """Of 20,000 normal errors, each measured by so many others, at most the risk of one in 50 leaves the factor.

        Red: a factor that takes a measured deviation for the true one.
        """
        g = rng(samples)
        measured = np.sqrt((g.standard_normal((20_000, samples)) ** 2).mean(-1))
        outside = np.abs(g.standard_normal(20_000)) > factor(samples, 1, 0.02) * measured
        rows = np.sqrt((g.standard_normal((20_000, samples, 4)) ** 2).sum(-1).mean(-1))
        beyond = np.linalg.norm(g.standard_normal((20_000, 4)), axis=-1) > norm_factor(samples, 1, 0.02) * rows

        assert outside.mean() <= 0.02
        assert beyond.mean() <= 0.02
        assert factor(samples, 1) < factor(samples, 1000)
        assert factor(2 * samples, 1) < factor(samples, 1)
