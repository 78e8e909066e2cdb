"""What the commands that run a model on a device have in common: its options, and an engine opened for them."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from harness.cli.model_input import open_weights
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, opened
from kernels.lanes import lane
from kernels.tuning import VARIABLE, Tuning, tuning
from oracle.errors import LanelockError

DEFAULT_LANE = "a15"


def add_engine_options(sub: argparse.ArgumentParser) -> None:
    """Options that only the engines on a device read."""
    sub.add_argument("--graphs", action="store_true", help="host, cuda: capture programs once and replay them")
    add_tuning(sub)


def add_tuning(sub: argparse.ArgumentParser) -> None:
    """The option of changed knobs."""
    sub.add_argument("--tuning", metavar="JSON", help=f"changed knobs, such as {{\"warps\": 8}} (or {VARIABLE})")


def knobs(args: argparse.Namespace) -> Tuning:
    """The knobs of the option, else of the variable. Raises LanelockError, naming which, as `tuning` does."""
    return tuning(args.tuning, "--tuning") if args.tuning else tuning(os.environ.get(VARIABLE))


def engine_lane(args: argparse.Namespace) -> str:
    """The lane of a run: a15, the golden one, if none is named; float64 where the oracle runs."""
    if args.lane is None:
        return "f64" if args.engine == "oracle" else DEFAULT_LANE
    return str(args.lane)


def chosen(args: argparse.Namespace, *, B: int = 1, limit: int, chunk: int, drafts: int = 0) -> Choice:
    """The choice of these options. Raises LanelockError for a lane or a knob that does not exist."""
    name = engine_lane(args)
    lane(name)
    return Choice(name, B, limit, chunk, drafts, bool(args.graphs), knobs(args))


def as_request(tokens: NDArray[np.int64]) -> Request:
    """A prompt whose logits alone are wanted."""
    return Request(tuple(int(t) for t in tokens), 1)


@contextmanager
def engine_run(args: argparse.Namespace, choice: Choice, requests: Sequence[Request]) -> Iterator[Engine]:
    """An engine of these options for requests. Raises NotRun where the device is missing, and what `opened` raises."""
    if args.engine == "oracle":
        raise LanelockError("the oracle has no engine")
    args.lane = choice.lane
    with opened(open_device(args.engine), open_weights(args), choice, requests) as engine:
        yield engine
