"""Norms, gates, adds and the embedding: each against mpmath or exact arithmetic at its stated accuracy."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from locks.oracle.exact import DIGITS, U
from oracle.add import add
from oracle.conv import l2_norm
from oracle.embedding import dense, embedding
from oracle.errors import LanelockError
from oracle.formats import Q8_0, a8_decode, a8_encode
from oracle.gate_mul import gate_mul
from oracle.gated_norm import gated_norm
from oracle.gates import gates
from oracle.positions import positions
from oracle.quantize import FORMATS, quantize
from oracle.rms_norm import rms_norm
from oracle.swiglu import swiglu

RNG = np.random.default_rng(12)
Share = Callable[[str, float, float], float]


def worst(values: np.ndarray, truth: list[list[mpmath.mpf]]) -> float:
    """Largest error relative to the truth, over a matrix."""
    assert values.shape == (len(truth), len(truth[0]))
    pairs = zip(values.ravel(), [t for row in truth for t in row], strict=True)
    with mpmath.workdps(DIGITS):
        return max(float(abs((mpmath.mpf(float(v)) - t) / t)) if t else abs(float(v)) for v, t in pairs)


def exact(x: np.ndarray) -> list[list[mpmath.mpf]]:
    """A matrix as exact numbers."""
    return [[mpmath.mpf(float(v)) for v in row] for row in x]


def sig(x: mpmath.mpf) -> mpmath.mpf:
    """The logistic function."""
    return 1 / (1 + mpmath.exp(-x))


class TestRmsNorm:
    """Root-mean-square norm."""

    def test_it_agrees_with_mpmath(self, share: Share) -> None:
        """Rows of any size are within (D + 6) roundings, also where epsilon decides the result."""
        d = 96
        x = RNG.standard_normal((5, d)) * 10.0 ** np.array([[-6], [-3], [0], [4], [100]])
        w = RNG.standard_normal(d)
        with mpmath.workdps(DIGITS):
            truth = [[v * ww / mpmath.sqrt(sum(u * u for u in row) / d + mpmath.mpf(1e-6))
                      for v, ww in zip(row, map(float, w), strict=True)] for row in exact(x)]

        assert share("rms_norm", worst(rms_norm(x, w, 1e-6), truth), (d + 6) * U) <= 1

    def test_widths_that_differ_are_refused(self) -> None:
        """A weight vector of another width is not broadcast."""
        with pytest.raises(ValueError, match="width 4"):
            rms_norm(np.ones((2, 4)), np.ones(1), 1e-6)


class TestL2Norm:
    """Unit norm of query and key heads."""

    @pytest.mark.parametrize(("entry", "want"), [(1e-4, 0.0662266179), (1e-5, 0.00993660792), (0.0, 0.0)])
    def test_epsilon_adds_to_the_sum_inside_the_root(self, entry: float, want: float) -> None:
        """128 equal entries give the handed values, and zeros stay zero (handed case 08)."""
        assert np.allclose(l2_norm(np.full((1, 128), entry)), want, rtol=1e-9, atol=0)

    def test_a_one_hot_head_shrinks_by_half_of_epsilon(self) -> None:
        """A single 1 becomes 1/sqrt(1 + 1e-6)."""
        x = np.eye(128)[:1]

        assert l2_norm(x)[0, 0] == 1 / np.sqrt(1 + 1e-6)
        assert not l2_norm(x)[0, 1:].any()

    def test_it_agrees_with_mpmath(self, share: Share) -> None:
        """Heads are within (D + 6) roundings."""
        x = RNG.standard_normal((4, 32)) * 10.0 ** np.array([[-6], [-3], [0], [3]])
        with mpmath.workdps(DIGITS):
            truth = [[v / mpmath.sqrt(sum(u * u for u in row) + mpmath.mpf(1e-6)) for v in row] for row in exact(x)]

        assert share("l2_norm", worst(l2_norm(x), truth), (32 + 6) * U) <= 1


class TestGatedNorm:
    """Norm and gate of the delta rule's output."""

    def test_norm_comes_first_and_the_gate_is_silu(self) -> None:
        """(3, 4) gated by (1, -1) is (0.62032375, -0.30427247) (handed case 12b)."""
        y = gated_norm(np.array([[3.0, 4.0]]), np.array([[1.0, -1.0]]), np.ones(2), 1e-6)

        assert np.abs(y - [0.62032375, -0.30427247]).max() < 1e-8

    def test_it_agrees_with_mpmath(self, share: Share) -> None:
        """Heads are within (V + 14) roundings."""
        v = 32
        o, z, w = RNG.standard_normal((4, v)), 5 * RNG.standard_normal((4, v)), RNG.standard_normal(v)
        with mpmath.workdps(DIGITS):
            norms = [mpmath.sqrt(sum(u * u for u in row) / v + mpmath.mpf(1e-6)) for row in exact(o)]
            truth = [[a * c * b * sig(b) / n for a, b, c in zip(ro, rz, map(float, w), strict=True)]
                     for ro, rz, n in zip(exact(o), exact(z), norms, strict=True)]

        assert share("gated_norm", worst(gated_norm(o, z, w, 1e-6), truth), (v + 14) * U) <= 1

    def test_shapes_that_differ_are_refused(self) -> None:
        """A gate of another shape is not broadcast."""
        with pytest.raises(ValueError, match="differ"):
            gated_norm(np.ones((2, 4)), np.ones((1, 4)), np.ones(4), 1e-6)


