"""Writing our weight files, a few rows at a time."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, Weights, specs
from oracle.weights.atomic import written_whole
from oracle.weights.quantised import QuantisedWeights
from oracle.weights.stored import header, layout

CHUNK = 1 << 22  # elements held at once: 32 MiB where they pass through float64

#: Called with a tensor's name before it is written, and how many of the model's elements are done, and all of them.
Progress = Callable[[str, int, int], None]


def save(weights: Weights, path: str | Path, origin: str = "", progress: Progress | None = None) -> None:
    """Write weights as one of our files, whole or not at all, streaming.

    Shapes: any weights; float matrices are encoded to Q8_0, other floats rounded to float32.
    Error:  that of `QuantisedWeights`.
    Source: the module `stored`. Raises LanelockError naming the tensor that cannot be stored, or the file.
    """
    view = QuantisedWeights(weights)
    config = weights.config
    blank, starts = header(config, origin, dict.fromkeys(layout(config), "0" * 64))
    hashes = {name: hashlib.sha256() for name in starts}
    with written_whole(path) as file:
        ends = dict(starts)
        for stored, array in stored_pieces(view, progress):
            _put(file, ends, stored, array)
            hashes[stored].update(array.tobytes())
        text, _ = header(config, origin, {name: digest.hexdigest() for name, digest in hashes.items()})
        # every hash is 64 digits, so the header that knows them is as long as the one that reserved its place.
        assert len(text) == len(blank)
        file.seek(0)
        file.write(text)


def chunks(weights: Weights, name: str) -> Iterator[Tensor]:
    """A tensor in pieces of whole rows, of at most CHUNK elements; vectors and small tables at once."""
    spec = specs(weights.config)[name]
    if not spec.quantised:
        yield weights.tensor(name)
        return
    rows, columns = spec.shape
    step = max(1, CHUNK // columns)
    for low in range(0, rows, step):
        yield weights.rows(name, np.arange(low, min(rows, low + step)))


def stored_pieces(weights: Weights, progress: Progress | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Stored name and contiguous values, as a file holds them, of weights that are quantised already; tensor by tensor.

    Shapes: whole rows of the stored tensor.  Raises LanelockError naming a tensor of the wrong shape.
    """
    table = specs(weights.config)
    total, done = sum(int(np.prod(spec.shape)) for spec in table.values()), 0
    for name, spec in table.items():
        for part in chunks(weights, name):
            if progress is not None:
                progress(name, done, total)
            if isinstance(part, Q8_0):
                yield f"{name}.codes", part.codes
                yield f"{name}.scales", part.scales.astype("<f2", copy=False)
                done += part.codes.size
                continue
            if part.shape != spec.shape:
                raise LanelockError(f"tensor {name!r} has shape {part.shape}, not {spec.shape}.")
            yield name, part.astype("<f4", copy=False)
            done += part.size
    if progress is not None:
        progress("", total, total)


def _put(file: BinaryIO, ends: dict[str, int], stored: str, array: NDArray[Any]) -> None:
    file.seek(ends[stored])
    ends[stored] += file.write(np.ascontiguousarray(array).tobytes())
