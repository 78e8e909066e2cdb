"""Catalogue entries of the RMS norm room: norm and quantise, with the residual add before it.

A row has one block, a cluster of blocks, or many blocks in two launches.
"""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar
from kernels.rules import (
    COLUMNS,
    GRID_X,
    IN_REGISTERS,
    ROWS,
    between,
    blocks_of,
    ceil_div,
    code_buffers,
    defaults,
    planes_f32,
    row_pitch,
    rows_f32,
)

CHUNK = 256  # elements that one warp sums
WARPS = 32  # of the largest block: one warp a chunk
CHUNKS = 256  # of the longest row of the many-block form
PART_WARPS = 4  # of the many-block form: 1024 elements a block
BLOCK_WARPS = (20, WARPS)  # blocks that the planed one-block form is built for
PARTS = (2, 4, 8)  # blocks of a cluster that share a row
CLUSTERED = ("sm_90a", "sm_100a")
SPREAD_WARPS = 8  # most of a block that shares its row with the others of a cluster

WORDS = Param("WORDS", (1, 2))
REDUCED, PLANED = Param("PLANED", (False,)), Param("PLANED", (True,))
WEIGHT = Buffer("w", "f32", ("K",), "r", align=16)
NORMED = rows_f32("normed", "K", "w", optional=True)
SUMS_SMEM = WARPS * 4

COMMON_RULES = (ROWS, blocks_of("K"), *row_pitch("x_pitch", "K"))
ONE_BLOCK = between("K", 32, CHUNK * WARPS, "the chunks of one block; longer rows take the many-block form")
NARROW = Rule(
    lambda d: int(d["K"]) <= CHUNK * int(d["WARPS"]), "K = {K} has more chunks than the {WARPS} warps of this form"
)
MANY_BLOCKS = between("K", 32, CHUNK * CHUNKS, "the chunks of the longest row")
NORMED_RULES = (*row_pitch("normed_pitch", "K"), COLUMNS)
Y_RULES = row_pitch("y_pitch", "K")
ONE_PLANE = between("planes", 1, 1, "y as it is; the planed kernel adds planes")
ANY_PLANES = between("planes", 1, 64, "the widest split of a projection")


def one_block(dims: Dims) -> Geometry:
    """A block a row, a warp a chunk."""
    return Geometry((int(dims["rows"]), 1, 1), (32 * ceil_div(int(dims["K"]), CHUNK), 1, 1))


def parts_of(K: int, rows: int, arch: str, multiprocessors: int) -> int:
    """Blocks that share a row: 8 where each has a multiprocessor of its own, else 1.

    Few rows leave most multiprocessors idle, and one of them reads a row's planes slower than eight do. Many rows have
    them all at work, and then a cluster takes longer to start than it saves.
    """
    parts = PARTS[-1]
    fits = arch in CLUSTERED and ceil_div(K, CHUNK * parts) <= SPREAD_WARPS and rows * parts <= multiprocessors
    return parts if fits else 1


def warps_of(K: int) -> int:
    """Which instantiation of the planed one-block form a row takes: the narrow one has all planes in flight."""
    return next((w for w in BLOCK_WARPS if CHUNK * w >= K), BLOCK_WARPS[-1])


def spread(dims: Dims) -> Geometry:
    """A cluster of `parts` blocks a row, a warp a chunk."""
    parts = int(dims["parts"])
    return Geometry((int(dims["rows"]) * parts, 1, 1), (32 * _spread_warps(dims), 1, 1), cluster=parts)


def _spread_warps(dims: Dims) -> int:
    return ceil_div(int(dims["K"]), CHUNK * int(dims["parts"]))


def many_blocks(dims: Dims) -> Geometry:
    """A block a row and four chunks."""
    warps = min(PART_WARPS, ceil_div(int(dims["K"]), CHUNK))
    blocks = ceil_div(int(dims["K"]), CHUNK * warps)
    return Geometry((int(dims["rows"]), blocks, 1), (32 * warps, 1, 1))


def _derive(dims: Dims) -> Dims:
    return {**defaults("K", "x_pitch", "normed_pitch")(dims), "chunks": ceil_div(int(dims["K"]), CHUNK)}


def _derive_add(dims: Dims) -> Dims:
    return {**_derive(dims), "y_pitch": dims["K"]}


RMS_NORM_QUANTIZE = Kernel(
    name="rms_norm_quantize",
    room="rms_norm",
    symbol="rms_norm_quantize",
    dependent=True,
    early=("w",),
    params=(WORDS,),
    args=(*rows_f32("x", "K", "r"), WEIGHT, *code_buffers("K"), *NORMED, Scalar("K"), Scalar("eps", "float")),
    geometry=one_block,
    derive=_derive,
    rules=(*COMMON_RULES, ONE_BLOCK, *NORMED_RULES),
    limits={"registers": 64, "smem": SUMS_SMEM, **IN_REGISTERS},
    doc="The codes of the normed rows of x; normed takes the float32 rows too, or is null.",
)

ADD_ARGS = (
    *rows_f32("x", "K", "rw"),
    *planes_f32("y", "K"),
    WEIGHT,
    *code_buffers("K"),
    *NORMED,
    Scalar("K"),
    Scalar("eps", "float"),
)

