"""The nouns of the catalogue and the rules that entries share: what is derived, what is refused, and where exactly."""

from typing import Any

import numpy as np
import pytest

from kernels.entry import (
    DTYPES,
    Buffer,
    Geometry,
    Instance,
    Kernel,
    Param,
    Rule,
    Scalar,
    buffer_dtype,
    buffer_extent,
    buffer_shape,
    buffer_strides,
    instance,
    resolve,
    spell,
)
from kernels.rules import (
    IN_REGISTERS,
    ROWS,
    between,
    blocks_of,
    ceil_div,
    code_buffers,
    defaults,
    multiple,
    planes_f32,
    pointwise,
    pointwise_width,
    row_pitch,
    rows_f32,
)
from oracle.errors import LanelockError

X = Buffer("x", "T", ("rows", "K"), "r", "x_pitch")
PROBE = Kernel(
    name="probe",
    room="probe",
    symbol="probe_of",
    args=(X, Scalar("x_pitch")),
    geometry=lambda d: Geometry((int(d["rows"]), 1, 1), (32, 1, 1)),
    doc="A kernel of no room.",
    params=(Param("T", ("f32", "f16")), Param("WIDE", (False, True)), Param("N", (8,))),
    derive=lambda d: {"x_pitch": d["K"], "twice": 2 * int(d["K"])},
    rules=(Rule(lambda d: int(d["twice"]) < 100, "twice {K} is {twice}"),),
)


class TestInstance:
    """Template values are chosen by name, among those that are built."""

    def test_values_are_in_the_order_of_the_parameters(self) -> None:
        """A parameter with one value may be left out; the C++ name spells all of them."""
        made = instance(PROBE, WIDE=True, T="f16")

        assert made == Instance(PROBE, ("f16", True, 8))
        assert (made.expression, made.template) == ("probe_of<half_t, true, 8>", {"T": "f16", "WIDE": True, "N": 8})

    def test_a_kernel_without_parameters_is_its_symbol(self) -> None:
        """No angle brackets where there is nothing to choose."""
        bare = Kernel("k", "k", "k_symbol", (), PROBE.geometry, "")

        assert (instance(bare).expression, bare.source, PROBE.buffers) == ("k_symbol", "k.cu", (X,))

    @pytest.mark.parametrize(
        ("template", "sentence"),
        [
            ({"T": "f32", "WIDE": True, "M": 8}, r"probe: unknown template parameter 'M'; it has \['N', 'T', 'WIDE'\]"),
            ({"T": "f32"}, r"probe: template parameter WIDE must be chosen from \(False, True\)"),
            ({"T": "f64", "WIDE": True}, r"probe: T='f64' is not built; choose from \('f32', 'f16'\)"),
            ({"T": "f32", "WIDE": 1}, r"probe: WIDE=1 is not built; choose from \(False, True\)"),
            ({"T": "f32", "WIDE": True, "N": 9}, r"probe: N=9 is not built; choose from \(8,\)"),
        ],
    )
    def test_a_wrong_choice_is_refused(self, template: dict[str, Any], sentence: str) -> None:
        """An unknown, missing or unbuilt value is refused by name; 1 is not true."""
        with pytest.raises(LanelockError, match=sentence):
            instance(PROBE, **template)

    def test_values_are_spelled_in_cpp(self) -> None:
        """Booleans, integers and the C++ types of dtypes."""
        assert [spell(v) for v in (True, False, 1, 0, "f32", "i8")] == [
            "true",
            "false",
            "1",
            "0",
            "float",
            "signed char",
        ]


class TestResolve:
    """Dims of a launch are given, derived, and held to the rules."""

    def test_given_dims_win_over_derived_ones(self) -> None:
        """A pitch that is given is kept; what is not given is derived, from template values too."""
        made = instance(PROBE, T="f32", WIDE=False)

        assert resolve(made, {"rows": 2, "K": 5, "x_pitch": 7}) == {
            "T": "f32", "WIDE": False, "N": 8, "rows": 2, "K": 5, "x_pitch": 7, "twice": 10,
        }  # fmt: skip

    def test_a_broken_rule_says_its_sentence(self) -> None:
        """The refusal is the rule's sentence with the dims, derived ones too."""
        with pytest.raises(LanelockError, match="probe: twice 50 is 100"):
            resolve(instance(PROBE, T="f32", WIDE=False), {"rows": 1, "K": 50})


DIMS = {"rows": 3, "K": 5, "x_pitch": 7, "planes": 2, "WORDS": 2, "blocks": 4}


