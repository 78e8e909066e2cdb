"""Locks: mutated files of each format end in a right load or a named error; 10,000 of each nightly, a share quickly."""

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from locks.oracle.checkpoints import hf_folder
from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, specs
from oracle.weights import export_gguf, load, save
from oracle.weights.gguf_file import open_gguf

FORMATS = ("gguf", "hugging-face", "hugging-face config", "lanelock")
QUICK, NIGHTLY = 400, 10_000
EXTREMES = (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
# what a changed header may say and still be a model of these tensors: none of these fields has a second witness.
FREE = {"name", "eps", "rope_theta", "context"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A small file, the one that is opened, the end of its header, and what it holds unchanged."""

    file: Path
    opened: Path
    header: int
    config: ModelConfig
    tensors: dict[str, Tensor]
    free: frozenset[str]


def subject(kind: str, folder: Path) -> Subject:
    """Write the small model in one format."""
    source = load(hf_folder(folder / "source"))
    file = folder / {"gguf": "w.gguf", "lanelock": "w.safetensors"}.get(kind, "source/model.safetensors")
    opened, free = file, FREE
    if kind == "gguf":
        export_gguf(source, file)
        header = open_gguf(file).data_start
    else:
        if kind == "lanelock":
            save(source, file)
            free = set()
        header = 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]
    if kind == "hugging-face config":
        file, opened, free = folder / "source/config.json", folder / "source", FREE | {"rope_dim"}
        header = file.stat().st_size
    weights = load(opened)
    tensors = {name: weights.tensor(name) for name in specs(weights.config)}
    return Subject(file, opened, header, weights.config, tensors, frozenset(free))


def mutate(rng: np.random.Generator, blob: bytes, header: int) -> bytes:
    """One to three changes, four of five in the header: bits, bytes, extreme numbers, text, cuts, insertions."""
    out = bytearray(blob)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        at = int(rng.integers(0, min(header, len(out)) if rng.random() < 0.8 else len(out)) if out else 0)
        kind = int(rng.integers(0, 9))
        if kind == 0 and out:
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1 and out:
            out[at] = int(rng.integers(0, 256))
        elif kind == 2:
            out[at:at + 8] = struct.pack("<Q", EXTREMES[int(rng.integers(0, len(EXTREMES)))])
        elif kind == 3:
            out[at:at + 4] = struct.pack("<I", EXTREMES[int(rng.integers(0, 4))])
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            del out[at:at + int(rng.integers(1, 40))]
        elif kind == 6:
            out[at:at] = rng.bytes(int(rng.integers(1, 40)))
        elif kind == 7:
            start = int(rng.integers(0, max(1, min(header, len(out)))))
            out[at:at + 16] = out[start:start + 16]
        else:
            out[at:at + 1] = rng.choice([b"0", b"9", b"-1", b"1e999", b"null", b'"', b"{", b"[", b"\xff", b"99999999"])
    return bytes(out)


def judge(case: Subject) -> int | None:
    """How many stored values differ from the unchanged file's; None where it is refused by name, -1 without a name."""
    try:
        weights = load(case.opened)
        tensors = {name: weights.tensor(name) for name in specs(weights.config)}
    except LanelockError as error:
        return None if str(case.file.parent) in str(error) else -1
    changes = {field: getattr(case.config, field) for field in case.free}
    assert replace(weights.config, **changes) == case.config
    return sum(differences(tensor, case.tensors[name]) for name, tensor in tensors.items())


def differences(a: Tensor, b: Tensor) -> int:
    """Codes, scales or floats that differ."""
    if isinstance(a, Q8_0) and isinstance(b, Q8_0):
        return int((a.codes != b.codes).sum()) + int((a.scales != b.scales).sum())
    return int((np.asarray(a) != np.asarray(b)).sum())


def check(kind: str, folder: Path, count: int, seed: int) -> None:
    """Run the mutants. A change of the header never gives other values, and one of our own files never any.

    Three changes of at most 40 bytes touch at most 120 values; more would mean that values were read from elsewhere.
    """
    case, rng = subject(kind, folder), np.random.default_rng(seed)
    blob = case.file.read_bytes()
    data = len(blob) - case.header
    loads = 0
    for _ in range(count):
        mutant = mutate(rng, blob, case.header)
        if mutant == blob:
            continue
        case.file.write_bytes(mutant)
        differing = judge(case)
        loads += differing is not None
        whole = data == 0 or mutant[-data:] == blob[-data:]
        assert differing is None or 0 <= differing <= (0 if whole or kind == "lanelock" else 120)
    print(f"{kind}: {count} mutants, {loads} loaded")
    # both ends must be reached, or the fuzz looks at one thing only; of ours every byte is hashed or checked.
    assert int(kind != "lanelock") <= loads <= count // 2


class TestFuzz:
    """Mutated small files."""

    @pytest.mark.parametrize("kind", FORMATS)
    def test_quick(self, tmp_path: Path, kind: str) -> None:
        """A few hundred mutants of each format are loaded right or refused by name; no other error, no crash."""
        check(kind, tmp_path, QUICK, 1)

    @pytest.mark.nightly
    @pytest.mark.parametrize("kind", FORMATS)
    def test_nightly(self, tmp_path: Path, kind: str) -> None:
        """Ten thousand mutants of each format are loaded right or refused by name."""
        check(kind, tmp_path, NIGHTLY, 2)
