"""Locks of the gated norm room: norm of each value head, times w, times silu(z), quantised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.gated_norm import GATED_NORM_QUANTIZE
from locks.far import assert_same_far_away
from locks.support import (
    OVERFLOWS,
    PROPERTY,
    ULP,
    Case,
    Share,
    U,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    assert_within,
    decoded,
    edge_rows,
    normal,
    overflowing_rows,
    quantiser_bound,
    rng,
    wild,
)
from oracle import gated_norm as truth
from oracle.bits.gated_norm import gated_norm
from oracle.bits.quantize import quantize
from oracle.errors import LanelockError

EPS = 1e-6
WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
WORDS = pytest.mark.parametrize("words", [1, 2])


def case_of(o: np.ndarray, z: np.ndarray, w: np.ndarray, words: int = 2, eps: float = EPS) -> Case:
    """Rows [rows, HV D] of outputs and gates."""
    dims = {"rows": len(o), "HV": o.shape[1] // len(w), "eps": eps}
    return Case(GATED_NORM_QUANTIZE, dims, {"o": o, "z": z, "w": w}, {"D": len(w), "WORDS": words})


def random_case(seed: int, D: int, words: int = 2, rows: int = 3, HV: int = 5) -> Case:
    """Rows with heads of other sizes each."""
    g = rng(seed, D)
    size = np.repeat(np.exp2(np.arange(HV) % 7), D).astype(np.float32)
    return case_of(normal(g, rows, HV * D) * size, normal(g, rows, HV * D) * 2, 1 + normal(g, D) / 8, words)


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes."""
    o, z, w = (case.inputs[n] for n in ("o", "z", "w"))
    shape = (len(o), -1, len(w))
    normed = gated_norm(o.reshape(shape), z.reshape(shape), w, float(case.dims["eps"])).reshape(o.shape)
    codes, scales = quantize(normed, int(case.template["WORDS"]))
    return {"codes": codes, "scales": scales, "normed": normed}


def exact(case: Case) -> np.ndarray:
    """The float64 rows."""
    o, z, w = (case.inputs[n].astype(np.float64) for n in ("o", "z", "w"))
    shape = (len(o), -1, len(w))
    eps = float(np.float32(EPS))
    return truth.gated_norm(o.reshape(shape), z.reshape(shape), w, eps).reshape(o.shape)


def bound(y: np.ndarray, D: int) -> np.ndarray:
    """First-order error relative to the element: a chain of D/32 fma and 5 adds of positive terms, /D and + eps, half
    of that by the root and its rounding, a quotient, a product with w, silu's 4 ulp, a product with it.
    """
    return np.abs(y) * (((D // 32 + 5 + 2) / 2 + 4) * U + 4 * ULP) * (1 + 2.0**-10)


@pytest.mark.verify
class TestValue:
    """The kernel norms first and gates second."""

    @WIDTHS
    def test_rows_are_within_their_bound(self, device: Device, share: Share, D: int) -> None:
        """Every element lies within the derived bound of float64. Red: eps dropped, an element lost from the mean."""
        case = random_case(1, D)
        expected = exact(case)

        assert_within(share, f"D = {D}", case.run(device)["normed"], expected, bound(expected, D))

    @WORDS
    def test_decoded_codes_are_within_their_bound(self, device: Device, share: Share, words: int) -> None:
        """The codes stand for the rows to half a code. Red: a scale of the neighbouring block."""
        case = random_case(2, 128, words)
        got, expected = case.run(device), exact(case)

        allowed = bound(expected, 128) + quantiser_bound(got["scales"], words)
        assert_within(share, f"{words} words", decoded(got["codes"], got["scales"]), expected, allowed)

    def test_the_gate_is_silu_behind_the_norm(self, device: Device) -> None:
        """Case 12 (b): (3, 4) gated by (1, -1) is (0.62032375, -0.30427247), padded to a head of 32.

        Red: sigmoid, +0.30427247; the gate before the norm, 1.26969593. Thirty zeros shrink the mean by 16, so w and
        eps are scaled to give the handed numbers.
        """
        o, z = np.zeros((1, 32), np.float32), np.zeros((1, 32), np.float32)
        o[0, :2], z[0, :2] = (3, 4), (1, -1)
        got = case_of(o, z, np.full(32, 0.25, np.float32), eps=1e-6 / 16).run(device)["normed"][0, :2]

        np.testing.assert_allclose(got, [0.62032375, -0.30427247], rtol=3e-7)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @WIDTHS
    @WORDS
    def test_rows_are_the_contract(self, device: Device, D: int, words: int) -> None:
        """Codes, scales and float32 rows are the contract's. Red: an fma split, a product hoisted."""
        case = random_case(3, D, words)

        assert_same_outputs(case.run(device), contract(case))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), D=st.sampled_from([32, 64, 128, 256]), HV=st.integers(1, 9))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, D: int, HV: int) -> None:
        """Values from subnormal to the largest follow the contract. Red: a flushed subnormal."""
        g = rng(seed)
        case = case_of(wild(g, 2, HV * D), wild(g, 2, HV * D), wild(g, D))

        assert_same_outputs(case.run(device), contract(case))

    @WORDS
    def test_edge_rows_are_the_contract(self, device: Device, words: int) -> None:
        """Zero, largest, infinite and NaN rows follow the contract, in outputs and in gates.

        Red: a NaN quantised away.
        """
        o = edge_rows(64)
        ones, w = np.ones_like(o), np.ones(32, np.float32)

        for case in (case_of(o, ones, w, words), case_of(ones, o, w, words)):
            assert_same_outputs(case.run(device), contract(case))


