"""Activations by rows, and by columns: the same codes and scales in the order in which a streaming projection reads.

By rows codes are [rows, WORDS, K], scales [rows, K / 32]. By columns codes are [K / 16, WORDS, rows, 16], scales
[K / 32, rows to a multiple of 16], permuted among 16 rows (kernels/columns.cuh): a piece of K is then one piece of
memory for all rows, and one copy brings it.
"""

from collections.abc import Iterable

import numpy as np

from kernels.entry import Buffer, Kernel
from kernels.plan import Launch, Ref, launch
from kernels.rules import UNIT, scale_rows


def by_columns(codes: np.ndarray) -> np.ndarray:
    """Codes [rows, WORDS, K] as [K / 16, WORDS, rows, 16]."""
    rows, words, K = codes.shape
    return np.ascontiguousarray(codes.reshape(rows, words, K // UNIT, UNIT).transpose(2, 1, 0, 3))


def by_rows(codes: np.ndarray, rows: int, words: int) -> np.ndarray:
    """Codes that lie by columns, of any shape, as [rows, WORDS, K]."""
    return np.ascontiguousarray(codes.reshape(-1, words, rows, UNIT).transpose(2, 1, 0, 3)).reshape(rows, words, -1)


def places(rows: int) -> np.ndarray:
    """Where the scale of each row lies among those of its block: a lane's four of two fragments side by side."""
    r = np.arange(rows)
    return np.asarray(r // 16 * 16 + r % 8 // 2 * 4 + r % 16 // 8 * 2 + r % 2)


def scales_by_columns(scales: np.ndarray) -> np.ndarray:
    """Scales [rows, blocks] as [blocks, rows to a multiple of 16]; NaN where there is no row."""
    rows, blocks = scales.shape
    wide = np.full((blocks, scale_rows(rows)), np.nan, np.float32)
    wide[:, places(rows)] = scales.T
    return wide


def scales_by_rows(scales: np.ndarray, rows: int) -> np.ndarray:
    """Scales that lie by columns, of any shape, as [rows, blocks]."""
    return np.ascontiguousarray(scales.reshape(-1, scale_rows(rows))[:, places(rows)].T)


def reads_columns(kernel: Kernel) -> bool:
    """Whether a kernel reads activations by columns."""
    return any(b.name == "codes" and b.shape[0] == "units" for b in kernel.buffers)


def in_columns(item: Launch) -> Launch:
    """The same launch, writing its activations by columns."""
    kernel = item.instance.kernel
    refs: dict[str, Ref | None] = {}
    for arg, given in zip(kernel.args, item.args, strict=True):
        if isinstance(arg, Buffer):
            refs[arg.name] = given if isinstance(given, Ref) else None
    dims = {k: v for k, v in item.dims.items() if k not in item.instance.template and k != "scale_rows"}
    return launch(item.label, kernel.name, refs, {**dims, "columns": dims["rows"]}, **item.instance.template)


def ordered(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The launches, each writing its codes in the order in which the next launch that reads them does."""
    made, columns = [], False
    for item in reversed(tuple(launches)):
        uses = [u for u in item.uses if u.ref.buffer == "codes"]
        if any(u.reads for u in uses):
            columns = reads_columns(item.instance.kernel)
        made.append(in_columns(item) if columns and any(u.writes for u in uses) else item)
    return tuple(reversed(made))
