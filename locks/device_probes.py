"""Catalogue entries of locks/kernels/faults.cu: kernels that locks of the CUDA device launch."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar

#: The source lies beside the locks; the path is relative to kernels/, where every source is looked for.
ROOM = "../locks/kernels/faults"

NEWEST = ("sm_90a", "sm_100a", "sm_120")


def _one_block(dims: Dims) -> Geometry:
    return Geometry((1, 1, 1), (int(dims.get("N", 1)), 1, 1))


def _reverse(dims: Dims) -> Geometry:
    return Geometry((1, 1, 1), (int(dims["N"]), 1, 1), smem=4 * int(dims["words"]))


def _clusters(dims: Dims) -> Geometry:
    return Geometry((int(dims["blocks"]), 1, 1), (32, 1, 1), cluster=int(dims["cluster"]))


STRAY = Kernel(
    name="stray",
    room=ROOM,
    symbol="stray",
    params=(Param("BLOCK", (64,)),),
    args=(Buffer("y", "f32", ("N",), "w"), Scalar("N"), Scalar("stray")),
    geometry=_one_block,
    doc="Writes N elements and one more.",
)
TICK = Kernel(
    name="tick",
    room=ROOM,
    symbol="tick",
    args=(Buffer("counter", "u32", (1,), "rw"), Scalar("add", "unsigned")),
    geometry=_one_block,
    doc="counter = 3 counter + add, modulo 2^32.",
)
WILD = Kernel(
    name="wild",
    room=ROOM,
    symbol="wild",
    args=(Buffer("y", "f32", (1,), "r"),),
    geometry=_one_block,
    doc="Writes to an address that no allocation has.",
)
REVERSE = Kernel(
    name="reverse",
    room=ROOM,
    symbol="reverse",
    args=(Buffer("y", "f32", ("N",), "w"), Buffer("x", "f32", ("N",), "r"), Scalar("N"), Scalar("words")),
    geometry=_reverse,
    doc="Reverses N elements through the end of its dynamic shared memory.",
)
RANK = Kernel(
    name="rank",
    room=ROOM,
    symbol="rank",
    args=(Buffer("y", "u32", ("blocks",), "w"),),
    geometry=_clusters,
    archs=NEWEST,
    doc="The rank of each block in its cluster.",
)
SPIN = Kernel(
    name="spin",
    room=ROOM,
    symbol="spin",
    args=(Buffer("y", "u32", (1,), "w"), Scalar("cycles")),
    geometry=_one_block,
    doc="Busy for at least so many cycles.",
)
