"""Catalogue entries of the primitives: one small kernel for each primitive of device.cuh."""

from collections.abc import Callable, Mapping
from typing import Literal

from kernels.entry import ALL_ARCHS, Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import IN_REGISTERS, between, ceil_div

THREADS = 128
FROM_SM_89 = ("sm_89", "sm_90a", "sm_100a", "sm_120")  # architectures with e4m3 tensor cores
COUNT = between("n", 1, 2**31 - 1 - THREADS, "the elements that an int can count")
WARPS = between("warps", 1, 2**20, "warps of one launch, one a block")
TILES = between("tiles", 1, 2**20, "tiles of one launch, one a block")


def _elements(dims: Dims) -> Geometry:
    return Geometry((ceil_div(int(dims["n"]), THREADS), 1, 1), (THREADS, 1, 1))


def _one_warp(dim: str) -> Callable[[Dims], Geometry]:
    return lambda d: Geometry((int(d[dim]), 1, 1), (32, 1, 1))


def _limits(registers: int = 32, smem: int = 0) -> Mapping[str, int]:
    return {"registers": registers, "smem": smem, **IN_REGISTERS}


def _flat(name: str, dtype: str, access: Literal["r", "w", "rw"]) -> Buffer:
    return Buffer(name, dtype, ("n",), access)


def _words(name: str, dtype: str, access: Literal["r", "w"], *middle: int) -> Buffer:
    return Buffer(name, dtype, ("warps", *middle, 32), access)


def _mma(name: str, dtype: str, accumulator: str, archs: tuple[str, ...], *, exact: bool, doc: str) -> Kernel:
    return Kernel(
        name=name,
        room="primitives",
        symbol=name,
        args=(
            Buffer("a", dtype, ("tiles", 16, 32), "r", align=4),
            Buffer("b", dtype, ("tiles", 8, 32), "r", align=4),
            Buffer("c", accumulator, ("tiles", 16, 8), "rw"),
        ),
        geometry=_one_warp("tiles"),
        rules=(TILES,),
        archs=archs,
        limits=_limits(),
        exact=exact,
        doc=doc,
    )


DP4A = Kernel(
    name="primitive_dp4a",
    room="primitives",
    symbol="primitive_dp4a",
    args=(_flat("a", "i32", "r"), _flat("b", "i32", "r"), _flat("c", "i32", "rw"), Scalar("n")),
    geometry=_elements,
    rules=(COUNT,),
    limits=_limits(),
    doc="c += the dot product of four signed bytes of a and b.",
)

AND_XOR = Kernel(
    name="primitive_and_xor",
    room="primitives",
    symbol="primitive_and_xor",
    args=(*(_flat(name, "u32", "r") for name in ("x", "kept", "turned")), _flat("y", "u32", "w"), Scalar("n")),
    geometry=_elements,
    rules=(COUNT,),
    limits=_limits(),
    doc="The bits of x that are kept, some of them turned over.",
)

SHUFFLE = Kernel(
    name="primitive_shuffle",
    room="primitives",
    symbol="primitive_shuffle",
    args=(_words("x", "u32", "r"), _words("y", "u32", "w", 4), _words("wide", "i64", "w"), Scalar("distance")),
    geometry=_one_warp("warps"),
    rules=(WARPS, between("distance", 0, 31, "the lanes of a warp")),
    limits=_limits(),
    doc="What each lane gets from lane ^ distance, lane + distance, lane - distance and lane 7 - lane.",
)

VOTE = Kernel(
    name="primitive_vote",
    room="primitives",
    symbol="primitive_vote",
    args=(_words("x", "i32", "r"), _words("y", "u32", "w", 4)),
    geometry=_one_warp("warps"),
    rules=(WARPS,),
    limits=_limits(),
    doc="Ballot, any, all of x > 0 over a warp, and the ballot of each half by itself.",
)

WARP_SUM = Kernel(
    name="primitive_warp_sum",
    room="primitives",
    symbol="primitive_warp_sum",
    args=(
        _words("x", "f32", "r", 8),
        _words("one", "f32", "w"),
        _words("three", "f32", "w", 3),
        _words("each", "f32", "w"),
        _words("of_eight", "f32", "w"),
        _words("of_two", "f32", "w"),
        _words("shared", "f32", "w", 4),
    ),
    geometry=_one_warp("warps"),
    rules=(WARPS,),
    limits=_limits(48),
    doc="The named tree over a warp: one value, three at once, four, eight or twice four that lanes own; words.",
)

