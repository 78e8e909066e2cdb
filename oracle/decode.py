"""Greedy decoding."""

from collections.abc import Iterator

import numpy as np

from oracle.arrays import F64, I64
from oracle.blocks import Run
from oracle.greedy import pick
from oracle.model import forward


def greedy_stream(run: Run, prompt: I64, count: int) -> Iterator[tuple[I64, F64]]:
    """Token after token, each with the logits it was picked from.

    Shapes: prompt [B, T] -> `count` times token [B], logits [B, V].
    Units:  tokens as they follow the prompt.
    Error:  as the model's forward; near ties may fall either way within it.
    Source: the contract, Argmax. Raises LanelockError, naming sequence and step, where logits hold no token, and
    where prompt and tokens overrun the context.
    """
    state, tokens = None, prompt
    for step in range(count):
        output = forward(run, tokens, state)
        logits, state = output.logits[:, -1], output.state
        token = pick(logits, step)
        yield token, logits
        tokens = np.asarray(token)[:, None]
