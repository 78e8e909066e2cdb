"""Every choice of speed in one place. No bit of any result depends on a value here."""

from dataclasses import dataclass, fields
from typing import Any

from kernels.catalogue import KERNELS
from oracle import json_text
from oracle.errors import LanelockError

#: The environment variable that holds changed fields, as one JSON object.
VARIABLE = "LANELOCK_TUNING"

#: Field -> least and largest value.
RANGES = {
    "gemv_rows": (0, 8),
    "stream_rows": (0, 1 << 31),
    "prefill_rows": (1, 1 << 31),
    "warpgroup_rows": (1, 1 << 31),
    "blocks_per_sm": (1, 16),
    "prefill_blocks_per_sm": (1, 16),
    "max_splits": (1, 8),
    "warps": (1, 8),
    "attention_blocks": (1, 8),
    "attention_heads": (0, 64),
    "attention_units": (1, 64),
    "attention_prefill": (1, 1 << 31),
}

#: What may compute a projection.
LOWERINGS = tuple(kernel.name for kernel in KERNELS if kernel.family == "projection")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Knobs with their defaults.

    lowering: kernel that computes every projection it can ("": by the rules); a shape it cannot do is refused.
    tiled: weights are pre-tiled at load, and only lowerings that read panels are used.
    gemv_rows: up to so many rows stream the weights of a projection through the row-parallel GEMV.
    stream_rows: on Hopper, up to so many rows stream pre-tiled weights through the copy engine (0: never, and weights
    stay in rows).
    prefill_rows: from so many rows on the rows-in-M tile is used.
    warpgroup_rows: from so many rows on Hopper multiplies pre-tiled weights by products of warpgroups.
    blocks_per_sm: a projection is split along K until so many blocks an SM have work.
    prefill_blocks_per_sm: the same for prefill, whose blocks are few and long.
    max_splits: most blocks along K.
    warps: height of a tensor-core tile in panels of 16 weight rows.
    attention_blocks: blocks of decode attention that stay on an SM at once; along the context there are no more.
    attention_heads: query heads that share a KV head's rows in a block (0: by the rules).
    attention_units: decode attention shares less until every four SMs have so many chunks of work.
    attention_cluster: on Hopper, blocks that share a short context combine their chunks in shared memory.
    attention_teams: on Hopper, where blocks of attention are about as many as SMs several teams of warps share a block.
    attention_prefill: from so many tokens on attention takes the prefill kernel.
    """

    lowering: str = ""
    tiled: bool = False
    gemv_rows: int = 4
    prefill_rows: int = 128
    stream_rows: int = 64
    warpgroup_rows: int = 65
    blocks_per_sm: int = 2
    prefill_blocks_per_sm: int = 4
    max_splits: int = 8
    warps: int = 4
    attention_blocks: int = 4
    attention_heads: int = 0
    attention_units: int = 4
    attention_cluster: bool = True
    attention_teams: bool = True
    attention_prefill: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            if type(value) is not type(default):
                raise LanelockError(f"tuning: {field.name} = {value!r} must be of type {type(default).__name__}")
        if self.lowering not in ("", *LOWERINGS):
            raise LanelockError(f"tuning: there is no lowering {self.lowering!r}; they are {', '.join(LOWERINGS)}")
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise LanelockError(f"tuning: {name} = {getattr(self, name)} must be between {low} and {high}")


def tuning(text: str | None, where: str = VARIABLE) -> Tuning:
    """The defaults with the fields of one JSON object changed; None and an empty text change nothing.

    Raises LanelockError, naming where the text stands, for text that is no JSON object or an unknown field, and as
    `Tuning` does for a value of another type or range.
    """
    if not text:
        return Tuning()
    try:
        given: Any = json_text.loads(text)
    except ValueError as error:
        raise LanelockError(f"{where} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise LanelockError(f"{where} must be one JSON object, such as {{\"warps\": 8}}")
    known = [f.name for f in fields(Tuning)]
    for name in given:
        if name not in known:
            raise LanelockError(f"{where}: unknown field {name!r}; the fields are {', '.join(known)}")
    return Tuning(**given)