class TestBuffers:
    """Shapes, strides and extents follow the dims."""

    def test_dtypes_follow_a_parameter(self) -> None:
        """A dtype that names a parameter is the parameter's value; any other is itself."""
        made = instance(PROBE, T="f16", WIDE=False)

        assert (buffer_dtype(made, X), buffer_dtype(made, Buffer("y", "i8", (1,), "w"))) == ("f16", "i8")

    @pytest.mark.parametrize(
        ("buffer", "shape", "strides", "extent"),
        [
            (X, (3, 5), (7, 1), 2 * 7 + 5),
            (Buffer("x", "f32", ("rows", "K"), "r"), (3, 5), (5, 1), 15),
            (Buffer("x", "f32", ("planes", "rows", "K"), "r", "x_pitch"), (2, 3, 5), (21, 7, 1), 21 + 14 + 5),
            (Buffer("x", "f32", ("rows", 2, "K"), "r"), (3, 2, 5), (10, 5, 1), 30),
            (Buffer("x", "f32", ("rows",), "r"), (3,), (1,), 3),
        ],
    )
    def test_a_pitch_is_the_stride_of_the_rows(self, buffer: Buffer, shape: Any, strides: Any, extent: int) -> None:
        """The pitch replaces the packed stride of the last-but-one axis, and outer axes follow it."""
        assert buffer_shape(buffer, DIMS) == shape
        assert buffer_strides(buffer, DIMS) == strides
        assert buffer_extent(buffer, DIMS) == extent

    def test_nothing_has_no_extent(self) -> None:
        """A buffer of no rows touches nothing."""
        assert buffer_extent(X, {**DIMS, "rows": 0}) == 0

    def test_dtypes_are_as_wide_as_their_types(self) -> None:
        """A stored element has the width that the C++ type of its name has."""
        widths = {"f32": 4, "f64": 8, "f16": 2, "e4m3": 1, "i8": 1, "u8": 1, "i32": 4, "u32": 4, "i64": 8}

        assert {name: np.dtype(kind).itemsize for name, (kind, _) in DTYPES.items()} == widths


class TestRules:
    """Where exactly a rule begins to refuse."""

    @pytest.mark.parametrize(
        ("rule", "dim", "good", "bad"),
        [
            (between("n", 2, 5, "why"), "n", [2, 5], [1, 6]),
            (multiple("n", 8, "why"), "n", [8, 16], [0, -8, 4, 12]),
            (blocks_of("n"), "n", [32, 96], [0, 16, 48]),
            (ROWS, "rows", [1, 2**31 - 1], [0, 2**31]),
            (pointwise_width("n"), "n", [65535 * 512], [65535 * 512 + 1]),
        ],
    )
    def test_both_ends_are_exact(self, rule: Rule, dim: str, good: list[int], bad: list[int]) -> None:
        """The last good value passes and the first bad one is refused, with dim and value in the sentence."""
        assert all(rule.holds({dim: n}) for n in good)
        assert not any(rule.holds({dim: n}) for n in bad)
        assert f"{dim} = {bad[0]}" in rule.sentence.format(**{dim: bad[0]})

    def test_a_pitch_holds_its_row_and_keeps_it_aligned(self) -> None:
        """As wide as the row, and a multiple of four unless loads are single."""
        wide, aligned = row_pitch("p", "K")
        (single,) = row_pitch("p", "K", step=1)

        assert [wide.holds({"p": p, "K": 6}) for p in (5, 6, 8)] == [False, True, True]
        assert [single.holds({"p": p, "K": 6}) for p in (5, 6, 7)] == [False, True, True]
        assert [aligned.holds({"p": p, "K": 6}) for p in (6, 8, 9)] == [False, True, False]

    def test_division_rounds_up(self) -> None:
        """The least number of pieces that holds all."""
        assert [ceil_div(n, 4) for n in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]

    @pytest.mark.parametrize(("width", "tiles"), [(32, 1), (512, 1), (513, 2), (1024, 2), (5120, 10)])
    def test_pointwise_tiles_cover_the_row(self, width: int, tiles: int) -> None:
        """One block a row and 512 elements, the last one ragged."""
        assert pointwise("K")({"K": width, "rows": 7}) == Geometry((7, tiles, 1), (128, 1, 1))

    def test_defaults_are_packed_rows_and_one_plane(self) -> None:
        """Pitches are the width, a block is 32 elements, planes are one, codes lie by rows."""
        by_rows = {"columns": 0, "scale_rows": 5}

        assert defaults("K", "p", "q")({"K": 96, "rows": 5}) == {"p": 96, "q": 96, "blocks": 3, "planes": 1, **by_rows}

    def test_shared_buffers_are_what_they_say(self) -> None:
        """Rows and planes have pitches of their own name; codes are bytes, scales one a block."""
        codes, scales, columns = code_buffers("K")

        assert rows_f32("y", "K", "w", optional=True) == (
            Buffer("y", "f32", ("rows", "K"), "w", "y_pitch", align=16, optional=True), Scalar("y_pitch"),
        )  # fmt: skip
        assert planes_f32("y", "K") == (
            Buffer("y", "f32", ("planes", "rows", "K"), "r", "y_pitch", align=16), Scalar("y_pitch"), Scalar("planes"),
        )  # fmt: skip
        assert (codes.shape, codes.dtype, scales.shape) == (("rows", "WORDS", "K"), "i8", ("scale_rows", "blocks"))
        assert columns == Scalar("columns")


class TestLimits:
    """The ptxas limits that entries state."""

    def test_registers_alone_means_no_local_memory(self):
        """A kernel that keeps to registers has no byte of stack and spills none. Red: a limit raised by one."""
        assert dict(IN_REGISTERS) == {"stack": 0, "spills": 0}
