"""What locks of kernels share: comparing bits, bounds with their share, and running one case in other surroundings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from harness.device import Device
from harness.run import run_kernel, run_once, same_bits
from kernels.columns import scales_by_columns, scales_by_rows
from kernels.entry import DTYPES, Buffer, Kernel, Value, buffer_dtype, buffer_shape, instance, resolve

U = 2.0**-24  # unit roundoff of float32
ULP = 2.0**-23  # the most that one unit in the last place is, relative to the value
BLOCK = 32  # elements that share one scale
TOPS = {1: 127, 2: 16256}  # int8 words a code -> largest code

Arrays = Mapping[str, Any]
Share = Callable[[str, float, float], float]

#: Properties: the same examples in every run, few of them, each on a device that is opened once. Two checks of
#: Hypothesis are off: the device outlives the example on purpose, and with two devices pytest runs one test object a
#: device, each of which goes through all examples by itself (nothing is replayed from a database).
PROPERTY = settings(
    derandomize=True,
    deadline=None,
    max_examples=8,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


def assert_same_bits(actual: Any, expected: Any, what: str = "") -> None:
    """Equal dtype, shape and bits; any NaN equals any NaN. The message names the first difference in hex."""
    a, e = np.asarray(actual), np.asarray(expected)
    assert a.dtype == e.dtype, f"{what}: dtype {a.dtype} is not {e.dtype}"
    assert a.shape == e.shape, f"{what}: shape {a.shape} is not {e.shape}"
    assert a.size, f"{what}: nothing to compare"
    equal = same_bits(a, e)
    if not equal.all():
        where = tuple(int(i) for i in np.argwhere(~equal)[0])
        raise AssertionError(
            f"{what}{list(where)} is {a[where]} ({a[where].tobytes()[::-1].hex()}), not {e[where]} "
            f"({e[where].tobytes()[::-1].hex()}); {np.count_nonzero(~equal)} of {a.size} differ"
        )


def assert_same_outputs(actual: Arrays, expected: Arrays) -> None:
    """Every expected output is there with the same bits, and no other output is."""
    assert sorted(actual) == sorted(expected), f"outputs {sorted(actual)} are not {sorted(expected)}"
    for name in expected:
        assert_same_bits(actual[name], expected[name], name)


def rel_L2(actual: Any, truth: Any) -> float:  # noqa: N802  # the name of the measure
    """Euclidean norm of the error over that of the truth. NaN if either holds one. Raises AssertionError on shapes."""
    a, t = np.asarray(actual, np.float64), np.asarray(truth, np.float64)
    assert a.shape == t.shape, f"shape {a.shape} is not {t.shape}"
    assert a.size, "nothing to compare"
    return float(np.linalg.norm(a - t) / np.linalg.norm(t))


def assert_within(share: Share, what: str, actual: Any, truth: Any, bound: Any) -> None:
    """Every element lies within its own bound of the truth; the largest share is reported. A NaN anywhere fails."""
    a, t = np.asarray(actual, np.float64), np.asarray(truth, np.float64)
    assert a.shape == t.shape, f"{what}: shape {a.shape} is not {t.shape}"
    assert a.size, f"{what}: nothing to compare"
    b = np.broadcast_to(np.asarray(bound, np.float64), a.shape)
    error = np.abs(a - t)
    assert np.isfinite(error).all(), f"{what}: an error is not finite"
    assert ((b >= 0) & np.isfinite(b)).all(), f"{what}: a bound is negative, infinite or NaN"
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(error == 0, 0.0, error / b)
    worst = np.unravel_index(int(np.argmax(used)), a.shape)
    assert share(what, error[worst], b[worst]) <= 1.0, f"{what}: {a[worst]} is not within {b[worst]} of {t[worst]}"


def rng(*seed: int) -> np.random.Generator:
    """A generator that these numbers alone determine."""
    return np.random.default_rng(seed)


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32 values."""
    return generator.standard_normal(shape).astype(np.float32)