ADD_RMS_NORM_QUANTIZE = Kernel(
    name="add_rms_norm_quantize",
    room="rms_norm",
    symbol="add_rms_norm_quantize",
    dependent=True,
    early=("w",),
    params=(WORDS, REDUCED, Param("WARPS", (WARPS,))),
    args=ADD_ARGS,
    geometry=one_block,
    derive=_derive_add,
    rules=(*COMMON_RULES, ONE_BLOCK, *NORMED_RULES, *Y_RULES, ONE_PLANE),
    limits={"registers": 64, "smem": SUMS_SMEM, **IN_REGISTERS},
    doc="x += y in place, then the codes of the normed rows of x.",
)

ADD_RMS_NORM_QUANTIZE_PLANES = Kernel(
    name="add_rms_norm_quantize_planes",
    room="rms_norm",
    symbol="add_rms_norm_quantize",
    dependent=True,
    early=("w",),
    params=(WORDS, PLANED, Param("WARPS", BLOCK_WARPS)),
    args=ADD_ARGS,
    geometry=one_block,
    derive=_derive_add,
    rules=(*COMMON_RULES, ONE_BLOCK, NARROW, *NORMED_RULES, *Y_RULES, ANY_PLANES),
    limits={"registers": 102, "smem": SUMS_SMEM, **IN_REGISTERS},
    doc="The same with y as split-K planes, added ascending from zero first.",
)

SPREAD_RULES = (
    Rule(lambda d: d["parts"] in PARTS, "parts = {parts} blocks of a cluster must be 2, 4 or 8"),
    Rule(lambda d: _spread_warps(d) <= SPREAD_WARPS, "K = {K} has more chunks than {parts} blocks of 8 warps"),
    Rule(lambda d: int(d["rows"]) * int(d["parts"]) <= GRID_X, "rows * parts exceeds the blocks of a grid axis"),
)


def _spread(name: str, planed: Param, planes: Rule, doc: str) -> Kernel:
    return Kernel(
        name=name,
        room="rms_norm",
        symbol="add_rms_norm_spread",
        dependent=True,
        early=("w",),
        archs=CLUSTERED,
        params=(WORDS, planed),
        args=ADD_ARGS,
        geometry=spread,
        derive=_derive_add,
        rules=(*COMMON_RULES, *SPREAD_RULES, *NORMED_RULES, *Y_RULES, planes),
        limits={"registers": 128, "smem": 8 * SPREAD_WARPS * 8, **IN_REGISTERS},
        doc=doc,
    )


ADD_RMS_NORM_SPREAD = _spread(
    "add_rms_norm_spread", REDUCED, ONE_PLANE, "The same as add_rms_norm_quantize, a row shared by a cluster of blocks."
)
ADD_RMS_NORM_SPREAD_PLANES = _spread(
    "add_rms_norm_spread_planes", PLANED, ANY_PLANES, "The same with y as split-K planes, eight of them in flight."
)

PART_ARGS = (
    *rows_f32("x", "K", "rw"),
    *planes_f32("y", "K"),
    Buffer("chunk_sums", "f32", ("rows", "chunks"), "w"),
    Scalar("K"),
)

ADD_RMS_NORM_PART = Kernel(
    name="add_rms_norm_part",
    room="rms_norm",
    symbol="add_rms_norm_part",
    dependent=True,
    params=(REDUCED,),
    args=PART_ARGS,
    geometry=many_blocks,
    derive=_derive_add,
    rules=(*COMMON_RULES, MANY_BLOCKS, *Y_RULES, ONE_PLANE),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="First half of the many-block form: x += y in place, and the sums of squares of the chunks of 256.",
)

ADD_RMS_NORM_PART_PLANES = Kernel(
    name="add_rms_norm_part_planes",
    room="rms_norm",
    symbol="add_rms_norm_part",
    dependent=True,
    params=(PLANED,),
    args=PART_ARGS,
    geometry=many_blocks,
    derive=_derive_add,
    rules=(*COMMON_RULES, MANY_BLOCKS, *Y_RULES, ANY_PLANES),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The same with y as split-K planes, added ascending from zero first.",
)

ADD_RMS_NORM_APPLY = Kernel(
    name="add_rms_norm_apply",
    room="rms_norm",
    symbol="add_rms_norm_apply",
    dependent=True,
    params=(WORDS,),
    args=(
        *rows_f32("x", "K", "r"),
        Buffer("chunk_sums", "f32", ("rows", "chunks"), "r"),
        WEIGHT,
        *code_buffers("K"),
        *NORMED,
        Scalar("K"),
        Scalar("eps", "float"),
    ),
    geometry=many_blocks,
    derive=_derive,
    rules=(*COMMON_RULES, MANY_BLOCKS, *NORMED_RULES),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="Second half of the many-block form: the same bits as add_rms_norm_quantize.",
)

KERNELS = (
    RMS_NORM_QUANTIZE,
    ADD_RMS_NORM_QUANTIZE,
    ADD_RMS_NORM_QUANTIZE_PLANES,
    ADD_RMS_NORM_SPREAD,
    ADD_RMS_NORM_SPREAD_PLANES,
    ADD_RMS_NORM_PART,
    ADD_RMS_NORM_PART_PLANES,
    ADD_RMS_NORM_APPLY,
)
