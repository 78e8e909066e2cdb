"""A decode as a list of what it asks of a device: bytes written, programs run, streams read.

The decode loop runs against a device that computes nothing. It answers that every pass accepts one token, the least
that one can: the list is long enough for any stream, and once all its tokens are made, a step has no rows left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.device import Argument, Memory
from harness.engine import Engine, Request, decode
from harness.engine.load import check_weights, load_weights
from harness.engine.memory import start
from kernels.entry import Geometry, Instance
from kernels.plan import Plan
from kernels.programs import Setting
from oracle.model_weights import Weights


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes to a buffer, from an offset in bytes on."""

    buffer: str
    offset: int
    data: np.ndarray


@dataclass(frozen=True, slots=True)
class Run:
    """A program of the plan, once."""

    program: str


@dataclass(frozen=True, slots=True)
class Told:
    """The stream of a request in a lane: `count` elements of `history`, from `first` on."""

    request: int
    lane: int
    first: int
    count: int


Op = Write | Run | Told


@dataclass(frozen=True, slots=True)
class Recording:
    """A plan and what a decode asks of the device that holds it, in order."""

    plan: Plan
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class _Program:
    """A graph whose replay is noted."""

    name: str
    ops: list[Op]

    def replay(self, _stream: Any = None) -> None:
        self.ops.append(Run(self.name))


class _Paper:
    """The part of a device that an engine with graphs uses; it computes nothing."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def alloc(self, name: str, nbytes: int, _align: int = 16) -> Memory:
        return Memory(name, 0, nbytes, None)

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        self.ops.append(Write(memory.name, offset, data.reshape(-1).view(np.uint8).copy()))

    def read(self, memory: Memory, nbytes: int | None = None, _offset: int = 0) -> np.ndarray:
        value = 1 if memory.name == "pending" else 0  # one token a pass, token 0, no flag
        count = memory.nbytes if nbytes is None else nbytes
        return np.full(count // 4, value, np.int32).view(np.uint8)

    def launch(self, built: Instance, geometry: Geometry, args: Sequence[Argument], stream: Any = None) -> None:
        raise NotImplementedError(f"{built.expression}: every program of a recording is a graph")


def recorded(setting: Setting, plan: Plan, weights: Weights, requests: Sequence[Request]) -> Recording:
    """What loading weights and decoding requests ask of a device.

    Raises LanelockError as `open_engine` and `decode` do.
    """
    check_weights(plan, weights)
    paper = _Paper()
    memory = {b.name: paper.alloc(b.name, b.nbytes) for b in plan.buffers.values()}
    graphs = {name: _Program(name, paper.ops) for name in plan.programs}
    engine = Engine(paper, setting, plan, memory, {}, graphs, memory)  # type: ignore[arg-type]  # the part that is used
    load_weights(plan, weights, engine.write, engine.run)
    start(engine)
    decode(engine, requests)
    return Recording(plan, tuple(_with_streams(paper.ops, setting, requests)))


def _with_streams(ops: Sequence[Op], setting: Setting, requests: Sequence[Request]) -> list[Op]:
    """The list with each stream read before its lane is given to nobody; requests enter in order."""
    columns, waiting = setting.limit + 1, iter(range(len(requests)))
    held: dict[int, int] = {}
    found: list[Op] = []
    for op in ops:
        if isinstance(op, Write) and op.buffer == "slot" and op.data.size == 4:
            lane, value = op.offset // 4, int(op.data.view(np.int32)[0])
            if value >= 0:
                held[lane] = next(waiting)
            elif lane in held:
                request = requests[held[lane]]
                found.append(Told(held.pop(lane), lane, lane * columns + len(request.prompt), request.count))
        found.append(op)
    return found
