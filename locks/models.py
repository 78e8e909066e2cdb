"""What locks of whole models share: a model small enough for the host device, engines, and the bits of a sequence."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from harness.device import Device
from harness.engine import Choice, Engine, Request, Stream, captured, decode, open_engine
from harness.engine.session import setting
from kernels.steps import make_plan
from oracle.bits.pretile import pretile
from oracle.config import ModelConfig
from oracle.formats import Q8_0
from oracle.model_weights import HeldWeights, Weights, specs
from oracle.weights import load

#: Four layers, one of them attention, value/key ratio 3, a draft head; 32-wide heads, so that the host decodes it soon.
CONFIG = ModelConfig("lock", 4, 64, 96, 64, 4, 2, 32, 8, 1e4, 1, 3, 32, context=4096)
LANES = ("a15", "a8", "q4", "a8+s16+kv16")
POISONED = 63  # the token whose embedding is NaN in `poisoned`


@functools.cache
def weights() -> Weights:
    """Synthetic weights of CONFIG, held in memory."""
    made = load("synthetic:3", CONFIG)
    return HeldWeights(CONFIG, {name: made.tensor(name) for name in specs(CONFIG)})


@functools.cache
def poisoned() -> Weights:
    """The same with one token whose embedding has NaN scales: whoever reads it has NaN logits."""
    held = weights()
    emb = held.tensor("emb")
    assert isinstance(emb, Q8_0)
    scales = emb.scales.copy()
    scales[POISONED] = np.nan
    tensors = {name: held.tensor(name) for name in specs(CONFIG)}
    return HeldWeights(CONFIG, {**tensors, "emb": Q8_0(emb.codes, scales)})


def weight_buffer(e: Engine, tensor: str) -> str:
    """The buffer that holds a tensor's values in the form that this device's lowerings read."""
    forms = ("", ".codes", ".panels", ".q4.codes", ".q4.panels")
    return next(f"w.{tensor}{form}" for form in forms if f"w.{tensor}{form}" in e.plan.buffers)


def written(values: np.ndarray, count: int) -> np.ndarray:
    """Where the first elements lie that are not zero: a panel of a narrow weight begins with slices of no block."""
    return np.flatnonzero(values)[:count]


def output_of(e: Engine, tensor: str, index: int, planes: int) -> tuple[int, int]:
    """Plane and column of the output to which element `index` of a Q8_0 tensor's buffer goes."""
    N, K = specs(e.setting.config)[tensor].shape
    slices = np.searchsorted([(s + 1) * (K // 32) // 8 for s in range(8)], np.arange(K // 32), side="right")
    columns, parts = np.broadcast_to(np.arange(N)[:, None], (N, K)), np.broadcast_to(np.repeat(slices, 32), (N, K))
    if weight_buffer(e, tensor).endswith(".panels"):
        nothing = np.zeros((N, K // 32), np.float16)
        columns, parts = (pretile(a.astype(np.uint8), nothing, 8) for a in (columns, parts))
    return int(parts.flat[index]) if planes == 8 else 0, int(columns.flat[index])


def prompt(length: int, seed: int = 1) -> tuple[int, ...]:
    """Tokens of a prompt, none of them POISONED; a shorter prompt of the same seed is its beginning."""
    return tuple(int(t) for t in np.random.default_rng(seed).integers(0, POISONED, 400)[:length])


@contextmanager
def engine(device: Device, choice: Choice, w: Weights | None = None, sms: int = 0) -> Iterator[Engine]:
    """An engine over the small model; sms: plan as for a machine with so many multiprocessors."""
    w = w or weights()
    s = setting(device, w.config, choice)
    if sms:
        s = replace(s, machine=replace(s.machine, multiprocessors=sms))
    e = open_engine(device, s, make_plan(s, choice.chunk, choice.drafts), w)
    try:
        yield captured(e) if choice.graphs else e
    finally:
        e.close()


def run(device: Device, choice: Choice, requests: list[Request], w: Weights | None = None) -> list[Stream]:
    """Streams of an engine of its own."""
    with engine(device, choice, w) as e:
        return decode(e, requests)


def with_logits(e: Engine, requests: list[Request], **how: object) -> tuple[list[Stream], list[np.ndarray]]:
    """Streams, and for each its logits [tokens, V]."""
    rows: list[list[np.ndarray]] = [[] for _ in requests]
    streams = decode(e, requests, lambda i, _t, row: rows[i].append(row.copy()), **how)  # type: ignore[arg-type]  # passed on
    return streams, [np.stack(r) if r else np.zeros((0, e.setting.config.vocab), np.float32) for r in rows]


def tokens(streams: list[Stream]) -> list[list[int]]:
    """The tokens of each stream."""
    return [s.tokens for s in streams]


def slot_state(e: Engine, slot: int, draft_head: bool = False) -> Mapping[str, np.ndarray]:
    """Everything that a slot keeps between passes: recurrent states, rings, caches up to the rows its passes filled."""
    found = {}
    for b in e.plan.buffers.values():
        if b.kind == "state" and (draft_head or not b.name.endswith(".mtp")):
            found[b.name] = e.read(b.name).reshape(e.setting.slots, -1)[slot].copy()
    return found
