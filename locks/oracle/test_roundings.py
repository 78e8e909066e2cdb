"""Where a run rounds: noise of the size of every rounding, and a run that follows another one's codes."""

import numpy as np
import pytest

from locks.oracle.reference import GGUF, recorded
from oracle import bits
from oracle.bits import attention as attention_bits
from oracle.bits import projection as projection_bits
from oracle.bits import rms_norm as norm_bits
from oracle.blocks import Run
from oracle.formats import a8_encode, a15_encode, a15_split, f16_round, q8_0_encode
from oracle.lane import EXACT, parse
from oracle.model import forward
from oracle.roundings import (
    TOPS,
    Following,
    Noise,
    Roundings,
    U,
    half_step,
    half_unit_of_f16,
    of_attention,
    of_projection,
    of_row_norm,
)
from oracle.weights import load

WEIGHTS = load(GGUF)
PROMPT = recorded()["prompt"][None, :12]
RNG = np.random.default_rng(8)


class Spy(Roundings):
    """Notes what a lane's own roundings made."""

    def __init__(self) -> None:
        self.given: dict[str, np.ndarray] = {}

    def codes(self, name: str, x: np.ndarray, activations: str) -> np.ndarray:
        made = super().codes(name, x, activations)
        self.given[name] = made[0]
        return made

    def stored(self, name: str, x: np.ndarray, store: str) -> np.ndarray:
        made = super().stored(name, x, store)
        self.given[name] = made[0]
        return made


class TestNoise:
    """Errors in place of roundings."""

    @pytest.mark.parametrize("activations", ["a8", "a15"])
    def test_of_codes_is_even_within_half_a_step(self, activations: str) -> None:
        """Never further than half a step, and with the variance of an even error, to six deviations of its estimate.

        Red: a step of the wrong size, an error that is the same in all runs, or not centred.
        """
        x = np.repeat(RNG.standard_normal((1, 8, 64)), 400, axis=0)
        noise = Noise(1).codes("", x, activations) - x
        scales = np.abs(x[0]).reshape(8, 2, 32).max(-1) / TOPS[activations]
        even = noise / half_step(scales, activations)

        assert np.abs(even).max() <= 1
        n = even.size
        assert abs((even**2).mean() - 1 / 3) < 6 * np.sqrt(4 / 45 / n)
        assert abs(even.mean()) < 6 / np.sqrt(3 * n)
        assert np.abs(even.mean(0)).max() < 6 / np.sqrt(3 * 400)

    @pytest.mark.parametrize("activations", ["a8", "a15"])
    def test_steps_hold_the_codes_that_formats_make(self, activations: str) -> None:
        """A decoded code lies within half a step of its value, and somewhere at more than 0.95 of it."""
        x = RNG.standard_normal((64, 320)).astype(np.float32)
        made = a8_encode(x) if activations == "a8" else a15_encode(x)
        decoded = made.codes * np.repeat(made.scales.astype(np.float64), 32, axis=-1)
        used = np.abs(decoded - x) / half_step(made.scales.astype(np.float64), activations)

        assert 0.95 < used.max() <= 1

    def test_of_a_half_width_value_is_within_half_a_unit(self) -> None:
        """No f16 rounding moves a value further, from the largest to subnormal ones, and some as far."""
        x = RNG.standard_normal(20000) * np.exp2(RNG.integers(-26, 14, 20000))
        used = np.abs(f16_round(x) - x) / half_unit_of_f16(x)

        assert 0.99 < used.max() <= 1

    def test_of_a_result_is_plus_or_minus_its_size(self) -> None:
        """Both signs, evenly, independent from element to element."""
        value, size = np.zeros((100, 100)), np.arange(1.0, 101.0)
        errors = Noise(1).result("", value, lambda: size) / (U * size)

        assert set(np.unique(errors)) == {-1.0, 1.0}
        assert abs(errors.mean()) < 6 / 100
        assert np.abs(errors.mean(0)).max() < 6 / 10

    @pytest.mark.parametrize("lane", ["a8", "a15+s16+kv16", "q4"])
    def test_with_nothing_to_err_is_exact(self, lane: str) -> None:
        """Without formats and arithmetic the run is that of float64 on the lane's weights."""
        formats = parse(lane)
        run = Run(WEIGHTS, formats, roundings=Noise(1, formats=False, arithmetic=False))
        alone = Run(WEIGHTS, EXACT.__class__("w", weights=formats.weights))
        a, b = (forward(r, PROMPT, rows="all").logits for r in (run, alone))

        assert np.linalg.norm(a - b) < 1e-12 * np.linalg.norm(b)


