"""Locks of the functions room: exp, log1p, sigmoid, silu, softplus, and conversions to f16 and e4m3 and back.

All 2^32 inputs of each function are the nightly `lanelock exhaustive`; here are the places where one can go wrong.
"""

import ctypes
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import mpmath
import numpy as np
import pytest

from harness.device import Device
from harness.run import run_kernel
from kernels.functions import DECODE, ENCODE, FUNCTIONS, MAP_FUNCTION, SWEEP_FUNCTION
from locks.support import Share, assert_same_bits
from oracle.bits import e4m3
from oracle.bits import functions as contract
from oracle.errors import LanelockError

INF, NAN = np.float32(np.inf), np.float32(np.nan)
LARGEST = float(np.finfo(np.float32).max)
#: The contract's promise, not a fit: ulp where the result is normal, and steps of 2^-149 below.
ULPS, STEPS_BELOW_NORMAL = 4.0, 2.0

TRUTHS: Mapping[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp": mpmath.exp,
    "log1p": mpmath.log1p,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
}


def around(centres: np.ndarray, steps: int = 2) -> np.ndarray:
    """Each centre and its float32 neighbours on both sides."""
    bits = centres.astype(np.float32).view(np.int32)[:, None] + np.arange(-steps, steps + 1, dtype=np.int32)
    return bits.reshape(-1).view(np.float32)


def grid(name: str) -> np.ndarray:
    """Finite inputs dense around every branch: the reductions' seams, the ends of the ranges, zero, every binade."""
    sizes = np.exp2(np.arange(-149.0, 128.0)) * 1.25
    seams = (np.arange(-152, 129) + 0.5) * np.log(2.0)  # where exp's integer part changes
    ends = [-120.0, -104.0, -103.97, -103.28, -91.9, -87.34, -87.0, -17.0, 17.0, 88.0, 88.72, 88.7228, 89.0]
    if name == "log1p":
        powers = np.exp2(np.arange(-23.0, 127.0))
        seams = np.concatenate([0.75 * powers - 1, 1.5 * powers - 1, powers - 1])  # where its exponent changes
        ends = [-1.0 + 2.0**-24, -0.999, -0.5, -0.25, 0.5]
    middle = np.random.default_rng(7).uniform(-1.0 if name == "log1p" else -20.0, 20.0, 3000)
    x = np.concatenate([sizes, -sizes, around(seams), around(np.array(ends), 4), middle]).astype(np.float32)
    x = x[np.isfinite(x)]
    return np.unique(x[x > -1] if name == "log1p" else x)


