"""Locks of the pretile room: weights as panels in the order of mma fragments, a pure permutation."""

import numpy as np
import pytest

from harness.device import Device
from kernels.entry import Geometry, Kernel, instance, resolve
from kernels.pretile import PRETILE, PRETILE_Q4
from locks.support import Case, assert_fully_written, assert_same_bits, rng
from oracle.bits.pretile import pretile
from oracle.errors import LanelockError
from oracle.pretile import untile

SHAPES = [(1, 32), (16, 96), (37, 160), (20, 1056), (5, 2560), pytest.param(5120, 6144, marks=pytest.mark.full)]
BITS = pytest.mark.parametrize("bits", [8, 4])


def rows(seed: int, N: int, K: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Any bytes as codes, and scales that differ."""
    g = rng(seed, N, K, bits)
    return g.integers(0, 256, (N, K * bits // 8)).astype(np.uint8), g.random((N, K // 32)).astype(np.float16)


def case_of(codes: np.ndarray, scales: np.ndarray, bits: int) -> Case:
    """Rows of codes and scales."""
    dims = {"N": codes.shape[0], "K": codes.shape[1] * 8 // bits}
    return Case(PRETILE if bits == 8 else PRETILE_Q4, dims, {"codes": codes, "ws": scales})


@pytest.mark.verify
class TestPanels:
    """Panels hold every code and scale once, where a lane reads it."""

    @BITS
    @pytest.mark.parametrize(("N", "K"), SHAPES)
    def test_panels_are_the_contract(self, device: Device, bits: int, N: int, K: int) -> None:
        """Every byte of the panels, padding too, is the contract's. Red: two words of a lane exchanged."""
        codes, scales = rows(1, N, K, bits)

        assert_same_bits(case_of(codes, scales, bits).run(device)["tiles"], pretile(codes, scales, bits))

    @BITS
    @pytest.mark.parametrize(("N", "K"), [(1, 32), (37, 160), (20, 1056)])
    def test_panels_read_back_are_the_rows(self, device: Device, bits: int, N: int, K: int) -> None:
        """Element by element, the fragment layout of the ISA gives the rows back. Red: low and high halves swapped."""
        codes, scales = rows(2, N, K, bits)
        back, scales_back = untile(case_of(codes, scales, bits).run(device)["tiles"], N, K // 32, bits)

        assert_same_bits(back, codes)
        assert_same_bits(scales_back, scales)

    @BITS
    def test_padding_is_of_value_zero(self, device: Device, bits: int) -> None:
        """Rows and blocks that the matrix does not have are codes and scales of zero. Red: poison left in a panel."""
        codes, scales = rows(3, 1, 32, bits)
        tiles = case_of(codes, scales, bits).run(device)["tiles"]
        zero = 0 if bits == 8 else 0x88

        assert np.count_nonzero(tiles[..., : 256 * bits] != zero) <= 32 * bits // 8
        assert np.count_nonzero(tiles[..., 256 * bits :].reshape(-1)) == np.count_nonzero(scales.view(np.uint8))


class TestMemory:
    """Panels are written whole."""

    @BITS
    def test_panels_are_fully_written(self, device: Device, bits: int) -> None:
        """Nothing of what the panels held shows behind them. Red: an empty slice skipped."""
        assert_fully_written(device, case_of(*rows(4, 20, 96, bits), bits))


class TestGeometry:
    """A launch is as large as its work."""

    @pytest.mark.parametrize("kernel", [PRETILE, PRETILE_Q4])
    def test_a_warp_is_a_panel(self, kernel: Kernel) -> None:
        """One layer of 8 warps covers the 8 slices of 16 rows and a chunk. Red: a second layer that does it again."""
        full = resolve(instance(kernel), {"N": 33, "K": 1056})

        assert kernel.geometry(full) == Geometry((3 * 2, 1, 1), (256, 1, 1))


class TestRefusals:
    """What cannot be is refused before anything runs."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 48}, "K = 48 must be a positive multiple of 32"),
            ({"N": 0}, "N = 0 must be between 1"),
            ({"KB": 3}, "KB = 3 is not K / 32"),
            ({"N": 2**30, "K": 2**24}, "has more panels than one grid can hold"),
        ],
    )
    def test_a_launch_that_cannot_be_is_refused(self, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and its limit. Red: a rule left out."""
        with pytest.raises(LanelockError, match=sentence):
            resolve(instance(PRETILE), {"N": 16, "K": 64, **dims})

    def test_the_last_panel_that_a_grid_holds_is_taken(self) -> None:
        """2^31 - 1 blocks of 8 warps, a panel each, and no more. Red: a limit one too low, or one too high."""
        last = {"N": 16, "panels": 2**31 - 1, "chunks": 1}
        resolve(instance(PRETILE), {"K": 64, **last})
        with pytest.raises(LanelockError, match="more panels than one grid can hold"):
            resolve(instance(PRETILE), {"K": 64, **last, "panels": 2**31})
