"""Catalogue entries of the read, and of the read and write, that streaming kernels are measured against."""

from kernels.entry import Buffer, Geometry, Kernel, Scalar
from kernels.rules import GRID_X, IN_REGISTERS, between

THREADS = 512
RULES = (
    between("vectors", 1, 2**40, "vectors of 16 bytes"),
    between("blocks", 1, GRID_X, "the blocks that one grid axis can hold"),
)

MEMORY_READ = Kernel(
    name="memory_read",
    room="memory_read",
    symbol="memory_read",
    args=(
        Buffer("x", "u32", ("vectors", 4), "r", align=16),
        Buffer("y", "u32", ("blocks",), "w"),
        Scalar("vectors", "long long"),
    ),
    geometry=lambda d: Geometry((int(d["blocks"]), 1, 1), (THREADS, 1, 1)),
    rules=RULES,
    limits={"registers": 64, "smem": 64, **IN_REGISTERS},
    doc="Reads a buffer once; each block stores the xor of the words it read.",
)

MEMORY_UPDATE = Kernel(
    name="memory_update",
    room="memory_read",
    symbol="memory_update",
    args=(Buffer("x", "u32", ("vectors", 4), "rw", align=16), Scalar("vectors", "long long")),
    geometry=lambda d: Geometry((int(d["blocks"]), 1, 1), (THREADS, 1, 1)),
    rules=RULES,
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="Reads and writes a buffer once, in place: every word becomes its complement.",
)

KERNELS = (MEMORY_READ, MEMORY_UPDATE)