class TestExactIntegers:
    """Where every step is exact the result is exact."""

    def test_every_element_enters_the_mean_once(self, device: Device) -> None:
        """Heads of one magnitude give their signs, gated by a large integer. Red: one element dropped or doubled."""
        signs = rng(4).choice(np.float32([-1, 1]), (2, 3 * 128))
        got = case_of(signs * 8, np.full_like(signs, 64), np.full(128, 0.5, np.float32), eps=0.0).run(device)["normed"]

        assert_same_bits(got, signs * 32)


class TestInvariance:
    """A row's bits are its own."""

    @WORDS
    def test_rows_do_not_depend_on_the_batch(self, device: Device, words: int) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, random_case(5, 32, words), batch=16)

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows further apart give the same bits, and the padding stays. Red: the gate's pitch for o."""
        assert_pitch_free(device, random_case(6, 64))

    def test_outputs_are_fully_written(self, device: Device) -> None:
        """What outputs held before shows nowhere. Red: the last head of a row skipped."""
        assert_fully_written(device, random_case(7, 32))

    def test_codes_do_not_depend_on_the_copy(self, device: Device) -> None:
        """Without the float32 copy the codes are the same. Red: a null copy written."""
        case = random_case(8, 64)
        without = Case(case.kernel, case.dims, {**case.inputs, "normed": None}, case.template).run(device)

        assert_same_outputs(without, {n: v for n, v in case.run(device).items() if n != "normed"})

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate root."""
        host, cuda = both_devices
        g = rng(9)
        case = case_of(wild(g, 33, 48 * 128), wild(g, 33, 48 * 128), wild(g, 128))

        assert_same_outputs(case.run(cuda), case.run(host))


class TestFaults:
    """A fault spoils its head and no other."""

    @pytest.mark.parametrize("name", ["o", "z"])
    def test_a_nan_stays_in_its_head(self, device: Device, name: str) -> None:
        """A NaN output spoils its head's scales, a NaN gate its block's, and nothing else. Red: a warp of two heads."""
        case = random_case(10, 64)
        case.inputs[name][1, 2 * 64 + 40] = np.nan
        spoiled = np.zeros((3, 10), bool)
        spoiled[1, 4 if name == "o" else 5 : 6] = True

        assert_same_bits(np.isnan(case.run(device)["scales"]), spoiled)

    @WIDTHS
    def test_a_sum_of_squares_that_overflows_is_loud(self, device: Device, D: int) -> None:
        """A finite head whose squares add up beyond float32 is NaN throughout; one a step below is not.

        Red: a head divided by an infinite root, which is zeros.
        """
        o = overflowing_rows(D)
        bad = np.isnan(case_of(o, np.ones_like(o), np.ones(D, np.float32)).run(device)["normed"])

        assert_same_bits(bad, np.broadcast_to(OVERFLOWS[:, None], bad.shape).copy())


class TestOffsets:
    """Offsets are counted in 64 bits."""

    @pytest.mark.parametrize("pitch", ["o_pitch", "z_pitch", "normed_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str) -> None:
        """Rows 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, random_case(21, 32, rows=10), **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Three rows of five heads take two blocks of four warps each.

        Red: fault 13, blocks whose work another block does again.
        """
        dims = resolve(instance(GATED_NORM_QUANTIZE, D=32, WORDS=1), {"rows": 3, "HV": 5, "eps": EPS})

        assert GATED_NORM_QUANTIZE.geometry(dims) == Geometry((3, 2, 1), (128, 1, 1))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"HV": 0}, "HV = 0 must be between 1 and 65535"),
            ({"HV": 65536}, "HV = 65536 must be between 1 and 65535"),
            ({"o_pitch": 32}, "o_pitch = 32 is less than the row"),
            ({"z_pitch": 66}, "z_pitch = 66 must be a multiple of 4"),
            ({"normed_pitch": 32}, "normed_pitch = 32 is less than the row"),
            ({"o_pitch": 66}, "o_pitch = 66 must be a multiple of 4"),
            ({"z_pitch": 32}, "z_pitch = 32 is less than the row"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"rows": 2, "HV": 2, "eps": EPS, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(GATED_NORM_QUANTIZE, given, {}, {"D": 32, "WORDS": 1}).run(device)
