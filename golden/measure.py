"""`python -m golden.measure TEXT`: bits a byte of the checkpoint on held-out text, and how often a draft is accepted.

Bits a byte by the oracle in float64 on the checkpoint as it is stored; acceptance by the engine on the host, one draft
a step, after prompts from the held-out text.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.corpus import held_out, read_text
from golden.sources import trained
from harness.devices import open_device
from harness.engine import Choice, Request, decode, opened
from harness.record import record
from oracle.blocks import Run
from oracle.model import forward
from oracle.model_weights import Weights

WINDOWS, LENGTH = 32, 256
PROMPTS, PROMPT, COUNT = 8, 64, 96


def bits_a_byte(weights: Weights, text: NDArray[np.uint8]) -> float:
    """Mean over evenly spaced windows, each from an empty state, every byte of a window but its first counted.

    Shapes: text [N].
    Units:  bits.
    Error:  1e-12; the mean over the whole text differs by the windows chosen.
    Source: cross entropy.
    """
    starts = np.linspace(0, len(text) - LENGTH - 1, WINDOWS).astype(int)
    windows = np.stack([text[s : s + LENGTH] for s in starts]).astype(np.int64)
    logits = forward(Run(weights), windows[:, :-1], rows="all").logits
    shifted = logits - logits.max(-1, keepdims=True)
    nats = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, windows[:, 1:, None], -1)[..., 0]
    return float(nats.mean() / np.log(2))


def acceptance(weights: Weights, text: NDArray[np.uint8], lane: str) -> float:
    """Share of drafts that were accepted at one draft a step, over the steps behind the prompts."""
    starts = np.linspace(0, len(text) - PROMPT, PROMPTS).astype(int)
    requests = [Request(tuple(int(t) for t in text[s : s + PROMPT]), COUNT) for s in starts]
    with opened(open_device("host"), weights, Choice(lane, PROMPTS, PROMPT + COUNT, 64, 1)) as engine:
        streams = decode(engine, requests)
    passes = [n for s in streams for n in s.accepted[1:]]
    return sum(n - 1 for n in passes) / len(passes)


def measure(path: Path) -> dict[str, Any]:
    """All figures."""
    text, weights = held_out(read_text(path)), trained().weights()
    lanes = {lane: round(acceptance(weights, text, lane), 4) for lane in ("a15", "a8", "q4")}
    return {"held_out_bits_a_byte": round(bits_a_byte(weights, text), 4), "acceptance_k1": lanes}


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    figures = measure(args.text)
    print(record("checkpoint", figures) if args.record else figures)


if __name__ == "__main__":
    main()
