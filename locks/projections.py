"""What locks of projections share: seeded operands, the lowerings as cases, and what the contract makes of them."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.device import Device
from kernels.catalogue import KERNELS, kernel
from kernels.columns import by_columns, reads_columns, scales_by_columns
from kernels.entry import Instance, Kernel, Value, instance, resolve
from locks.support import BLOCK, Case, rng
from oracle.bits import projection as contract
from oracle.bits.pretile import pretile
from oracle.bits.q8_to_q4 import q8_to_q4
from oracle.bits.split_sum import split_sum
from oracle.errors import LanelockError
from oracle.formats.q4 import q4_unpack

#: Every kernel that computes a projection of quantised activations, in the order of the catalogue.
FAMILY = tuple(k.name for k in KERNELS if k.family == "projection" or k.room == "projection")
LOWERINGS = tuple(n for n in FAMILY if "q4" not in n)
Q4_LOWERINGS = tuple(n for n in FAMILY if "q4" in n)


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Activation codes [rows, words, K] with scales, weight codes [N, K] with scales; equal to itself alone."""

    codes: np.ndarray
    scales: np.ndarray
    w: np.ndarray
    ws: np.ndarray

    @property
    def dims(self) -> dict[str, Value]:
        """Sizes of the product."""
        return {"rows": self.codes.shape[0], "N": self.w.shape[0], "K": self.w.shape[1]}

    @property
    def q4(self) -> "Operands":
        """The same with the weights that the Q4 conversion makes, as codes -8..7."""
        packed, s4 = q8_to_q4(self.w, self.ws)
        return Operands(self.codes, self.scales, q4_unpack(packed), s4)


def activation_codes(g: np.random.Generator, rows: int, words: int, K: int) -> np.ndarray:
    """Random codes: all of int8 but -128, and for two words a low one of -64..63."""
    codes = g.integers(-127, 128, (rows, words, K)).astype(np.int8)
    if words == 2:
        codes[:, 1] = g.integers(-64, 64, (rows, K))
    return codes


@functools.lru_cache(maxsize=16)
def operands(rows: int, N: int, K: int, words: int, seed: int = 0) -> Operands:
    """Seeded operands. Row t is 2**(t mod 20) times as large as row 0, so that a neighbour's value shows (case 32)."""
    g = rng(seed, rows, N, K, words)
    size = np.exp2(np.arange(rows) % 20)[:, None]
    return Operands(
        activation_codes(g, rows, words, K),
        (size * (0.25 + g.random((rows, K // BLOCK)))).astype(np.float32),
        g.integers(-127, 128, (N, K)).astype(np.int8),
        (0.01 * (0.25 + g.random((N, K // BLOCK)))).astype(np.float16),
    )


@functools.lru_cache(maxsize=8)
def weights(o: Operands, bits: int, *, tiled: bool) -> dict[str, np.ndarray]:
    """The weight arguments of a lowering: rows of codes and scales, or panels of both."""
    packed, scales = q8_to_q4(o.w, o.ws) if bits == 4 else (o.w, o.ws)
    return {"tiles": pretile(packed.view(np.uint8), scales, bits)} if tiled else {"w": packed, "ws": scales}


@functools.lru_cache(maxsize=8)
def product(o: Operands, bits: int) -> np.ndarray:
    """What the contract makes of the operands, with weights of so many bits [rows, N]."""
    q = o.q4 if bits == 4 else o
    return contract.projection(q.w, q.ws, q.codes, q.scales)


@dataclass(frozen=True, slots=True)
class Form:
    """A lowering with its template values, and dims that choose a launch."""

    name: str
    template: Mapping[str, Value] = field(default_factory=dict)
    dims: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kernel(self) -> Kernel:
        """Its catalogue entry."""
        return kernel(self.name)

    @property
    def instance(self) -> Instance:
        """Its instantiation."""
        return instance(self.kernel, **self.template)

    @property
    def words(self) -> int:
        """Words of an activation code."""
        return int(self.template.get("WORDS", 1))

    def __str__(self) -> str:
        chosen = {**self.template, **self.dims}
        return "-".join([self.name, *(f"{k.lower()}{v}" for k, v in chosen.items() if k != "BITS")])

    def admits(self, o: Operands) -> bool:
        """Whether the kernel takes a product of this size."""
        try:
            resolve(self.instance, {**o.dims, **self.dims})
        except LanelockError:
            return False
        return True

    def case(self, o: Operands, **dims: Value) -> Case:
        """The launch: weights in the form that this lowering reads."""
        columns = reads_columns(self.kernel)
        codes, scales = (by_columns(o.codes), scales_by_columns(o.scales)) if columns else (o.codes, o.scales)
        inputs = {"codes": codes, "scales": scales, **weights(o, 4 if self.is_q4 else 8, tiled=self.is_tiled)}
        return Case(self.kernel, {**o.dims, **self.dims, **dims}, inputs, self.template)

    @property
    def is_q4(self) -> bool:
        """Whether its weights have four bits."""
        return "q4" in self.name

    @property
    def is_tiled(self) -> bool:
        """Whether it reads pre-tiled panels."""
        return "tiles" in {b.name for b in self.kernel.buffers}

    def expected(self, o: Operands) -> np.ndarray:
        """What the contract makes of the operands as this lowering reads them [rows, N]."""
        return product(o, 4 if self.is_q4 else 8)


def forms(name: str, *, full: bool = True) -> Iterator[Form]:
    """Every instantiation of a kernel; in the quick tier of each parameter only the first and the last value."""
    params = kernel(name).params
    values = [p.values if full else tuple(dict.fromkeys((p.values[0], p.values[-1]))) for p in params]
    for chosen in itertools.product(*values):
        yield Form(name, dict(zip((p.name for p in params), chosen, strict=True)))


def form(name: str, words: int = 1, **dims: Value) -> Form:
    """The first instantiation of a kernel for so many words, or for as many as it is built for."""
    found = list(forms(name))
    return Form(name, next((f for f in found if f.words == words), found[0]).template, dims)


def width(f: Form) -> int:
    """Rows that a block of a lowering holds."""
    return int(f.template.get("SEQS", f.template.get("COLS", 128)))


def able(**dims: Value) -> list[str]:
    """Lowerings that take these dims for a small product."""
    return [n for n in FAMILY if Form(n, form(n).template, dims).admits(operands(1, 16, 512, 1))]


def knobs(dim: str) -> list[str]:
    """Lowerings whose launch has this dim."""
    sizes = {"rows": 1, "N": 16, "K": 512}
    return [n for n in FAMILY if dim in resolve(form(n).instance, sizes)]


def total(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result of a launch: its one plane, or its planes added as whoever reads them adds them."""
    y = outputs["y"]
    return y[0] if len(y) == 1 else split_sum(y)


def run(device: Device, f: Form, o: Operands, **dims: Value) -> np.ndarray:
    """The product by a lowering [rows, N], checked on the way (see harness.run)."""
    return total(f.case(o, **dims).run(device))
