"""Locks of the gate_mul room: x * sigmoid(gate), in float32 and quantised at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Kernel
from kernels.gate_mul import GATE_MUL, GATE_MUL_QUANTIZE
from kernels.quantize import QUANTIZE
from locks.support import (
    BLOCK,
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
    quantiser_bound,
    rng,
    wild,
)
from oracle import gate_mul as truth
from oracle.bits.gate_mul import gate_mul
from oracle.bits.quantize import quantize
from oracle.errors import LanelockError

SHAPES = [(1, 32), (3, 96), (33, 160), (1, 6144), pytest.param(33, 6144, marks=pytest.mark.full)]
WORDS = pytest.mark.parametrize("words", [1, 2])
SIGMOID_ULP = 4  # the contract's promise for a function whose result is normal


def plain(x: np.ndarray, gate: np.ndarray) -> Case:
    """The float32 form."""
    return Case(GATE_MUL, {"rows": x.shape[0], "K": x.shape[1]}, {"x": x, "gate": gate})


def fused(x: np.ndarray, gate: np.ndarray, words: int) -> Case:
    """The quantising form."""
    return Case(GATE_MUL_QUANTIZE, {"rows": x.shape[0], "K": x.shape[1]}, {"x": x, "gate": gate}, {"WORDS": words})


def rows(seed: int, count: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows and gates a few units wide."""
    return normal(rng(seed), count, K), 4 * normal(rng(seed, 1), count, K)


def contract(x: np.ndarray, gate: np.ndarray, words: int) -> dict[str, np.ndarray]:
    """What the contract writes."""
    codes, scales = quantize(gate_mul(x, gate), words)
    return {"codes": codes, "scales": scales}


def bound(y: np.ndarray) -> np.ndarray:
    """Error of an element: the sigmoid's ulp and one product."""
    return np.abs(y) * (SIGMOID_ULP * ULP + U)


@pytest.mark.verify
class TestValue:
    """The kernel computes the gated value."""

    def test_product_is_within_its_bound(self, device: Device, share: Share) -> None:
        """Each element lies within the derived bound of float64. Red: silu for sigmoid, operands exchanged."""
        x, gate = rows(1, 3, 6144)

        expected = truth.gate_mul(x.astype(np.float64), gate.astype(np.float64))
        assert_within(share, "product", plain(x, gate).run(device)["y"], expected, bound(expected))

    @WORDS
    def test_decoded_codes_are_within_their_bound(self, device: Device, share: Share, words: int) -> None:
        """The codes stand for the product to half a code. Red: x quantised in place of the product."""
        x, gate = rows(2, 3, 1024)
        got = fused(x, gate, words).run(device)

        expected = truth.gate_mul(x.astype(np.float64), gate.astype(np.float64))
        allowed = bound(expected) + quantiser_bound(got["scales"], words)
        assert_within(share, f"codes of {words} words", decoded(got["codes"], got["scales"]), expected, allowed)


@pytest.mark.verify
class TestContract:
    """Both kernels are the contract, bit for bit."""

    @pytest.mark.parametrize(("count", "K"), SHAPES)
    def test_product_is_the_contract(self, device: Device, count: int, K: int) -> None:
        """Each element is the contract's. Red: x / (1 + e) in place of x * (1 / (1 + e))."""
        x, gate = rows(3, count, K)

        assert_same_bits(plain(x, gate).run(device)["y"], gate_mul(x, gate))

    def test_gates_with_a_subnormal_sigmoid_are_the_contract(self, device: Device) -> None:
        """Gates from -80 to -110, where the sigmoid turns subnormal and then zero. Red: cut off below -88."""
        gate = np.linspace(-110, -80, 3 * 160, dtype=np.float32).reshape(3, 160)
        x = np.float32(2.0**20) * rows(8, 3, 160)[0]

        assert_same_bits(plain(x, gate).run(device)["y"], gate_mul(x, gate))

    @WORDS
    @pytest.mark.parametrize(("count", "K"), SHAPES)
    def test_codes_are_the_contract(self, device: Device, words: int, count: int, K: int) -> None:
        """Codes and scales are the contract's. Red: a product fused into the quantiser's division."""
        x, gate = rows(4, count, K)

        assert_same_outputs(fused(x, gate, words).run(device), contract(x, gate, words))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 30), words=st.sampled_from([1, 2]))
    def test_any_values_of_any_width_are_the_contract(self, device: Device, seed: int, blocks: int, words: int) -> None:
        """Values and gates of every size follow the contract at any width. Red: a sigmoid of a library."""
        x, gate = wild(rng(seed), 2, 32 * blocks), wild(rng(seed, 1), 2, 32 * blocks)

        assert_same_outputs(fused(x, gate, words).run(device), contract(x, gate, words))


