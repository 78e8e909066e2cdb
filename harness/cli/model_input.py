"""What the commands that run a model have in common: weights, tokens, engine, and an output written whole."""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.progress import shown
from oracle import json_text
from oracle.blocks import Recorder, Run
from oracle.config import load as load_config
from oracle.errors import LanelockError
from oracle.lane import EXACT, Lane, parse
from oracle.model_weights import Weights
from oracle.weights import QuantisedWeights, kind, load
from oracle.weights.save import Progress as Report

ENGINES = ("oracle", "host", "cuda")


def add_model_options(sub: argparse.ArgumentParser) -> None:
    """Options of every command that runs a model."""
    sub.add_argument("--weights", required=True, metavar="W",
                     help="our file, a Hugging Face folder or file, a GGUF, or synthetic:SEED")
    sub.add_argument("--config", metavar="C", help="preset or JSON file, where the weights bring none")
    sub.add_argument("--engine", choices=ENGINES, default="oracle", help="who computes (default: oracle)")
    sub.add_argument("--lane", metavar="L", help="number formats, such as a8+s16 (oracle: exact f64 if left out)")
    sub.add_argument("--json", action="store_true", help="print JSON")


def open_weights(args: argparse.Namespace) -> Weights:
    """Weights as named, Q8_0 where a lane asks for its formats. Raises LanelockError as `load` does."""
    weights = load(args.weights, None if args.config is None else load_config(args.config))
    # a Hugging Face checkpoint runs unquantised in f64; a lane's formats start from what an import would store.
    if lane_of(args) != EXACT and kind(args.weights) == "hugging-face":
        return QuantisedWeights(weights)
    return weights


def lane_of(args: argparse.Namespace) -> Lane:
    """The oracle's lane: exact float64 if none is named."""
    return EXACT if args.lane is None else parse(args.lane)


@contextmanager
def oracle_run(args: argparse.Namespace, title: str, passes: int = 1) -> Iterator[Run]:
    """A run of the oracle that shows how many layers of all passes are done."""
    weights = open_weights(args)
    total = passes * weights.config.layers
    with shown(title) as progress:
        yield Run(weights, lane_of(args), _layer_counter(progress, total))


def _layer_counter(progress: Report, total: int) -> Recorder:
    done = 0

    def record(name: str, _value: NDArray[np.float64]) -> None:
        nonlocal done
        if name.startswith("layer") and name.endswith(".residual"):
            done += 1
            progress(name.removesuffix(".residual"), done, total)

    return record


def read_tokens(text: str, option: str = "--tokens") -> NDArray[np.int64]:
    """Tokens of `1,2,3`, or of a file that holds them (commas or white space between, or a JSON list).

    Raises LanelockError naming the option and the part that is no token, or the file that cannot be read.
    """
    if not all(part.strip().isdigit() for part in text.split(",")):
        try:
            if text.strip() and Path(text).exists():
                return _numbers(_text_of(Path(text)).strip().strip("[]"), text)
        except OSError:  # a name that is too long for a file is a list with a mistake in it
            pass
    return _numbers(text, option)


def _text_of(path: Path) -> str:
    """The text of a file of numbers. Raises LanelockError naming the path and why it holds none."""
    if path.is_dir():
        raise LanelockError(f"{path}: is a folder, not a file of tokens.")
    try:
        return path.read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise LanelockError(f"{path}: is no text of tokens; byte {error.start} is not ASCII.") from error
    except OSError as error:
        raise LanelockError(f"{path}: cannot be read ({error.strerror}).") from error


def _numbers(text: str, where: str) -> NDArray[np.int64]:
    parts = text.replace(",", " ").split()
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 10)]
    if wrong or not parts:
        raise LanelockError(f"{where}: {wrong[0][:40]!r} is no token." if wrong else f"{where}: there are no tokens.")
    return np.array([int(part) for part in parts], np.int64)


def read_batch(path: str) -> list[NDArray[np.int64]]:
    """Prompts of a JSON file: a list of lists of tokens, of any lengths. Raises LanelockError where it is not."""
    try:
        data = json_text.loads(_text_of(Path(path)))
    except ValueError as error:
        raise LanelockError(f"{path}: not a readable JSON file ({error}).") from error
    if not isinstance(data, list) or not data:
        raise LanelockError(f"{path}: a batch is a JSON list of prompts, each a list of tokens.")
    return [_prompt(row, f"{path}, prompt {i}") for i, row in enumerate(data)]


def _prompt(row: object, where: str) -> NDArray[np.int64]:
    if not isinstance(row, list) or not row:
        raise LanelockError(f"{where}: a prompt is a list of at least one token.")
    return _numbers(" ".join(json.dumps(token) for token in row), where)


def write_npy(path: Path, values: NDArray[np.float64]) -> None:
    """Write an array beside its place and then rename it, so that no half file is ever seen.

    Raises LanelockError where the folder cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise LanelockError(f"{path}: cannot be written ({error.strerror}).") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, values)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LanelockError(f"{path}: cannot be written ({error.strerror}).") from error
