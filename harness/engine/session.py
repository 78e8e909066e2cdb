"""An engine for a choice of device, lane and sizes, closed when its user is done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.device import Device
from harness.engine.decode import Request, check_requests
from harness.engine.memory import Engine, captured, open_beside, open_engine
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.plan import Plan
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from oracle.config import ModelConfig
from oracle.model_weights import Weights

MOST_LANES = 64  # sequences that run at once; more wait for one to leave


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user chooses: lane, sequences at once, positions of a sequence, prefill chunk, drafts a step, graphs."""

    lane: str = "a15"
    B: int = 1
    limit: int = 64
    chunk: int = 16
    drafts: int = 0
    graphs: bool = False
    tuning: Tuning = field(default_factory=Tuning)


def machine_of(device: Device) -> Machine:
    """What plans for a device are made for."""
    p = device.properties
    return Machine(p.arch, p.multiprocessors, p.shared_per_block)


def setting(device: Device, config: ModelConfig, choice: Choice) -> Setting:
    """The setting of a plan. Raises LanelockError for an unknown lane."""
    return Setting(config, lane(choice.lane), choice.B, choice.B, choice.limit, machine_of(device), choice.tuning)


def plan_of(device: Device, config: ModelConfig, choice: Choice) -> Plan:
    """The plan of a choice, made without touching the device. Raises LanelockError for a refused size."""
    return make_plan(setting(device, config, choice), choice.chunk, choice.drafts)


@contextmanager
def opened(
    device: Device, weights: Weights, choice: Choice, requests: Sequence[Request] = ()
) -> Iterator[Engine]:
    """An engine that is closed at the end, and its guards checked. requests: what it is opened for.

    Raises what `make_plan` and `open_engine` raise, and `check_requests`, before anything is loaded.
    """
    s = setting(device, weights.config, choice)
    check_requests(s, requests)
    engine = open_engine(device, s, make_plan(s, choice.chunk, choice.drafts), weights)
    try:
        yield captured(engine) if choice.graphs else engine
    finally:
        engine.close()


@contextmanager
def opened_beside(engine: Engine, choice: Choice) -> Iterator[Engine]:
    """The same over the weights that an engine holds already, which is left as it was.

    Raises what `make_plan` and `open_beside` raise.
    """
    s = setting(engine.device, engine.setting.config, choice)
    beside = open_beside(engine, s, make_plan(s, choice.chunk, choice.drafts))
    try:
        yield captured(beside) if choice.graphs else beside
    finally:
        beside.close()
