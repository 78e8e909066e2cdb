"""Locks of the primitives room: both bodies of device.cuh follow the PTX ISA."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.devices import open_device
from harness.run import run_once
from kernels.entry import Kernel, Value, instance
from kernels.primitives import (
    AND_XOR,
    BARRIER,
    COPY,
    DIVIDE,
    DP4A,
    E4M3,
    HALF,
    LDMATRIX,
    MMA_E4M3,
    MMA_S8,
    SHUFFLE,
    SUM_ITEMS,
    VOTE,
    WARP_SUM,
)
from locks.support import (
    PROPERTY,
    Case,
    Share,
    assert_fully_written,
    assert_same_bits,
    assert_same_outputs,
    assert_within,
    normal,
    rng,
    wild,
)
from oracle import primitives as truth
from oracle.bits import e4m3
from oracle.bits import primitives as contract
from oracle.bits.tree import tree
from oracle.errors import LanelockError

# places below the largest term at which an e4m3 tensor core may cut the terms that it aligns (Hopper keeps 13)
KEPT_BITS = 13


def words(seed: int, *shape: int) -> np.ndarray:
    """Random 32-bit words."""
    return rng(seed).integers(-(2**31), 2**31, shape).astype(np.int32)


def bits_case(seed: int) -> Case:
    """Words to keep bits of and to turn bits over."""
    names = ("x", "kept", "turned")
    return Case(AND_XOR, {"n": 999}, {n: words(seed + i, 999).view(np.uint32) for i, n in enumerate(names)})


def dp4a_case(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Case:
    """Words to multiply byte by byte."""
    return Case(DP4A, {"n": len(a)}, {"a": a, "b": b, "c": c})


def tile_case(seed: int, tiles: int) -> Case:
    """Tiles of random signed bytes and 32-bit sums."""
    g = rng(seed)
    a, b = (g.integers(-128, 128, (tiles, n, 32)).astype(np.int8) for n in (16, 8))
    return Case(MMA_S8, {"tiles": tiles}, {"a": a, "b": b, "c": words(seed, tiles, 16, 8) // 2})


def e4m3_case(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Case:
    """Tiles of e4m3 values, given as float32."""
    return Case(MMA_E4M3, {"tiles": len(a)}, {"a": e4m3.encode(a), "b": e4m3.encode(b), "c": c})


def needs_e4m3(device: Device) -> None:
    """Skip by name on a GPU without e4m3 tensor cores."""
    arch = device.properties.arch
    if device.properties.kind == "cuda" and arch not in MMA_E4M3.archs:
        pytest.skip(f"not run: {arch} has no e4m3 tensor cores")


def around(values: np.ndarray) -> np.ndarray:
    """Values, the float32 midpoints between neighbours, and the floats next to each of both."""
    finite = np.unique(values[np.isfinite(values)]).astype(np.float32)
    points = np.concatenate([finite, (finite[:-1] + finite[1:]) / 2]).astype(np.float32)
    ends = np.float32([np.inf, -np.inf, np.nan, -0.0])
    return np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -ends[0]), ends])


@pytest.mark.verify
class TestDotOfBytes:
    """dp4a."""

    def test_dot_is_the_integer_dot(self, device: Device) -> None:
        """Each word adds the products of its four signed bytes to c, modulo 2^32. Red: bytes taken as unsigned."""
        a, b, c = words(1, 1000), words(2, 1000), words(3, 1000)

        expected = truth.dot4(a, b, c).astype(np.int32)
        assert_same_bits(dp4a_case(a, b, c).run(device)["c"], expected)

    def test_extreme_bytes_are_exact(self, device: Device) -> None:
        """All bytes -128 give 4 * 16384 on top of c. Red: an int16 product."""
        lowest = np.full(3, -2139062144, np.int32)  # 0x80808080
        got = dp4a_case(lowest, lowest, np.array([0, -1, 7], np.int32)).run(device)["c"]

        assert got.tolist() == [65536, 65535, 65543]


@pytest.mark.verify
class TestBits:
    """and_xor."""

    def test_is_the_contract(self, device: Device) -> None:
        """All eight combinations of bits, at every place. Red: the three words of the operation exchanged."""
        case = bits_case(30)

        assert_same_bits(case.run(device)["y"], contract.and_xor(**case.inputs))


@pytest.mark.verify
class TestLanes:
    """Shuffles, votes and the tree over a warp."""

    @pytest.mark.parametrize("distance", [0, 1, 5, 16, 31])
    def test_shuffles_are_the_contract(self, device: Device, distance: int) -> None:
        """A lane gets the word of its source, or its own where that lies outside. Red: up and down exchanged."""
        x = words(4, 3, 32).view(np.uint32)
        got = Case(SHUFFLE, {"warps": 3, "distance": distance}, {"x": x}).run(device)

        y, wide = contract.shuffle(x, distance)
        assert_same_outputs(got, {"y": y, "wide": wide})

    def test_votes_are_the_contract(self, device: Device) -> None:
        """Ballot, any and all, of a warp and of its halves. Red: inactive lanes counted."""
        x = np.concatenate([rng(5).integers(-1, 2, (8, 32)), np.zeros((1, 32)), np.ones((1, 32))]).astype(np.int32)
        got = Case(VOTE, {"warps": 10}, {"x": x}).run(device)

        assert_same_outputs(got, {"y": contract.vote(x)})

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1))
    def test_warp_sums_are_the_named_tree(self, device: Device, seed: int) -> None:
        """One sum, three at once and eight that lanes own are the tree 16, 8, 4, 2, 1; words of owners reach all lanes.

        Red: the tree 1, 2, 4, 8, 16; a value sent to a lane that owns another sum.
        """
        x = wild(rng(seed), 3, 8, 32)
        got = Case(WARP_SUM, {"warps": 3}, {"x": x}).run(device)

        sums = np.broadcast_to(tree(x)[..., None], x.shape)
        one, three = (np.ascontiguousarray(sums[:, i]) for i in (0, slice(0, 3)))
        eight, pairs = tree(x), tree(x).reshape(3, 2, 4).swapaxes(1, 2)
        expected = {
            "one": one,
            "three": three,
            "each": np.repeat(tree(x)[:, [0, 1, 2, 0]], 8, axis=1),
            "of_eight": np.repeat(eight, 4, axis=-1),
            # four lanes a sum: one of the first four, then one of the last four
            "of_two": np.repeat(pairs.reshape(3, 8), 4, axis=-1),
            "shared": np.repeat(x[:, 0, ::8, None], 32, axis=-1),
        }
        assert_same_outputs(got, expected)


def hard_quotients(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32 pairs whose quotient lies as near to the middle between two neighbours as a quotient can, on either side.

    For an odd 24-bit b let m be the inverse of b modulo 2^25, or 2^25 less it: b m is 1 or -1 modulo 2^25, so with a
    the whole number next to b m / 2^25 the quotient a / b is m / 2^25 off by 1 / (b 2^25). m is odd: such a middle.
    """
    b = rng(seed).integers(2**23, 2**24, count) | 1
    m = np.array([pow(int(v), -1, 2**25) for v in b])
    m = np.where(m < 2**24, 2**25 - m, m)
    a = (b * m + 2**24) >> 25
    return a.astype(np.float32), b.astype(np.float32)


