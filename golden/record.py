"""Decoding streams, and recording them with a reason."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from golden.stream import Golden, config_hash, weights_hash
from harness.device import Device
from harness.engine import Choice, Engine, Request, Stream, decode
from harness.record import circumstances
from oracle.bits import ARITHMETIC_VERSION
from oracle.errors import LanelockError
from oracle.model_weights import Weights

#: Opens an engine over weights: the device's own, or a broken one that a lock makes.
Opener = Callable[[Weights, Choice], AbstractContextManager[Engine]]
DRAFTS = 1


@dataclass(slots=True)
class Decoded:
    """What a stream is compared by."""

    tokens: list[int] = field(default_factory=list)
    logits: list[str] = field(default_factory=list)
    margins: list[str] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


def choice_of(lane: str, requests: Sequence[Request], drafts: int = DRAFTS) -> Choice:
    """An engine for these requests, all at once."""
    longest = max(len(r.prompt) + r.count for r in requests)
    return Choice(lane, len(requests), longest, min(16, longest), drafts)


def decoded(open_engine: Opener, weights: Weights, lane: str, requests: Sequence[Request]) -> list[Decoded]:
    """Decode requests beside each other; a stream is the same as alone.

    Raises LanelockError where a stream ends by a fault.
    """
    return [summary(stream, rows) for stream, rows in with_rows(open_engine, weights, lane, requests)]


def with_rows(
    open_engine: Opener, weights: Weights, lane: str, requests: Sequence[Request]
) -> list[tuple[Stream, list[np.ndarray]]]:
    """Streams, each with the logits of its steps. Raises LanelockError where a stream ends by a fault."""
    rows: list[list[np.ndarray]] = [[] for _ in requests]
    with open_engine(weights, choice_of(lane, requests)) as engine:
        streams = decode(engine, requests, lambda i, _token, row: rows[i].append(row.copy()))
    for i, stream in enumerate(streams):
        if stream.stopped != "count":
            raise LanelockError(f"lane {lane}, prompt {i}, token {len(stream.tokens)}: {stream.stopped}")
    return list(zip(streams, rows, strict=True))


def summary(stream: Stream, rows: Sequence[np.ndarray]) -> Decoded:
    """What a stream is compared by."""
    found = Decoded(stream.tokens, accepted=stream.accepted)
    for row in rows:
        canonical = np.where(np.isnan(row), np.float32(np.nan), row)
        second, first = np.sort(row)[-2:].astype(np.float64)
        found.logits.append(hashlib.sha256(canonical.tobytes()).hexdigest())
        found.margins.append(float(first - second).hex())
    return found


def exact_lane(name: str) -> str:
    """The exact lane that a bounded one approximates; its own name where it is exact."""
    return "+".join(part for part in name.split("+") if part != "delta")


def movement(bounded: tuple[Stream, list[np.ndarray]], exact: tuple[Stream, list[np.ndarray]]) -> float:
    """Twice the largest change of a logit, over the steps that have the same tokens behind them."""
    (a, rows_a), (b, rows_b) = bounded, exact
    same = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=True)) if x != y), len(a.tokens) - 1)
    pairs = zip(rows_a[: same + 1], rows_b[: same + 1], strict=True)
    return 2 * max(float(np.abs(x.astype(np.float64) - y).max()) for x, y in pairs)


def build_of(device: Device) -> dict[str, str]:
    """What a bounded lane's bits may depend on: device, compiler, driver."""
    p = device.properties
    return {"device": p.name, "compiler": p.compiler, "driver": p.driver}


def record(
    open_engine: Opener,
    device: Device,
    source: str,
    weights: Weights,
    lane: str,
    requests: Sequence[Request],
    reason: str,
) -> list[Golden]:
    """Goldens of a model's prompts in one lane; a bounded one with its measured bound.

    Raises LanelockError without a reason.
    """
    if not reason.strip():
        raise LanelockError("golden record: a golden is recorded for a reason; say it with --reason")
    now = circumstances()
    made = {name: now[name] for name in ("commit", "dirty", "cpu", "toolkit")}
    made |= {"reason": reason, **build_of(device)}
    keys = (config_hash(weights.config), weights_hash(weights))
    found = with_rows(open_engine, weights, lane, requests)
    bounds = [""] * len(requests)
    if exact_lane(lane) != lane:
        exact = with_rows(open_engine, weights, exact_lane(lane), requests)
        bounds = [movement(a, b).hex() for a, b in zip(found, exact, strict=True)]
    return [
        Golden(*keys, r.prompt, lane, ARITHMETIC_VERSION, DRAFTS, tuple(d.tokens), tuple(d.logits), tuple(d.margins),
               tuple(d.accepted), source, made, bound)
        for r, d, bound in zip(requests, (summary(*f) for f in found), bounds, strict=True)
    ]  # fmt: skip
