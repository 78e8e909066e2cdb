"""Locks: synthetic weights, bit by bit from the written rule, and fit to run any depth."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from locks.oracle.checkpoints import same
from oracle.blocks import Run
from oracle.config import ModelConfig, preset
from oracle.decode import greedy_stream
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model import forward
from oracle.model_weights import specs
from oracle.weights.synthetic import SyntheticWeights, words

TINY = preset("tiny")
TIED = replace(TINY, tied=True, mtp=False)


def splitmix(z: int) -> int:
    """The published generator's output function, on Python integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def word(seed: int, name: str, i: int) -> int:
    """A word by the formulas of the page, on Python integers."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return splitmix((splitmix(splitmix(seed) ^ h) + (i + 1) * 0x9E3779B97F4A7C15) % 2**64)


class TestSynthetic:
    """Weights from a seed."""

    def test_generator_is_splitmix64(self) -> None:
        """Counters from state 1234567 give the published first outputs of splitmix64."""
        published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
        assert words(1234567, np.arange(4, dtype=np.uint64)).tolist() == published

    def test_codes_and_scales_bit_by_bit(self) -> None:
        """Codes are the bytes of the words, -128 as -127; scales are the base plus seven bits, as float16 bits."""
        tensor = SyntheticWeights(TINY, 5).tensor("layers.0.qkvz")
        base = int(np.float16(1.0 / 96**0.5 / 80).view(np.uint16))
        for n, k in ((0, 0), (0, 95), (7, 33), (511, 95), (300, 64)):
            e = n * 96 + k
            byte = word(5, "layers.0.qkvz.codes", e // 8) >> (8 * (e % 8)) & 255
            assert tensor.codes[n, k] == max(byte - 256 * (byte > 127), -127)
            high = word(5, "layers.0.qkvz.scales", n * 3 + k // 32) >> 57
            assert tensor.scales[n, k // 32].view(np.uint16) == base + high

    def test_floats_bit_by_bit(self) -> None:
        """Norms, taps, dt, A and ba are centre plus a 12-bit integer times a power of two, exactly."""
        weights = SyntheticWeights(TINY, 2**64 - 1)
        rules = {"layers.0.an": lambda w: 1 + ((w >> 52) - 2048) / 2**14,
                 "layers.0.Wc": lambda w: ((w >> 52) - 2048) / 2**11,
                 "layers.0.Dt": lambda w: -1 + ((w >> 52) - 2048) / 2**11,
                 "layers.0.ba": lambda w: ((w >> 52) - 2048) / 2**14,
                 "layers.0.Al": lambda w: -(4096 + (w >> 52)) / 2 ** (13 + (w & 7))}
        for name, rule in rules.items():
            values = weights.tensor(name).ravel().tolist()
            assert values == [rule(word(2**64 - 1, name, i)) for i in range(len(values))], name

    def test_rows_are_those_of_the_whole(self) -> None:
        """Any rows, in any order, are the same as taken from the whole tensor."""
        weights, index = SyntheticWeights(TINY, 9), np.array([5, 0, 319, 17, 5])
        whole = weights.tensor("layers.1.gu")

        assert same(weights.rows("layers.1.gu", index), Q8_0(whole.codes[index], whole.scales[index]))

    def test_every_tensor_fits_the_table(self) -> None:
        """Shapes are the table's, no code is -128, every value is finite, and no two matrices or seeds are equal."""
        one, two = SyntheticWeights(TIED, 1), SyntheticWeights(TIED, 2)
        for name, spec in specs(TIED).items():
            tensor = one.tensor(name)
            assert tensor.shape == spec.shape
            assert not same(tensor, two.tensor(name))
            if isinstance(tensor, Q8_0):
                assert tensor.codes.min() == -127
                assert np.isfinite(tensor.scales).all()
        assert not np.array_equal(one.tensor("layers.0.Wd").codes, one.tensor("layers.1.Wd").codes)

    @pytest.mark.parametrize("config", [replace(TINY, layers=64), replace(TINY, layers=16, tied=True)])
    def test_activations_keep_their_scale(self, config: ModelConfig) -> None:
        """Through 64 layers the residual stream stays within 0.1 to 10 and no buffer overflows or vanishes.

        A residual that gained a tenth a layer would be 450 after 64. Red: a gain off by two.
        """
        sizes: dict[str, float] = {}


        def record(name: str, values: NDArray[np.float64]) -> None:
            sizes[name] = float(np.sqrt(np.mean(values**2)))

        forward(Run(SyntheticWeights(config, 1), record=record), np.arange(12)[None] * 7)
        residual = [size for name, size in sizes.items() if name.endswith(".residual")]

        assert 0.1 < min(residual) <= max(residual) < 10
        assert all(1e-4 < size < 100 for size in sizes.values())

    @pytest.mark.parametrize("config", [TINY, replace(TINY, layers=8, tied=True)], ids=["untied", "tied"])
    def test_greedy_streams_do_not_collapse(self, config: ModelConfig) -> None:
        """Twenty greedy tokens are mostly different, and differ between prompts.

        Independent draws of 20 from 256 repeat about 0.7 times; a stream with fewer than 14 different is collapsing.
        """
        prompt = np.random.default_rng(4).integers(0, config.vocab, (3, 6))
        tokens = np.stack([token for token, _ in greedy_stream(Run(SyntheticWeights(config, 1)), prompt, 20)], axis=1)

        assert all(len(set(stream)) >= 14 for stream in tokens.tolist())
        assert len({tuple(stream) for stream in tokens.tolist()}) == 3

    def test_bad_seed_is_refused(self) -> None:
        """A seed outside 64 bits is one sentence."""
        with pytest.raises(LanelockError, match="seed"):
            SyntheticWeights(TINY, 2**64)
