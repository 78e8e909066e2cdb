"""The whole model over a prompt or one more token, in float64.

Layers are the outer loop, so a model whose weights are made or read one tensor at a time never holds more than one.

Buffers that a recorder is told of, as [B, T, width] unless said; the same names serve plans and comparisons.

| name | value |
|---|---|
| `embed` | embedding rows |
| `layerI.norm1`, `layerI.norm2` | normed input of the mixer, of the feed-forward |
| `layerI.qkvz`, `layerI.ba` | GDN projections [Q, K, V, Z] and [b, a] |
| `layerI.beta`, `layerI.g`, `layerI.alpha` | learning rate, log decay, decay, one a value head |
| `layerI.conv` | [Q, K, V] after convolution, SiLU and unit norm of Q and K heads |
| `layerI.scan` | output of the delta rule |
| `layerI.S` [B, HV, V, K], `layerI.ring` [B, 3, C] | state after the chunk |
| `layerI.qgkv` | attention projection [Q, gate, K, V] |
| `layerI.q`, `layerI.k` | heads after norm and rotation |
| `layerI.attention` | before the output gate |
| `layerI.K`, `layerI.V` [B, S, HK, D] | cache after the chunk, as stored |
| `layerI.gated` | mixer's output before its output projection |
| `layerI.mixer`, `layerI.residual1` | output projection; residual stream after it |
| `layerI.gu`, `layerI.swiglu`, `layerI.down` | feed-forward |
| `layerI.residual` | residual stream after the layer |
| `final_norm`, `logits` | hidden state after the final norm; logits of the rows asked for |
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from oracle.arrays import F64, I64
from oracle.blocks import Place, Run, block, rounded_projection
from oracle.embedding import dense
from oracle.errors import LanelockError
from oracle.model_weights import head_name
from oracle.rms_norm import rms_norm
from oracle.roundings import of_row_norm
from oracle.state import State, empty_state

Rows = Literal["last", "all", "none"]


@dataclass(frozen=True, slots=True)
class Output:
    """Shapes: logits [B, R, V] with R rows asked for, hidden [B, T, d] after the final norm, and the next state."""

    logits: F64
    hidden: F64
    state: State


@np.errstate(over="ignore", invalid="ignore")  # what is not finite travels on to the logits, where pick names it
def forward(run: Run, tokens: I64, state: State | None = None, rows: Rows = "last") -> Output:
    """Feed a chunk of tokens of every sequence.

    Shapes: tokens [B, T], T at least 1; rows is last, all or none.
    Units:  logits as they are, no softmax.
    Error:  rel_L2 1e-14 or so against another float64 forward; chunk widths differ by rounding alone.
    Source: the model's definition. Raises LanelockError where a token is not in the vocabulary or the context overruns.
    """
    state = empty_state(run.config, tokens.shape[0]) if state is None else state
    _check(run, tokens, state)
    x = embed(run, tokens)
    run.record("embed", x)
    layers = []
    for i, before in enumerate(state.layers):
        x, after = block(Place(run, f"layers.{i}.", f"layer{i}.", state.position), x, before)
        layers.append(after)
    hidden = rms_norm(x, dense(run.weights.tensor("on")), run.config.eps)
    units = of_row_norm(run.config.d)
    hidden = run.roundings.result("final_norm", hidden, lambda: units * np.abs(hidden))
    run.record("final_norm", hidden)
    first = {"last": tokens.shape[1] - 1, "all": 0, "none": tokens.shape[1]}[rows]
    logits = head(run, hidden[:, first:])
    run.record("logits", logits)
    return Output(logits, hidden, State(state.position + tokens.shape[1], tuple(layers)))


def embed(run: Run, tokens: I64) -> F64:
    """Embedding rows of tokens. Shapes: [B, T] -> [B, T, d]. Units, error and source as oracle.embedding."""
    return dense(run.weights.rows("emb", tokens.reshape(-1))).reshape(*tokens.shape, -1)


def head(run: Run, hidden: F64) -> F64:
    """Logits of normed hidden states.

    Shapes: hidden [B, R, d] -> [B, R, V]; no rows read no weights.
    Units:  as they are.
    Error:  that of the projection; in a lane the head stays Q8_0.
    Source: the model's definition. The draft head shares it.
    """
    if hidden.shape[1] == 0:
        return np.empty((hidden.shape[0], 0, run.config.vocab))
    w = run.weights.tensor(head_name(run.config))
    return rounded_projection(run, "logits", hidden, w, dense, run.lane.head_activations)


def _check(run: Run, tokens: I64, state: State) -> None:
    config = run.config
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise LanelockError(f"tokens come as [sequences, at least one token], not as shape {tokens.shape}.")
    bad = (tokens < 0) | (tokens >= config.vocab)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise LanelockError(f"sequence {row}, token {column} is {tokens[row, column]}, outside the vocabulary of "
                            f"{config.vocab}.")
    if state.position + tokens.shape[1] > config.context:
        raise LanelockError(f"{tokens.shape[1]} tokens from position {state.position} overrun the context of "
                            f"{config.context}.")
