"""Locks of the gates room: how much a Gated DeltaNet head learns, and how much it keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.gates import GATES
from locks.far import assert_same_far_away
from locks.support import (
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
    edge_rows,
    normal,
    rng,
    wild,
)
from oracle import gates as truth
from oracle.bits.add import sum_planes
from oracle.bits.gates import gates
from oracle.errors import LanelockError
from oracle.functions import softplus


def case_of(ba: np.ndarray, A: np.ndarray, dt: np.ndarray) -> Case:
    """Rows [rows, 2 HV] of gate inputs, b first."""
    return planed_case(ba[None], A, dt)


def planed_case(ba: np.ndarray, A: np.ndarray, dt: np.ndarray) -> Case:
    """The same as planes [planes, rows, 2 HV]."""
    dims = {"rows": ba.shape[1], "HV": len(A), "planes": len(ba)}
    return Case(GATES, dims, {"ba": ba, "A": A, "dt": dt})


def random_case(seed: int, rows: int, HV: int) -> Case:
    """Inputs around zero, decays of every strength, offsets as a model has them."""
    g = rng(seed, rows, HV)
    return case_of(normal(g, rows, 2 * HV) * 3, -np.exp(normal(g, HV)), normal(g, HV))


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes."""
    beta, g, alpha = gates(sum_planes(case.inputs["ba"]), case.inputs["A"], case.inputs["dt"])
    return {"beta": beta, "g": g, "alpha": alpha}


@pytest.mark.verify
class TestValue:
    """The kernel computes sigmoid(b), A softplus(a + dt) and its exponential."""

    @pytest.mark.parametrize(("rows", "HV"), [(1, 1), (3, 48), (33, 16)])
    def test_gates_are_within_their_bound(self, device: Device, share: Share, rows: int, HV: int) -> None:
        """Beta, g and alpha lie within their bounds of float64. Red: fault 22, log(1 + exp(x)) losing small x.

        Beta: 4 ulp. g: the sum a + dt rounds once and softplus has a slope of at most one, then 4 ulp and a product.
        Alpha: the error of g, and 4 ulp.
        """
        case = random_case(1, rows, HV)
        got = case.run(device)

        [ba], A, dt = (case.inputs[n].astype(np.float64) for n in ("ba", "A", "dt"))
        beta, g = truth.gates(ba, A, dt)
        inner = np.abs(A) * (U * np.abs(ba[:, HV:] + dt) + 4 * ULP * softplus(ba[:, HV:] + dt)) + U * np.abs(g)
        alpha = np.exp(g)
        assert_within(share, "beta", got["beta"], beta, 4 * ULP * beta)
        assert_within(share, "g", got["g"], g, inner * (1 + 2.0**-10))
        assert_within(share, "alpha", got["alpha"], alpha, (inner + 4 * ULP) * alpha * (1 + 2.0**-10))

    @pytest.mark.parametrize("a", [-88.0, -30.0, -17.0, 17.0, 30.0, 88.0])
    def test_both_ends_of_softplus_keep_their_digits(self, device: Device, share: Share, a: float) -> None:
        """Far to either side g is A exp(a) or A a. Red: fault 22, (1 + exp(x))^A in float32, one for small x."""
        ba = np.array([[0.0, a]], np.float32)
        got = case_of(ba, np.float32([-0.5]), np.float32([0.0])).run(device)

        g = -0.5 * softplus(np.float64(a))
        assert_within(share, f"g at {a}", got["g"], [[g]], (4 * ULP + U) * abs(g))

    def test_beta_is_not_rounded_to_sixteen_bits(self, device: Device) -> None:
        """Case 10: sigmoid(0.5) is 0.62245933 within 1e-6. Red: beta through bf16, 0.62109375."""
        got = case_of(np.float32([[0.5, 0.0]]), np.float32([-1.0]), np.float32([0.0])).run(device)["beta"]

        np.testing.assert_allclose(got, [[0.62245933]], atol=1e-7)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @pytest.mark.parametrize(("rows", "HV"), [(1, 1), (5, 48), (129, 3), (2, 200)])
    def test_gates_are_the_contract(self, device: Device, rows: int, HV: int) -> None:
        """All three outputs follow the contract. Red: b and a exchanged, an offset of a neighbouring head."""
        case = random_case(2, rows, HV)

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("planes", [2, 10, 20, 23])
    def test_planes_are_added_ascending_first(self, device: Device, planes: int) -> None:
        """Planes of the small projection are added from zero, ascending. Red: descending; the 21st lost."""
        g = rng(8, planes)
        case = planed_case(normal(g, planes, 3, 10), -np.exp(normal(g, 5)), normal(g, 5))

        assert_same_outputs(case.run(device), contract(case))
        assert_pitch_free(device, case)
        assert_stands_alone(device, case)

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), HV=st.integers(1, 40))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, HV: int) -> None:
        """Values from subnormal to the largest follow the contract. Red: a flushed subnormal, an early saturation."""
        g = rng(seed)
        case = case_of(wild(g, 3, 2 * HV), wild(g, HV), wild(g, HV))

        assert_same_outputs(case.run(device), contract(case))

    def test_edge_rows_are_the_contract(self, device: Device) -> None:
        """Zero, largest, infinite and NaN inputs follow the contract. Red: NaN instead of a saturated gate."""
        A = np.float32([-1e-3, -1, -20, -0.0, -np.inf, -1e30, -1, -1])
        case = case_of(edge_rows(16), A, np.zeros(8, np.float32))

        assert_same_outputs(case.run(device), contract(case))