class TestSwiglu:
    """The gated unit."""

    def test_gate_is_the_first_half(self, share: Share) -> None:
        """silu(first half) times second half, within 6 roundings."""
        gu = 4 * RNG.standard_normal((3, 24))
        with mpmath.workdps(DIGITS):
            truth = [[g * sig(g) * u for g, u in zip(row[:12], row[12:], strict=True)] for row in exact(gu)]

        assert share("swiglu", worst(swiglu(gu), truth), 6 * U) <= 1

    def test_an_odd_width_is_refused(self) -> None:
        """Gate and up have one width."""
        with pytest.raises(ValueError, match="7"):
            swiglu(np.ones((1, 7)))


class TestGateMul:
    """Attention's output gate."""

    def test_the_gate_is_a_sigmoid(self, share: Share) -> None:
        """The input times sigmoid(gate), within 5 roundings."""
        x, gate = RNG.standard_normal((3, 16)), 6 * RNG.standard_normal((3, 16))
        with mpmath.workdps(DIGITS):
            truth = [[a * sig(b) for a, b in zip(rx, rg, strict=True)]
                     for rx, rg in zip(exact(x), exact(gate), strict=True)]

        assert share("gate_mul", worst(gate_mul(x, gate), truth), 5 * U) <= 1

    def test_shapes_that_differ_are_refused(self) -> None:
        """A gate of another shape is not broadcast."""
        with pytest.raises(ValueError, match="differ"):
            gate_mul(np.ones((2, 4)), np.ones((1, 4)))


class TestGates:
    """Learning rate and decay."""

    def test_beta_and_decay_agree_with_mpmath(self, share: Share) -> None:
        """First comes b; beta is its sigmoid and g = A * softplus(a + dt), within 6 ulp and the sum's rounding."""
        heads = 6
        ba, dt = 8 * RNG.standard_normal((5, 2 * heads)), RNG.standard_normal(heads)
        a = -np.exp(RNG.standard_normal(heads))
        beta, g = gates(ba, a, dt)
        with mpmath.workdps(DIGITS):
            rows = exact(ba)
            want_beta = [[sig(b) for b in row[:heads]] for row in rows]
            want_g = [[A * mpmath.log1p(mpmath.exp(x + t)) for x, A, t in
                       zip(row[heads:], map(float, a), map(float, dt), strict=True)] for row in rows]
        # softplus' relative sensitivity to its argument is at most |x| (far left), so the sum counts |x| roundings.
        reach = float(np.abs(ba[:, heads:]).max() + np.abs(dt).max())

        assert share("beta", worst(beta, want_beta), 4 * U) <= 1
        assert share("g", worst(g, want_g), (2 * 6 + reach) * U) <= 1

    def test_a_small_decay_keeps_its_digits(self) -> None:
        """At a + dt = -30 the decay is A * exp(-30), which (1 + exp(x))**A in float32 would call 1."""
        _, g = gates(np.array([[0.0, -31.0]]), np.array([-2.0]), np.array([1.0]))

        assert abs(g[0, 0] / (-2 * np.exp(-30.0)) - 1) < 1e-12

    def test_beta_is_not_rounded(self) -> None:
        """sigmoid(0.5) is 0.62245933, not the bf16 value 0.62109375 (handed case 10)."""
        beta, _ = gates(np.array([[0.5, 0.0]]), np.array([-1.0]), np.array([0.0]))

        assert abs(beta[0, 0] - 0.62245933120185) < 1e-13

    @pytest.mark.parametrize(("ba", "dt"), [(11, 6), (12, 5)])
    def test_widths_that_do_not_fit_are_refused(self, ba: int, dt: int) -> None:
        """Two gate inputs and one offset a head."""
        with pytest.raises(ValueError, match="fit together"):
            gates(np.ones((1, ba)), -np.ones(6), np.ones(dt))


