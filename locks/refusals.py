"""Configurations that a static_assert forbids, one for every static_assert of the catalogue's sources.

A new static_assert needs a line here: locks/test_compile.py holds that every sentence in the sources fires.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A program that must not compile, and the sentence that the compiler must say.

    source is a file below kernels/. edit replaces one text of it (the constant that the assertion guards), code is
    appended to it (an instantiation). expression, where given, names an instantiation of a kernel.
    """

    sentence: str
    source: str
    code: str = ""
    edit: tuple[str, str] | None = None
    expression: str = ""


def _row(call: str, floats: int) -> str:
    return f"__global__ void forbidden(float* p) {{ float v[{floats}] = {{}}; {call}; }}\n"


def _codes(words: int, owned: int) -> str:
    return (
        f"__global__ void forbidden(float* p, signed char* codes) {{ float v[{owned}] = {{}}; "
        f"lane::store_codes<{words}, {owned}>(v, 0, 32, {{codes, p, 0, 0}}); }}\n"
    )


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "load_row: a lane owns whole groups of four floats",
        "codes.cuh",
        code=_row("lane::load_row(v, p, true)", 3),
    ),
    Refusal(
        "store_row: a lane owns whole groups of four floats",
        "codes.cuh",
        code=_row("lane::store_row(p, v)", 6),
    ),
    Refusal("activation codes are one int8 word (A8) or two (A15)", "codes.cuh", code=_codes(3, 8)),
    Refusal("a lane owns 1, 2, 4 or 8 neighbours of a block of 32", "codes.cuh", code=_codes(1, 16)),
    Refusal(
        "rms_norm: a chunk is what one warp owns",
        "row_norm.cuh",
        edit=("constexpr int OWNED = 8;", "constexpr int OWNED = 4;"),
    ),
    Refusal(
        "functions: the ids are 0 exp, 1 log1p, 2 sigmoid, 3 silu, 4 softplus",
        "functions.cu",
        expression="map_function<5>",
    ),
    Refusal(
        "primitive_copy: a ring has at least two stages, one filling while one is read",
        "primitives.cu",
        expression="primitive_copy<1>",
    ),
    Refusal("activation codes are one int8 word (A8) or two (A15)", "gemm_mma.cu", expression="gemm_mma<3>"),
    Refusal(
        "gemv: the 8 lanes of a weight row store one sequence each",
        "gemv_register.cu",
        expression="gemv_register<1, 9>",
    ),
    Refusal(
        "gemm_dp4a: a K step is whole blocks of 32; the rest of a longer one would be staged and never multiplied",
        "gemm_dp4a.cu",
        expression="gemm_dp4a<1, 48>",
    ),
    Refusal(
        "gemm_dp4a: threads and outputs are a bijection; more threads would compute outputs twice",
        "gemm_dp4a.cu",
        edit=("THREADS = 128, N = 64", "THREADS = 256, N = 64"),
        expression="gemm_dp4a<1, 128>",
    ),
    Refusal(
        "a K step is whole blocks of 32; the rest of a longer one would be staged and never multiplied",
        "gemm_tc.cu",
        expression="gemm_tc<1, 8, 48, 2>",
    ),
    Refusal(
        "swizzle: a row holds a power of two of units, or XOR would leave the row",
        "gemm_tc.cu",
        expression="gemm_tc<1, 8, 96, 2>",
    ),
    Refusal(
        "weight codes have 8 bits (Q8_0) or 4 (Q4)",
        "projection_tile.cuh",
        code="template struct lane::WeightRows<6, 128>;\n",
    ),
    Refusal("weight codes have 8 bits (Q8_0) or 4 (Q4)", "pretile.cu", expression="pretile<6>"),
    Refusal(
        "pre-tiled weights come in chunks of 4 blocks",
        "projection_tile.cuh",
        code="template struct lane::WeightPanels<8, 64>;\n",
    ),
    Refusal("copy: a thread keeps its unit of a row", "gemm_tc.cu", expression="gemm_tc<1, 8, 1024, 1>"),
    Refusal(
        "scales: a lane loads those of two fragments at once",
        "projection_tile.cuh",
        code=(
            "__global__ void forbidden(float* p, unsigned char* s) { float xs[3][2]; "
            "lane::ActivationStage<1, 48, 4, 3>::scales(xs, s, 0, 0); p[0] = xs[0][0]; }\n"
        ),
    ),
    Refusal("a ring has at least one stage", "gemm_tc.cu", expression="gemm_tc<1, 8, 128, 0>"),
    Refusal(
        "gemm_tc: a block holds 8 to 64 sequences, 8 a fragment",
        "gemm_tc.cu",
        expression="gemm_tc<1, 128, 128, 2>",
    ),
    Refusal(
        "gemm_tc: the stages do not fit into the shared memory of a block",
        "gemm_tc.cu",
        expression="gemm_tc<2, 64, 256, 4>",
    ),
    Refusal("gemm_tc: Q4 rides only a ring of two or more stages", "gemm_tc.cu", expression="gemm_tc_q4<8, 128, 1>"),
    Refusal(
        "gemm_rows: the stages do not fit into the shared memory of a block",
        "gemm_rows.cu",
        expression="gemm_rows<2, 2, 128, 5>",
    ),
    Refusal(
        "gemm_rows: Q4 rides only a ring of two or more stages",
        "gemm_rows.cu",
        expression="gemm_rows_q4<1, 128, 1>",
    ),
    Refusal("gemm_wg: a chunk is copied while another is multiplied", "gemm_wg.cu", expression="gemm_wg<1, 8, 1>"),
    Refusal("gemm_wg: the stages do not fit a block", "gemm_wg.cu", expression="gemm_wg<2, 8, 4>"),
    Refusal(
        "gemm_wg: the swizzle of a stage's codes repeats every 1024 bytes",
        "gemm_wg.cuh",
        edit=("WARPS = 4 * GROUPS,", "WARPS = 3 * GROUPS,"),
        code="template struct warpgroup::Stage<lane::ActivationStage<1, 128, 4>, lane::WeightPanels<8>>;\n",
    ),
    Refusal(
        "projection_f32: an output of a pass has lanes of its own, and passes tile a block",
        "projection_f32.cu",
        expression="projection_f32<16>",
    ),
    Refusal(
        "projection_stream: a block holds one sequence of one word, or 8 to 64 of them, 8 a fragment",
        "projection_stream.cu",
        expression="projection_stream<1, 8, 128>",
    ),
    Refusal(
        "stream: rings begin with a line of memory",
        "projection_stream.cu",
        code="\ntemplate struct stream::Activations<1, 12>;\n",
    ),
    Refusal(
        "a head has 32, 64, 128 or 256 dims: a lane owns 1, 2, 4 or 8",
        "conv.cu",
        expression="conv<96>",
    ),
    Refusal(
        "conv: the ring must hold 3 inputs behind a verify of 5 rows",
        "conv.cu",
        edit=("constexpr int RING = 8;", "constexpr int RING = 7;"),
    ),
    Refusal(
        "delta_rule: a warp owns whole rows, and the rows of a head split evenly",
        "delta_rule.cu",
        expression="delta_rule<32, float, 5, false, false>",
    ),
    Refusal(
        "delta_rule: a block that stages its tokens holds one head",
        "delta_rule.cu",
        expression="delta_rule<32, float, 16, true, false>",
    ),
    Refusal(
        "scattered: a power of two of sums that the lanes can share",
        "add.cu",
        code="__global__ void probe(int* y) { *y = lane::scattered<3>(0, 1); }",
    ),
    Refusal(
        "delta_chunk: T is 1, 4, 8, 16, 32 or 64",
        "delta_chunk.cu",
        expression="delta_chunk<32, 2, float>",
    ),
    Refusal(
        "delta_chunk: a thread owns two state rows",
        "delta_chunk.cu",
        edit=("constexpr int ACROSS = 16;", "constexpr int ACROSS = 32;"),
        expression="delta_chunk<32, 4, float>",
    ),
    Refusal(
        "delta_chunk: a thread updates one dim of a few state rows",
        "delta_chunk.cu",
        edit=("constexpr int DIMS = 16;", "constexpr int DIMS = 8;"),
        expression="delta_chunk<32, 4, float>",
    ),
    Refusal(
        "attention: the chunk sum is one tree of 8 positions a lane",
        "attention.cuh",
        edit=("constexpr int CHUNK = 256;", "constexpr int CHUNK = 128;"),
    ),
    Refusal(
        "attention: a warp with a ring of its own scores 8 keys of a tile",
        "attention.cuh",
        code="__global__ void forbidden() { Stream<256, float, 64, 2, 4, true> tiles; tiles.left = 0; }\n",
    ),
    Refusal(
        "attention: queries of a block are a power of two, or two of them",
        "attention.cu",
        expression="attention<32, 7, float, false, false>",
    ),
)