class TestEdges:
    """Gates at the end of their range are clean."""

    def test_a_saturated_gate_forgets_everything(self, device: Device) -> None:
        """An input of +inf gives g = -inf and alpha exactly 0; one of -inf gives alpha exactly 1.

        Red: NaN for either.
        """
        ba = np.float32([[np.inf, np.inf], [-np.inf, -np.inf]])
        got = case_of(ba, np.float32([-1.0]), np.float32([0.0])).run(device)

        assert_same_outputs(
            {n: np.abs(v) for n, v in got.items()},
            {"beta": np.float32([[1], [0]]), "g": np.float32([[np.inf], [0]]), "alpha": np.float32([[0], [1]])},
        )

    @pytest.mark.parametrize(("g", "alpha"), [(-20.0, 2.0611537e-09), (-(2.0**-12), 1 - 2.0**-12 + 2.0**-25)])
    def test_alpha_is_the_exponential_of_g(self, device: Device, g: float, alpha: float) -> None:
        """A = g with softplus of one gives alpha = exp(g), strong or vanishing.

        Red: alpha from another g than stored.
        """
        one = float(np.log(np.e - 1))  # softplus of this is one
        got = case_of(np.float32([[0.0, one]]), np.float32([g]), np.float32([0.0])).run(device)

        np.testing.assert_allclose(got["alpha"], [[alpha]], rtol=8 * ULP + abs(g) * 4 * ULP)

    def test_a_nan_stays_in_its_head(self, device: Device) -> None:
        """A NaN input makes its own head's gate NaN, in its row only. Red: NaN taken for a large number."""
        case = random_case(3, 3, 4)
        case.inputs["ba"][0, 1, 2], case.inputs["ba"][0, 2, 4] = np.nan, np.nan
        got = case.run(device)

        assert_same_bits(np.argwhere(np.isnan(got["beta"])), np.array([[1, 2]]))
        assert_same_bits(np.argwhere(np.isnan(got["g"])), np.array([[2, 0]]))
        assert_same_bits(np.argwhere(np.isnan(got["alpha"])), np.array([[2, 0]]))


class TestExactIntegers:
    """Where every step is exact the result is exact."""

    def test_large_inputs_pass_softplus(self, device: Device) -> None:
        """Beyond 32 softplus is the input: g = A (a + dt) in integers, each head its own.

        Red: a neighbour's A or dt.
        """
        A, dt = np.float32([-1, -2, -3]), np.float32([10, 20, 30])
        got = case_of(np.float32([[0, 0, 0, 40, 50, 60]]), A, dt).run(device)["g"]

        assert_same_bits(got, np.float32([[-50, -140, -270]]))


class TestInvariance:
    """A row's bits are its own."""

    def test_rows_do_not_depend_on_the_batch(self, device: Device) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, random_case(4, 3, 7))

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Rows further apart give the same bits, and the padding stays. Red: a pitch taken as the width."""
        assert_pitch_free(device, random_case(5, 3, 7))

    def test_outputs_are_fully_written(self, device: Device) -> None:
        """What outputs held before shows nowhere. Red: the last head of the last row skipped."""
        assert_fully_written(device, random_case(6, 43, 3))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate exponential."""
        host, cuda = both_devices
        g = rng(7)
        case = case_of(wild(g, 65, 96), wild(g, 48), wild(g, 48))

        assert_same_outputs(case.run(cuda), case.run(host))


class TestOffsets:
    """Offsets are counted in 64 bits."""

    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device) -> None:
        """Rows 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        assert_same_far_away(device, random_case(21, 10, 3), ba_pitch=2**28)


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Three rows of 48 heads take two blocks of 128 threads.

        Red: fault 13, blocks whose work another block does again.
        """
        dims = resolve(instance(GATES), {"rows": 3, "HV": 48})

        assert GATES.geometry(dims) == Geometry((2, 1, 1), (128, 1, 1))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"HV": 0}, "HV = 0 must be between 1 and 65535"),
            ({"rows": 2**30, "HV": 4}, "rows \\* HV exceeds what an int can count"),
            ({"rows": 2**31 - 128, "HV": 1}, "rows \\* HV exceeds what an int can count"),
            ({"ba_pitch": 7}, "ba_pitch = 7 is less than the row"),
            ({"planes": 0}, "planes = 0 must be between 1 and 65536"),
            ({"planes": 65537}, "planes = 65537 must be between 1 and 65536"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            Case(GATES, {"rows": 2, "HV": 4, **dims}, {}).run(device)

    def test_the_largest_count_is_not_refused(self) -> None:
        """One row fewer than the refused count passes the rules. Red: `<` for `<=`."""
        assert resolve(instance(GATES), {"rows": 2**31 - 129, "HV": 1})["rows"] == 2**31 - 129
