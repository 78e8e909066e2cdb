"""Locks of the MTP concatenation room: two normed rows side by side, quantised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from kernels.entry import Geometry, instance, resolve
from kernels.mtp_concat import MTP_CONCAT_QUANTIZE
from locks.support import (
    OVERFLOWS,
    PROPERTY,
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
from oracle import mtp_concat as truth
from oracle.bits.mtp_concat import mtp_concat
from oracle.bits.quantize import quantize
from oracle.errors import LanelockError

EPS = 1e-6
WORDS = pytest.mark.parametrize("words", [1, 2])
NAMES = ("embedded", "hidden", "enorm", "hnorm")


def case_of(arrays: tuple[np.ndarray, ...], words: int = 2, eps: float = EPS) -> Case:
    """Rows [rows, K] of embeddings and hidden states, and their two norms [K]."""
    rows, K = arrays[0].shape
    inputs = dict(zip(NAMES, arrays, strict=True))
    return Case(MTP_CONCAT_QUANTIZE, {"rows": rows, "K": K, "eps": eps}, inputs, {"WORDS": words})


def random_case(seed: int, rows: int, K: int, words: int = 2) -> Case:
    """Halves of different sizes, so that a norm of the wrong half shows."""
    g = rng(seed, rows, K)
    arrays = normal(g, rows, K) / 64, normal(g, rows, K) * 8, 1 + normal(g, K) / 8, 2 + normal(g, K) / 8
    return case_of(arrays, words)


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes."""
    both = mtp_concat(*(case.inputs[n] for n in NAMES), float(case.dims["eps"]))
    codes, scales = quantize(both, int(case.template["WORDS"]))
    return {"codes": codes, "scales": scales}


@pytest.mark.verify
class TestValue:
    """The kernel norms each half by itself."""

    @WORDS
    def test_decoded_codes_are_within_their_bound(self, device: Device, share: Share, words: int) -> None:
        """The codes stand for the oracle's rows to half a code and the norm's roundings. Red: the hidden half first.

        The norm: a chain of 8 fma, 5 adds and one add a chunk, /K and + eps, half of that by the root and its rounding,
        a quotient and a product.
        """
        case = random_case(1, 3, 2560, words)
        got = case.run(device)

        expected = truth.mtp_cat(*(case.inputs[n].astype(np.float64) for n in NAMES), float(np.float32(EPS)))
        norm = np.abs(expected) * ((8 + 5 + 10 + 2) / 2 + 3) * U * (1 + 2.0**-10)
        allowed = norm + quantiser_bound(got["scales"], words)
        assert_within(share, f"{words} words", decoded(got["codes"], got["scales"]), expected, allowed)


@pytest.mark.verify
class TestContract:
    """The kernel is the contract, bit for bit."""

    @WORDS
    @pytest.mark.parametrize(("rows", "K"), [(1, 32), (3, 96), (33, 160), (2, 1312), (2, 5120), (1, 8480)])
    def test_codes_are_the_contract(self, device: Device, words: int, rows: int, K: int) -> None:
        """Codes and scales are the contract's, also where a half ends inside a chunk. Red: a lane behind the end of
        the first half writes into the second.
        """
        case = random_case(2, rows, K, words)

        assert_same_outputs(case.run(device), contract(case))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40), words=st.sampled_from([1, 2]))
    def test_any_values_of_any_width_are_the_contract(self, device: Device, seed: int, blocks: int, words: int) -> None:
        """Values of every size follow the contract at any width. Red: flushed subnormals."""
        g, K = rng(seed), 32 * blocks
        case = case_of((wild(g, 2, K), wild(g, 2, K), wild(g, K), wild(g, K)), words)

        assert_same_outputs(case.run(device), contract(case))

    @WORDS
    def test_edge_rows_are_the_contract(self, device: Device, words: int) -> None:
        """Zero, largest, infinite and NaN rows in either half follow the contract. Red: a NaN quantised away."""
        x, ones = edge_rows(96), np.ones(96, np.float32)
        case = case_of((x, x[::-1].copy(), ones, ones), words)

        assert_same_outputs(case.run(device), contract(case))