SUM_ITEMS = Kernel(
    name="primitive_sum_items",
    room="primitives",
    symbol="primitive_sum_items",
    args=(_words("x", "f32", "r", 136), Buffer("y", "f32", ("warps", 136), "w")),
    geometry=_one_warp("warps"),
    rules=(WARPS,),
    limits=_limits(registers=128),
    doc="The named tree over a warp for 8, 32, 64 and two times 16 items that change lanes on the way.",
)

MMA_S8 = _mma(
    "primitive_mma_s8", "i8", "i32", ALL_ARCHS, exact=True, doc="c += a b for tiles of m16n8k32 signed bytes."
)
MMA_E4M3 = _mma(
    "primitive_mma_e4m3", "e4m3", "f32", FROM_SM_89, exact=False, doc="c += a b for tiles of m16n8k32 e4m3; bounded."
)

LDMATRIX = Kernel(
    name="primitive_ldmatrix",
    room="primitives",
    symbol="primitive_ldmatrix",
    args=(Buffer("x", "u8", ("tiles", 32, 16), "r", align=16), Buffer("y", "u32", ("tiles", 14, 32), "w")),
    geometry=_one_warp("tiles"),
    rules=(TILES,),
    limits=_limits(smem=512),
    doc="Four 8 x 8 matrices of 16 bits into registers: x1, x2, x4, then the same transposed.",
)

COPY = Kernel(
    name="primitive_copy",
    room="primitives",
    symbol="primitive_copy",
    params=(Param("STAGES", (2, 3, 4)),),
    args=(
        Buffer("x", "u8", ("chunks", 512), "r", align=16),
        Buffer("y", "u8", ("chunks", 512), "w", align=16),
        Scalar("chunks"),
        Scalar("tail"),
    ),
    geometry=lambda _: Geometry((1, 1, 1), (32, 1, 1)),
    derive=lambda _: {"tail": 0},
    rules=(
        between("chunks", 1, 2**20, "chunks of one launch"),
        between("tail", 0, 16, "bytes of a 16-byte copy"),
    ),
    limits=_limits(registers=40, smem=4 * 512),
    doc="Chunks of 512 bytes through a ring of asynchronous copies; the last `tail` bytes of each 16 become zeros.",
)

DIVIDE = Kernel(
    name="primitive_divide",
    room="primitives",
    symbol="primitive_divide",
    args=(
        Buffer("x", "f32", ("n", 4), "r"),
        Buffer("d", "f32", ("n",), "r"),
        Buffer("y", "f32", ("n", 4), "w"),
        Buffer("one", "f32", ("n",), "w"),
        Scalar("n"),
    ),
    geometry=_elements,
    rules=(COUNT,),
    limits=_limits(),
    doc="Four quotients by one divisor, and one alone: the IEEE quotients.",
)

BARRIER = Kernel(
    name="primitive_barrier",
    room="primitives",
    symbol="primitive_barrier",
    args=(Buffer("x", "i32", (THREADS,), "r"), Buffer("y", "i32", (THREADS,), "w")),
    geometry=lambda _: Geometry((1, 1, 1), (THREADS, 1, 1)),
    limits=_limits(smem=512),
    doc="Two pairs of warps, each with its own named barrier: a warp reads what its partner wrote.",
)


def _convert(name: str, code: str, doc: str) -> Kernel:
    return Kernel(
        name=name,
        room="primitives",
        symbol=name,
        args=(_flat("x", "f32", "r"), _flat("code", code, "w"), _flat("back", "f32", "w"), Scalar("n")),
        geometry=_elements,
        rules=(COUNT,),
        limits=_limits(),
        doc=doc,
    )


HALF = _convert("primitive_half", "f16", "float32 to f16 and back.")
E4M3 = _convert("primitive_e4m3", "e4m3", "float32 to e4m3 and back.")

KERNELS = (
    DP4A, AND_XOR, SHUFFLE, VOTE, WARP_SUM, SUM_ITEMS, MMA_S8, MMA_E4M3, LDMATRIX, COPY, DIVIDE, BARRIER, HALF, E4M3,
)  # fmt: skip  # a line