def errors(name: str, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Largest error against mpmath at 50 digits: in ulp where the truth is normal, in steps of 2^-149 below."""
    normal, below = 0.0, 0.0
    with mpmath.workdps(50):
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            truth = TRUTHS[name](mpmath.mpf(a))
            if not np.isfinite(b):  # an overflow is right where the nearest float32 is infinite
                truth_overflows = abs(truth) >= mpmath.mpf(LARGEST) * (1 + mpmath.mpf(2) ** -25)
                normal = max(normal, 0.0 if b > 0 and truth_overflows else np.inf)
                continue
            exponent = int(mpmath.mag(truth)) - 1 if truth else -200
            error = float(mpmath.ldexp(abs(mpmath.mpf(b) - truth), 23 - max(exponent, -126)))
            if exponent >= -126:
                normal = max(normal, error)
            else:
                below = max(below, error)
    return normal, below


def on_device(device: Device, name: str, x: np.ndarray) -> np.ndarray:
    """The function on a device, through the catalogue kernel."""
    inputs = {"x": np.ascontiguousarray(x, np.float32)}
    return run_kernel(device, MAP_FUNCTION, {"n": x.size}, inputs, {"FUNCTION": FUNCTIONS.index(name)})["y"]


def sample() -> np.ndarray:
    """Bit patterns over the whole of float32, every binade of both signs, with subnormals, infinities and NaN."""
    return (np.arange(2**18, dtype=np.uint64) * 16411 % 2**32).astype(np.uint32).view(np.float32)


def core(name: str) -> np.ndarray:
    """Inputs dense where the polynomials decide: there the last unit of a high coefficient moves few results."""
    low, high = (-0.25, 0.5) if name == "log1p" else (-1.0, 1.0)
    return np.random.default_rng(8).uniform(low, high, 2**17).astype(np.float32)


EDGES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "exp": (
        (0.0, 1.0),
        (-0.0, 1.0),
        (-INF, 0.0),
        (INF, INF),
        (NAN, NAN),
        (89.0, INF),
        (LARGEST, INF),
        (-104.0, 0.0),
        (-LARGEST, 0.0),
        (2.0**-149, 1.0),
    ),
    "log1p": (
        (0.0, 0.0),
        (-0.0, 0.0),
        (INF, INF),
        (-1.0, -INF),
        (-1.0 - 2.0**-23, NAN),
        (-INF, NAN),
        (NAN, NAN),
        (2.0**-149, 2.0**-149),
        (-(2.0**-149), -(2.0**-149)),
        (2.0**-126, 2.0**-126),
    ),
    "sigmoid": (
        (0.0, 0.5),
        (-0.0, 0.5),
        (INF, 1.0),
        (-INF, 0.0),
        (NAN, NAN),
        (LARGEST, 1.0),
        (-LARGEST, 0.0),
        (20.0, 1.0),
        (-110.0, 0.0),
    ),
    "silu": (
        (0.0, 0.0),
        (-0.0, 0.0),
        (INF, INF),
        (-INF, 0.0),
        (NAN, NAN),
        (LARGEST, LARGEST),
        (-LARGEST, 0.0),
        (20.0, 20.0),
        (-120.0, 0.0),
    ),
    "softplus": (
        (INF, INF),
        (-INF, 0.0),
        (NAN, NAN),
        (LARGEST, LARGEST),
        (-LARGEST, 0.0),
        (20.0, 20.0),
        (-110.0, 0.0),
        (88.75, 88.75),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
class TestFunctions:
    """Value, contract and edges of each function."""

    @pytest.mark.verify
    def test_error_is_at_most_four_ulp(self, device: Device, name: str, share: Share) -> None:
        """Within 4 ulp of mpmath at 50 digits where the result is normal and within 2^-148 below it.

        Red on a wrong coefficient, on log(1 + exp(x)) for softplus, on silu from a subnormal exponential (48 ulp).
        """
        x = grid(name)
        normal, below = errors(name, x, on_device(device, name, x))

        assert share(f"{name} ulp", normal, ULPS) <= 1
        assert share(f"{name} steps below normal", below, STEPS_BELOW_NORMAL) <= 1

    @pytest.mark.verify
    def test_equals_the_contract(self, device: Device, name: str) -> None:
        """Patterns of the whole range, inputs dense where polynomials decide, and the grid give the contract's bits.

        Red on a split fma, another order of Horner's steps, another seam, one unit in any constant.
        """
        x = np.concatenate([sample(), core(name), grid(name)])

        assert_same_bits(on_device(device, name, x), contract.FUNCTIONS[name](x), name)

    def test_edges_are_exact(self, device: Device, name: str) -> None:
        """Zeros, infinities, NaN, the largest and smallest finite inputs give exactly the stated values."""
        x, want = np.array(EDGES[name], np.float32).T
        got = on_device(device, name, x)

        assert_same_bits(got + np.float32(0.0), want + np.float32(0.0), name)  # + 0 makes the zeros one

    def test_is_a_number_for_every_number(self, device: Device, name: str) -> None:
        """Only a NaN gives a NaN, but for log1p below -1."""
        x = sample()
        undefined = np.isnan(x) | ((x < -1) if name == "log1p" else np.zeros(x.shape, bool))

        assert np.array_equal(np.isnan(on_device(device, name, x)), undefined)

    def test_sweep_equals_map(self, device: Device, name: str) -> None:
        """The sweep over bit patterns is the map of those patterns, also where the pattern wraps past 2^32."""
        first, n = 2**32 - 1000, 2000
        template = {"FUNCTION": FUNCTIONS.index(name)}
        swept = run_kernel(device, SWEEP_FUNCTION, {"n": n, "first": first}, {}, template)["y"]
        x = (np.arange(first, first + n, dtype=np.uint64) % 2**32).astype(np.uint32).view(np.float32)

        assert_same_bits(swept, on_device(device, name, x), name)

    def test_same_bits_on_both_devices(self, both_devices: tuple[Device, Device], name: str) -> None:
        """Host and GPU agree on the sample and the grid."""
        x = np.concatenate([sample(), grid(name)])
        host, cuda = both_devices

        assert_same_bits(on_device(host, name, x), on_device(cuda, name, x), name)


ROOT = Path(__file__).resolve().parents[1]
#: All functions as plain loops, outside the host device: what a compiler makes of the header alone.
LOOPS = "\n".join(
    ["#define LANELOCK_HOST", '#include "cuda.h"', '#include "functions.cuh"']
    + [
        f'extern "C" void map_{name}(const float* x, float* y, long n) '
        f"{{ for (long i = 0; i < n; ++i) y[i] = lane::{name}(x[i]); }}"
        for name in FUNCTIONS
    ]
)
ZIG = [sys.executable, "-m", "ziglang", "cc", "-x", "c++", "-nostdinc++", "-nostdlib++"]
BUILDS = {
    "g++ x86-64": ["g++", "-march=x86-64"],
    "g++ x86-64-v3": ["g++", "-march=x86-64-v3"],
    "zig x86-64": [*ZIG, "-mcpu=x86_64"],
    "zig x86-64-v3": [*ZIG, "-mcpu=x86_64_v3"],
}


def missing_build(build: str) -> str | None:
    """Why a build cannot be tried on this machine."""
    if platform.machine() != "x86_64":
        return f"not run: {build} on a {platform.machine()}"
    found = importlib.util.find_spec("ziglang") if build.startswith("zig") else shutil.which("g++")
    return None if found else f"not run: no compiler for {build}"


class TestCompilers:
    """Compilers and instruction sets give one set of bits. Red with -ffast-math, at either level.

    Not red without -ffp-contract=off: the one product that is added unfused, by a power of two, is exact.
    """

    @pytest.mark.parametrize("build", BUILDS)
    def test_every_compiler_gives_the_contract(self, tmp_path: Path, build: str) -> None:
        """g++ and zig, without hardware fma and with it, compile the functions to the contract's bits."""
        if reason := missing_build(build):
            pytest.skip(reason)
        (tmp_path / "loops.cpp").write_text(LOOPS)
        command = [*BUILDS[build], "-std=c++20", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
        command += [f"-I{ROOT / 'kernels'}", f"-I{ROOT / 'harness' / 'host' / 'runtime'}"]
        command += ["-o", str(tmp_path / "loops.so"), str(tmp_path / "loops.cpp")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(tmp_path / "loops.so"))

        for name in FUNCTIONS:
            x = np.concatenate([sample()[::4], grid(name)])
            y = np.empty_like(x)
            pointers = (ctypes.c_void_p(v.ctypes.data) for v in (x, y))
            getattr(library, f"map_{name}")(*pointers, ctypes.c_long(x.size))
            assert_same_bits(y, contract.FUNCTIONS[name](x), f"{build}: {name}")


class TestLaunch:
    """What a launch of the functions' kernels covers and refuses."""

    @pytest.mark.parametrize("n", [1, 31, 256, 257, 16384, 16385])
    def test_every_element_is_written(self, device: Device, n: int) -> None:
        """Any count, a single element and one past a block's share among them, is written whole and no further."""
        x = np.linspace(-5, 5, n, dtype=np.float32)

        assert_same_bits(on_device(device, "exp", x), contract.exp(x))

    @pytest.mark.parametrize("n", [0, 2**31])
    def test_counts_beyond_an_int_are_refused(self, device: Device, n: int) -> None:
        """A count of zero or of 2^31 is an error before launch."""
        with pytest.raises(LanelockError, match="between 1 and"):
            run_kernel(device, SWEEP_FUNCTION, {"n": n, "first": 0}, {}, {"FUNCTION": 0})


def beside(values: np.ndarray) -> np.ndarray:
    """Float32 values at, between and right beside neighbouring values of a narrower format, of both signs."""
    size = np.unique(np.abs(values[np.isfinite(values)])).astype(np.float32)
    ties = ((size[1:].astype(np.float64) + size[:-1]) / 2).astype(np.float32)  # a tie has one bit more: exact
    last = size[-1] + (size[-1] - size[-2]) / 2  # from here on a format without saturation overflows
    x = np.concatenate([around(size[1:], 1), around(ties, 1), around(np.array([last]), 1), [0.0, INF, LARGEST]])
    return np.concatenate([x, -x, [NAN, -NAN]]).astype(np.float32)


class TestConversions:
    """f16 and e4m3: every code one way, every tie the other."""

    def test_every_f16_code_decodes(self, device: Device) -> None:
        """All 65,536 codes have their IEEE value."""
        codes = np.arange(65536, dtype=np.uint16).view(np.float16)
        values = run_kernel(device, DECODE, {"n": codes.size}, {"x": codes}, {"NARROW": "f16"})["y"]

        with np.errstate(invalid="ignore"):  # signalling NaN
            assert_same_bits(values, codes.astype(np.float32))

    def test_every_f16_tie_encodes_to_even(self, device: Device) -> None:
        """At each value, each midpoint and their float32 neighbours the nearest code is taken, ties to even."""
        x = beside(np.arange(65536, dtype=np.uint16).view(np.float16))
        codes = run_kernel(device, ENCODE, {"n": x.size}, {"x": x}, {"NARROW": "f16"})["y"]

        with np.errstate(over="ignore", invalid="ignore"):
            assert_same_bits(codes, x.astype(np.float16))

    def test_every_e4m3_code_decodes(self, device: Device) -> None:
        """All 256 codes have the value of the format's definition, and 0x7F and 0xFF are NaN."""
        codes = np.arange(256, dtype=np.uint8)
        values = run_kernel(device, DECODE, {"n": 256}, {"x": codes}, {"NARROW": "e4m3"})["y"]

        assert_same_bits(values, e4m3.decode(codes))

    def test_every_e4m3_tie_encodes_to_even(self, device: Device) -> None:
        """At each value, each midpoint and their neighbours the nearest code is taken; 448 saturates; NaN is 0x7F."""
        x = np.concatenate([beside(e4m3.decode(np.arange(256, dtype=np.uint8))), sample()[::8]])
        codes = run_kernel(device, ENCODE, {"n": x.size}, {"x": x}, {"NARROW": "e4m3"})["y"]

        assert_same_bits(codes, e4m3.encode(x))

    def test_e4m3_codes_are_nearest(self) -> None:
        """The transcription itself picks, among all 126 finite sizes, the nearest and on a tie the even code."""
        sizes = e4m3.decode(np.arange(127, dtype=np.uint8)).astype(np.float64)
        x = beside(e4m3.decode(np.arange(256, dtype=np.uint8)))
        x = x[~np.signbit(x) & (x <= 448)]
        distance = np.abs(x.astype(np.float64)[:, None] - sizes)
        even_first = np.argsort(np.arange(127) % 2, kind="stable")  # argmin takes the first of equals
        nearest = even_first[np.argmin(distance[:, even_first], axis=1)]

        assert np.array_equal(e4m3.encode(x), nearest)
