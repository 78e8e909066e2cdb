"""Every float32 input of every function, on the host, on the GPU and in the contract, compared bit for bit.

The 2^32 bit patterns are cut into pieces; worker processes take the next piece as they become free. A piece is
computed each way, compared with the first way, and digested, so that two runs anywhere can be compared by a hash.
"""

import hashlib
import itertools
import multiprocessing
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.device import Device, DeviceError, Memory
from harness.devices import open_device
from harness.run import same_bits
from kernels.entry import instance, resolve
from kernels.functions import FUNCTIONS, SWEEP_FUNCTION
from oracle import functions as truth
from oracle.bits import functions as contract

INPUTS = 1 << 32
PIECE = 1 << 20  # inputs a piece: its arrays are reused by the allocator; four times as many cost a page fault each
NORMAL = 2.0**-126
CONTRACT = "contract"


@dataclass(frozen=True, slots=True)
class Piece:
    """Inputs of one function: the bit patterns first .. first + count - 1."""

    function: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one piece gave: the digest of its outputs, the differences to the first way, times, and errors.

    Units: seconds a way; ulp where the truth is normal, steps of 2^-149 below, each with the input's bits; a
    difference is (elements, bits of the first such input, its bits by the first way, its bits by this way).
    """

    piece: Piece
    digest: bytes
    differences: Mapping[str, tuple[int, int, int, int]]
    seconds: Mapping[str, float]
    normal: tuple[float, int] = (0.0, 0)
    below: tuple[float, int] = (0.0, 0)


@dataclass(slots=True)
class Totals:
    """The running sum over a function's pieces."""

    inputs: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    differences: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    normal: tuple[float, int] = (0.0, 0)
    below: tuple[float, int] = (0.0, 0)

    def add(self, result: Result) -> None:
        """Take one piece in."""
        self.inputs += result.piece.count
        self.digests[result.piece.first] = result.digest
        for way, new in result.differences.items():
            old = self.differences.get(way)
            # the first difference is kept, by input
            self.differences[way] = new if old is None else (old[0] + new[0], *min(old[1:], new[1:]))
        for way, seconds in result.seconds.items():
            self.seconds[way] = self.seconds.get(way, 0.0) + seconds
        self.normal = max(self.normal, result.normal)
        self.below = max(self.below, result.below)

    @property
    def sha256(self) -> str:
        """SHA-256 over the digests of the pieces in the order of their inputs."""
        return hashlib.sha256(b"".join(self.digests[first] for first in sorted(self.digests))).hexdigest()