class TestAdd:
    """Residual add."""

    def test_it_is_the_sum_and_broadcasts_nothing(self) -> None:
        """The sum of equal shapes; others are refused."""
        assert add(np.array([[1.0, 2.0]]), np.array([[0.5, -2.0]])).tolist() == [[1.5, 0.0]]
        with pytest.raises(ValueError, match="differ"):
            add(np.ones((2, 3)), np.ones((1, 3)))


class TestEmbedding:
    """Embedding rows."""

    def test_rows_are_dequantised(self) -> None:
        """Row n, block b is codes times scale [n, b], for tokens of any shape; floats pass as they are."""
        codes = RNG.integers(-127, 128, (5, 64)).astype(np.int8)
        scales = RNG.uniform(0.1, 1, (5, 2)).astype(np.float16)
        tokens = np.array([[4, 0], [1, 4]])
        want = codes[tokens].astype(float) * np.repeat(scales[tokens].astype(float), 32, axis=-1)

        assert (embedding(Q8_0(codes, scales), tokens) == want).all()
        assert (embedding(dense(Q8_0(codes, scales)), tokens) == want).all()

    @pytest.mark.parametrize("token", [-1, 5])
    def test_a_token_outside_is_refused(self, token: int) -> None:
        """-1 and V are not tokens: nothing wraps around."""
        with pytest.raises(IndexError, match=r"0\.\.4"):
            embedding(np.ones((5, 32)), np.array([0, token]))


class TestPositions:
    """Positions of the rows of a chunk."""

    def test_rows_are_token_major(self) -> None:
        """Row t*B + b stands at start b plus t."""
        assert positions(np.array([10, 0, 5]), 2, 100).tolist() == [10, 0, 5, 11, 1, 6]

    def test_the_context_may_be_filled_and_not_overrun(self) -> None:
        """The last position of the context is allowed; one more is refused by sequence."""
        assert positions(np.array([6]), 2, 8).tolist() == [6, 7]
        with pytest.raises(LanelockError, match="sequence 1: 2 tokens from position 7"):
            positions(np.array([6, 7]), 2, 8)


class TestQuantize:
    """Rounding of activations."""

    def test_each_format_is_its_encode_and_decode(self) -> None:
        """a8 is a8_decode of a8_encode, none is x itself, and finer formats lose less."""
        x = RNG.standard_normal((2, 3, 128))
        loss = {f: float(np.abs(quantize(x, f) - x).max()) for f in FORMATS}

        assert (quantize(x, "a8") == a8_decode(a8_encode(x))).all()
        assert loss["none"] == 0 < loss["a15"] < loss["a8"] < loss["e4m3_blocks"]
        assert (quantize(x, "e4m3_rows")[1, 2] == quantize(x[1, 2][None], "e4m3_rows")[0]).all()
        assert (quantize(x, "e4m3_blocks")[1, 0] == quantize(x[1, 0][None], "e4m3_blocks")[0]).all()

    def test_an_unknown_format_is_named(self) -> None:
        """A format that does not exist is refused with the list of those that do."""
        with pytest.raises(LanelockError, match=r"'a7'.*a15"):
            quantize(np.ones((1, 32)), "a7")
