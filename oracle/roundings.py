"""Where a run rounds: as its lane's formats say, and, for asking what arithmetic costs, wherever a kernel rounds.

A run's `Roundings` is asked at four kinds of places: values that become codes, values that are stored at half width,
the recurrence, and every float32 result. The plain one knows formats alone. `Noise` replaces every rounding by an
independent error of its size, so that the spread of many runs bounds what roundings of that size do to the logits.

Sizes are in units of u = 2**-24, one for each rounding in the longest chain of the contract behind a result, to first
order: a product's chain of fma and adds times the sum of |products|, four units in the last place (8 u) for a function.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from oracle.arrays import F64
from oracle.config import BLOCK
from oracle.delta_rule import chunked, sequential
from oracle.formats import f16_round
from oracle.formats.activations import A8_MAX, A15_MAX, SCALE_FLOOR
from oracle.functions import exp
from oracle.quantize import quantize

U = 2.0**-24
FUNCTION = 8  # of exp, sigmoid, silu, softplus
TOPS = {"a8": A8_MAX, "a15": A15_MAX}

#: Gives the size of a result's error in units of u, when it is asked for.
Size = Callable[[], F64]
Inputs = tuple[F64, F64, F64, F64, F64]


class Roundings:
    """What a lane's formats round; results stay as they are."""

    def codes(self, name: str, x: F64, activations: str) -> F64:  # noqa: ARG002  # the name is for others
        """What the projection `name` reads in place of x. Shapes: [B, T, K] in and out."""
        return quantize(x, activations)

    def stored(self, name: str, x: F64, store: str) -> F64:  # noqa: ARG002  # as above
        """Keys or values as a cache holds them. store: f64 or f16."""
        return f16_round(x) if store == "f16" else x

    def scan(self, name: str, inputs: Inputs, s: F64, store: str) -> tuple[F64, F64]:  # noqa: ARG002  # as above
        """The delta rule over inputs q, k, v, g, beta from state s. store: f64, f16 or bf16, after every token."""
        q, k, v, g, beta = inputs
        return chunked(q, k, v, g, beta, s) if store == "f64" else sequential(q, k, v, g, beta, s, store)

    def result(self, name: str, value: F64, size: Size) -> F64:  # noqa: ARG002  # as above
        """A float32 result of a kernel."""
        return value


class Noise(Roundings):
    """Every rounding as an independent error of its full size, with a mean of zero.

    A code errs evenly within half a step of its block's scale (and what the quotient's roundings add), a half-width
    value within half a unit in its last place, a float32 result by plus or minus its size. Even errors in half a step
    have the variance that roundings have; plus or minus the size has the largest that an error of at most it can.
    formats, arithmetic: which of them. chunk: tokens that the recurrence takes at once, in sums that are chains; 0 for
    the scan, whose sums are trees.
    """

    def __init__(self, seed: int, *, formats: bool = True, arithmetic: bool = True, chunk: int = 0) -> None:
        self.formats, self.arithmetic, self.chunk = formats, arithmetic, chunk
        self._random = np.random.default_rng(seed)

    def codes(self, name: str, x: F64, activations: str) -> F64:  # noqa: ARG002  # the name is for others
        """Shapes: [B, T, K]."""
        if not self.formats or activations == "none":
            return x
        largest = np.abs(x).reshape(*x.shape[:-1], -1, BLOCK).max(-1)
        return self._within(x, half_step(np.maximum(largest / TOPS[activations], SCALE_FLOOR), activations))

    def stored(self, name: str, x: F64, store: str) -> F64:  # noqa: ARG002  # as above
        """Shapes: any."""
        return self._within(x, half_unit_of_f16(x)) if self.formats and store == "f16" else x

    def scan(self, name: str, inputs: Inputs, s: F64, store: str) -> tuple[F64, F64]:
        """Token by token, with an error in each correction, each state and each output."""
        q, k, v, g, beta = inputs
        chain = k.shape[-1] + self.chunk if self.chunk else k.shape[-1] // 32 + 5
        o = np.empty(v.shape)
        for t in range(q.shape[1]):
            rate, old, s = beta[:, t, :, None], np.abs(s), exp(g[:, t])[..., None, None] * s
            d = rate * (v[:, t] - np.einsum("bhvk,bhk->bhv", s, k[:, t]))
            of_sum = rate * np.einsum("bhvk,bhk->bhv", np.abs(s), np.abs(k[:, t]))
            d = self._err(d, 2 * np.abs(d) + chain * of_sum)
            s = s + d[..., :, None] * k[:, t, :, None, :]
            s = self._err(s, (1 + self.chunk) * (np.abs(s) + old))
            root = math.sqrt(q.shape[-1])
            of_read = np.einsum("bhvk,bhk->bhv", np.abs(s), np.abs(q[:, t])) / root
            o[:, t] = self._err(np.einsum("bhvk,bhk->bhv", s, q[:, t]) / root, (chain + 2) * of_read)
            s = self.kept(name, t, s, store)
        return o, s

    def kept(self, name: str, token: int, s: F64, store: str) -> F64:  # noqa: ARG002  # as above
        """The state as it is stored behind a token of the chunk."""
        return self.stored(name, s, store)

    def result(self, name: str, value: F64, size: Size) -> F64:  # noqa: ARG002  # as above
        """Plus or minus its size."""
        return self._err(value, size()) if self.arithmetic else value

    def _within(self, x: F64, half: F64) -> F64:
        return np.asarray(x + half * self._random.uniform(-1.0, 1.0, x.shape))

    def _err(self, x: F64, size: F64) -> F64:
        if not self.arithmetic:
            return x
        return np.asarray(x + U * size * (2.0 * self._random.integers(0, 2, x.shape) - 1.0))


