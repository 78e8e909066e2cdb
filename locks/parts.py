"""A decode recorded piece by piece on one device, and every piece run again on the host from what stood before it.

A part is a layer, the draft head, the head, or what stands around them; a piece is its share of one pass. Where each
piece, given what the other device had in every buffer, writes the same bits launch by launch, the whole decode does: so
a model that no single host process could run in time is compared completely, its parts beside each other.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from harness.device import Device
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, decode, open_engine
from harness.engine.session import setting
from harness.trace import canonical
from kernels.lowering import Machine
from kernels.plan import Launch, sized
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.storage import loads
from oracle.config import ModelConfig
from oracle.weights import load


@dataclass(frozen=True, slots=True)
class Job:
    """What both devices do: the model, how it is decoded, the machine the plan is made for, and where pieces lie."""

    weights: str
    config: ModelConfig
    choice: Choice
    machine: Machine
    folder: Path

    def setting(self, device: Device) -> Setting:
        """The same on every device."""
        return replace(setting(device, self.config, self.choice), machine=self.machine)


@dataclass(frozen=True, slots=True)
class Piece:
    """Launches first to last - 1 of one pass of a program. digests: of every buffer that each launch wrote.

    What stood before it in each buffer that it touches is in the job's folder, under its number.
    """

    number: int
    part: str
    program: str
    first: int
    last: int
    digests: tuple[tuple[str, ...], ...]

    def before(self, folder: Path) -> Path:
        """Its file."""
        return folder / f"{self.number}.npz"


def part_of(item: Launch) -> str:
    """The part a launch belongs to."""
    if match := re.match(r"layers\.\d+|mtp", item.label):
        return match[0]
    return "head" if item.label in ("Wout", "emb") else "around"


def digests(engine: Engine, item: Launch) -> tuple[str, ...]:
    """A digest of each whole buffer that a launch wrote: rows that do not exist, free slots and poison count too."""
    return tuple(hashlib.sha256(canonical(engine.read(n)).tobytes()).hexdigest()[:16] for n in item.writes)


def touched(items: Iterable[Launch]) -> list[str]:
    """Buffers of launches that are no weights."""
    return sorted({u.ref.buffer for item in items for u in item.uses if not u.ref.buffer.startswith("w.")})


@dataclass(frozen=True, slots=True)
class Recorder(Engine):
    """An engine whose every run leaves its pieces in `pieces` and what stood before them in `folder`."""

    folder: Path = Path()
    pieces: list[Piece] | None = None

    def run(self, program: str, stream: Any = None) -> None:
        """Run a program piece by piece."""
        assert self.pieces is not None
        items = self.plan.programs[program]
        for part, group in itertools.groupby(range(len(items)), lambda i: part_of(items[i])):
            at = list(group)
            piece = Piece(len(self.pieces), part, program, at[0], at[-1] + 1, ())
            mine = items[piece.first : piece.last]
            np.savez(piece.before(self.folder), **{n: self.read(n) for n in touched(mine)})  # type: ignore[arg-type]  # arrays
            found = []
            for item in mine:
                self.launch(item, stream)
                found.append(digests(self, item))
            self.pieces.append(replace(piece, digests=tuple(found)))


def recorded(device: Device, job: Job, requests: list[Request]) -> tuple[list[list[int]], list[Piece]]:
    """Tokens of a decode, and its pieces."""
    s = job.setting(device)
    plan = make_plan(s, job.choice.chunk, job.choice.drafts)
    engine = open_engine(device, s, plan, load(job.weights, job.config))
    pieces: list[Piece] = []
    try:
        watched = Recorder(device, s, plan, engine.memory, engine.built, folder=job.folder, pieces=pieces)
        streams = decode(watched, requests)
    finally:
        engine.close()
    return [s.tokens for s in streams], pieces


def differing(job: Job, pieces: list[Piece], changed: str = "") -> list[str]:
    """Run the pieces of one part again on the host; the launches that wrote other bits, none if all agree.

    changed: a weight buffer whose every byte is off by one bit, to see that it shows.
    """
    device = open_device("host")
    s = job.setting(device)
    whole = make_plan(s, job.choice.chunk, job.choice.drafts)
    programs = {str(p.number): whole.programs[p.program][p.first : p.last] for p in pieces}
    declared = [whole.buffers[n] for n in touched(itertools.chain(*programs.values()))]
    plan = sized({**programs, **loads(programs)}, declared)
    engine = open_engine(device, s, plan, load(job.weights, job.config))
    try:
        if changed in plan.buffers:
            value = engine.read(changed)
            engine.write(changed, (value.view(np.uint8) ^ 1).view(value.dtype))
        return [line for p in pieces for line in _replayed(engine, job, p)]
    finally:
        engine.close()


def _replayed(engine: Engine, job: Job, piece: Piece) -> list[str]:
    with np.load(piece.before(job.folder)) as before:
        for name in before.files:
            engine.write(name, before[name])
    different = []
    for item, expected in zip(engine.plan.programs[str(piece.number)], piece.digests, strict=True):
        engine.launch(item)
        if digests(engine, item) != expected:
            different.append(f"{piece.program}, launch {item.label} ({item.instance.kernel.name})")
    return different


def differences(job: Job, pieces: list[Piece], workers: int) -> list[str]:
    """The same over all parts, beside each other in `workers` processes; the heaviest parts begin first."""
    parts: dict[str, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault(piece.part, []).append(piece)
    order = sorted(parts, key=lambda part: part.startswith("layers"))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(differing, job, parts[part]) for part in order]
        return [line for one in found for line in one.result()]