def wild(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Float32 values of every size from subnormal to the largest, with zeros of both signs among them."""
    size = np.exp2(generator.uniform(-149, 127.9, shape))
    signs = generator.choice([-1.0, 1.0, 0.0, -0.0], shape, p=[0.48, 0.48, 0.02, 0.02])
    return (signs * size).astype(np.float32)


def edge_rows(width: int) -> np.ndarray:
    """Rows that end a range: zeros, subnormals, the largest finite value, infinities and NaN at both ends of a row,
    and finite rows on both sides of where their squares add up beyond float32.
    """
    tiny, top = np.float32(2.0**-149), np.finfo(np.float32).max
    base = normal(rng(5), width)
    rows = [np.zeros(width), -np.zeros(width), np.full(width, tiny), np.full(width, top), base * tiny, base * 1e-30]
    for value in (np.nan, np.inf, -np.inf, top):
        for place in (0, width // 2, width - 1):
            row = base.copy()
            row[place] = value
            rows.append(row)
    return np.concatenate([np.array(rows, np.float32), overflowing_rows(width)])


def overflowing_rows(width: int) -> np.ndarray:
    """Finite rows [3, width]: squares that add up to 2 % above the largest float32, 2 % below it, and each far above.

    Sixteen roundings of a sum of positive terms move it by less than 1e-6 of itself: no order changes the side.
    """
    top = float(np.finfo(np.float32).max)
    signs = np.where(np.arange(width) % 3 == 0, -1.0, 1.0)
    sizes = np.array([np.sqrt(1.02 * top / width), np.sqrt(0.98 * top / width), top])
    return (sizes[:, None] * signs).astype(np.float32)


OVERFLOWS = np.array([True, False, True])  # of each of those rows


def decoded(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Activation codes [rows, words, K] with scales [rows, K/32] as exact float64 values [rows, K]."""
    wide = codes.astype(np.float64)
    code = wide[:, 0] if codes.shape[1] == 1 else 128 * wide[:, 0] + wide[:, 1]
    return code * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)


