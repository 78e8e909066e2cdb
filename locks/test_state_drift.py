"""The recurrent state over long decodes: within a bound that forgets as the state does, at either width."""

from collections.abc import Callable

import numpy as np
import pytest

from golden.sources import trained
from harness.device import Device
from locks.models import prompt, weights
from locks.support import rng
from oracle.bits import delta_rule as bits
from oracle.config import ModelConfig
from oracle.delta_rule import step
from oracle.weights import load
from reports.state_drift import Mark, Recurrence, drift

Share = Callable[[str, float, float], float]
LANES = ("a15", "a15+s16")
#: One layer of one head at the 27B's width, and as little else as a model can have; a context shorter than a drift.
HEAD = ModelConfig("head", 1, 32, 32, 32, 1, 1, 32, 8, 1e4, 1, 1, 128, context=64)


def assert_bounded(share: Share, found: list[Mark], marks: tuple[int, ...]) -> None:
    """At every mark each row lies within its reach, and at later marks the error within the bound of the first."""
    assert [m.tokens for m in found] == list(marks)
    for mark in found:
        assert share(f"a row of the state behind {mark.tokens} tokens", mark.share, 1.0) <= 1.0
        assert share(f"states behind {mark.tokens} tokens", mark.rel_l2, found[0].bound) <= 1.0


class TestDrift:
    """Every recurrent layer against its float64 recurrence on the same inputs."""

    @pytest.mark.parametrize("lane", LANES)
    def test_is_bounded_and_does_not_grow(self, device: Device, lane: str, share: Share) -> None:
        """200 tokens of the small model, f32 and f16 states.

        Red: an update that decays after the correction, an error that is not forgotten, a state rounded twice.
        """
        marks = (51, 199)
        assert_bounded(share, drift(device, weights(), lane, prompt(3), marks), marks)

    @pytest.mark.parametrize("lane", LANES)
    def test_of_one_head_at_full_width_is(self, device: Device, lane: str, share: Share) -> None:
        """A 128 x 128 state, one token a launch."""
        marks = (50, 150)
        assert_bounded(share, drift(device, load("synthetic:5", HEAD), lane, (1, 2, 3), marks), marks)

    @pytest.mark.nightly
    @pytest.mark.parametrize("lane", LANES)
    def test_is_bounded_over_ten_thousand_steps(self, device: Device, lane: str, share: Share) -> None:
        """The trained checkpoint, and one head at full width: the error at 10,000 is within the bound at 1,000."""
        marks = (1000, 3000, 10_000)
        assert_bounded(share, drift(device, trained().weights(), lane, trained().prompts[0], marks), marks)
        assert_bounded(share, drift(device, load("synthetic:5", HEAD), lane, (1, 2, 3), marks), marks)


class TestRecurrence:
    """The float64 recurrence and its bound."""

    @pytest.mark.parametrize("half", [False, True])
    def test_is_the_rule_and_holds_the_contract(self, half: bool, share: Share) -> None:
        """300 tokens with decays down to zero: the oracle's states, and the contract's within their reach.

        Red: a reach that forgets faster than the state, or leaves out the rounding of an f16 store.
        """
        g, H, D, T = rng(4), 2, 32, 300
        q, k, v = (g.standard_normal((T, H, D)).astype(np.float32) for _ in range(3))
        q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True).astype(np.float32) for a in (q, k))
        alpha = (1 - g.random((T, H)) ** 4).astype(np.float32)
        alpha[150] = 0
        beta = g.random((T, H)).astype(np.float32)
        made = np.zeros((1, H, D, D), np.float32)
        exact = np.zeros((1, H, D, D))
        state, worst = Recurrence.empty(H, D, half=half), 0.0
        for t in range(T):
            now = tuple(a[None, t : t + 1] for a in (q, k, v, alpha, beta))
            _, made = bits.scan(*now, made, half=half)
            wide = tuple(a[:, 0].astype(np.float64) for a in now)
            with np.errstate(divide="ignore"):
                _, exact = step(wide[0], wide[1], wide[2], np.log(wide[3]), wide[4], exact)
            state.token(k[t].astype(float), v[t].astype(float), alpha[t].astype(float), beta[t].astype(float))
            assert np.allclose(state.S, exact[0], rtol=0, atol=1e-13)
            worst = max(worst, float(state.shares(made[0].astype(np.float64)).max()))

        assert 0 < share("a row of the contract's state", worst, 1.0) <= 1.0

    @pytest.mark.parametrize("length", [0.5, 3.0])
    def test_an_older_error_grows_as_keys_make_it(self, length: float) -> None:
        """An error along the key is what the token makes of it, 1 - beta length^2 of it, and no more than the reach.

        Red: a reach that forgets by the key's length and not by its square, where keys are longer than one.
        """
        k, v, alpha, beta = np.zeros((1, 32)), np.ones((1, 32)), np.full(1, 0.5), np.full(1, 0.9)
        k[0, 3] = length
        state, moved = (Recurrence.empty(1, 32, half=False) for _ in range(2))
        moved.S[0, :, 3] = state.reach[0] = 1e-3
        for one in (state, moved):
            one.token(k, v, alpha, beta)
        error = np.linalg.norm(moved.S - state.S, axis=-1)

        assert (error <= state.reach).all()
        assert length < 1 or (state.reach < 1.001 * error).all()

    def test_a_share_is_the_error_over_the_reach(self) -> None:
        """An error of 3 where 2 may be is a share of 1.5, none where nothing may be is none. Red: a product of both."""
        state = Recurrence.empty(1, 32, half=False)
        S = np.zeros((1, 32, 32))
        S[0, 0, 5], state.reach[0, 0] = 3.0, 2.0

        assert state.shares(S)[0, 0] == 1.5
        assert not state.shares(S)[0, 1:].any()

    def test_a_nan_has_no_share(self) -> None:
        """A state with a NaN is infinitely far."""
        state = Recurrence.empty(1, 32, half=False)

        assert np.isinf(state.shares(np.full((1, 32, 32), np.nan))).all()
