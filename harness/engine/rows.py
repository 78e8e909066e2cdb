"""Logits of every position of a prompt, token by token: the same bits as from any chunk."""

from collections.abc import Sequence

import numpy as np

from harness.engine.decode import Request, check_requests, prefill
from harness.engine.memory import Engine
from oracle.errors import LanelockError


def prompt_logits(engine: Engine, tokens: Sequence[int]) -> np.ndarray:
    """Logits behind each token of a prompt.

    Shapes: tokens [T] -> float32 [T, V], from an engine of one sequence whose chunks are one token wide.
    Units:  as they are, no softmax.
    Error:  that of the lane.
    Source: the contract. Raises LanelockError for tokens that do not fit, or an engine of another shape.
    """
    return _each(engine, tokens, "chunk.logits", None)


def draft_logits(engine: Engine, tokens: Sequence[int]) -> np.ndarray:
    """The draft head's logits, row t made of hidden state t and token t + 1.

    Shapes: tokens [T], T at least 2 -> float32 [T - 1, V]. Otherwise as `prompt_logits`; the engine has drafts.
    """
    return _each(engine, tokens, "draft.logits", "draft.logits")[1:]


def _each(engine: Engine, tokens: Sequence[int], buffer: str, program: str | None) -> np.ndarray:
    if engine.setting.B != 1 or engine.plan.buffers["chunk.tokens"].elements != 1:
        raise LanelockError("logits of every position need an engine of one sequence with chunks of one token")
    rows: list[np.ndarray] = []

    def after_chunk() -> None:
        if program is not None and rows:
            engine.run(program)
        rows.append(engine.read(buffer).copy())

    request = Request(tuple(int(t) for t in tokens), 1)
    check_requests(engine.setting, [request])
    engine.write("slot", np.zeros(1, np.int32))
    engine.write("flags", np.zeros(1, np.int32))
    prefill(engine, {0: request}, after_chunk)
    return np.stack(rows)
