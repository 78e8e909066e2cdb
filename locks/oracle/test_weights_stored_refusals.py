"""Locks: a file that claims to be one of ours, with right hashes, and is not a model is refused by name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oracle.config import preset
from oracle.errors import LanelockError
from oracle.formats import Q8_0
from oracle.model_weights import HeldWeights, specs
from oracle.weights import load, save

TINY = preset("tiny")
Parts = tuple[dict[str, Any], dict[str, str]]


def rewritten(path: Path, change: Callable[[Parts], object]) -> Path:
    """The tiny model written by the published package, after a change, with every hash made right again."""
    save(load("synthetic:1", TINY), path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    metadata = json.loads(path.read_bytes()[8:8 + size])["__metadata__"]
    tensors = load_file(path)
    before = set(tensors)
    change((tensors, metadata))
    for name, values in tensors.items():
        if name in before:
            metadata[f"sha256.{name}"] = hashlib.sha256(values.tobytes()).hexdigest()
    for name in before - set(tensors):
        del metadata[f"sha256.{name}"]
    config, origin = metadata.get("config", ""), metadata.get("origin", "")
    metadata["sha256"] = hashlib.sha256(f"{config}\n{origin}".encode()).hexdigest()
    save_file(tensors, path, metadata)
    return path


def config_with(**changes: object) -> Callable[[Parts], object]:
    """A change of fields of the stored config."""
    return lambda parts: parts[1].update(config=json.dumps({**TINY.to_dict(), **changes}))


def put(name: str, values: Any) -> Callable[[Parts], object]:
    """A tensor in place of that one."""
    return lambda parts: parts[0].update({name: values})


CASES: dict[str, tuple[Callable[[Parts], object], str]] = {
    "version": (lambda p: p[1].update(version="2"), "version '2'"),
    "config not JSON": (lambda p: p[1].update(config="{"), "config that is not JSON"),
    "config no object": (lambda p: p[1].update(config="[]"), "not a JSON object"),
    "config field": (config_with(colour=1), "unknown field 'colour'"),
    "config value": (config_with(eps=-1), "eps must be"),
    "layers": (config_with(layers=10**9), "claims 1000000000 layers"),
    "other config": (config_with(layers=3), "has unknown tensor 'layers.3"),
    "missing": (lambda p: p[0].pop("layers.0.Wd.codes"), "lacks tensor 'layers.0.Wd.codes'"),
    "unknown": (put("extra", np.ones(1, np.float32)), "has unknown tensor 'extra'"),
    "no hash": (lambda p: p[1].update({"sha256.x": ""}), "has unknown metadata 'sha256.x'"),
    "shape": (put("on", np.ones(95, np.float32)), r"tensor 'on' is F32 \[95\], not F32 \[96\]"),
    "type": (put("on", np.ones(96, np.float16)), r"tensor 'on' is F16 \[96\], not F32 \[96\]"),
}


class TestStoredRefusals:
    """Files whose hashes hold."""

    def test_unchanged_is_read(self, tmp_path: Path) -> None:
        """Written again by the published package, with nothing changed, the file is the same model."""
        weights = load(rewritten(tmp_path / "w", lambda _: None))

        assert np.array_equal(weights.tensor("emb").codes, load("synthetic:1", TINY).tensor("emb").codes)

    @pytest.mark.parametrize("case", CASES)
    def test_is_refused_by_name(self, tmp_path: Path, case: str) -> None:
        """What does not fit is named before any tensor is read."""
        change, fault = CASES[case]
        path = rewritten(tmp_path / "w", change)

        with pytest.raises(LanelockError, match=fault) as caught:
            load(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("name", ["emb.scales", "on"])
    def test_not_finite_is_named(self, tmp_path: Path, name: str) -> None:
        """An infinite scale or value under a right hash is refused when its tensor is asked for."""
        def change(parts: Parts) -> None:
            values = parts[0][name].copy()
            values.flat[3] = np.inf
            parts[0][name] = values

        weights = load(rewritten(tmp_path / "w", change))
        # asked twice: a refusal must not mark the tensor as seen.
        for _ in range(2):
            with pytest.raises(LanelockError, match=f"tensor '{name}' has a value that is NaN or infinite"):
                weights.tensor(name.removesuffix(".scales"))

    def test_config_is_hashed(self, tmp_path: Path) -> None:
        """A config changed without its hash is refused: theta alone would else go unseen."""
        save(load("synthetic:1", TINY), tmp_path / "w")
        blob = (tmp_path / "w").read_bytes()
        assert blob.count(b"10000000.0") == 1
        (tmp_path / "w").write_bytes(blob.replace(b"10000000.0", b"70000000.0"))

        with pytest.raises(LanelockError, match="config that does not have the SHA-256"):
            load(tmp_path / "w")

    @pytest.mark.parametrize("name", ["emb.codes", "emb.scales", "nothing", "layers.9.an"])
    def test_unknown_names_are_refused(self, tmp_path: Path, name: str) -> None:
        """Only the model's own names are tensors; codes and scales are not asked for apart."""
        weights = load(rewritten(tmp_path / "w", lambda _: None))
        with pytest.raises(LanelockError, match=f"no tensor '{name}'"):
            weights.tensor(name)

    def test_infinite_scale_is_not_saved(self, tmp_path: Path) -> None:
        """Codes with an infinite scale are refused on the way out too."""
        tensors: dict[str, Any] = {name: load("synthetic:1", TINY).tensor(name) for name in specs(TINY)}
        scales = tensors["emb"].scales.copy()
        scales[2, 1] = np.inf
        tensors["emb"] = Q8_0(tensors["emb"].codes, scales)

        with pytest.raises(LanelockError, match=r"'emb' has a scale .* at \[2, 1\]"):
            save(HeldWeights(TINY, tensors), tmp_path / "w")
        assert list(tmp_path.iterdir()) == []
