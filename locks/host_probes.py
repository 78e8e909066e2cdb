"""Catalogue entries of locks/kernels/host_*.cu: kernels that locks of the host device launch, most of them wrong.

The sources lie beside the locks; a room's path is relative to kernels/, where every source is looked for.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar

MEMORY, THREADS, COPIES, SPACES = (
    f"../locks/kernels/host_{name}" for name in ("memory", "threads", "copies", "spaces")
)

BOTH = (False, True)


def _launch(dims: Dims) -> Geometry:
    """One block of 32 threads, unless the dims say otherwise."""
    return Geometry(
        (int(dims.get("blocks", 1)), 1, 1), (int(dims.get("threads", 32)), 1, 1), 4 * int(dims.get("words", 0))
    )


def _cubes(_: Dims) -> Geometry:
    return Geometry((3, 2, 2), (4, 2, 3))


def _entry(
    room: str, symbol: str, doc: str, *args: Buffer | Scalar, params: tuple[Param, ...] = (),
    geometry: Callable[[Dims], Geometry] = _launch,
) -> Kernel:  # fmt: skip
    return Kernel(name=symbol, room=room, symbol=symbol, args=args, geometry=geometry, doc=doc, params=params)


_memory, _threads, _copies, _spaces = (partial(_entry, room) for room in (MEMORY, THREADS, COPIES, SPACES))


def _word(dtype: str = "f32") -> Buffer:
    return Buffer("y", dtype, (1,), "w")


def _by_thread(name: str = "y", access: Literal["r", "w", "rw"] = "w", dtype: str = "i32") -> Buffer:
    return Buffer(name, dtype, ("threads",), access)


_T = Param("T", ("f32", "i8"))
_WRITE, _SYNC, _PRIMITIVE, _SHARED_TARGET = (
    Param(name, BOTH) for name in ("WRITE", "SYNC", "PRIMITIVE", "SHARED_TARGET")
)
_BYTES = Buffer("x", "u8", (64,), "r", align=16)
_WORDS = Buffer("y", "u32", (4,), "w", align=16)
_AT = Scalar("at")

READ_AT = _memory("read_at", "y = x[at].", _word("T"), Buffer("x", "T", ("N",), "r"), _AT, params=(_T,))
WRITE_AT = _memory("write_at", "y[at] = 1.", Buffer("y", "T", ("N",), "rw"), _AT, params=(_T,))
SHARED_AT = _memory("shared_at", "Element `at` of a shared array of 8.", _word(), _AT, params=(_WRITE,))
SHARED_SLACK = _memory("shared_slack", "A word behind an aligned one.", _word(), _AT)
DYNAMIC_AT = _memory(
    "dynamic_at", "Element `at` of dynamic shared memory.", _word(), _AT, Scalar("words"), params=(_WRITE,)
)
SHARED_FIRST = _memory(
    "shared_first",
    "What shared memory holds before it is written.",
    Buffer("y", "u32", ("blocks", 32), "w"),
    Buffer("z", "u32", ("blocks", 32), "w"),
)
TOO_MUCH_SHARED = _memory("too_much_shared", "One word more than 48 KB.", _word())
LOAD_AT = _memory("load_at", "16 bytes from byte `at` on.", _WORDS, _BYTES, _AT, params=(_PRIMITIVE,))
STORE_AT = _memory(
    "store_at",
    "16 bytes to byte `at`.",
    Buffer("y", "u8", (64,), "rw", align=16),
    Buffer("x", "u32", (4,), "r", align=16),
    _AT,
    params=(_PRIMITIVE,),
)
READ_POINTER = _memory(
    "read_pointer", "Reads x, or an address.", _word(), Buffer("x", "f32", (1,), "r", optional=True),
    Scalar("address", "long long"),
)  # fmt: skip
STACK = _memory(
    "stack", "Uses a deep stack, or a wide one.", Buffer("y", "i32", (64,), "w"), Scalar("depth"),
    params=(Param("WORDS", (1, 32768)),),
)  # fmt: skip

BARRIER_OF_SOME = _threads("barrier_of_some", "A barrier for threads below a limit.", _by_thread(), Scalar("limit"))
BARRIER_OF_TWO_PLACES = _threads("barrier_of_two_places", "A barrier in two places.", _by_thread(), Scalar("limit"))
BARRIER_AND_SHUFFLE = _threads("barrier_and_shuffle", "A barrier for half a warp.", _by_thread())
BARRIERS_IN_A_ROW = _threads("barriers_in_a_row", "Passes words around a block.", _by_thread(), Scalar("rounds"))
BARRIER_BY_NAME = _threads(
    "barrier_by_name", "A barrier for each half.", _by_thread(), Scalar("id", "unsigned"), Scalar("wrong")
)
REVERSE_BLOCK = _threads("reverse_block", "Reverses 64 words.", _by_thread(), _by_thread("x", "r"), params=(_SYNC,))
REVERSE_WARP = _threads("reverse_warp", "Reverses 32 words.", _by_thread(), _by_thread("x", "r"), params=(_SYNC,))
LAST_BLOCK = _threads("last_block", "Every block writes one word.", _word("i32"))
SHUFFLE_OF = _threads(
    "shuffle_of",
    "A shuffle of some lanes.",
    _by_thread(),
    Scalar("mask", "unsigned"),
    Scalar("source"),
    Scalar("lanes"),
)
TWO_COLLECTIVES = _threads("two_collectives", "Half a warp shuffles, half votes.", _by_thread())
HALVES = _threads("halves", "Parts of a warp at different paces.", _by_thread(), Scalar("rounds"))
ORDER = _threads(
    "order",
    "The order in which threads arrive.",
    Buffer("y", "i32", (2, "blocks", 64), "w"),
    Buffer("next", "i32", (2,), "rw"),
    Scalar("blocks"),
)
WORK = _threads(
    "work",
    "A known amount of work.",
    Buffer("y", "i32", (2, 64, 4), "w", align=16),
    Buffer("x", "i32", (2, 64, 4), "r", align=16),
)
HALF_OF = _threads("half_of", "y = x / 2.", _by_thread(dtype="f32"), _by_thread("x", "r", "f32"))
QUOTIENT = _threads("quotient", "y = thread / by.", _by_thread(), Scalar("by"))
CHANGES_ROUNDING = _threads("changes_rounding", "Changes the rounding mode.", _by_thread(dtype="f32"))
STEP = _threads("step", "counter = 3 counter + add.", Buffer("counter", "u32", (1,), "rw"), Scalar("add", "unsigned"))
PLACE = _threads("place", "Where each thread is.", Buffer("y", "i32", (12, 24, 3), "w"), geometry=_cubes)

#: Instructions that name the space of an address, in the order of the enum; all but the last name global memory.
INSTRUCTIONS = ("cp.async", "a bulk copy", "prefetch", "ldmatrix")
OF_SPACE = _spaces(
    "of_space", "One instruction that names the space of its address.", Buffer("x", "u32", (64,), "rw", align=16),
    params=(Param("INSTRUCTION", tuple(range(len(INSTRUCTIONS)))), Param("SHARED_ADDRESS", BOTH)),
)  # fmt: skip
COPY = _copies(
    "copy", "One asynchronous copy.", _WORDS, _BYTES, Scalar("to"), Scalar("from"), Scalar("filled"),
    params=(_SHARED_TARGET,),
)  # fmt: skip


def pipeline(stages: int, primed: int, wait: int, *, commit: bool = True, empty: bool = True) -> Kernel:
    """The pipeline with these template values alone; right are primed = stages - 1 and wait = stages - 2."""
    values = {"STAGES": stages, "PRIMED": primed, "WAIT": wait, "COMMIT": commit, "EMPTY": empty}
    return _copies(
        "pipeline",
        "Reverses chunks through a ring of asynchronous copies.",
        Buffer("y", "u32", ("chunks", 128), "w", align=16),
        Buffer("x", "u32", ("chunks", 128), "r", align=16),
        Scalar("chunks"),
        params=tuple(Param(name, (value,)) for name, value in values.items()),
    )


RIGHT = pipeline(3, 2, 1)
WRONG = {
    "the wait is one group too shallow": pipeline(3, 2, 2),
    "no wait": pipeline(3, 2, -1),
    "primed with one chunk only": pipeline(3, 1, 1),
    "no commit": pipeline(3, 2, 1, commit=False),
    "the last chunks have no group of their own": pipeline(3, 2, 1, empty=False),
}
