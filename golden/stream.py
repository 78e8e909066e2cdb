"""One golden stream: what was decoded, keyed by what alone may change it, with where it came from beside it."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cache import write_whole
from kernels.lanes import lane
from oracle import json_text
from oracle.bits import ARITHMETIC_VERSION
from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Weights, specs

FOLDER = Path(__file__).parent / "streams"
LISTS = ("prompt", "tokens", "logits", "margins", "accepted", "bounds")


@dataclass(frozen=True, slots=True)
class Golden:
    """A stream of a lane.

    Key: config, weights (SHA-256 of all tensors), prompt, lane, arithmetic version. tokens, logits (SHA-256 of the bits
    of each step's float32 row), margins (top logit less second, a float in hex) and accepted (tokens taken a pass, the
    prompt's first, with `drafts` drafts a step) hold on every device, for an exact lane. source names the weights,
    provenance says how it was made; neither is compared.

    A bounded lane has bounds too, a float in hex a step: how far the margin may be off where another device or build
    made the row; all of the above holds where `build` is the same.
    """

    config: str
    weights: str
    prompt: tuple[int, ...]
    lane: str
    arithmetic: int
    drafts: int
    tokens: tuple[int, ...]
    logits: tuple[str, ...]
    margins: tuple[str, ...]
    accepted: tuple[int, ...]
    source: str
    provenance: dict[str, Any]
    bounds: tuple[str, ...] = ()
    build: str = ""

    @property
    def key(self) -> str:
        """SHA-256 of what alone may change the stream."""
        parts = [self.config, self.weights, list(self.prompt), self.lane, self.arithmetic]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def name(self) -> str:
        """File name without its ending: readable, and different for different keys."""
        return f"{self.source}-{self.lane}-{self.key[:8]}"


def config_hash(config: ModelConfig) -> str:
    """SHA-256 of all fields but the name."""
    fields = {k: v for k, v in config.to_dict().items() if k != "name"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def weights_hash(weights: Weights) -> str:
    """SHA-256 of every tensor as the engine reads it: codes and scales, or float32, in file order."""
    total = hashlib.sha256()
    for name in specs(weights.config):
        value = weights.tensor(name)
        total.update(name.encode())
        for part in (value.codes, value.scales) if isinstance(value, Q8_0) else (value.astype("<f4"),):
            total.update(part.tobytes())
    return total.hexdigest()


def write(golden: Golden, folder: Path = FOLDER) -> Path:
    """Write a golden under its name, whole or not at all; returns its path."""
    path = folder / f"{golden.name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(golden), indent=1) + "\n")
    return path


def replace(golden: Golden, folder: Path = FOLDER) -> Golden | None:
    """Write a golden and remove the one of another arithmetic version whose place it takes; returns that one."""
    stream = (golden.config, golden.weights, golden.prompt, golden.lane)
    others = (read(path) for path in sorted(folder.glob("*.json")) if path.stem != golden.name)
    old = next((g for g in others if (g.config, g.weights, g.prompt, g.lane) == stream), None)
    write(golden, folder)
    if old is not None:
        (folder / f"{old.name}.json").unlink()
    return old


def read(path: Path) -> Golden:
    """The golden of a file. Raises LanelockError, naming the file, if it is none or its name is not its key's."""
    try:
        data = json_text.loads(path.read_text(encoding="utf-8"))
        lists = {k: tuple(v) for k, v in data.items() if isinstance(v, list)}
        golden = Golden(**{**data, **lists})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise LanelockError(f"{path}: not a golden stream ({error})") from error
    if path.stem != golden.name:
        raise LanelockError(f"{path}: its key belongs to {golden.name}; a golden is recorded, not edited")
    if not all(isinstance(getattr(golden, name), tuple) for name in LISTS):
        raise LanelockError(f"{path}: {', '.join(LISTS)} are not all lists")
    if not len(golden.tokens) == len(golden.logits) == len(golden.margins) > 0:
        raise LanelockError(f"{path}: tokens, logits and margins are not of one length")
    if not _is_whole(golden):
        raise LanelockError(f"{path}: its tokens, digests, margins, accept pattern, bounds or reason are none")
    if len(golden.bounds) != (len(golden.tokens) if lane(golden.lane).delta else 0):
        raise LanelockError(f"{path}: lane {golden.lane} has a bound a step if it is bounded, and none if it is exact")
    return golden


def _is_whole(golden: Golden) -> bool:
    """Whether every field holds what it says: tokens that were all taken in passes, digests, finite gaps, a reason."""
    try:
        counts = [*golden.prompt, *golden.tokens, *golden.accepted]
        gaps = [float.fromhex(text) for text in (*golden.margins, *golden.bounds)]
        reason = golden.provenance["reason"].strip()
    except (TypeError, ValueError, KeyError, AttributeError):
        return False
    return (
        all(type(n) is int and n >= 0 for n in counts)
        and sum(golden.accepted) == len(golden.tokens)
        and all(isinstance(d, str) and re.fullmatch(r"[0-9a-f]{64}", d) for d in golden.logits)
        and all(0 <= gap < math.inf for gap in gaps)
        and bool(reason)
    )


def read_all(folder: Path = FOLDER) -> Iterator[Golden]:
    """Every golden of a folder, by name. Raises LanelockError if one is broken, or there is none."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise LanelockError(f"{folder}: there is no golden stream")
    yield from (read(path) for path in paths)


def is_current(golden: Golden) -> bool:
    """Whether it was recorded under this arithmetic; an older one can only be recorded anew."""
    return golden.arithmetic == ARITHMETIC_VERSION
