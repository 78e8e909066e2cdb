"""Arguments, rules, derived dims and launch shapes that many catalogue entries share."""

from collections.abc import Callable, Mapping
from typing import Literal

from kernels.entry import Buffer, Dims, Geometry, Rule, Scalar, Value

BLOCK = 32  # elements that share one scale
UNIT = 16  # elements of a row that stay together where codes lie by columns
GRID_X = 2**31 - 1
GRID_Y = 65535
SHARED = 227 * 1024  # bytes of shared memory that a block can have (sm_90: 228 KB, of which 1 KB is kept)

#: ptxas limits that every kernel of the first rooms keeps: nothing in local memory.
IN_REGISTERS: Mapping[str, int] = {"stack": 0, "spills": 0}

#: Threads of a pointwise block and the neighbouring elements each one owns.
POINTWISE_THREADS, POINTWISE_OWNED = 128, 4


def ceil_div(a: int, b: int) -> int:
    """The least number of b that holds a."""
    return -(-a // b)


def between(dim: str, low: int, high: int, why: str) -> Rule:
    """The dim lies in a closed range."""
    return Rule(
        lambda d: low <= int(d[dim]) <= high,
        f"{dim} = {{{dim}}} must be between {low} and {high}, {why}",
    )


def multiple(dim: str, step: int, why: str) -> Rule:
    """The dim is a positive multiple of a step."""
    return Rule(
        lambda d: int(d[dim]) > 0 and int(d[dim]) % step == 0,
        f"{dim} = {{{dim}}} must be a positive multiple of {step}, {why}",
    )


def blocks_of(dim: str) -> Rule:
    """The dim is a whole number of quantisation blocks."""
    return multiple(dim, BLOCK, "the elements that share one scale")


ROWS = between("rows", 1, GRID_X, "the blocks that one grid axis can hold")


def row_pitch(pitch: str, width: str, step: int = 4) -> tuple[Rule, ...]:
    """A row pitch in elements that holds the width and, for step > 1, keeps every row aligned to wide loads."""
    wide = Rule(
        lambda d: int(d[pitch]) >= int(d[width]),
        f"{pitch} = {{{pitch}}} is less than the row it has to hold, {width} = {{{width}}}",
    )
    aligned = Rule(
        lambda d: int(d[pitch]) % step == 0,
        f"{pitch} = {{{pitch}}} must be a multiple of {step}, so that every row is aligned to its wide loads",
    )
    return (wide,) if step == 1 else (wide, aligned)


def rows_f32(
    name: str, width: str, access: Literal["r", "w", "rw"], *, optional: bool = False
) -> tuple[Buffer, Scalar]:
    """A float32 buffer [rows, width] and its pitch, as the two arguments that a kernel takes for it."""
    pitch = f"{name}_pitch"
    return Buffer(name, "f32", ("rows", width), access, pitch, align=16, optional=optional), Scalar(pitch)


def planes_f32(name: str, width: str) -> tuple[Buffer, Scalar, Scalar]:
    """Split-K planes [planes, rows, width], their row pitch and their count. A plane is rows * pitch elements."""
    pitch = f"{name}_pitch"
    return Buffer(name, "f32", ("planes", "rows", width), "r", pitch, align=16), Scalar(pitch), Scalar("planes")


def code_buffers(width: str) -> tuple[Buffer, Buffer, Scalar]:
    """Activation codes [rows, WORDS, width] int8 (WORDS 2: hi, then lo) and their scales [rows, width / 32].

    columns: 0, or the rows: both then lie by columns (see kernels/columns.py), the scales of scale_rows rows.
    """
    codes = Buffer("codes", "i8", ("rows", "WORDS", width), "w", align=8)
    return codes, Buffer("scales", "f32", ("scale_rows", "blocks"), "w"), Scalar("columns")


def scale_rows(rows: int) -> int:
    """Rows of the scales of so many rows, where they lie by columns."""
    return ceil_div(rows, UNIT) * UNIT


def order(dims: Dims) -> dict[str, Value]:
    """columns, by default 0, and the rows of scales that follow."""
    rows, columns = int(dims.get("rows", 0)), int(dims.get("columns", 0))
    return {"columns": columns, "scale_rows": scale_rows(rows) if columns else rows}


COLUMNS = Rule(
    lambda d: d["columns"] in (0, d["rows"]) and d["scale_rows"] == order(d)["scale_rows"],
    "columns = {columns} is neither 0 nor the {rows} rows, or scale_rows = {scale_rows} is not what follows",
)


def defaults(width: str, *pitches: str) -> Callable[[Dims], Dims]:
    """Derives what is not given: the blocks of a row, packed pitches and one plane."""

    def derive(dims: Dims) -> Dims:
        packed: dict[str, Value] = dict.fromkeys(pitches, dims[width])
        return {**packed, "blocks": int(dims[width]) // BLOCK, "planes": 1, **order(dims)}

    return derive


def pointwise(width: str) -> Callable[[Dims], Geometry]:
    """One block a row and 512 elements: rows along x, which has room for any chunk of any batch."""

    def geometry(dims: Dims) -> Geometry:
        tiles = ceil_div(int(dims[width]), POINTWISE_THREADS * POINTWISE_OWNED)
        return Geometry((int(dims["rows"]), tiles, 1), (POINTWISE_THREADS, 1, 1))

    return geometry


def pointwise_width(width: str) -> Rule:
    """The row fits the tiles along y."""
    top = GRID_Y * POINTWISE_THREADS * POINTWISE_OWNED
    return Rule(
        lambda d: int(d[width]) <= top, f"{width} = {{{width}}} exceeds {top}, the elements that one launch can cover"
    )
