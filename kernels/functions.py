"""Catalogue entries of the functions room: each function over given inputs or over all bit patterns; conversions."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import IN_REGISTERS, between, ceil_div

#: The functions, in the order of the ids that the kernels are instantiated with.
FUNCTIONS = ("exp", "log1p", "sigmoid", "silu", "softplus")

THREADS, EACH = 256, 64  # a thread does about EACH elements: fibers of the host device are dearer than loop turns

FUNCTION = Param("FUNCTION", tuple(range(len(FUNCTIONS))))
NARROW = Param("NARROW", ("f16", "e4m3"))
COUNT = between("n", 1, 2**31 - 1, "the elements that an int counts")
LIMITS = {"registers": 48, "smem": 0, **IN_REGISTERS}


def _geometry(dims: Dims) -> Geometry:
    return Geometry((ceil_div(int(dims["n"]), THREADS * EACH), 1, 1), (THREADS, 1, 1))


MAP_FUNCTION = Kernel(
    name="map_function",
    room="functions",
    symbol="map_function",
    args=(Buffer("x", "f32", ("n",), "r"), Buffer("y", "f32", ("n",), "w"), Scalar("n")),
    geometry=_geometry,
    params=(FUNCTION,),
    rules=(COUNT,),
    limits=LIMITS,
    doc="y = f(x) element by element; FUNCTION 0 exp, 1 log1p, 2 sigmoid, 3 silu, 4 softplus.",
)

SWEEP_FUNCTION = Kernel(
    name="sweep_function",
    room="functions",
    symbol="sweep_function",
    args=(Buffer("y", "f32", ("n",), "w"), Scalar("first", "unsigned"), Scalar("n")),
    geometry=_geometry,
    params=(FUNCTION,),
    rules=(COUNT, between("first", 0, 2**32 - 1, "a bit pattern of 32 bits")),
    limits=LIMITS,
    doc="y[i] = f(the float32 whose bits are first + i), for sweeps over every input.",
)

ENCODE = Kernel(
    name="encode",
    room="functions",
    symbol="encode",
    args=(Buffer("x", "f32", ("n",), "r"), Buffer("y", "NARROW", ("n",), "w"), Scalar("n")),
    geometry=_geometry,
    params=(NARROW,),
    rules=(COUNT,),
    limits=LIMITS,
    doc="Float32 to f16 or e4m3, nearest even; e4m3 saturates.",
)

DECODE = Kernel(
    name="decode",
    room="functions",
    symbol="decode",
    args=(Buffer("x", "NARROW", ("n",), "r"), Buffer("y", "f32", ("n",), "w"), Scalar("n")),
    geometry=_geometry,
    params=(NARROW,),
    rules=(COUNT,),
    limits=LIMITS,
    doc="f16 or e4m3 to float32, exact.",
)

KERNELS = (MAP_FUNCTION, SWEEP_FUNCTION, ENCODE, DECODE)