class TestExactIntegers:
    """Where every step is exact the result is exact."""

    def test_each_half_has_its_own_norm_and_weight(self, device: Device) -> None:
        """Halves of one magnitude each give their signs times their weights. Red: one mean over both halves."""
        signs = rng(3).choice(np.float32([-1, 1]), (2, 2, 96))
        case = case_of((signs[0] * 4, signs[1] / 8, np.full(96, 127, np.float32), np.full(96, 63, np.float32)), 1, 0.0)
        got = case.run(device)

        expected = np.concatenate([signs[0] * 127, signs[1] * 63], axis=1)
        assert_same_bits(decoded(got["codes"], got["scales"]).astype(np.float32)[:, :96], expected[:, :96])
        assert_same_bits(got["codes"][:, 0, 96:], (signs[1] * 127).astype(np.int8))


class TestInvariance:
    """A row's bits are its own."""

    @WORDS
    def test_rows_do_not_depend_on_the_batch(self, device: Device, words: int) -> None:
        """A row gives its bits alone, in a batch, in any slot among poison. Red: a row index off by one."""
        assert_stands_alone(device, random_case(4, 3, 96, words), batch=16)

    def test_pitches_may_be_wider(self, device: Device) -> None:
        """Case 35: rows further apart give the same bits. Red: the embedding's pitch for the hidden state's."""
        assert_pitch_free(device, random_case(5, 3, 96))

    @pytest.mark.parametrize("K", [32, 160, 288])
    def test_outputs_are_fully_written(self, device: Device, K: int) -> None:
        """What outputs held before shows nowhere. Red: the second half's last block skipped."""
        assert_fully_written(device, random_case(6, 3, K))

    def test_a_nan_spoils_its_half_only(self, device: Device) -> None:
        """A NaN makes every scale of its half of its row NaN, and no other. Red: a norm over both halves."""
        case = random_case(7, 3, 544)
        case.inputs["hidden"][1, 540] = np.nan
        bad = np.isnan(case.run(device)["scales"]).reshape(3, 2, 17)

        assert_same_bits(bad, np.broadcast_to(np.array([[0, 0], [0, 1], [0, 0]], bool)[:, :, None], bad.shape).copy())

    def test_a_sum_of_squares_that_overflows_is_loud(self, device: Device) -> None:
        """A finite half whose squares add up beyond float32 has NaN scales; a half a step below has none.

        Red: a half divided by an infinite root, which is zeros.
        """
        x, ones = overflowing_rows(544), np.ones(544, np.float32)
        bad = np.isnan(case_of((x, x[::-1].copy(), ones, ones)).run(device)["scales"]).reshape(3, 2, 17)

        halves = np.stack([OVERFLOWS, OVERFLOWS[::-1]], axis=1)
        assert_same_bits(bad, np.broadcast_to(halves[:, :, None], bad.shape).copy())

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on values of every size. Red: an approximate root."""
        host, cuda = both_devices
        g = rng(8)
        case = case_of((wild(g, 33, 5120), wild(g, 33, 5120), wild(g, 5120), wild(g, 5120)))

        assert_same_outputs(case.run(cuda), case.run(host))


class TestWork:
    """A launch is as wide as its work."""

    def test_grid_has_no_block_too_many(self) -> None:
        """Each half of a row has a block, with a warp a chunk of 256.

        Red: fault 13, blocks whose work another block does again.
        """
        dims = resolve(instance(MTP_CONCAT_QUANTIZE, WORDS=1), {"rows": 3, "K": 544, "eps": EPS})

        assert MTP_CONCAT_QUANTIZE.geometry(dims) == Geometry((3, 2, 1), (96, 1, 1))


class TestRefusal:
    """What the kernel does not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"K": 48}, "K = 48 must be a positive multiple of 32"),
            ({"K": 65568}, "K = 65568 must be between 32 and 65536"),
            ({"rows": 0}, "rows = 0 must be between 1 and"),
            ({"embedded_pitch": 64}, "embedded_pitch = 64 is less than the row"),
            ({"hidden_pitch": 98}, "hidden_pitch = 98 must be a multiple of 4"),
            ({"embedded_pitch": 98}, "embedded_pitch = 98 must be a multiple of 4"),
            ({"hidden_pitch": 64}, "hidden_pitch = 64 is less than the row"),
        ],
    )
    def test_unsupported_size_is_refused(self, device: Device, dims: dict[str, int], sentence: str) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"rows": 2, "K": 96, "eps": EPS, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(MTP_CONCAT_QUANTIZE, given, {}, {"WORDS": 1}).run(device)
