"""The delta rule: the handed values, mpmath, and chunks that equal the sequence for every kind of decay and split."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locks.oracle.exact import DIGITS, U
from oracle.delta_rule import CHUNK, chunked, decays, sequential, step

RULES = {"sequential": sequential, "chunked": chunked, "chunks of 2": lambda *a: chunked(*a, size=2)}
RESETS = [-np.inf, -200.0, -1e30]
Share = Callable[[str, float, float], float]


def scalars(values: list[float], g: list[float], beta: float, s: float, rule=sequential) -> tuple[list[float], float]:
    """The rule on one head of width one with k = q = 1: outputs and last state."""
    one = np.ones((1, len(values), 1, 1))
    gate = np.array(g, dtype=float).reshape(1, -1, 1)
    o, last = rule(one, one, np.array(values).reshape(one.shape), gate, np.full_like(gate, beta),
                   np.full((1, 1, 1, 1), float(s)))
    return o.ravel().tolist(), float(last[0, 0, 0, 0])


def problem(length: int, seed: int = 0, kind: str = "random", shape: tuple[int, int, int, int] = (2, 3, 16, 8)):
    """q, k, v, g, beta and an incoming state; `kind` says how the state decays."""
    rng = np.random.default_rng(seed)
    b, h, kw, vw = shape
    q, k = rng.standard_normal((2, b, length, h, kw))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.abs(rng.standard_normal((b, length, h)))
    if kind == "zero":
        g[:] = 0
    elif kind == "reset":
        g[rng.random(g.shape) < 0.2] = -np.inf
    elif kind == "huge":
        g[rng.random(g.shape) < 0.2] = -1e30
    elif kind == "vanishing":
        g *= 300
    elif kind == "slow":
        g *= 1e-9
    v = rng.standard_normal((b, length, h, vw))
    return q, k, v, g, rng.random((b, length, h)), rng.standard_normal((b, h, vw, kw))


def distance(one, other) -> float:
    """Largest difference over outputs and states, which must be finite and of equal shapes."""
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert np.isfinite(a).all()
        assert np.isfinite(b).all()
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
class TestHandedValues:
    """Small inputs with known right values, by every form of the rule."""

    @pytest.mark.parametrize(("v", "beta", "want"), [(1, 1.0, 1.0), (0, 1.0, 0.0), (1, 0.5, 0.75)])
    def test_the_error_is_taken_from_the_decayed_state(self, rule, v: float, beta: float, want: float) -> None:
        """S0 = 1, alpha = 0.5: output and state are 1, 0 and 0.75 (handed case 01)."""
        o, s = scalars([v], [np.log(0.5)], beta, 1, rule)

        assert abs(o[0] - want) < 1e-15
        assert abs(s - want) < 1e-15

    @pytest.mark.parametrize("reset", RESETS)
    def test_a_vanished_decay_is_a_clean_reset(self, rule, reset: float) -> None:
        """Log decays 0, 0, reset, 0 give 0.5, 1.25, 1.5, 2.75 (handed case 03)."""
        assert scalars([1, 2, 3, 4], [0, 0, reset, 0], 0.5, 0, rule) == ([0.5, 1.25, 1.5, 2.75], 2.75)

    @pytest.mark.parametrize("reset", RESETS)
    @pytest.mark.parametrize("at", [0, 3])
    def test_a_reset_may_be_first_or_last(self, rule, reset: float, at: int) -> None:
        """A reset on the first token forgets the incoming state, on the last everything (handed case 03)."""
        g = [0.0] * 4
        g[at] = reset
        o, _ = scalars([1, 2, 3, 4], g, 0.5, 100, rule)
        want = [0.5, 1.25, 2.125, 3.0625] if at == 0 else [50.5, 26.25, 14.625, 2.0]

        assert o == want

    @pytest.mark.parametrize(("length", "want"), [(33, 0.0309031544), (63, 0.00131002051), (65, 0.00106111661)])
    def test_the_last_chunks_decay_is_that_of_its_own_tokens(self, rule, length: int, want: float) -> None:
        """S0 = 1, k = 0, alpha = 0.9: the state is 0.9**T for any T (handed case 05)."""
        zero, one = np.zeros((1, length, 1, 2)), np.ones((1, length, 1, 2))
        g = np.full((1, length, 1), np.log(0.9))
        _, s = rule(one, zero, one, g, np.ones_like(g), np.ones((1, 1, 2, 2)))

        assert np.abs(s / want - 1).max() < 1e-8

    def test_a_state_with_nothing_to_learn_is_kept(self, rule) -> None:
        """Keys of 0 and alpha = 1 leave S0 = 1 bit for bit (handed case 06)."""
        zero = np.zeros((1, 5, 1, 2))
        _, s = rule(zero, zero, zero, np.zeros((1, 5, 1)), np.ones((1, 5, 1)), np.ones((1, 1, 2, 2)))

        assert (s == 1).all()

    def test_beta_is_used_as_it_is(self, rule) -> None:
        """A beta of sigmoid(0.5) writes 0.62245933 (handed case 10)."""
        _, s = scalars([1], [0], 1 / (1 + np.exp(-0.5)), 0, rule)

        assert abs(s - 0.62245933120185) < 1e-13

    def test_rollback_reads_the_committed_state(self, rule) -> None:
        """Values 10, 20, 30 with beta 1 leave 30: the state after the last accepted token (handed case 14, core)."""
        assert scalars([10, 20, 30], [0, 0, 0], 1.0, 0, rule)[1] == 30


class TestStep:
    """One token."""

    def test_one_step_agrees_with_mpmath(self, share: Share) -> None:
        """Output and state are within (K + 6) roundings of the sums of absolute products, on rectangular states."""
        kw, vw = 12, 5
        q, k, v, g, beta, s = problem(1, 3, shape=(1, 1, kw, vw))
        o, after = step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], s)
        with mpmath.workdps(DIGITS):
            alpha, b = mpmath.exp(float(g[0, 0, 0])), mpmath.mpf(float(beta[0, 0, 0]))
            qs, ks, vs = ([mpmath.mpf(float(x)) for x in a[0, 0, 0]] for a in (q, k, v))
            old = [[alpha * mpmath.mpf(float(x)) for x in row] for row in s[0, 0]]
            err = [b * (vs[i] - sum(old[i][j] * ks[j] for j in range(kw))) for i in range(vw)]
            new = [[old[i][j] + err[i] * ks[j] for j in range(kw)] for i in range(vw)]
            out = [sum(new[i][j] * qs[j] for j in range(kw)) / mpmath.sqrt(kw) for i in range(vw)]
            size = float(max(sum(abs(x) for x in row) for row in new)) * 4
            off = max(float(abs(mpmath.mpf(float(o[0, 0, i])) - out[i])) for i in range(vw))
            off = max([off, *(float(abs(mpmath.mpf(float(after[0, 0, i, j])) - new[i][j]))
                              for i in range(vw) for j in range(kw))])

        assert share("step", off, (kw + 6) * U * size) <= 1

    def test_the_output_is_scaled_by_the_key_width(self) -> None:
        """Key and query of four ones, v = 2, beta = 1: S k = 8 and o = 8/sqrt(4) = 4."""
        ones = np.ones((1, 1, 4))
        o, s = step(ones, ones, np.full((1, 1, 1), 2.0), np.zeros((1, 1)), np.ones((1, 1)), np.zeros((1, 1, 1, 4)))

        assert s.ravel().tolist() == [2, 2, 2, 2]
        assert o.ravel().tolist() == [4]


class TestChunks:
    """Chunks against the sequence."""

    @pytest.mark.parametrize("kind", ["random", "zero", "reset", "huge", "vanishing", "slow"])
    @pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1])
    def test_chunks_equal_the_sequence(self, kind: str, length: int, share: Share) -> None:
        """For every kind of decay outputs and state agree to a few roundings a token of the largest value."""
        inputs = problem(length, length, kind)
        want = sequential(*inputs)
        size = max(1.0, float(np.abs(want[0]).max()), float(np.abs(want[1]).max()))
        # each token's row is a solve over at most CHUNK others, each term one product and one sum.
        bound = (2 * min(length, CHUNK) + 2 * 16 + 8) * U * 16 * size

        assert share(f"{kind} {length}", distance(chunked(*inputs), want), bound) <= 1

    @settings(derandomize=True, deadline=None, max_examples=25)
    @given(st.integers(1, 70), st.integers(1, 70), st.sampled_from(["random", "reset", "vanishing"]))
    def test_any_split_and_any_chunk_agree(self, split: int, size: int, kind: str) -> None:
        """70 tokens fed in two pieces, in chunks of any width, equal the sequence (handed cases 05 and 06)."""
        inputs = problem(70, 9, kind, (1, 2, 8, 4))
        *rows, s = inputs
        o, middle = chunked(*(x[:, :split] for x in rows), s, size=size)
        if split < 70:
            rest, middle = chunked(*(x[:, split:] for x in rows), middle, size=size)
            o = np.concatenate([o, rest], axis=1)

        assert distance((o, middle), sequential(*inputs)) < 1e-12

    def test_padding_changes_nothing(self) -> None:
        """Tokens after the last, whatever they hold, leave the outputs before them alone (beyond rounding)."""
        inputs = problem(40, 4)
        padded = [np.concatenate([x, np.full((x.shape[0], 9, *x.shape[2:]), fill)], axis=1)
                  for x, fill in zip(inputs[:5], (1e3, 1e-3, 1e6, -1e30, 1.0), strict=True)]

        assert np.abs(chunked(*padded, inputs[5])[0][:, :40] - chunked(*inputs)[0]).max() < 1e-13

    def test_a_nan_reaches_later_tokens_only(self) -> None:
        """A NaN in token 20 leaves tokens 0 to 19 as they are, in chunks too."""
        inputs = problem(40, 5)
        want = chunked(*inputs)[0][:, :20]
        inputs[2][0, 20, 0, 0] = np.nan
        o, _ = chunked(*inputs)

        assert np.abs(o[:, :20] - want).max() < 1e-13
        assert np.isnan(o[0, 20:, 0, 0]).all()

    def test_sequences_and_heads_keep_to_themselves(self) -> None:
        """Every sequence and head alone gives what it gives in the batch."""
        inputs = problem(30, 6)
        o, s = chunked(*inputs)
        for b in range(2):
            for h in range(3):
                alone = [x[b : b + 1, :, h : h + 1] for x in inputs[:5]]
                one = chunked(*alone, inputs[5][b : b + 1, h : h + 1])
                assert distance(one, (o[b : b + 1, :, h : h + 1], s[b : b + 1, h : h + 1])) < 1e-13

    def test_inputs_are_left_alone(self) -> None:
        """Neither rule writes to the state it is given."""
        inputs = problem(10, 7)
        before = inputs[5].copy()
        chunked(*inputs)
        sequential(*inputs, store="f16")

        assert (inputs[5] == before).all()


class TestDecays:
    """The decay between any two tokens of a chunk."""

    def test_they_are_products_of_the_decays_between(self) -> None:
        """Row t, column j is exp of the sum of g over j+1..t: 1 on the diagonal, 0 above it."""
        d = decays(np.log([0.5, 0.25, 0.5]))

        assert np.abs(d - [[1, 0, 0], [0.25, 1, 0], [0.125, 0.5, 1]]).max() < 1e-15

    def test_a_huge_decay_does_not_swallow_later_ones(self) -> None:
        """After g = -1e30 later decays keep their digits, which a difference of prefix sums has lost."""
        d = decays(np.array([0.0, -1e30, np.log(0.5), np.log(0.5)]))

        assert np.abs(d[3] - [0, 0.25, 0.5, 1]).max() < 1e-15
        assert d[1, 0] == 0
