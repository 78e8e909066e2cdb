"""What a lane costs: its logits against float64, split into what its formats did and what its arithmetic did.

The split follows the device: the oracle runs in float64 on the very codes, half-width states and cache rows that the
device made. From float64 to that run is quantisation, from there to the device is arithmetic: nothing counts twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.device import Device
from harness.engine import Choice, Engine, opened
from harness.observed import observed
from oracle.blocks import Run
from oracle.error_bound import Bound, bound_of
from oracle.lane import Lane, parse
from oracle.model import forward, head
from oracle.model_weights import Weights
from oracle.roundings import Following, Roundings

F64 = NDArray[np.float64]
#: Chunks that the bounded lanes' prompts are fed in; the exact lanes' bits do not depend on it.
DELTA_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Errors:
    """Rows of logits against the truth. kl: mean of KL(truth || rows) in nats; same_top: share of equal best tokens."""

    rel_l2: float
    largest: float
    kl: float
    same_top: float


@dataclass(frozen=True, slots=True)
class Split:
    """The same comparison three times: device against float64, float64 on its codes against it, device against that."""

    total: Errors
    quantisation: Errors
    arithmetic: Errors


@dataclass(frozen=True, slots=True)
class LaneAccuracy:
    """One lane on one text.

    positions: tokens of the text. at: those whose logits are compared. layers: rel_L2 of the residual stream behind
    each layer (total, quantisation, arithmetic). drift: rel_L2 of the logits at each of `at` (the same three).
    bytes_a_step: weights that one step reads. share: largest error of a logit over its bound, None where none was made.
    excused: best tokens that differ from float64's where the margin is smaller than both bounds; unexcused: the others.
    """

    lane: str
    positions: int
    at: tuple[int, ...]
    logits: Split
    layers: tuple[tuple[float, float, float], ...]
    drift: tuple[tuple[float, float, float], ...]
    bytes_a_step: int
    share: float | None = None
    excused: int = 0
    unexcused: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run shows: logits [P, V], and the residual stream behind each layer [layers, T, d]."""

    logits: F64
    residuals: F64


def errors(rows: F64, truth: F64) -> Errors:
    """Compare rows of logits [T, V]. A NaN anywhere is a NaN in every figure; a row with one has no best token.

    Raises ValueError for other shapes, or none.
    """
    if rows.shape != truth.shape or not rows.size:
        raise ValueError(f"logits of shape {rows.shape} are not compared with those of {truth.shape}")
    whole = bool(np.isfinite(rows).all() and np.isfinite(truth).all())
    if not whole:
        return Errors(np.nan, np.nan, np.nan, np.nan)
    return Errors(
        rel_l2(rows, truth),
        float(np.abs(rows - truth).max()),
        divergence(rows, truth),
        float((rows.argmax(-1) == truth.argmax(-1)).mean()),
    )


def rel_l2(values: F64, truth: F64) -> float:
    """Norm of the error over the norm of the truth."""
    return float(np.linalg.norm(values - truth) / np.linalg.norm(truth))


def divergence(rows: F64, truth: F64) -> float:
    """Mean KL(softmax(truth) || softmax(rows)) in nats."""
    p, q = log_softmax(truth), log_softmax(rows)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def log_softmax(rows: F64) -> F64:
    """Logarithms of probabilities along the last axis."""
    shifted = rows - rows.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def oracle_run(
    weights: Weights, lane: Lane, tokens: Sequence[int], at: Sequence[int], roundings: Roundings | None = None
) -> Seen:
    """The oracle in float64 with a lane's formats, or with other roundings; logits behind the tokens `at`."""
    residuals: dict[str, F64] = {}

    def keep(name: str, value: F64) -> None:
        if name.startswith("layer") and name.endswith(".residual"):
            residuals[name] = value[0]

    run = Run(weights, lane, keep, roundings or Roundings())
    hidden = forward(run, np.array([tokens], np.int64), rows="none").hidden
    logits = head(run, hidden[:, np.asarray(at)])[0]
    return Seen(logits, np.stack([residuals[f"layer{i}.residual"] for i in range(weights.config.layers)]))


def truth_of(weights: Weights, tokens: Sequence[int], at: Sequence[int] | None = None) -> Seen:
    """Exact float64 on the weights as they are stored."""
    return oracle_run(weights, parse("f64"), tokens, range(len(tokens)) if at is None else at)


def bytes_a_step(engine: Engine) -> int:
    """Bytes of weights that one plain step reads; embedding rows count as the rows they are."""
    names = {u.ref.buffer for item in engine.plan.programs["step"] for u in item.uses if u.ref.buffer.startswith("w.")}
    if not engine.setting.config.tied:
        names -= {"w.emb.codes", "w.emb.scales"}
    return sum(engine.plan.buffers[n].nbytes for n in names)


def measure(
    device: Device,
    weights: Weights,
    lane: str,
    tokens: Sequence[int],
    truth: Seen | None = None,
    samples: int = 0,
) -> LaneAccuracy:
    """Price a lane on a text, fed token by token; a +delta lane in chunks.

    Shapes: tokens [T], at least one. truth: the oracle's float64 run over them, all logits, if it is there already.
    samples: noisy runs that the bound is made of; none without.
    Units:  those of Errors; bytes.
    Error:  none: this is the error.
    Source: the split above. Raises LanelockError for an unknown lane or tokens that do not fit.
    """
    width = DELTA_CHUNK if "delta" in lane.split("+") else 1
    with opened(device, weights, Choice(lane, 1, len(tokens), width)) as engine:
        found, moved = observed(engine, tokens), bytes_a_step(engine)
    exact = truth or truth_of(weights, tokens)
    at = found.positions
    seen, exact = Seen(found.logits, found.residuals), Seen(exact.logits[at], exact.residuals)
    followed = oracle_run(weights, parse(lane), tokens, at.tolist(), Following(found.given))
    pairs = ((seen, exact), (followed, exact), (seen, followed))
    layers, drift = (
        tuple(zip(*([rel_l2(x, y) for x, y in zip(a, b, strict=True)] for a, b in both), strict=True))
        for both in (
            [(a.residuals, b.residuals) for a, b in pairs],
            [(a.logits, b.logits) for a, b in pairs],
        )
    )
    priced = LaneAccuracy(lane, len(tokens), tuple(at.tolist()), Split(*(errors(a.logits, b.logits) for a, b in pairs)),
                          layers, drift, moved)  # fmt: skip  # a record
    return priced if not samples else _with_bound(priced, seen, bound_of(weights, lane, tokens, at, samples))


def _with_bound(priced: LaneAccuracy, seen: Seen, bound: Bound) -> LaneAccuracy:
    excused, unexcused = bound.disagreements(seen.logits)
    share = float(bound.shares(seen.logits).max())
    return replace(priced, share=share, excused=excused, unexcused=unexcused)
