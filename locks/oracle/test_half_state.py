"""A state of half width: what it costs, that the cost does not grow, and where it freezes.

One head with random unit keys. Every token forgets 1 - alpha of the state and half of what it says about its key, so an
old rounding dies within 1/(1 - alpha) tokens, whatever came after it.
"""

from collections.abc import Callable

import numpy as np
import pytest

from oracle.delta_rule import sequential

WIDTH = 16
# f16 is what ships, so it alone is followed to 100,000 tokens; bf16's price is plain after 10,000.
MARKS = {"f16": (1_000, 10_000, 100_000), "bf16": (1_000, 10_000)}
ALPHA = 0.9
U = {"f16": 2.0**-11, "bf16": 2.0**-8}
Share = Callable[[str, float, float], float]


def stream(length: int, alpha: float):
    """Random unit queries and keys, normal values, constant decay, beta one half."""
    rng = np.random.default_rng(21)
    q, k = rng.standard_normal((2, 1, length, 1, WIDTH))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((1, length, 1, WIDTH))
    g = np.full((1, length, 1), np.log(alpha))
    return q, k, v, g, np.full_like(g, 0.5), np.zeros((1, 1, WIDTH, WIDTH))


def curve(store: str, exact: np.ndarray, inputs) -> list[float]:
    """rel_L2 of the outputs over the last thousand tokens before each mark."""
    length = MARKS[store][-1]
    o, _ = sequential(*(x[:, :length] for x in inputs[:5]), inputs[5], store=store)
    ends = [slice(m - 1_000, m) for m in MARKS[store]]
    return [float(np.linalg.norm(o[:, e] - exact[:, e]) / np.linalg.norm(exact[:, e])) for e in ends]


@pytest.fixture(scope="module")
def curves() -> dict[str, list[float]]:
    """Error at every mark for both stores, from one run each."""
    inputs = stream(MARKS["f16"][-1], ALPHA)
    exact, _ = sequential(*inputs)
    return {store: curve(store, exact, inputs) for store in U}


def bound(store: str) -> float:
    """Worst case of a state rounded after every token, relative to the state.

    Each rounding is at most u times the element. The step maps an error e to alpha * e (I - beta k kT), which shortens
    every row by alpha or more, so roundings add to at most u/(1 - alpha) of the largest state. Output and state are
    read with the same unit query, which loses at most the ratio of the state's norm to its share along q: sqrt(WIDTH).
    """
    return U[store] / (1 - ALPHA) * np.sqrt(WIDTH)


class TestCurve:
    """The error of a half-width state, token by token."""

    @pytest.mark.parametrize("store", U)
    def test_it_stays_within_its_bound(self, store: str, curves, share: Share) -> None:
        """The error at every mark is within the derived bound."""
        assert share(f"{store} {curves[store]}", max(curves[store]), bound(store)) <= 1

    @pytest.mark.parametrize("store", U)
    def test_old_error_dies(self, store: str, curves) -> None:
        """From 1,000 tokens to the last mark the error grows by no more than the scatter of a thousand tokens."""
        first, *later = curves[store]

        assert max(later) < 1.1 * first

    def test_ten_bits_are_tolerable_and_seven_are_an_order_worse(self, curves) -> None:
        """f16 costs about 1e-3; bf16 costs eight times that, its three missing bits."""
        f16, bf16 = curves["f16"][1], curves["bf16"][1]

        assert 2e-4 < f16 < 2e-3
        assert 6 < bf16 / f16 < 10


class TestFrozen:
    """alpha = 1 - 2**-12 moves an f16 element by less than half a step, so rounding takes the decay back."""

    ALPHA = 1 - 2.0**-12

    def run(self, store: str) -> float:
        """What is left of a state of ones after 4,096 tokens that only decay it."""
        g = np.full((1, 4096, 1), np.log(self.ALPHA))
        zero = np.zeros((1, 4096, 1, 1))
        _, s = sequential(zero, zero, zero, g, np.ones_like(g), np.full((1, 1, 1, 1), 1.5), store)
        return float(s[0, 0, 0, 0])

    def test_an_f16_state_does_not_decay_at_all(self) -> None:
        """After 4,096 tokens the exact state is 1.5/e and the f16 state still 1.5: an error of 1.72 times the truth."""
        exact, frozen = self.run("f64"), self.run("f16")

        assert frozen == 1.5
        assert abs(exact / (1.5 * np.exp(-1)) - 1) < 1e-3
        assert abs((frozen - exact) / exact - (np.e - 1)) < 1e-2

    def test_half_a_step_is_the_border(self) -> None:
        """A decay that moves an element by more than half its f16 step is not lost: alpha = 1 - 2**-10 does decay."""
        g = np.full((1, 1, 1), np.log1p(-(2.0**-10)))
        zero = np.zeros((1, 1, 1, 1))
        _, s = sequential(zero, zero, zero, g, np.ones_like(g), np.full((1, 1, 1, 1), 1.5), "f16")

        assert s[0, 0, 0, 0] < 1.5

    def test_the_price_with_writes_is_shown(self, share: Share) -> None:
        """With tokens that also write, the frozen decay costs a thousand times the ordinary f16 rounding, or less.

        Each token's rounding is at most half a step, 2**-12 of an element relative, and lives 2**12 tokens: their sum
        can reach the state itself, so the bound is 1; the measured share says what such a head really pays.
        """
        inputs = stream(8_192, self.ALPHA)
        exact, _ = sequential(*inputs)
        o, _ = sequential(*inputs, store="f16")
        error = float(np.linalg.norm(o[:, -1000:] - exact[:, -1000:]) / np.linalg.norm(exact[:, -1000:]))

        assert share("slow decay, f16", error, 1.0) <= 1
