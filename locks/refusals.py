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
        f"lane::store_codes<{words}, {owned}>(v, 0, 32, codes, p); }}\n"
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
)