class TestSizes:
    """How many roundings stand behind a result."""

    @pytest.mark.parametrize("words", [1, 2])
    def test_cover_a_projection_of_the_contract(self, words: int) -> None:
        """The contract's float32 result lies within its size of the exact product of its codes."""
        w = q8_0_encode(RNG.standard_normal((48, 2080)).astype(np.float32))
        x = RNG.standard_normal((4, 2080)).astype(np.float32)
        made = a8_encode(x) if words == 1 else a15_encode(x)
        codes = made.codes[:, None] if words == 1 else np.stack(a15_split(made.codes), axis=1)
        got = projection_bits.projection(w.codes, w.scales, codes, made.scales)
        read = made.codes * np.repeat(made.scales.astype(np.float64), 32, axis=-1)
        weights = w.codes * np.repeat(w.scales.astype(np.float64), 32, axis=-1)
        size = of_projection(2080) * U * (np.abs(read) @ np.abs(weights).T)

        assert (np.abs(got - read @ weights.T) <= size).all()

    def test_cover_a_row_norm_of_the_contract(self) -> None:
        """Relative to the value, for rows of several chunks."""
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 700), (700,)))
        exact = x.astype(np.float64)
        truth = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * w

        assert (np.abs(norm_bits.rms_norm(x, w, 1e-6) - truth) <= of_row_norm(700) * U * np.abs(truth)).all()

    def test_cover_attention_of_the_contract(self) -> None:
        """With a score's roundings as errors of the query, at most their size times every |weight * value|."""
        q, k, v = (RNG.standard_normal((1, n, h, 32)).astype(np.float32) for n, h in ((1, 2), (300, 1), (300, 1)))
        got = attention_bits.attention(q, k, v, 299)[0, 0]
        e, K, V = (a[0].astype(np.float64) for a in (q, k, v))
        scores = e[0] @ K[:, 0].T / np.sqrt(32)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        of_score = (32 / 32 + 6) * np.abs(e[0]) @ np.abs(K[:, 0]).T / np.sqrt(32)
        # an error of a score moves its own weight, and through the sum all others
        reach = of_attention(300) + of_score + (p * of_score).sum(-1, keepdims=True)

        assert (np.abs(got - p @ V[:, 0]) <= U * (reach * p) @ np.abs(V[:, 0])).all()


class TestFollowing:
    """A run on another run's codes."""

    @pytest.mark.parametrize("lane", ["a8", "a15+kv16", "q4"])
    def test_of_its_own_lane_is_that_lane(self, lane: str) -> None:
        """Given the codes and cache rows that the lane's formats make, it makes the lane's logits."""
        spy = Spy()
        expected = forward(Run(WEIGHTS, parse(lane), roundings=spy), PROMPT, rows="all").logits
        follower = Following(spy.given)
        got = forward(Run(WEIGHTS, parse(lane), roundings=follower), PROMPT, rows="all").logits

        assert np.linalg.norm(got - expected) < 1e-12 * np.linalg.norm(expected)
        assert set(follower.asked) == {n for n in spy.given if lane.endswith("kv16") or n[-2:] not in (".K", ".V")}

    def test_reads_what_it_is_given(self) -> None:
        """Another code of one projection changes what comes behind it and nothing before."""
        spy = Spy()
        forward(Run(WEIGHTS, parse("a8"), roundings=spy), PROMPT, rows="all")
        spy.given["layer1.Wo"] = spy.given["layer1.Wo"] + 0.125
        before, after = {}, {}
        for store, given in ((before, spy.given), (after, {**spy.given, "layer1.Wo": spy.given["layer1.Wo"] - 0.125})):
            forward(Run(WEIGHTS, parse("a8"), store.__setitem__, Following(given)), PROMPT, rows="all")

        assert np.array_equal(before["layer1.gated"], after["layer1.gated"])
        assert not np.array_equal(before["layer1.mixer"], after["layer1.mixer"])


def test_the_contract_is_the_one_that_was_counted() -> None:
    """Chains are counted on arithmetic version 2; another version is counted anew."""
    assert bits.ARITHMETIC_VERSION == 2