def divide_case(x: np.ndarray, d: np.ndarray) -> Case:
    """Quotients of x [n, 4] by d [n]."""
    return Case(DIVIDE, {"n": len(d)}, {"x": x, "d": d})


@pytest.mark.verify
class TestQuotients:
    """Several quotients by one divisor."""

    def assert_ieee(self, device: Device, x: np.ndarray, d: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            y = x / d[:, None]
        assert_same_outputs(divide_case(x, d).run(device), {"y": y, "one": np.ascontiguousarray(y[:, 0])})

    def test_quotients_next_to_a_middle_are_rounded_right(self, device: Device) -> None:
        """The hardest quotients there are, at sizes over the whole range, are those of IEEE division.

        Red: a product with the reciprocal, which is wrong in one of four.
        """
        a, b = hard_quotients(9, 4096)
        exponents = rng(10).integers(-90, 60, (1024, 5))
        x = np.ldexp(a[:4096].reshape(1024, 4), exponents[:, :4]).astype(np.float32)
        for column in range(4):
            self.assert_ieee(device, np.roll(x, column, axis=1), np.ldexp(b[column::4], exponents[:, 4] // 2))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1))
    def test_quotients_of_any_values_are_ieee(self, device: Device, seed: int) -> None:
        """Subnormal to infinite, zeros and NaN, in operand and divisor. Red: a remainder that underflows."""
        x, d = wild(rng(seed), 64, 4), np.abs(wild(rng(seed, 1), 64))

        self.assert_ieee(device, x, d)

    def test_quotients_at_the_edges_are_ieee(self, device: Device) -> None:
        """Every pair of sizes at which a step could overflow or lose bits. Red: a limit one binade too far."""
        sizes = np.float32([0, 2.0**-149, 2.0**-127, 2.0**-126, 2.0**-101, 2.0**-100, 1, 2.0**100, 2.0**101, 2.0**125,
                            2.0**126, 2.0**127, np.finfo(np.float32).max, np.inf, np.nan])  # fmt: skip
        with np.errstate(all="ignore"):
            near = np.concatenate([sizes, np.nextafter(sizes, np.float32(np.inf)), sizes * np.float32(1.7)])
            x, d = (v.reshape(-1) for v in np.meshgrid(near, near))
            odd = x * np.float32(1.2345678)

        self.assert_ieee(device, np.stack([x, -x, odd, -odd], axis=1), d)

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1))
    def test_sums_of_items_are_the_named_tree(self, device: Device, seed: int) -> None:
        """Items that change lanes while they are summed have the bits of the tree. Red: a lane left with another's."""
        x = wild(rng(seed), 2, 136, 32)

        assert_same_outputs(Case(SUM_ITEMS, {"warps": 2}, {"x": x}).run(device), {"y": tree(x)})


@pytest.mark.verify
class TestTensorCoreBytes:
    """m16n8k32 of signed bytes."""

    def test_product_is_the_integer_product(self, device: Device) -> None:
        """C takes A B exactly. Red: two words of a fragment exchanged, rows 8..15 for rows 0..7."""
        case = tile_case(6, 5)
        i = {n: v.astype(np.float64) for n, v in case.inputs.items()}

        expected = truth.tile_product(i["a"], i["b"], i["c"]).astype(np.int64).astype(np.int32)
        assert_same_bits(case.run(device)["c"], expected)

    def test_each_element_has_its_place(self, device: Device) -> None:
        """A single one in A and a single one in B meet in one element of C only. Red: an index of a fragment."""
        m, n, k = np.meshgrid(np.arange(16), np.arange(8), [0, 3, 4, 15, 16, 31], indexing="ij")
        m, n, k = m.ravel(), n.ravel(), k.ravel()
        tile = np.arange(len(m))
        a, b, c = (
            np.zeros((len(m), 16, 32), np.int8),
            np.zeros((len(m), 8, 32), np.int8),
            np.zeros((len(m), 16, 8), np.int32),
        )
        a[tile, m, k] = b[tile, n, k] = 1
        got = Case(MMA_S8, {"tiles": len(m)}, {"a": a, "b": b, "c": c}).run(device)["c"]

        c[tile, m, n] = 1
        assert_same_bits(got, c)


@pytest.mark.verify
class TestTensorCoreE4M3:
    """m16n8k32 of e4m3, a bounded primitive."""

    def test_small_integers_are_exact(self, device: Device) -> None:
        """Integers whose sums stay below 2^11 come out exactly. Red: the fragment layout of another type."""
        needs_e4m3(device)
        a, b = (rng(7, n).integers(-7, 8, (5, n, 32)).astype(np.float32) for n in (16, 8))
        c = rng(8).integers(-100, 101, (5, 16, 8)).astype(np.float32)

        expected = truth.tile_product(*(v.astype(np.float64) for v in (a, b, c)))
        assert_same_bits(e4m3_case(a, b, c).run(device)["c"].astype(np.float64), expected)

    def test_product_is_within_its_bound(self, device: Device, share: Share) -> None:
        """Each of 33 terms loses at most what lies below the kept bits of the largest. Red: one term dropped."""
        needs_e4m3(device)
        a, b = (e4m3.decode(e4m3.encode(normal(rng(9, n), 5, n, 32))) for n in (16, 8))
        c = np.zeros((5, 16, 8), np.float32)

        wide = [v.astype(np.float64) for v in (a, b, c)]
        largest = np.abs(np.einsum("tmk,tnk->tmnk", *wide[:2])).max(axis=-1)
        got = e4m3_case(a, b, c).run(device)["c"]
        assert_within(share, "e4m3 tile", got, truth.tile_product(*wide), 33 * 2.0**-KEPT_BITS * largest)

    def test_a_nan_operand_gives_nan(self, device: Device) -> None:
        """A NaN in row 3 of A spoils row 3 of C and no other. Red: code 0x7F read as 480."""
        needs_e4m3(device)
        a, b, c = np.ones((1, 16, 32), np.float32), np.ones((1, 8, 32), np.float32), np.zeros((1, 16, 8), np.float32)
        a[0, 3, 7] = np.nan
        got = np.isnan(e4m3_case(a, b, c).run(device)["c"][0])

        assert_same_bits(got.all(axis=1), np.arange(16) == 3)
        assert np.count_nonzero(got) == 8


@pytest.mark.verify
class TestSharedMemory:
    """ldmatrix, asynchronous copies and named barriers."""

    def test_ldmatrix_is_the_contract(self, device: Device) -> None:
        """Every lane holds its two neighbours of its row, or of its column. Red: a lane's row address misplaced."""
        x = rng(10).integers(0, 256, (3, 32, 16)).astype(np.uint8)

        assert_same_outputs(Case(LDMATRIX, {"tiles": 3}, {"x": x}).run(device), {"y": contract.ldmatrix(x)})

    @pytest.mark.parametrize("stages", [2, 3, 4])
    @pytest.mark.parametrize("chunks", [1, 2, 3, 6, 9])
    def test_ring_of_copies_moves_every_chunk(self, device: Device, stages: int, chunks: int) -> None:
        """Chunks fewer, as many and more than stages arrive whole. Red: a wait one group short, one chunk primed."""
        x = rng(11, chunks).integers(0, 256, (chunks, 512)).astype(np.uint8)
        got = Case(COPY, {"chunks": chunks}, {"x": x}, {"STAGES": stages}).run(device)

        assert_same_outputs(got, {"y": x})

    @pytest.mark.parametrize("tail", [0, 1, 8, 16])
    def test_bytes_beyond_the_source_are_zeros(self, device: Device, tail: int) -> None:
        """A copy shorter than 16 bytes fills up with zeros. Red: the tail left as it was."""
        x = rng(12).integers(1, 256, (5, 512)).astype(np.uint8)
        got = Case(COPY, {"chunks": 5, "tail": tail}, {"x": x}, {"STAGES": 3}).run(device)

        assert_same_outputs(got, {"y": contract.staged_copy(x, tail)})

    def test_named_barriers_order_their_own_warps(self, device: Device) -> None:
        """Each warp of a pair sees all that its partner wrote before the barrier. Red: the barrier removed."""
        x = words(13, 128)

        assert_same_outputs(Case(BARRIER, {}, {"x": x}).run(device), {"y": x.reshape(2, 2, 32)[:, ::-1].reshape(-1)})


@pytest.mark.verify
class TestConversions:
    """float32 to f16 and to e4m3, and back."""

    def test_half_rounds_to_nearest_even(self, device: Device) -> None:
        """Every f16 value, every midpoint and their neighbours convert as IEEE says. Red: truncation; 65520 finite."""
        x = around(np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32))
        got = Case(HALF, {"n": len(x)}, {"x": x}).run(device)

        with np.errstate(over="ignore"):
            code = x.astype(np.float16)
        assert_same_outputs(got, {"code": code, "back": code.astype(np.float32)})

    def test_e4m3_rounds_to_nearest_even_and_saturates(self, device: Device) -> None:
        """Every e4m3 value, every midpoint, neighbours and all beyond 448 convert as stated. Red: 480 as a NaN."""
        values = around(e4m3.decode(np.arange(256, dtype=np.uint8)))
        x = np.concatenate([values, wild(rng(14), 2000)])
        got = Case(E4M3, {"n": len(x)}, {"x": x}).run(device)

        code = e4m3.encode(x)
        assert_same_outputs(got, {"code": code, "back": e4m3.decode(code)})


