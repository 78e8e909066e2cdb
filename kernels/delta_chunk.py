"""Catalogue entry of the chunked delta rule: T tokens at once, for prefill in the +delta lane."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar, Value
from kernels.rules import IN_REGISTERS, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, head_multiple, token_dims

LENGTHS = (1, 4, 8, 16, 32, 64)  # tokens that a chunk may have
THREADS = 128
ROWS = 32  # state rows of a block
DIMS = 16  # dims staged at a time


def _derive(dims: Dims) -> dict[str, Value]:
    D, HK, HV = int(dims["D"]), int(dims["HK"]), int(dims["HV"])
    width, value = 2 * HK * D + HV * D, HV * D
    return {"width": width, "value": value, "qkv_pitch": width, "o_pitch": value, "scale": D**-0.5, "first": 0}


def pieces(length: int) -> tuple[int, ...]:
    """Chunks that exist and add up to a pass of this many tokens, the largest first."""
    made = []
    for chunk in reversed(LENGTHS):
        made += [chunk] * (length // chunk)
        length %= chunk
    return tuple(made)


def shared_bytes(D: int, T: int) -> int:
    """Bytes of the struct Work of the source, whose float64 part is aligned to 8."""
    floats = T * (T + 1) + T * ROWS + ROWS * (D + 1) + 2 * T * (DIMS + 1) + 2 * T
    return -(-4 * floats // 8) * 8 + -(-12 * T // 8) * 8


def _geometry(dims: Dims) -> Geometry:
    D = int(dims["D"])
    grid = (int(dims["HV"]), int(dims["B"]), D // ROWS)
    return Geometry(grid, (THREADS, 1, 1), shared_bytes(D, int(dims["CHUNK"])))


DELTA_CHUNK = Kernel(
    name="delta_chunk",
    room="delta_chunk",
    symbol="delta_chunk",
    family="delta_rule",
    exact=False,
    params=(HEAD_DIMS, Param("CHUNK", LENGTHS), Param("STATE", ("f32", "f16"))),
    args=(
        *rows_f32("qkv", "width", "r"),
        Buffer("g", "f32", ("rows", "HV"), "r"),
        Buffer("beta", "f32", ("rows", "HV"), "r"),
        Buffer("state", "STATE", ("slots", "HV", "D", "D"), "rw", align=16),
        *SEQUENCES,
        *rows_f32("o", "value", "w"),
        Scalar("first"),
        Scalar("B"),
        Scalar("HK"),
        Scalar("HV"),
        Scalar("scale", "float"),
    ),
    geometry=_geometry,
    derive=token_dims(_derive),
    rules=(
        *CHUNK_RULES,
        head_multiple("HV", "HK"),
        Rule(
            lambda d: int(d["first"]) >= 0 and int(d["first"]) + int(d["CHUNK"]) <= int(d["T"]),
            "tokens {first} to {first} + {CHUNK} are not among the T = {T} tokens of the pass",
        ),
        *row_pitch("qkv_pitch", "width"),
        *row_pitch("o_pitch", "value", step=1),
        Rule(lambda d: int(d["width"]) < 2**31, "a row of {width} elements exceeds what an int can count"),
    ),
    limits={"registers": 255, "smem": 0, **IN_REGISTERS},
    doc="The gated delta rule over tokens first to first + CHUNK - 1 of a pass at once, through a triangular solve.",
)

KERNELS = (DELTA_CHUNK,)