class Jitter(Noise):
    """Noisy arithmetic between roundings that are the lane's own, so that now and then a code falls the other way.

    So differ two right runs of a bounded lane, on two devices or in two builds.
    """

    def codes(self, name: str, x: F64, activations: str) -> F64:
        """Shapes: [B, T, K]."""
        return Roundings.codes(self, name, x, activations)

    def stored(self, name: str, x: F64, store: str) -> F64:
        """Shapes: any."""
        return Roundings.stored(self, name, x, store)


class Following(Noise):
    """The codes, half-width states and caches of another run, in place of one's own roundings.

    given: by buffer name, decoded codes and cache rows [T, ...] and states behind every token [T, HV, V, K], of one
    sequence from its first token on. asked: what each of them was the rounding of, here. What is left between the two
    runs is arithmetic, and no error lives longer than to the next rounding. With arithmetic the first sequence of the
    batch is exact and every other one errs.
    """

    def __init__(self, given: Mapping[str, F64], seed: int = 0, *, arithmetic: bool = False, chunk: int = 0) -> None:
        super().__init__(seed, formats=False, arithmetic=arithmetic, chunk=chunk)
        self.given = given
        self.asked: dict[str, F64] = {}

    def _err(self, x: F64, size: F64) -> F64:
        wrong = super()._err(x, size)
        if self.arithmetic:
            wrong[0] = x[0]
        return wrong

    def codes(self, name: str, x: F64, activations: str) -> F64:
        """Shapes: [B, T, K]."""
        return x if activations == "none" else self._other(name, x)

    def stored(self, name: str, x: F64, store: str) -> F64:
        """Shapes: [B, T, HK, D]."""
        return self._other(name, x) if store == "f16" else x

    def kept(self, name: str, token: int, s: F64, store: str) -> F64:
        """Shapes: [B, HV, V, K]."""
        if store != "f16":
            return s
        if name not in self.given:  # a run in chunks shows its states at their ends alone
            return f16_round(s)
        self.asked[f"{name}.{token}"] = s
        return np.broadcast_to(self.given[name][token], s.shape)

    def _other(self, name: str, x: F64) -> F64:
        self.asked[name] = x
        return np.broadcast_to(self.given[name].reshape(x.shape[1:]), x.shape)


def half_step(scales: F64, activations: str) -> F64:
    """How far a decoded value may lie from the float32 value that was quantised.

    Shapes: scales [..., K/32] -> [..., K].
    Units:  those of the scales.
    Error:  half a code by rint; the quotient and the scale inside it are rounded once, at most top * u codes each.
    Source: the contract, A8 and A15.
    """
    return np.repeat(scales * (0.5 + 2 * TOPS[activations] * U), BLOCK, axis=-1)


def half_unit_of_f16(x: F64) -> F64:
    """The most that rounding to f16 moves a value that does not overflow."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -14)
    return np.asarray(np.ldexp(1.0, exponent - 11))


def of_projection(K: int) -> int:
    """Roundings behind an output of a Q8_0 or Q4 projection: a slice's blocks, eight slices, product and conversion."""
    return math.ceil(K / 256) + 8 + 2


def of_float_projection(K: int) -> int:
    """The same for the small float32 one: a tree's chain of 8 and 5, then chunks of 256."""
    return math.ceil(K / 256) + 13


def of_row_norm(K: int) -> float:
    """Relative: the mean's sum, its division and epsilon halved by the root; root, quotient and weight."""
    return (13 + math.ceil(K / 256) + 2) / 2 + 3


def of_head_norm(D: int) -> float:
    """The same for a head of D, whose sum is one tree."""
    return (D / 32 + 5 + 2) / 2 + 3


def of_attention(positions: int) -> int:
    """Relative to the weighted sum of |values|: exponentials, a chunk's chain, rescaling of chunks, the quotient."""
    chunks = math.ceil(positions / 256)
    return 2 * (FUNCTION + 1) + min(positions, 256) + 13 + 6 * chunks + 1
