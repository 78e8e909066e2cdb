"""An engine: a plan with memory on a device, its kernels built and its weights loaded."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.device import Argument, Device, Graph, Memory
from harness.engine.generate import maker
from harness.engine.load import check_weights, load_weights
from kernels.entry import DTYPES
from kernels.plan import Launch, Plan, Ref
from kernels.programs import Setting
from oracle.errors import LanelockError
from oracle.model_weights import Weights
from oracle.rope import rope_table

#: What Linux says of a machine's memory.
MEMINFO = Path("/proc/meminfo")
#: Called after every launch of an eager program: (program, launch).
After = Callable[[str, Launch], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """A plan on a device. memory: plan buffer name -> device memory; built: C++ expression -> built kernel.

    graphs: programs that replay what was captured once, over the buffers in `frozen`. after: called after every launch;
    it makes all runs eager. borrowed: buffers that another engine made and gives back.
    """

    device: Device
    setting: Setting
    plan: Plan
    memory: Mapping[str, Memory]
    built: Mapping[tuple[str, str], Any]
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    frozen: Mapping[str, Memory] | None = None
    after: After | None = None
    borrowed: frozenset[str] = frozenset()

    def read(self, name: str) -> np.ndarray:
        """A whole buffer as a flat array of its dtype; waits for earlier launches."""
        buffer = self.plan.buffers[name]
        return self.device.read(self.memory[name], buffer.nbytes).view(DTYPES[buffer.dtype][0])

    def write(self, name: str, values: np.ndarray, offset: int = 0) -> None:
        """Write elements of a buffer from `offset` on. Raises LanelockError if they do not fit it."""
        buffer = self.plan.buffers[name]
        dtype = np.dtype(DTYPES[buffer.dtype][0])
        flat = np.ascontiguousarray(values, dtype).reshape(-1)
        if offset + flat.size > buffer.elements:
            raise LanelockError(f"{name}: {flat.size} elements at {offset} do not fit its {buffer.elements}")
        self.device.write(self.memory[name], flat.view(np.uint8), offset * dtype.itemsize)

    def run(self, program: str, stream: Any = None) -> None:
        """Launch a program once, in order: its graph where it was captured.

        Raises LanelockError for a graph of other buffers than the engine has.
        """
        if program in self.graphs and self.after is None:
            if self.memory is not self.frozen:
                raise LanelockError(f"program {program} was captured over other buffers; capture the engine again")
            self.graphs[program].replay(stream)
            return
        for item in self.plan.programs[program]:
            self.launch(item, stream)
            if self.after is not None:
                self.after(program, item)

    def launch(self, item: Launch, stream: Any = None) -> None:
        """Launch one entry of a program."""
        args: list[Argument] = [self._argument(item, i) for i in range(len(item.args))]
        self.device.launch(self.built[_key(item)], item.geometry, args, stream)

    def _argument(self, item: Launch, index: int) -> Argument:
        arg = item.args[index]
        if not isinstance(arg, Ref):
            return arg
        size = np.dtype(DTYPES[self.plan.buffers[arg.buffer].dtype][0]).itemsize
        return self.memory[arg.buffer].at(arg.offset * int(size))

    def close(self) -> None:
        """Give back all memory that is its own; a guard that changed raises OutOfBounds."""
        for name, memory in self.memory.items():
            if name not in self.borrowed:
                self.device.free(memory)


def captured(engine: Engine) -> Engine:
    """The same engine with every program of a decode captured once, to be replayed from then on.

    Error:  none: a replay gives the bits of the eager launches. Raises DeviceError where a capture fails.
    """
    graphs: dict[str, Graph] = {}
    for program in engine.plan.programs:
        if not program.startswith("load."):
            with engine.device.capture() as stream:
                replace(engine, graphs={}).run(program, stream)
            graphs[program] = stream.graph
    return replace(engine, graphs=graphs, frozen=engine.memory)


def _key(item: Launch) -> tuple[str, str]:
    return item.instance.kernel.source, item.instance.expression


def open_engine(device: Device, setting: Setting, plan: Plan, weights: Weights) -> Engine:
    """Build every kernel of the plan, allocate its buffers, load weights, tables and start values.

    Raises BuildError, DeviceError for too little memory, LanelockError for weights that do not fit.
    """
    check_weights(plan, weights)
    engine = _made(device, setting, plan, {})
    load_weights(plan, weights, engine.write, engine.run, maker(engine, weights))
    start(engine)
    return engine


def open_beside(engine: Engine, setting: Setting, plan: Plan) -> Engine:
    """An engine of another plan over the weights of one that stands; it is closed first.

    Raises as `open_engine`, and LanelockError where that one lacks a weight in the form that the plan reads.
    """
    wanted = [b for b in plan.buffers.values() if b.name.startswith("w.")]
    for b in wanted:
        if engine.plan.buffers.get(b.name) != b:
            raise LanelockError(f"plan: no weights {b.name} of {b.elements} {b.dtype} stand in the engine beside it")
    beside = _made(engine.device, setting, plan, {b.name: engine.memory[b.name] for b in wanted})
    start(beside)
    return beside


def _made(device: Device, setting: Setting, plan: Plan, held: Mapping[str, Memory]) -> Engine:
    need, room = sum(b.nbytes for b in plan.buffers.values() if b.name not in held), _room(device)
    if need > room:
        has = f"{device.properties.name} has {room / 1e6:.1f} MB left"
        raise LanelockError(f"plan: its buffers take {need / 1e6:.1f} MB, and {has}")
    instances = {_key(item): item.instance for items in plan.programs.values() for item in items}
    built = {key: device.build(inst) for key, inst in instances.items()}
    own = {b.name: device.alloc(b.name, b.nbytes, 256) for b in plan.buffers.values() if b.name not in held}
    return Engine(device, setting, plan, {**own, **held}, built, borrowed=frozenset(held))


def _room(device: Device) -> int:
    """Bytes that buffers may take: of a GPU all, of a host what is left, for a process that takes more is killed."""
    if device.properties.kind == "host" and MEMINFO.is_file():
        left = re.search(r"^MemAvailable: +(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
        return int(left[1]) << 10 if left else device.properties.memory
    return device.properties.memory


def start(engine: Engine) -> None:
    """Write tables and the values that control buffers begin with."""
    s, buffers = engine.setting, engine.plan.buffers
    if "cosine" in buffers:
        cosine, sine = rope_table(s.config, s.context)
        engine.write("cosine", cosine)
        engine.write("sine", sine)
    for name, value in (("replay.none", 0), ("replay.all", -1), ("slot", -1)):
        if name in buffers:
            engine.write(name, np.full(s.B, value, np.int32))
    for name in ("position", "end", "current", "flags", "began", "pending", "taken"):
        if name in buffers:
            engine.write(name, np.zeros(s.B, np.int32))