def pieces(functions: Sequence[str], first: int, count: int) -> list[Piece]:
    """The inputs first .. first + count - 1 of each function, cut at multiples of PIECE."""
    end = first + count
    starts = [first, *range((first // PIECE + 1) * PIECE, end, PIECE)]
    cuts = [*starts, end]
    return [Piece(f, a, b - a) for f in functions for a, b in itertools.pairwise(cuts) if b > a]


def inputs_of(piece: Piece) -> np.ndarray:
    """The float32 values of a piece's bit patterns."""
    return np.arange(piece.first, piece.first + piece.count, dtype=np.int64).astype(np.uint32).view(np.float32)


class Sweeper:
    """One device with one output buffer, that computes pieces."""

    def __init__(self, name: str) -> None:
        self.device: Device = open_device(name)
        self.memory: Memory = self.device.alloc("exhaustive.y", PIECE * 4)
        self.built: dict[str, Any] = {}

    def __call__(self, piece: Piece) -> np.ndarray:
        """The function's values for a piece."""
        inst = instance(SWEEP_FUNCTION, FUNCTION=FUNCTIONS.index(piece.function))
        if piece.function not in self.built:
            self.built[piece.function] = self.device.build(inst)
        dims = resolve(inst, {"n": piece.count, "first": piece.first})
        geometry = SWEEP_FUNCTION.geometry(dims)
        self.device.launch(self.built[piece.function], geometry, [self.memory, piece.first, piece.count])
        return self.device.read(self.memory, piece.count * 4).view(np.float32)


def compare(x: np.ndarray, first: np.ndarray, other: np.ndarray) -> tuple[int, int, int, int] | None:
    """None if all bits agree (any NaN equals any NaN), else a difference as in `Result`."""
    if first.shape != x.shape or other.shape != x.shape or not x.size:
        raise DeviceError(f"{x.size} inputs gave {first.size} and {other.size} outputs: nothing can be compared")
    wrong = np.flatnonzero(~same_bits(first, other))
    if not wrong.size:
        return None
    bits = [int(np.asarray(v[wrong[0]]).view(np.uint32)) for v in (x, first, other)]
    return int(wrong.size), bits[0], bits[1], bits[2]


def errors(function: str, x: np.ndarray, y: np.ndarray) -> tuple[tuple[float, int], tuple[float, int]]:
    """Largest error against the float64 oracle, with its input: in ulp where normal, in steps of 2^-149 below.

    Raises DeviceError where one is a NaN and the other is not.
    """
    with np.errstate(all="ignore"):
        t = getattr(truth, function)(x.astype(np.float64))
        if not np.array_equal(np.isnan(t), np.isnan(y)):
            raise DeviceError(f"{function}: a NaN for a number, or a number for a NaN")
        size = np.abs(t)
        exponent = np.where(size < NORMAL, -126, np.frexp(size)[1] - 1)
        error = np.ldexp(np.abs(y.astype(np.float64) - t), 23 - exponent)
        overflow = np.isinf(y) & (t.astype(np.float32) == y)
        error = np.where(overflow | np.isnan(t), 0.0, error)
    found = []
    for where in (size >= NORMAL, size < NORMAL):
        some = np.where(where, error, 0.0)
        at = int(np.argmax(some))
        found.append((float(some[at]), int(x[at : at + 1].view(np.uint32)[0])))
    return found[0], found[1]


def evaluate(piece: Piece, ways: Mapping[str, Any], *, measure: bool) -> Result:
    """Compute a piece every way and compare. Shapes: ways name -> function of a piece, the first is the reference."""
    x = inputs_of(piece)
    outputs: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for name, way in ways.items():
        start = time.perf_counter()
        outputs[name] = way(piece)
        seconds[name] = time.perf_counter() - start
    reference, *others = outputs
    y = outputs[reference]
    found = {name: compare(x, y, outputs[name]) for name in others}
    canonical = np.where(np.isnan(y), np.float32(np.nan), y)
    digest = hashlib.sha256(canonical.tobytes()).digest()
    normal, below = errors(piece.function, x, y) if measure else ((0.0, 0), (0.0, 0))
    return Result(piece, digest, {k: v for k, v in found.items() if v}, seconds, normal, below)


def open_ways(names: Sequence[str]) -> dict[str, Any]:
    """The ways by name: `contract`, or a device. Raises NotRun for a device that is not there."""
    return {
        name: (lambda piece: contract.FUNCTIONS[piece.function](inputs_of(piece)))
        if name == CONTRACT
        else Sweeper(name)
        for name in names
    }


def work(jobs: Any, results: Any, names: Sequence[str], measure: bool) -> None:
    """A worker process: pieces until None comes; an error goes back as its text."""
    try:
        ways = open_ways(names)
        while (piece := jobs.get()) is not None:
            results.put(evaluate(piece, ways, measure=measure))
    except Exception as error:  # whatever it is, the parent has to hear of it
        results.put(f"{type(error).__name__}: {error}")


def run(plan: Sequence[Piece], names: Sequence[str], processes: int, *, measure: bool) -> Iterator[Result]:
    """Results of all pieces in the order they are done. Raises DeviceError if a worker fails or dies."""
    context = multiprocessing.get_context("spawn")  # a process that was forked may not use CUDA
    jobs, results = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(jobs, results, tuple(names), measure)) for _ in range(processes)]
    for job in [*plan, *[None] * processes]:
        jobs.put(job)
    for worker in workers:
        worker.start()
    try:
        for _ in plan:
            yield _next(results, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _next(results: Any, workers: Sequence[Any]) -> Result:
    while True:
        try:
            result = results.get(timeout=5)
        except queue.Empty:
            dead = [w.exitcode for w in workers if w.exitcode not in (None, 0)]
            if dead:
                raise DeviceError(f"a worker process ended with exit code {dead[0]}") from None
            continue
        if isinstance(result, Result):
            return result
        raise DeviceError(f"a worker process failed: {result}")
