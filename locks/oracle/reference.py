"""The independent reference model and what it gave, for the locks that need it."""

from functools import cache
from pathlib import Path

import numpy as np

from oracle.blocks import Run
from oracle.config import ModelConfig
from oracle.model import forward
from oracle.model_weights import HeldWeights, Tensor, specs
from oracle.mtp import mtp_forward
from oracle.state import empty_cache
from oracle.weights import load

FOLDER = Path(__file__).parents[1] / "data" / "qwen35-ratio3"
SAFETENSORS, GGUF = FOLDER / "model.safetensors", FOLDER / "model-q8_0.gguf"

# the reference met this oracle at 1.0e-14; its authors' own second forward met it at 9.3e-15.
BOUND = 1e-12


@cache
def recorded() -> dict[str, np.ndarray]:
    """Prompts, tokens and logits of the reference."""
    with np.load(FOLDER / "reference.npz") as file:
        return {name: file[name] for name in file.files}


@cache
def held() -> HeldWeights:
    """The reference model imported from safetensors, unquantised."""
    weights = load(SAFETENSORS)
    return HeldWeights(weights.config, {name: weights.tensor(name) for name in specs(weights.config)})


def variant(tensors: dict[str, Tensor], **config: object) -> HeldWeights:
    """The reference model with some tensors or sizes replaced, unchecked, as a wrong import would leave them."""
    fields = held().config.to_dict() | config
    return HeldWeights(ModelConfig(**fields), {**held().tensors, **tensors})


def prompt_logits(weights: HeldWeights) -> np.ndarray:
    """Logits of every prompt position."""
    return forward(Run(weights), recorded()["prompt"][None], rows="all").logits[0]


def draft_logits(weights: HeldWeights) -> np.ndarray:
    """Draft logits of every row of the MTP prompt."""
    run, prompt = Run(weights), recorded()["mtp_prompt"][None]
    hidden = forward(run, prompt, rows="none").hidden
    return mtp_forward(run, prompt[:, 1:], hidden[:, :-1], empty_cache(run.config, 1)).logits[0]
