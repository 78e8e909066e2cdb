"""What a lane costs: its logits against float64, split into its formats (quantisation) and its kernels (arithmetic)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.device import Device
from harness.engine import Choice, Engine, opened, prompt_logits
from kernels.plan import Launch
from oracle.blocks import Run
from oracle.lane import parse
from oracle.model import forward
from oracle.model_weights import Weights

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Rows of logits against the truth. kl: mean of KL(truth || rows) in nats; same_top: share of equal best tokens."""

    rel_l2: float
    largest: float
    kl: float
    same_top: float


@dataclass(frozen=True, slots=True)
class Split:
    """The same comparison three times: device against float64, the lane's formats against it, device against those."""

    total: Errors
    quantisation: Errors
    arithmetic: Errors


@dataclass(frozen=True, slots=True)
class LaneAccuracy:
    """One lane on one text.

    layers: rel_L2 of the residual stream behind each layer (total, quantisation, arithmetic). drift: rel_L2 of the
    logits (total, arithmetic) by position. bytes_a_step: weights that one step reads.
    """

    lane: str
    positions: int
    logits: Split
    layers: tuple[tuple[float, float, float], ...]
    drift: tuple[tuple[float, float], ...]
    bytes_a_step: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run shows: logits [T, V] and the residual stream behind each layer [layers, T, d]."""

    logits: F64
    residuals: F64


def errors(rows: F64, truth: F64) -> Errors:
    """Compare rows of logits [T, V]. A NaN anywhere is a NaN in every figure but same_top."""
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


def oracle_run(weights: Weights, lane: str, tokens: Sequence[int]) -> Seen:
    """The oracle in float64 with a lane's formats (`f64`: none)."""
    residuals: dict[str, F64] = {}

    def keep(name: str, value: F64) -> None:
        if name.startswith("layer") and name.endswith(".residual"):
            residuals[name] = value[0]

    logits = forward(Run(weights, parse(lane), keep), np.array([tokens], np.int64), rows="all").logits[0]
    return Seen(logits, np.stack([residuals[f"layer{i}.residual"] for i in range(weights.config.layers)]))


def device_run(engine: Engine, tokens: Sequence[int]) -> Seen:
    """An engine of one sequence with chunks of one token: logits, and the residual that each next norm has added up."""
    layers, d = engine.setting.config.layers, engine.setting.config.d
    behind = {f"layers.{i + 1}.norm1": i for i in range(layers - 1)} | {"on": layers - 1}
    found: list[list[F64]] = [[] for _ in range(layers)]

    def after(_program: str, item: Launch) -> None:
        if item.label in behind:
            found[behind[item.label]].append(engine.read("residual")[:d].astype(np.float64))

    logits = prompt_logits(replace(engine, after=after), tokens).astype(np.float64)
    return Seen(logits, np.array(found))


def bytes_a_step(engine: Engine) -> int:
    """Bytes of weights that one plain step reads; embedding rows count as the rows they are."""
    names = {u.ref.buffer for item in engine.plan.programs["step"] for u in item.uses if u.ref.buffer.startswith("w.")}
    if not engine.setting.config.tied:
        names -= {"w.emb.codes", "w.emb.scales"}
    return sum(engine.plan.buffers[n].nbytes for n in names)


def measure(
    device: Device, weights: Weights, lane: str, tokens: Sequence[int], truth: Seen | None = None
) -> LaneAccuracy:
    """Price a lane on a text, fed token by token.

    Shapes: tokens [T]. truth: the oracle's float64 run, if it is there already.
    Units:  those of Errors; bytes.
    Error:  none: this is the error.
    Source: the split of the design: formats are specified, arithmetic is the kernels'.
    """
    exact = truth or oracle_run(weights, "f64", tokens)
    formats = oracle_run(weights, lane, tokens)
    with opened(device, weights, Choice(lane, 1, len(tokens), 1)) as engine:
        seen, moved = device_run(engine, tokens), bytes_a_step(engine)
    pairs = ((seen, exact), (formats, exact), (seen, formats))
    logits = Split(*(errors(a.logits, b.logits) for a, b in pairs))
    layers = tuple(
        (rel_l2(seen.residuals[i], exact.residuals[i]), rel_l2(formats.residuals[i], exact.residuals[i]),
         rel_l2(seen.residuals[i], formats.residuals[i]))
        for i in range(weights.config.layers)
    )  # fmt: skip
    drift = tuple(
        (rel_l2(seen.logits[t], exact.logits[t]), rel_l2(seen.logits[t], formats.logits[t])) for t in range(len(tokens))
    )
    return LaneAccuracy(lane, len(tokens), logits, layers, drift, moved)
