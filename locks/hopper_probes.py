"""Catalogue entries of wgmma.cu and arrivals.cu in locks/kernels: what locks of Hopper's own instructions launch."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar

#: The sources lie beside the locks; paths are relative to kernels/, where every source is looked for.
ROOM, COPIES = "../locks/kernels/wgmma", "../locks/kernels/arrivals"

#: The faults of wgmma_products by name, in the order of its enumeration.
FAULTS = (
    "right",
    "no proxy fence",
    "no fence",
    "one fence",
    "no commit",
    "short wait",
    "no wait",
    "read before the wait",
    "A changed before the wait",
    "B changed before the wait",
    "another operand in one warp",
    "three warps of four",
)
CODES = Buffer("codes", "u32", ("chunks", 128, 4), "r", align=4)


def _geometry(d: Dims) -> Geometry:
    return Geometry((1, 1, 1), (128, 1, 1), int(d["bytes"]))


def products(fault: str = "right") -> Kernel:
    """The chain of products with this fault alone."""
    return Kernel(
        name="wgmma_products",
        room=ROOM,
        symbol="wgmma_products",
        params=(Param("FAULT", (FAULTS.index(fault),)),),
        args=(
            Buffer("y", "i32", ("chunks", 64, 128), "w"),
            CODES,
            Buffer("images", "u8", ("chunks", "bytes"), "r", align=16),
            *(Scalar(n) for n in ("chunks", "bytes", "start", "leading", "stride", "swizzle")),
            Scalar("extra", "long long"),
        ),
        derive=lambda _: {"extra": 0, "leading": 16},
        geometry=_geometry,
        archs=("sm_90a",),
        doc="Products of a warpgroup whose operand in shared memory is described field by field.",
    )


ADDS = Kernel(
    name="wgmma_adds",
    room=ROOM,
    symbol="wgmma_adds",
    args=(
        Buffer("y", "i32", (64, 128), "rw"),
        Buffer("codes", "u32", (128, 4), "r", align=4),
        Buffer("images", "u8", (16384,), "r", align=16),
    ),
    geometry=lambda _: Geometry((1, 1, 1), (128, 1, 1), 16384),
    archs=("sm_90a",),
    doc="Two products of a warpgroup added to what is there.",
)

#: The faults of copied_over_stores by name, in the order of its enumeration.
COPY_FAULTS = ("right", "not shown", "set up twice", "admitted early")


def copied(fault: str = "right") -> Kernel:
    """Rows copied over what threads stored, with this fault alone."""
    return Kernel(
        name="copied_over_stores",
        room=COPIES,
        symbol="copied_over_stores",
        params=(Param("FAULT", (COPY_FAULTS.index(fault),)),),
        args=(Buffer("x", "i32", (32, 4), "r", align=16), Buffer("y", "i32", (32, 4), "w", align=16)),
        geometry=lambda _: Geometry((1, 1, 1), (32, 1, 1), 512),
        archs=("sm_90a",),
        doc="One bulk copy over what every thread has stored.",
    )


#: The faults of copies_arrive by name, in the order of its enumeration.
ARRIVAL_FAULTS = ("right", "at once", "nobody waits", "one lane short", "copy behind")


def arrivals(fault: str = "right") -> Kernel:
    """Copies that a barrier counts, with this fault alone."""
    return Kernel(
        name="copies_arrive",
        room=COPIES,
        symbol="copies_arrive",
        params=(Param("FAULT", (ARRIVAL_FAULTS.index(fault),)),),
        args=(
            Buffer("x", "i32", ("chunks", 32, 4), "r", align=16),
            Buffer("y", "i32", ("chunks", 32, 4), "w", align=16),
            Scalar("chunks"),
        ),
        geometry=lambda _: Geometry((1, 1, 1), (64, 1, 1)),
        archs=("sm_90a",),
        doc="One warp copies, another reads what has arrived.",
    )
