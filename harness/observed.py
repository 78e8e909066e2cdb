"""A prompt fed to an engine, with all that the oracle needs to follow it: codes, half-width states and caches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.engine import Engine, Request
from harness.engine.decode import check_requests, chunk_width, prefill
from kernels.columns import by_rows, reads_columns, scales_by_rows
from kernels.plan import Launch
from kernels.rules import scale_rows
from oracle.config import BLOCK

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Observed:
    """What one run shows, under the oracle's names.

    Shapes: logits [P, V] behind the tokens `positions` [P], the ends of the chunks; residuals [layers, T, d] behind
    each layer; given: decoded codes [T, K] (of the head [P, K]), cache rows [T, HK, D] if f16, and f16 states
    [T, HV, V, K] where chunks are one token wide; scales [T, K/32] of the codes.
    """

    positions: NDArray[np.int64]
    logits: F64
    residuals: F64
    given: Mapping[str, F64]
    scales: Mapping[str, F64]


def observed(engine: Engine, tokens: Sequence[int]) -> Observed:
    """Feed a prompt to an engine of one sequence and collect what it wrote. Raises LanelockError if it does not fit."""
    request = Request(tuple(int(t) for t in tokens), 1)
    check_requests(engine.setting, [request])
    watch = _Watch(engine)
    engine.write("slot", np.zeros(1, np.int32))
    engine.write("flags", np.zeros(1, np.int32))
    prefill(replace(engine, after=watch), {0: request}, watch.end_of_chunk)
    T, config = len(tokens), engine.setting.config
    given = {name: np.concatenate(rows)[:T] for name, rows in watch.codes.items()}
    given |= {name: np.stack(states) for name, states in watch.states.items()}
    if engine.setting.lane.kv == "f16":
        given |= _cache_rows(engine, T)
    residuals = np.stack([np.concatenate(watch.residuals[i])[:T] for i in range(config.layers)])
    ends = np.minimum(np.cumsum([chunk_width(engine)] * len(watch.logits)), T) - 1
    scales = {name: np.concatenate(rows)[:T] for name, rows in watch.scales.items()}
    return Observed(ends, np.stack(watch.logits).astype(np.float64), residuals, given, scales)


class _Watch:
    """Collects after every launch."""

    def __init__(self, engine: Engine) -> None:
        config = engine.setting.config
        self.engine, self.rows = engine, chunk_width(engine)
        self.behind = {f"layers.{i + 1}.norm1": i for i in range(config.layers - 1)} | {"on": config.layers - 1}
        self.codes: dict[str, list[F64]] = {}
        self.scales: dict[str, list[F64]] = {}
        self.states: dict[str, list[F64]] = {}
        self.residuals: dict[int, list[F64]] = {}
        self.logits: list[np.ndarray] = []

    def __call__(self, _program: str, item: Launch) -> None:
        if item.label in self.behind:
            d = self.engine.setting.config.d
            rows = self.engine.read("residual")[: self.rows * d].astype(np.float64).reshape(-1, d)
            self.residuals.setdefault(self.behind[item.label], []).append(rows)
        if any(u.reads and u.ref.buffer == "codes" for u in item.uses):
            self._take_codes(item)
        for use in item.uses:
            match = re.fullmatch(r"state\.(\d+)", use.ref.buffer)
            if match and use.writes and use.dtype == "f16" and self.rows == 1:
                c = self.engine.setting.config
                state = self.engine.read(use.ref.buffer).astype(np.float64)
                shape = (-1, c.v_heads, c.gdn_dim, c.gdn_dim)
                self.states.setdefault(f"layer{match[1]}.S", []).append(state.reshape(shape)[0])

    def _take_codes(self, item: Launch) -> None:
        name = "logits" if item.label in ("Wout", "emb") else item.label.replace("layers.", "layer")
        rows, K, words = int(item.dims["rows"]), int(item.dims["K"]), self.engine.setting.lane.words
        codes, scales = self.engine.read("codes"), self.engine.read("scales")
        columns = reads_columns(item.instance.kernel)
        codes = codes[: rows * words * K]
        codes = by_rows(codes, rows, words) if columns else codes.reshape(rows, words, K)
        scales = scales[: (scale_rows(rows) if columns else rows) * K // BLOCK]
        scales = (scales_by_rows(scales, rows) if columns else scales.reshape(rows, -1)).astype(np.float64)
        codes = codes.astype(np.float64)
        whole = codes[:, 0] if words == 1 else 128 * codes[:, 0] + codes[:, 1]
        self.codes.setdefault(name, []).append(whole * np.repeat(scales, BLOCK, axis=-1))
        self.scales.setdefault(name, []).append(scales)

    def end_of_chunk(self) -> None:
        """The logits behind the chunk's last token."""
        self.logits.append(self.engine.read("chunk.logits")[: self.engine.setting.config.vocab].copy())


def _cache_rows(engine: Engine, T: int) -> dict[str, F64]:
    c, found = engine.setting.config, {}
    for i in range(c.layers):
        if c.is_attention(i):
            for ours, theirs in (("keys", "K"), ("values", "V")):
                rows = engine.read(f"{ours}.{i}").reshape(-1, c.kv_heads, engine.setting.context, c.head_dim)
                found[f"layer{i}.{theirs}"] = np.moveaxis(rows[0, :, :T], 0, 1).astype(np.float64)
    return found
