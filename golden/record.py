"""Decoding streams, and recording them with a reason."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from golden.stream import Golden, config_hash, weights_hash
from harness.device import Device
from harness.engine import Choice, Engine, Request, decode
from harness.record import circumstances
from harness.sources import KERNELS
from kernels.lanes import lane
from oracle.bits import ARITHMETIC_VERSION
from oracle.error_bound import gap_bound
from oracle.errors import LanelockError
from oracle.model_weights import Weights

#: Opens an engine over weights: the device's own, or a broken one that a lock makes.
Opener = Callable[[Weights, Choice], AbstractContextManager[Engine]]
DRAFTS = 1


@dataclass(slots=True)
class Decoded:
    """What a stream is compared by. build: device, compiler and kernels that made it."""

    tokens: list[int] = field(default_factory=list)
    logits: list[str] = field(default_factory=list)
    margins: list[str] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    build: str = ""


def build_of(device: Device) -> str:
    """What a bounded lane's bits may depend on: device, compiler, and the text of every kernel."""
    text = "".join(path.read_text() for path in sorted(KERNELS.glob("*.cu*")))
    p = device.properties
    return f"{p.name}, {p.arch}, {p.compiler}, kernels {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def choice_of(lane_name: str, requests: Sequence[Request], drafts: int = DRAFTS) -> Choice:
    """An engine for these requests, all at once."""
    longest = max(len(r.prompt) + r.count for r in requests)
    return Choice(lane_name, len(requests), longest, min(16, longest), drafts)


def decoded(open_engine: Opener, weights: Weights, lane_name: str, requests: Sequence[Request]) -> list[Decoded]:
    """Decode requests beside each other; a stream is the same as alone.

    Raises LanelockError where a stream ends by a fault.
    """
    found = [Decoded() for _ in requests]

    def watch(i: int, _token: int, row: np.ndarray) -> None:
        canonical = np.where(np.isnan(row), np.float32(np.nan), row)
        second, first = np.sort(row)[-2:].astype(np.float64)
        found[i].logits.append(hashlib.sha256(canonical.tobytes()).hexdigest())
        found[i].margins.append(float(first - second).hex())

    with open_engine(weights, choice_of(lane_name, requests)) as engine:
        streams, build = decode(engine, requests, watch), build_of(engine.device)
    for i, stream in enumerate(streams):
        if stream.stopped != "count":
            raise LanelockError(f"lane {lane_name}, prompt {i}, token {len(stream.tokens)}: {stream.stopped}")
        found[i].tokens, found[i].accepted, found[i].build = stream.tokens, stream.accepted, build
    return found


def record(
    open_engine: Opener,
    device: Device,
    source: str,
    weights: Weights,
    lane_name: str,
    requests: Sequence[Request],
    reason: str,
) -> list[Golden]:
    """Goldens of a model's prompts in one lane. Raises LanelockError without a reason."""
    if not reason.strip():
        raise LanelockError("golden record: a golden is recorded for a reason; say it with --reason")
    now = circumstances()
    made = {name: now[name] for name in ("commit", "dirty", "cpu", "toolkit")}
    made |= {"reason": reason, "device": device.properties.name, "compiler": device.properties.compiler,
             "driver": device.properties.driver}  # fmt: skip
    keys = (config_hash(weights.config), weights_hash(weights))
    return [
        Golden(*keys, r.prompt, lane_name, ARITHMETIC_VERSION, DRAFTS, tuple(d.tokens), tuple(d.logits),
               tuple(d.margins), tuple(d.accepted), source, made, *bounded(weights, lane_name, r, d))
        for r, d in zip(requests, decoded(open_engine, weights, lane_name, requests), strict=True)
    ]  # fmt: skip


def bounded(weights: Weights, name: str, request: Request, found: Decoded) -> tuple[tuple[str, ...], str]:
    """Bounds and build of a golden of a bounded lane; nothing for an exact one."""
    if not lane(name).delta:
        return (), ""
    text = request.prompt + tuple(found.tokens)
    return tuple(float(b).hex() for b in gap_bound(weights, name, text, len(request.prompt))), found.build
