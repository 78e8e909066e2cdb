"""How far a lane's logits may lie from float64, derived from the size of every rounding behind them.

Each rounding of a lane is an error of a known largest size (oracle/roundings.py). To first order a logit's error is a
sum of all of them, each times what the float64 model makes of it. Taken as independent with means of zero, such a sum
of bounded errors is sub-Gaussian: it exceeds t deviations with a probability of at most 2 exp(-t*t/2) (Hoeffding; an
even error within h is so with its own deviation, h/sqrt(3)). The deviations are measured: the oracle runs many times in
float64 with every rounding drawn anew. That measure errs too; a mean of n squares falls below c times its expectation
with a probability of at most (c exp(1 - c))**(n/2) (Chernoff, for the normal sums that so many roundings make).

What is statistical: independence and zero means, the normal sums of the second step. What is worst case: the size of
each rounding. RISK is the probability that any logit of a text leaves its bound though every rounding is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.blocks import Run
from oracle.delta_rule import CHUNK
from oracle.lane import Lane, parse
from oracle.model import forward, head
from oracle.model_weights import Weights
from oracle.roundings import Jitter, Noise

F64 = NDArray[np.float64]
RISK = 1e-6
SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Bound:
    """Truth and reach of every logit [P, V]: right logits lie within reach of truth, and rows within norm [P] of it."""

    truth: F64
    reach: F64
    norm: F64

    def shares(self, rows: F64) -> F64:
        """Errors over their bounds [P, V]; a NaN is infinitely wrong. Raises ValueError for another shape."""
        if rows.shape != self.truth.shape:
            raise ValueError(f"logits of shape {rows.shape} are not compared with those of {self.truth.shape}")
        used: F64 = np.nan_to_num(np.abs(rows - self.truth) / self.reach, nan=np.inf, posinf=np.inf)
        return used

    def norm_shares(self, rows: F64) -> F64:
        """Norms of the rows' errors over their bounds [P]."""
        used: F64 = np.linalg.norm(rows - self.truth, axis=-1) / self.norm
        return np.nan_to_num(used, nan=np.inf, posinf=np.inf)

    def disagreements(self, rows: F64) -> tuple[int, int]:
        """Rows whose best token is not the truth's: where the bounds allow it, and where they do not."""
        mine, best = rows.argmax(-1), self.truth.argmax(-1)
        row = np.arange(len(rows))
        margin = self.truth[row, best] - self.truth[row, mine]
        allowed = margin <= self.reach[row, best] + self.reach[row, mine]
        broken = ~np.isfinite(rows).all(-1)
        differs = (mine != best) | broken
        return int((differs & allowed & ~broken).sum()), int((differs & (~allowed | broken)).sum())


def weights_alone(lane: Lane) -> Lane:
    """The lane whose weights are converted, which is exact, and in which nothing else is rounded."""
    return Lane(f"{lane.name} weights", weights=lane.weights)


def bound_of(
    weights: Weights, lane: str, tokens: Sequence[int], at: Sequence[int] | NDArray[np.int64], samples: int = SAMPLES
) -> Bound:
    """The bound of a lane's logits behind the tokens `at` of a text.

    Shapes: tokens [T], at [P] -> rows of P.
    Units:  those of logits. The truth is float64 on the weights as the lane converts them (the oracle's and the
            kernels' conversions are equal bits, so that nothing about them is in doubt).
    Error:  first order in the roundings; RISK for a whole text.
    Source: this module.
    """
    formats, places = parse(lane), np.asarray(at)
    truth = _logits(Run(weights, weights_alone(formats)), tokens, places, 1)[0]
    noise = Noise(seed=len(tokens), chunk=_chunk(lane))
    squares = (_logits(Run(weights, formats, roundings=noise), tokens, places, samples) - truth) ** 2
    reach = factor(samples, truth.size) * np.sqrt(squares.mean(0))
    norm = norm_factor(samples, len(truth)) * np.sqrt(squares.sum(-1).mean(0))
    return Bound(truth, reach, norm)


def gap_bound(weights: Weights, lane: str, text: Sequence[int], start: int, samples: int = SAMPLES) -> F64:
    """How far the gap between a token's logit and any other may differ between two right runs of a bounded lane.

    Shapes: text [T], start -> [T - start]: a gap for each token from `start` on, in the row that it was picked from.
    Units:  those of logits. Two runs round codes alike but where their arithmetic, which is not specified, lets a code
            fall the other way, and what follows from that; so each is drawn from the spread of many such runs.
    Error:  as `bound_of`; the difference of two draws has the square root of two times the deviation of one.
    Source: this module.
    """
    jitter = Run(weights, parse(lane), roundings=Jitter(seed=len(text), chunk=_chunk(lane)))
    rows = _logits(jitter, text[:-1], np.arange(start - 1, len(text) - 1), samples)
    gaps = np.take_along_axis(rows, np.array(text[start:])[None, :, None], -1) - rows
    deviation = np.sqrt(2.0) * gaps.std(axis=0, ddof=1)
    reach: F64 = factor(samples - 1, deviation.size) * deviation.max(-1)
    return reach


def _chunk(lane: str) -> int:
    return CHUNK if "delta" in lane.split("+") else 0


def _logits(run: Run, tokens: Sequence[int], at: NDArray[np.int64], runs: int) -> F64:
    text = np.repeat(np.array([tokens], np.int64), runs, axis=0)
    return head(run, forward(run, text, rows="none").hidden[:, at])


def factor(samples: int, events: int, risk: float = RISK) -> float:
    """Deviations, as `samples` runs measure them, that none of so many logits exceeds but with probability risk."""
    return math.sqrt(2 * math.log(4 * events / risk) / shortfall(samples, risk / (2 * events)))


def norm_factor(samples: int, events: int, risk: float = RISK) -> float:
    """The same for norms of rows, in root mean squares of the norm, whatever the directions that errors take.

    Source: Hsu, Kakade & Zhang 2012, theorem 2.1, with every trace at most that of the covariance.
    """
    s = math.log(2 * events / risk)
    return math.sqrt((1 + 2 * math.sqrt(s) + 2 * s) / shortfall(samples, risk / (2 * events)))


def shortfall(samples: int, probability: float) -> float:
    """The c below 1 with (c exp(1 - c))**(samples/2) = probability."""
    low, high = 0.0, 1.0
    for _ in range(60):
        c = (low + high) / 2
        small = c == 0 or samples / 2 * (math.log(c) + 1 - c) < math.log(probability)
        low, high = (c, high) if small else (low, c)
    return low
