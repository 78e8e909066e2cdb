"""The draft head: an attention block that reads a hidden state and the next token, and predicts the one after."""

from dataclasses import dataclass

import numpy as np

from oracle.arrays import F64, I64
from oracle.blocks import Place, Run, block
from oracle.embedding import dense
from oracle.errors import LanelockError
from oracle.greedy import pick
from oracle.model import embed, head
from oracle.mtp_concat import mtp_cat
from oracle.projection import projection
from oracle.quantize import quantize
from oracle.rms_norm import rms_norm
from oracle.state import Cache


@dataclass(frozen=True, slots=True)
class Drafted:
    """Shapes: logits [B, T, V], hidden [B, T, d] after the head's own final norm, and its next cache."""

    logits: F64
    hidden: F64
    cache: Cache


@np.errstate(over="ignore", invalid="ignore")  # as in the main model
def mtp_forward(run: Run, tokens: I64, hidden: F64, cache: Cache) -> Drafted:
    """Feed rows of the draft head: row t holds hidden state t and token t + 1, stands at position t and in cache row t.

    Shapes: tokens [B, T], hidden [B, T, d], cache of the rows before.
    Units:  row t's logits predict token t + 2; hidden is the main model's after its final norm.
    Error:  as the model's forward.
    Source: the model's definition, MTP. Buffers are recorded as `mtp.embed`, `mtp.cat`, `mtp.entry`, the names of
    an attention layer behind `mtp.`, `mtp.final_norm` and `mtp.logits`. Raises LanelockError where there is no
    draft head, or shapes do not fit.
    """
    config, start = run.config, cache.k.shape[1]
    if not config.mtp:
        raise LanelockError(f"model {config.name} has no draft head.")
    if tokens.shape != hidden.shape[:2] or start + tokens.shape[1] > config.context:
        raise LanelockError(f"draft head: tokens {tokens.shape} and hidden states {hidden.shape} at row {start} do not "
                            f"fit together or overrun the context of {config.context}.")
    place = Place(run, "mtp.", "mtp.", start)
    embedded = place.keep("embed", embed(run, tokens))
    rows = place.keep("cat", mtp_cat(embedded, hidden, place.vector("enorm"), place.vector("hnorm"), config.eps))
    entry = projection(quantize(rows, run.lane.head_activations), run.weights.tensor("mtp.ehproj"))
    x, after = block(place, place.keep("entry", entry), cache)
    assert isinstance(after, Cache)
    own = place.keep("final_norm", rms_norm(x, dense(run.weights.tensor("mtp.shnorm")), config.eps))
    return Drafted(place.keep("logits", head(run, own)), own, after)


def draft(run: Run, token: I64, hidden: F64, cache: Cache, count: int) -> tuple[I64, Cache]:
    """Guess the next `count` tokens after `token`.

    Shapes: token [B], hidden [B, d] of the token before it, cache of every row before -> guesses [B, count], and the
            cache with the one row that is made of accepted values. Rows made of the head's own guesses are dropped:
            once a guess is accepted its row is made again from the main model's hidden state.
    Units:  the second and later guesses read the head's own normed output in place of a hidden state.
    Error:  as `mtp_forward`.
    Source: the model's definition, MTP.
    """
    guesses, kept, row = [], cache, hidden[:, None]
    for number in range(count):
        step = mtp_forward(run, token[:, None], row, cache)
        token, row, cache = pick(step.logits[:, -1], number), step.hidden, step.cache
        kept = cache if number == 0 else kept
        guesses.append(token)
    return np.stack(guesses, axis=1), kept