class TestExactIntegers:
    """An open gate passes integers, a closed one stops them, a gate of zero halves them."""

    def test_gates_of_known_value_are_exact(self, device: Device) -> None:
        """Gates 40, 0 and -200 give exactly x, x/2 and 0 in their own columns. Red: a gate of a neighbour."""
        x = 2.0 * rng(5).integers(-1000, 1000, (3, 96))
        gate = rng(6).choice([40.0, 0.0, -200.0], (3, 96))
        got = plain(x.astype(np.float32), gate.astype(np.float32)).run(device)["y"]

        expected = np.where(gate == 40, x, np.where(gate == 0, x / 2, 0.0))
        assert_same_bits(got + np.float32(0.0), (expected + 0.0).astype(np.float32))

    def test_open_gates_quantise_integers_exactly(self, device: Device) -> None:
        """With open gates and a largest magnitude of 127 the codes are x. Red: a column index off by one."""
        x = rng(7).integers(-127, 128, (3, 1024))
        x[:, ::BLOCK] = 127
        got = fused(x.astype(np.float32), np.full((3, 1024), 40, np.float32), 1).run(device)

        assert_same_bits(got["codes"][:, 0].astype(np.int64), x)


class TestForms:
    """The fused form equals the two."""

    @WORDS
    def test_fused_is_product_then_quantise(self, device: Device, words: int) -> None:
        """Gate multiply and quantise in one launch equals two launches. Red: the product kept unrounded."""
        x, gate = rows(8, 3, 544)
        y = plain(x, gate).run(device)["y"]

        two = Case(QUANTIZE, {"rows": 3, "K": 544}, {"x": y}, {"WORDS": words}).run(device)
        assert_same_outputs(fused(x, gate, words).run(device), two)


class TestInvariance:
    """A row's bits are its own."""

    def test_product_does_not_depend_on_the_batch(self, device: Device) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, plain(*rows(9, 3, 96)))

    def test_codes_do_not_depend_on_the_batch(self, device: Device) -> None:
        """The same for the quantising form. Red: the codes of a row at another width."""
        assert_stands_alone(device, fused(*rows(10, 3, 96), 2))

    def test_forms_do_not_depend_on_pitches(self, device: Device) -> None:
        """Slices of wider rows give the same bits. Red: the gate's pitch taken from x."""
        assert_pitch_free(device, plain(*rows(11, 3, 96)))
        assert_pitch_free(device, fused(*rows(11, 3, 96), 1))

    @pytest.mark.parametrize("pitch", ["x_pitch", "gate_pitch", "y_pitch"])
    def test_each_buffer_has_its_own_pitch(self, device: Device, pitch: str) -> None:
        """Widening one buffer alone changes nothing. Red: one pitch used for two buffers."""
        case = plain(*rows(12, 3, 96))

        assert_same_outputs(case.with_dims(**{pitch: 104}).run(device), case.run(device))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate exponential."""
        host, cuda = both_devices
        x, gate = wild(rng(13), 33, 2560), wild(rng(14), 33, 2560)

        for case in (plain(x, gate), fused(x, gate, 2)):
            assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Values at the end of the range follow the contract and hide no fault."""

    @WORDS
    def test_edge_rows_are_the_contract(self, device: Device, words: int) -> None:
        """Edge values against edge gates follow the contract. Red: a NaN gate giving a number."""
        x = edge_rows(96)
        gate = x[::-1].copy()

        assert_same_outputs(fused(x, gate, words).run(device), contract(x, gate, words))

    def test_a_nan_gate_gives_nan(self, device: Device) -> None:
        """A NaN in x or in the gate shows in y at its place and nowhere else. Red: a comparison that drops it."""
        x, gate = rows(15, 2, 96)
        x[0, 5] = gate[1, 90] = np.nan
        got = plain(x, gate).run(device)["y"]

        assert np.argwhere(np.isnan(got)).tolist() == [[0, 5], [1, 90]]


class TestMemory:
    """Outputs are written in full and nothing else is."""

    @pytest.mark.parametrize("K", [32, 544])
    def test_outputs_are_fully_written(self, device: Device, K: int) -> None:
        """What the outputs held before shows nowhere. Red: the last tile of a row skipped."""
        assert_fully_written(device, plain(*rows(16, 2, K)))
        assert_fully_written(device, fused(*rows(16, 2, K), 2))


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (GATE_MUL, {"K": 98}, "K = 98 must be a positive multiple of 4"),
            (GATE_MUL_QUANTIZE, {"K": 100}, "K = 100 must be a positive multiple of 32"),
            (GATE_MUL, {"y_pitch": 64}, "y_pitch = 64 is less than the row"),
            (GATE_MUL, {"x_pitch": 98}, "x_pitch = 98 must be a multiple of 4"),
            (GATE_MUL_QUANTIZE, {"gate_pitch": 64}, "gate_pitch = 64 is less than the row"),
            (GATE_MUL_QUANTIZE, {"rows": 0}, "rows = 0 must be between 1 and"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: Kernel, dims: dict[str, int], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        template = {"WORDS": 1} if kernel.params else {}

        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, {"rows": 3, "K": 96, **dims}, {}, template).run(device)
