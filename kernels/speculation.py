"""Catalogue entries of the speculation room: pack drafts, accept them, pick a row of each sequence."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch
from kernels.sequences import history_dims

THREADS = 128
MOST_ROWS = 5  # of a verify: the current token and four drafts

B_RULE = between("B", 1, 2**20, "the sequences of a batch")
VERIFY_RULES = (B_RULE, between("T", 1, MOST_ROWS, "the rows of a verify, which the conv ring can hold"))


def _sequences(dims: Dims) -> Geometry:
    return Geometry((ceil_div(int(dims["B"]), THREADS), 1, 1), (THREADS, 1, 1))


SPECULATION_PACK = Kernel(
    name="speculation_pack",
    room="speculation",
    symbol="speculation_pack",
    dependent=True,
    args=(
        Buffer("current", "i32", ("B",), "r"),
        Buffer("drafts", "i32", ("drafted", "B"), "r"),
        Buffer("flags", "i32", ("B",), "r"),
        Buffer("position", "i32", ("B",), "r"),
        Buffer("end", "i32", ("B",), "r"),
        Buffer("tokens", "i32", ("T", "B"), "w"),
        Buffer("length", "i32", ("B",), "w"),
        Scalar("B"),
        Scalar("T"),
    ),
    geometry=_sequences,
    derive=lambda d: {"drafted": int(d["T"]) - 1},
    rules=VERIFY_RULES,
    limits={"registers": 32, "smem": 0, **IN_REGISTERS},
    doc="Rows of a verify: the current token and its drafts, fewer near a sequence's end, none for a flagged one.",
)

SPECULATION_ACCEPT = Kernel(
    name="speculation_accept",
    room="speculation",
    symbol="speculation_accept",
    dependent=True,
    args=(
        Buffer("tokens", "i32", ("T", "B"), "r"),
        Buffer("picks", "i32", ("T", "B"), "r"),
        Buffer("pick_flags", "i32", ("T", "B"), "r"),
        Buffer("length", "i32", ("B",), "r"),
        Buffer("current", "i32", ("B",), "rw"),
        Buffer("flags", "i32", ("B",), "rw"),
        Buffer("position", "i32", ("B",), "rw"),
        Buffer("history", "i32", ("B", "columns"), "rw", "history_pitch"),
        Scalar("history_pitch"),
        Buffer("accepted", "i32", ("T", "B"), "rw"),
        Buffer("began", "i32", ("B",), "rw"),
        Buffer("pending", "i32", ("B",), "rw"),
        Buffer("taken", "i32", ("B",), "rw", optional=True),
        Scalar("B"),
        Scalar("T"),
        Scalar("limit"),
    ),
    geometry=_sequences,
    derive=history_dims,
    rules=(
        *VERIFY_RULES,
        between("limit", 1, 2**31 - 2, "the positions that an int can count"),
        Rule(lambda d: d["columns"] == int(d["limit"]) + 1, "columns = {columns} must be limit + 1"),
        *row_pitch("history_pitch", "columns", step=1),
    ),
    limits={"registers": 40, "smem": 0, **IN_REGISTERS},
    doc="Stores the picks that plain decoding would have made, advances each sequence, counts the rows it keeps.",
)

PICK_ROWS = Kernel(
    name="pick_rows",
    room="speculation",
    symbol="pick_rows",
    dependent=True,
    args=(
        Buffer("x", "f32", ("T", "B", "K"), "r", "x_pitch"),
        Scalar("x_pitch"),
        Buffer("count", "i32", ("B",), "r"),
        Buffer("y", "f32", ("B", "K"), "rw", "y_pitch"),
        Scalar("y_pitch"),
        Scalar("B"),
        Scalar("K"),
    ),
    geometry=lambda d: Geometry((int(d["B"]), ceil_div(int(d["K"]), THREADS), 1), (THREADS, 1, 1)),
    derive=lambda d: {"x_pitch": d["K"], "y_pitch": d["K"]},
    rules=(
        B_RULE,
        between("T", 1, 2**20, "the rows of a chunk"),
        between("K", 1, GRID_Y * THREADS, "the elements that one launch can cover"),
        *row_pitch("x_pitch", "K", step=1),
        *row_pitch("y_pitch", "K", step=1),
    ),
    limits={"registers": 32, "smem": 0, **IN_REGISTERS},
    doc="Row count - 1 of each sequence's chunk: the hidden state of its last token.",
)

KERNELS = (SPECULATION_PACK, SPECULATION_ACCEPT, PICK_ROWS)
