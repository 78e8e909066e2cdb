"""Which kernel computes a projection of this shape: a choice of speed alone, since all lowerings give the same bits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels.catalogue import kernel
from kernels.entry import Geometry, Instance, Value, instance, resolve
from kernels.lanes import Lane
from kernels.rules import ceil_div
from kernels.streaming import streams
from kernels.tuning import Tuning
from oracle.errors import LanelockError

COLS = (8, 16, 32, 64)  # sequences that a tensor-core tile is built for
SEQS = (1, 2, 4, 8)  # and a row-parallel GEMV


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a device a choice depends on: architecture, multiprocessors, shared memory a block may have (bytes)."""

    arch: str
    multiprocessors: int
    shared_per_block: int

    @property
    def is_host(self) -> bool:
        """Whether kernels run on the host processor, which models every architecture's instructions."""
        return not self.arch.startswith("sm_")


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix. planes: whoever reads the result can add split-K planes. q4: the q4 lane converts it."""

    name: str
    N: int
    K: int
    planes: bool = False
    q4: bool = True


@dataclass(frozen=True, slots=True)
class Lowering:
    """The chosen kernel with its template values, dims and launch shape. planes: what it writes, 1 or 8."""

    instance: Instance
    dims: Mapping[str, Value]
    geometry: Geometry

    @property
    def kernel(self) -> str:
        """Name in the catalogue."""
        return self.instance.kernel.name

    @property
    def planes(self) -> int:
        """Planes of the output: 8 where K is split."""
        return int(self.dims["planes"])

    @property
    def weights(self) -> str:
        """The form of weights it reads: rows, q4 rows, panels or q4 panels."""
        form = "panels" if "tiles" in {b.name for b in self.instance.kernel.buffers} else "rows"
        return f"q4 {form}" if "q4" in self.kernel else form


def choose(projection: Projection, rows: int, lane: Lane, machine: Machine, tuning: Tuning) -> Lowering:
    """The first lowering, in the order of preference, that can do this projection on this machine.

    Shapes: rows activation rows of K, in the lane's codes, to rows of N outputs.
    Units:  none: bits do not depend on the choice.
    Error:  none.
    Source: the rules of `candidates`. Raises LanelockError, with the last refusal, where no lowering can do it.
    """
    refusal = "no lowering of it exists"
    for name, template, dims in candidates(projection, rows, lane, machine, tuning):
        if tuning.lowering not in ("", name):
            continue
        try:
            return _fit(projection, rows, machine, name, template, dims)
        except LanelockError as error:
            refusal = str(error)
    forced = f" by {tuning.lowering}" if tuning.lowering else ""
    raise LanelockError(
        f"projection {projection.name} ({projection.N} x {projection.K}, {rows} rows, lane {lane.name}) cannot be "
        f"computed{forced} on {machine.arch}: {refusal}"
    )


Candidate = tuple[str, dict[str, Value], dict[str, Value]]


def candidates(
    projection: Projection, rows: int, lane: Lane, machine: Machine, tuning: Tuning
) -> Iterator[Candidate]:
    """Lowerings in the order of preference, as (kernel, template, dims); `choose` takes the first that fits."""
    bits = 4 if lane.q4 and projection.q4 else 8
    streamed = _is_streamed(machine, tuning)
    if streamed and rows <= tuning.stream_rows:
        words = lane.words
        shape = (projection.N, projection.K, rows, words, bits, machine.multiprocessors)
        for stream in streams(*shape, planes=projection.planes):
            yield stream.kernel, stream.template, stream.dims
    form = ("_tiled" if tuning.tiled or streamed else "") + ("_q4" if bits == 4 else "")
    if rows >= tuning.warpgroup_rows:
        yield from _warpgroup(projection, rows, lane, machine, tuning, form)
    if rows >= tuning.prefill_rows:
        yield from _prefill(projection, rows, lane, machine, tuning, form)
    # on the host a matrix product is one call of the model, and a GEMV many shuffles
    if form == "" and rows <= tuning.gemv_rows and not machine.is_host:
        yield _gemv_rows(lane, rows)
    yield from _tensor_core(projection, rows, lane, machine, tuning, form)
    # never preferred, but lanes that must agree: reached by tuning.lowering
    if form == "":
        yield _gemv_rows(lane, rows)
        for name in ("gemv_register", "gemv_staged"):
            yield name, {"WORDS": lane.words, "SEQS": 1 if rows == 1 else 8}, {}
        split = _split(projection, ceil_div(rows, 32), 64, machine, tuning.blocks_per_sm, tuning)
        yield "gemm_dp4a", {"WORDS": lane.words, "CHUNK": 128}, split
        yield "gemm_mma", {"WORDS": lane.words}, {}
    yield from _warpgroup(projection, rows, lane, machine, tuning, form)
    yield from _prefill(projection, rows, lane, machine, tuning, form)


def _is_streamed(machine: Machine, tuning: Tuning) -> bool:
    """Whether weights are pre-tiled for the streaming projection, which a forced lowering may not read."""
    forced = tuning.lowering
    if forced.startswith("projection_stream"):
        return True
    panels = not forced or "tiled" in forced or "wg" in forced
    return machine.arch == "sm_90a" and tuning.stream_rows > 0 and panels


def _gemv_rows(lane: Lane, rows: int) -> Candidate:
    return "gemv_rows", {"WORDS": lane.words, "SEQS": _least(SEQS, rows)}, {}


def _warpgroup(
    projection: Projection, rows: int, lane: Lane, machine: Machine, tuning: Tuning, form: str
) -> Iterator[Candidate]:
    """The warpgroup tile, which reads panels: a block an SM, whose ring goes on from tile to tile."""
    if form.startswith("_tiled"):
        tiles = ceil_div(projection.N, 128) * ceil_div(rows, 128)
        words = 1 if form == "_tiled_q4" else lane.words
        split = _split(projection, ceil_div(rows, 128), 128, machine, tuning.prefill_blocks_per_sm, tuning)
        grid = max(1, min(tiles, machine.multiprocessors // int(split["splits"])))
        yield f"gemm_wg{form.removeprefix('_tiled')}", {"WORDS": words, "STAGES": 3}, {"grid": grid, **split}


def _prefill(
    projection: Projection, rows: int, lane: Lane, machine: Machine, tuning: Tuning, form: str
) -> Iterator[Candidate]:
    """The wide rows-in-M tile where it fills three quarters of the machine, else the narrow one."""
    wide = 4 * ceil_div(projection.N, 128) * ceil_div(rows, 128) >= 3 * machine.multiprocessors
    for suffix, tile in (("_wide", 128), ("", 64)) if wide else (("", 64), ("_wide", 128)):
        split = _split(projection, ceil_div(rows, 128), tile, machine, tuning.prefill_blocks_per_sm, tuning)
        yield f"gemm_rows{form}{suffix}", _words(lane, form), split


def _tensor_core(
    projection: Projection, rows: int, lane: Lane, machine: Machine, tuning: Tuning, form: str
) -> Iterator[Candidate]:
    """The tensor-core tile for the batch, then shorter ones, whose rings are smaller."""
    cols = _least(COLS, rows)
    for warps in sorted({tuning.warps, 2, 1}, reverse=True):
        if warps <= tuning.warps:
            split = _split(projection, ceil_div(rows, cols), 16 * warps, machine, tuning.blocks_per_sm, tuning)
            yield f"gemm_tc{form}", _words(lane, form) | {"COLS": cols}, {"warps": warps, **split}


def _words(lane: Lane, form: str) -> dict[str, Value]:
    """Q4 kernels are built for one word a code."""
    return {} if form == "_q4" else {"WORDS": lane.words}


def _least(sizes: tuple[int, ...], rows: int) -> int:
    """The smallest size that holds the rows, or the largest there is."""
    return next((s for s in sizes if s >= rows), sizes[-1])


def _split(
    projection: Projection, row_blocks: int, tile: int, machine: Machine, blocks_per_sm: int, tuning: Tuning
) -> dict[str, Value]:
    """Blocks along K, doubled until the machine has work for so many blocks an SM."""
    splits, blocks = 1, ceil_div(projection.N, tile) * row_blocks
    if not projection.planes or projection.K < 256:
        return {"splits": 1}
    while 2 * splits <= tuning.max_splits and blocks * splits < blocks_per_sm * machine.multiprocessors:
        splits *= 2
    return {"splits": splits}


def _fit(
    projection: Projection, rows: int, machine: Machine, name: str, template: dict[str, Value], dims: dict[str, Value]
) -> Lowering:
    """The launch of a candidate. Raises LanelockError where kernel, architecture or shared memory refuse it."""
    inst = instance(kernel(name), **template)
    if not machine.is_host and machine.arch not in inst.kernel.archs:
        raise LanelockError(f"{name} is not built for {machine.arch}")
    full = resolve(inst, {"rows": rows, "N": projection.N, "K": projection.K, **dims})
    geometry = inst.kernel.geometry(full)
    if geometry.smem > machine.shared_per_block:
        limit = machine.shared_per_block
        raise LanelockError(f"{name} needs {geometry.smem} bytes of shared memory, a block has {limit}")
    return Lowering(inst, full, geometry)
