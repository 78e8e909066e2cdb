"""Catalogue entries of the greedy room: pick, and pick with advance; from logits, or from the keys of many blocks."""

from collections.abc import Callable

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar
from kernels.rules import GRID_Y, IN_REGISTERS, ROWS, between, ceil_div, row_pitch
from kernels.sequences import history_dims

THREADS = 1024
TILE = 8192  # logits a block of greedy_part: 31 blocks a row of 248,320
KEYS_SMEM = THREADS // 32 * 8

LOGITS = (Buffer("logits", "f32", ("rows", "V"), "r", "logits_pitch"), Scalar("logits_pitch"), Scalar("V"))
PARTS = (Buffer("parts", "i64", ("rows", "tiles"), "r"), Scalar("tiles"))
PICKED = (Buffer("tokens", "i32", ("rows",), "w"), Buffer("flags", "i32", ("rows",), "w"))
STATE = (
    Buffer("tokens", "i32", ("rows",), "rw"),
    Buffer("flags", "i32", ("rows",), "rw"),
    Buffer("positions", "i32", ("rows",), "rw"),
    Buffer("history", "i32", ("rows", "columns"), "rw", "history_pitch"),
    Scalar("history_pitch"),
    Scalar("limit"),
)

LOGIT_RULES = (
    ROWS,
    between("V", 1, 2**31 - 1 - THREADS, "the logits that an int can count"),
    *row_pitch("logits_pitch", "V", step=1),
)
PART_RULES = (ROWS, between("tiles", 1, GRID_Y, "the blocks of a row"))
STATE_RULES: tuple[Rule, ...] = (
    between("limit", 1, 2**31 - 2, "the positions that an int can count"),
    Rule(lambda d: d["columns"] == int(d["limit"]) + 1, "columns = {columns} must be limit + 1, limit = {limit}"),
    *row_pitch("history_pitch", "columns", step=1),
)


def _row_block(threads: int) -> Callable[[Dims], Geometry]:
    return lambda d: Geometry((int(d["rows"]), 1, 1), (threads, 1, 1))


def _tiles(dims: Dims) -> Geometry:
    return Geometry((int(dims["rows"]), int(dims["tiles"]), 1), (THREADS, 1, 1))


def _logits(dims: Dims) -> Dims:
    return {"logits_pitch": dims["V"]}


def _part(dims: Dims) -> Dims:
    tile = int(dims.get("tile", TILE))
    return {**_logits(dims), "tile": tile, "tiles": ceil_div(int(dims["V"]), max(tile, 1))}


def _state_and_logits(dims: Dims) -> Dims:
    return {**_logits(dims), **history_dims(dims)}


GREEDY_PART = Kernel(
    name="greedy_part",
    room="greedy",
    symbol="greedy_part",
    dependent=True,
    args=(*LOGITS, Scalar("tile"), Buffer("parts", "i64", ("rows", "tiles"), "w")),
    geometry=_tiles,
    derive=_part,
    rules=(
        *LOGIT_RULES,
        between("tile", 1, 2**30, "the logits that one block walks"),
        between("tiles", 1, GRID_Y, "the blocks of a row"),
        Rule(
            lambda d: int(d["tiles"]) == ceil_div(int(d["V"]), int(d["tile"])),
            "{tiles} tiles of {tile} do not cover V = {V} logits exactly",
        ),
    ),
    limits={"registers": 32, "smem": KEYS_SMEM, **IN_REGISTERS},
    doc="Many blocks a row: the best key (order of the logit, then lowest index) of each tile.",
)

GREEDY_PICK = Kernel(
    name="greedy_pick",
    room="greedy",
    symbol="greedy_pick",
    dependent=True,
    args=(*LOGITS, *PICKED),
    geometry=_row_block(THREADS),
    derive=_logits,
    rules=LOGIT_RULES,
    limits={"registers": 32, "smem": KEYS_SMEM, **IN_REGISTERS},
    doc="Token and flag of each row: highest logit, lowest index; flag 1 for a NaN, 2 for nothing above -inf.",
)

GREEDY_PICK_PARTS = Kernel(
    name="greedy_pick_parts",
    room="greedy",
    symbol="greedy_pick_parts",
    dependent=True,
    args=(*PARTS, *PICKED),
    geometry=_row_block(32),
    rules=PART_RULES,
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The same from the keys of greedy_part.",
)

GREEDY_ADVANCE = Kernel(
    name="greedy_advance",
    room="greedy",
    symbol="greedy_advance",
    dependent=True,
    args=(*LOGITS, *STATE),
    geometry=_row_block(THREADS),
    derive=_state_and_logits,
    rules=(*LOGIT_RULES, *STATE_RULES),
    limits={"registers": 32, "smem": KEYS_SMEM, **IN_REGISTERS},
    doc="Pick, write the token behind the position, advance it; a flagged sequence is frozen, flag 3 at the limit.",
)

GREEDY_ADVANCE_PARTS = Kernel(
    name="greedy_advance_parts",
    room="greedy",
    symbol="greedy_advance_parts",
    dependent=True,
    args=(*PARTS, *STATE),
    geometry=_row_block(32),
    derive=history_dims,
    rules=(*PART_RULES, *STATE_RULES),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The same from the keys of greedy_part.",
)

KERNELS = (GREEDY_PART, GREEDY_PICK, GREEDY_PICK_PARTS, GREEDY_ADVANCE, GREEDY_ADVANCE_PARTS)