class TestDevices:
    """Both devices give the same bits."""

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree on every exact primitive with random input. Red: any body that departs."""
        host, cuda = both_devices
        cases = [
            dp4a_case(words(15, 999), words(16, 999), words(17, 999)),
            bits_case(31),
            Case(SHUFFLE, {"warps": 9, "distance": 3}, {"x": words(18, 9, 32).view(np.uint32)}),
            Case(VOTE, {"warps": 9}, {"x": words(19, 9, 32)}),
            Case(WARP_SUM, {"warps": 9}, {"x": wild(rng(20), 9, 8, 32)}),
            tile_case(21, 33),
            Case(LDMATRIX, {"tiles": 9}, {"x": rng(22).integers(0, 256, (9, 32, 16)).astype(np.uint8)}),
            Case(HALF, {"n": 9999}, {"x": wild(rng(23), 9999)}),
            Case(E4M3, {"n": 9999}, {"x": wild(rng(24), 9999)}),
        ]

        for case in cases:
            assert_same_outputs(case.run(cuda), case.run(host))


class TestMemory:
    """Outputs are written in full and nothing else is."""

    @pytest.mark.parametrize("n", [1, 127, 128, 129])
    def test_conversions_are_fully_written(self, device: Device, n: int) -> None:
        """Any count, also beside a whole block, is written in full. Red: `<=` for `<`, the last block skipped."""
        for kernel in (HALF, E4M3):
            assert_fully_written(device, Case(kernel, {"n": n}, {"x": normal(rng(25), n)}))

    def test_lanes_and_copies_are_fully_written(self, device: Device) -> None:
        """The same for a warp's outputs and for the ring of copies. Red: one row of the outputs skipped."""
        x = words(26, 3, 32)
        assert_fully_written(device, Case(VOTE, {"warps": 3}, {"x": x}))
        assert_fully_written(device, Case(SHUFFLE, {"warps": 3, "distance": 1}, {"x": x.view(np.uint32)}))
        assert_fully_written(device, Case(COPY, {"chunks": 5}, {"x": np.zeros((5, 512), np.uint8)}, {"STAGES": 4}))


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(
        ("kernel", "dims", "sentence"),
        [
            (DP4A, {"n": 0}, "n = 0 must be between 1 and"),
            (DP4A, {"n": 2**31 - 128}, "n = 2147483520 must be between 1 and 2147483519"),
            (VOTE, {"warps": 2**20 + 1}, "warps = 1048577 must be between 1 and 1048576"),
            (COPY, {"chunks": 2**20 + 1}, "chunks = 1048577 must be between 1 and 1048576"),
            (SHUFFLE, {"warps": 1, "distance": 32}, "distance = 32 must be between 0 and 31, the lanes of a warp"),
            (VOTE, {"warps": 0}, "warps = 0 must be between 1 and"),
            (MMA_S8, {"tiles": 0}, "tiles = 0 must be between 1 and"),
            (LDMATRIX, {"tiles": 2**20 + 1}, "tiles = 1048577 must be between 1 and 1048576"),
            (COPY, {"chunks": 0}, "chunks = 0 must be between 1 and"),
            (COPY, {"chunks": 1, "tail": 17}, "tail = 17 must be between 0 and 16, bytes of a 16-byte copy"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: Kernel, dims: dict[str, Value], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, dims, {}, {"STAGES": 2} if kernel.params else {}).run(device)


class TestWork:
    """No kernel does its work twice."""

    @pytest.mark.parametrize("chunks", [1, 5])
    def test_ring_of_copies_copies_each_byte_once(self, chunks: int) -> None:
        """One block copies 512 bytes a chunk, once. Red: a grid of two blocks, which gives the same bytes twice."""
        host = open_device("host")
        x = np.zeros((chunks, 512), np.uint8)
        run_once(host, instance(COPY, STAGES=2), {"chunks": chunks}, {"x": x})

        counters = host.counters  # type: ignore[attr-defined]  # host only
        assert (counters["blocks"], counters["cp_async_bytes"]) == (1, 512 * chunks)
