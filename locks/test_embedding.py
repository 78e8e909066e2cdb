"""Locks of the embedding room: Q8_0 rows of tokens in float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.embedding import EMBEDDING
from locks.support import (
    PROPERTY,
    Case,
    assert_fully_written,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_stands_alone,
    rng,
)
from oracle import embedding as truth
from oracle.bits.embedding import embedding
from oracle.errors import LanelockError
from oracle.formats import Q8_0

SHAPES = [(1, 32), (3, 96), (33, 160), (2, 5120), pytest.param(64, 5120, marks=pytest.mark.full)]


def table(seed: int, V: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and f16 scales of every size that f16 has, subnormal too."""
    g = rng(seed, V, K)
    scales = np.exp2(g.uniform(-24, 15, (V, K // 32))).astype(np.float16)
    return g.integers(-127, 128, (V, K)).astype(np.int8), scales


def case_of(codes: np.ndarray, scales: np.ndarray, tokens: np.ndarray) -> Case:
    """Tokens to look up."""
    dims = {"rows": len(tokens), "K": codes.shape[1], "V": codes.shape[0]}
    return Case(EMBEDDING, dims, {"tokens": tokens.astype(np.int32), "codes": codes, "weight_scales": scales})


def rows(seed: int, count: int, K: int, V: int = 7) -> Case:
    """Random tokens of a random table."""
    return case_of(*table(seed, V, K), rng(seed).integers(0, V, count))


@pytest.mark.verify
class TestValue:
    """The kernel looks up exactly the table's values."""

    def test_row_is_exactly_the_tables(self, device: Device) -> None:
        """Code times scale is exact, so float64 and the kernel agree. Red: a neighbour's scale, a wrong row."""
        case = rows(1, 33, 160)
        i = case.inputs

        expected = truth.embedding(Q8_0(i["codes"], i["weight_scales"]), i["tokens"].astype(np.int64))
        assert_same_bits(case.run(device)["y"].astype(np.float64), expected)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @pytest.mark.parametrize(("count", "K"), SHAPES)
    def test_rows_are_the_contract(self, device: Device, count: int, K: int) -> None:
        """Every element is the contract's. Red: the last tile of a row skipped."""
        case = rows(2, count, K)
        i = case.inputs

        assert_same_bits(case.run(device)["y"], embedding(i["codes"], i["weight_scales"], i["tokens"]))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40), V=st.integers(1, 40))
    def test_any_table_is_the_contract(self, device: Device, seed: int, blocks: int, V: int) -> None:
        """Tables of any height and width follow the contract. Red: V taken for the width."""
        case = rows(seed, 5, 32 * blocks, V)
        i = case.inputs

        assert_same_bits(case.run(device)["y"], embedding(i["codes"], i["weight_scales"], i["tokens"]))


class TestExactIntegers:
    """With scales of one the row is its codes."""

    def test_every_code_is_its_value(self, device: Device) -> None:
        """All codes -128 to 127 come back as numbers. Red: bytes taken as unsigned."""
        codes = np.arange(-128, 128).astype(np.int8).reshape(2, 128)
        got = case_of(codes, np.ones((2, 4), np.float16), np.array([1, 0])).run(device)["y"]

        assert_same_bits(got, codes[::-1].astype(np.float32))

    def test_first_and_last_token_are_reached(self, device: Device) -> None:
        """Tokens 0 and V - 1 give their own rows. Red: `<=` where the table ends."""
        codes = np.repeat(np.arange(5), 32).astype(np.int8).reshape(5, 32)
        got = case_of(codes, np.ones((5, 1), np.float16), np.array([0, 4])).run(device)["y"]

        assert got[:, 0].tolist() == [0, 4]


class TestInvariance:
    """A row's bits are its own."""

    def test_row_does_not_depend_on_the_batch(self, device: Device) -> None:
        """A token gives its row alone, in a batch, in any slot. Red: a row index off by one."""
        assert_stands_alone(device, rows(3, 3, 96))

    def test_row_does_not_depend_on_the_pitch(self, device: Device) -> None:
        """Output rows further apart hold the same bits. Red: the pitch used for the table."""
        assert_pitch_free(device, rows(4, 3, 96))

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree. Red: f16 subnormals flushed."""
        host, cuda = both_devices
        case = rows(5, 33, 5120)

        assert_same_outputs(case.run(cuda), case.run(host))


class TestEdges:
    """Scales at the end of f16's range, and tokens outside the vocabulary."""

    def test_extreme_scales_are_exact(self, device: Device) -> None:
        """Smallest subnormal, largest and zero scales give exact products. Red: a scale flushed to zero."""
        scales = np.array([[2.0**-24], [65504.0], [0.0]], np.float16)
        codes = np.full((3, 32), 127, np.int8)
        got = case_of(codes, scales, np.arange(3)).run(device)["y"]

        assert got[:, 0].tolist() == [127 * 2.0**-24, 127 * 65504.0, 0.0]

    @pytest.mark.parametrize("token", [-1, 7, 2**31 - 1, -(2**31)])
    def test_token_outside_the_vocabulary_gives_nan(self, device: Device, token: int) -> None:
        """Such a row is NaN and nothing outside the table is read. Red: the check dropped, token 0 in its place."""
        got = case_of(*table(6, 7, 96), np.array([3, token])).run(device)["y"]

        assert_same_bits(np.isnan(got).all(axis=1), np.array([False, True]))


class TestMemory:
    """The output is written in full and nothing else is."""

    @pytest.mark.parametrize("K", [32, 544])
    def test_output_is_fully_written(self, device: Device, K: int) -> None:
        """What the output held before shows nowhere. Red: the last four elements skipped."""
        assert_fully_written(device, rows(7, 2, K))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 48}, "K = 48 must be a positive multiple of 32"),
            ({"V": 0}, "V = 0 must be between 1 and"),
            ({"V": 2**31}, "V = 2147483648 must be between 1 and 2147483647"),
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"y_pitch": 64}, "y_pitch = 64 is less than the row it has to hold, K = 96"),
            ({"y_pitch": 98}, "y_pitch = 98 must be a multiple of 4"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            rows(8, 3, 96).with_dims(**dims).run(device)