def quantiser_bound(scales: np.ndarray, words: int) -> np.ndarray:
    """How far a decoded value may lie from the float32 value that was quantised, an element [rows, K].

    Half a code by rint; the quotient x/s and the scale inside it are rounded once each, at most TOP * u codes each.
    """
    return np.repeat(scales.astype(np.float64), BLOCK, axis=-1) * (0.5 + 2 * TOPS[words] * U)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel with template values, dims and inputs: what a lock runs, and runs again in other surroundings."""

    kernel: Kernel
    dims: Mapping[str, Value]
    inputs: Arrays
    template: Mapping[str, Value] = field(default_factory=dict)

    def run(self, device: Device) -> dict[str, np.ndarray]:
        """What the kernel writes, by argument name; guards, padding and races are checked on the way."""
        return run_kernel(device, self.kernel, self.dims, self.inputs, self.template)

    def with_dims(self, **dims: Value) -> "Case":
        """The same with other dims."""
        return replace(self, dims={**self.dims, **dims})

    def with_pitch(self, extra: int) -> "Case":
        """The same with every pitch this much wider than its packed row."""
        full = resolve(instance(self.kernel, **self.template), self.dims)
        pitches = {b.pitch: int(full[b.pitch]) + extra for b in self.kernel.buffers if b.pitch}
        return self.with_dims(**pitches)

    def prefilled(self, byte: int) -> "Case":
        """The same with every output full of one byte before the launch, in place of poison."""
        inst = instance(self.kernel, **self.template)
        full = resolve(inst, self.dims)
        outputs = {}
        for b in self.kernel.buffers:
            if b.access == "w" and self.inputs.get(b.name, 0) is not None:
                dtype = np.dtype(DTYPES[buffer_dtype(inst, b)][0])
                shape = buffer_shape(b, full)
                size = int(np.prod(shape)) * dtype.itemsize
                outputs[b.name] = np.full(size, byte, np.uint8).view(dtype).reshape(shape)
        return replace(self, inputs={**self.inputs, **outputs})

    def take(self, rows: Iterable[int]) -> "Case":
        """The same with these rows only, in this order."""
        index = list(rows)
        inputs = {n: self._taken(n, v, index) for n, v in self.inputs.items()}
        return replace(self, inputs=inputs, dims={**self.dims, "rows": len(index)})

    def in_slot(self, row: int, slot: int, batch: int) -> "Case":
        """One row of this case in a slot of a batch whose other rows are poison."""
        case = self.take([row] * batch)
        inputs = {}
        for name, value in case.inputs.items():
            axis = _row_axis(self._buffer(name))
            if value is None or axis is None:
                inputs[name] = value
                continue
            columns = _by_columns(self._buffer(name))
            rows = scales_by_rows(value, batch) if columns else value
            filled = np.full_like(rows, np.nan if rows.dtype.kind == "f" else 0)
            at = (slice(None),) * axis + (slot,)
            filled[at] = rows[at]
            inputs[name] = scales_by_columns(filled) if columns else filled
        return replace(case, inputs=inputs)

    def row_of(self, outputs: Arrays, row: int) -> dict[str, np.ndarray]:
        """One row of what was written."""
        return {n: self._taken(n, v, [row]) for n, v in outputs.items()}

    def _taken(self, name: str, value: Any, rows: list[int]) -> Any:
        axis = _row_axis(self._buffer(name))
        if value is None or axis is None:
            return value
        if _by_columns(self._buffer(name)):
            return scales_by_columns(scales_by_rows(value, int(self.dims["rows"]))[rows])
        return np.take(value, rows, axis=axis)

    def _buffer(self, name: str) -> Buffer:
        return next(b for b in self.kernel.buffers if b.name == name)


def _by_columns(buffer: Buffer) -> bool:
    """Whether these are scales by columns."""
    return buffer.shape[-1] == "scale_rows"


def _row_axis(buffer: Buffer) -> int | None:
    """The axis of the rows; of scales by columns, once they lie by rows."""
    if _by_columns(buffer):
        return 0
    return next((axis for axis, size in enumerate(buffer.shape) if size in ("rows", "scale_rows")), None)


def assert_stands_alone(device: Device, case: Case, batch: int = 64) -> None:
    """A row's bits are those of the row alone: in its batch, and in any slot of a batch of poison."""
    together = case.run(device)
    for row in (0, int(case.dims["rows"]) - 1):
        alone = case.take([row]).run(device)
        assert_same_outputs(case.row_of(together, row), alone)
        for slot in (0, batch // 2 - 1, batch - 1):
            among = case.in_slot(row, slot, batch).run(device)
            assert_same_outputs(case.row_of(among, slot), alone)


def assert_pitch_free(device: Device, case: Case) -> None:
    """Rows further apart than they are wide give the packed run's bits; `run` sees the padding untouched."""
    packed = case.run(device)
    for extra in (8, 128):
        assert_same_outputs(case.with_pitch(extra).run(device), packed)


def assert_fully_written(device: Device, case: Case) -> None:
    """What an output held before the launch shows nowhere behind it, and no byte of a buffer is stored twice."""
    assert_same_outputs(case.prefilled(0x00).run(device), case.prefilled(0xA5).run(device))
    assert_stored_once(device, case)


def assert_stored_once(device: Device, case: Case) -> None:
    """No byte of any buffer is stored twice in a launch: two threads that store the same number are work done twice.

    Counted on the host device; on another there is nothing to count.
    """
    if device.properties.kind == "host":
        counted = watched(device, case)
        assert counted["store_bytes"] > 0, f"{case.kernel.name}: nothing was stored"
        assert counted["stored_again"] == 0, f"{case.kernel.name}: {counted['stored_again']} bytes were stored again"


def watched(device: Device, case: Case) -> dict[str, int]:
    """Work of a launch of a case on the host device, with the bytes that it stores to buffers."""
    host: Any = device.with_options(watch=True)  # type: ignore[attr-defined]  # the host device only
    run_once(host, instance(case.kernel, **case.template), case.dims, case.inputs)
    return dict(host.counters)
