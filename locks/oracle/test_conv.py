"""The causal convolution against integers, and its ring against any split of the tokens."""

import numpy as np
import pytest

from oracle.conv import causal_conv, conv_silu_l2, l2_norm
from oracle.functions import silu

RNG = np.random.default_rng(13)
W = np.array([[1000.0], [100.0], [10.0], [1.0]])


def start(channels: int, batch: int = 1) -> np.ndarray:
    """The ring before a sequence."""
    return np.zeros((batch, 3, channels))


class TestConvolution:
    """Four taps and a ring."""

    def test_the_last_tap_is_the_current_token(self) -> None:
        """With taps 1000, 100, 10, 1 the tokens 1..5 read 1, 12, 123, 1234, 2345: oldest first, zeros before."""
        y, ring = causal_conv(np.arange(1.0, 6).reshape(1, 5, 1), start(1), W)

        assert y.ravel().tolist() == [1, 12, 123, 1234, 2345]
        assert ring.ravel().tolist() == [3, 4, 5]

    def test_channels_keep_to_themselves(self) -> None:
        """Each channel has its own taps, and no channel or sequence leaks into another."""
        x = RNG.integers(-9, 10, (2, 6, 3)).astype(float)
        w = RNG.integers(-9, 10, (4, 3)).astype(float)
        y, _ = causal_conv(x, start(3, 2), w)
        want = [[[sum(w[j, c] * (x[b, t - 3 + j, c] if t - 3 + j >= 0 else 0) for j in range(4)) for c in range(3)]
                 for t in range(6)] for b in range(2)]

        assert y.tolist() == want

    @pytest.mark.parametrize("split", [1, 2, 3, 5, 40, 95])
    def test_a_split_changes_no_bit(self, split: int) -> None:
        """96 tokens at once or in two pieces give the same outputs and ring (handed case 06)."""
        x, w = RNG.standard_normal((2, 96, 5)), RNG.standard_normal((4, 5))
        whole, ring = causal_conv(x, start(5, 2), w)
        first, between = causal_conv(x[:, :split], start(5, 2), w)
        second, after = causal_conv(x[:, split:], between, w)

        assert (np.concatenate([first, second], axis=1) == whole).all()
        assert (after == ring).all()

    def test_the_ring_holds_inputs_of_its_own(self) -> None:
        """The ring is raw input, and writing to the input afterwards does not change it."""
        x = np.ones((1, 4, 1))
        _, ring = causal_conv(x, start(1), W)
        x[:] = 7

        assert ring.ravel().tolist() == [1, 1, 1]


class TestWhole:
    """Convolution, SiLU and unit norm as one room."""

    def test_silu_then_unit_norm_of_query_and_key_heads_alone(self) -> None:
        """Q and K heads are normed after SiLU, each on its own; V is SiLU of the convolution; the ring stays raw."""
        k_heads, dim = 2, 4
        x, w = RNG.standard_normal((1, 3, 2 * 8 + 12)), RNG.standard_normal((4, 28))
        y, ring = conv_silu_l2(x, start(28), w, k_heads, dim)
        plain = silu(causal_conv(x, start(28), w)[0])
        heads = [l2_norm(plain[..., i : i + dim]) for i in range(0, 16, dim)]

        assert np.abs(y[..., :16] - np.concatenate(heads, axis=-1)).max() < 1e-15
        assert (y[..., 16:] == plain[..., 16:]).all()
        assert (ring == x).all()
