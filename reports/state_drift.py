"""The recurrent state of a long decode against its float64 recurrence on the same inputs, and how far it may be off.

An error e of a row of the state becomes alpha * e (I - beta k kT) with the next token, at most alpha times as long
while beta |k|^2 <= 2; then the token's own roundings are added. So the bound forgets as the state does: it has no term
that grows with the number of tokens.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.device import Device
from harness.engine import Choice, Engine, Request, decode, opened
from kernels.plan import Launch
from oracle.model_weights import HeldWeights, Weights, specs
from oracle.roundings import U, half_unit_of_f16

F64 = NDArray[np.float64]


@dataclass(slots=True)
class Recurrence:
    """The state of one layer in float64, and how far a kernel's rows may be from it.

    Shapes: S [HV, V, K]; reach [HV, V], of the 2-norms of rows. half: a kernel stores the state as f16.
    Units:  those of the state.
    Error:  first order in the roundings, each at its largest.
    Source: the contract, scan; tree(K/32) has K/32 + 5 roundings.
    """

    S: F64
    reach: F64
    half: bool

    @classmethod
    def empty(cls, heads: int, width: int, *, half: bool) -> "Recurrence":
        """Before the first token."""
        return cls(np.zeros((heads, width, width)), np.zeros((heads, width)), half)

    def token(self, k: F64, v: F64, alpha: F64, beta: F64) -> None:
        """One token. Shapes: k [HV, K], v [HV, V], alpha and beta [HV]."""
        length, tree = np.linalg.norm(k, axis=-1), k.shape[-1] / 32 + 5
        decayed = alpha[:, None, None] * self.S
        d = beta[:, None] * (v - np.einsum("hvk,hk->hv", decayed, k))
        self.S = decayed + d[..., None] * k[:, None]
        shrink = np.maximum(1.0, np.abs(1 - beta * length**2))[:, None]
        before, after = (np.linalg.norm(s, axis=-1) for s in (decayed, self.S))
        of_d = 2 * np.abs(d) + tree * beta[:, None] * before * length[:, None]
        # the rounding of alpha * s passes through the correction as an older error does
        own = U * (shrink * before + of_d * length[:, None] + after)
        self.reach = shrink * alpha[:, None] * self.reach + own
        if self.half:
            # the stored state is up to `reach` away from S, and its units with it
            stored = np.linalg.norm(half_unit_of_f16(np.abs(self.S) + self.reach[..., None]), axis=-1)
            self.reach = self.reach + stored

    def shares(self, S: F64) -> F64:
        """Errors of a kernel's rows over their reach [HV, V]; a NaN is infinitely far."""
        error = np.linalg.norm(S - self.S, axis=-1)
        used = np.where(error == 0, 0.0, error / np.maximum(self.reach, np.finfo(float).tiny))
        return np.nan_to_num(used, nan=np.inf, posinf=np.inf)


@dataclass(frozen=True, slots=True)
class Mark:
    """All recurrent layers behind so many tokens: rel_L2 of their states, the bound of that, largest share of a row."""

    tokens: int
    rel_l2: float
    bound: float
    share: float


def drift(
    device: Device, weights: Weights, lane: str, prompt: Sequence[int], marks: Sequence[int],
    then: Callable[[Mark], None] = lambda _mark: None,
) -> list[Mark]:
    """Decode until so many tokens are consumed, the last of `marks`, and compare the states at each mark.

    Shapes: prompt [T]; marks ascending, the first behind the prompt.
    Units:  tokens.
    Error:  none: this is the error.
    Source: `Recurrence`. The context of the model is widened where it is too short: positions are only an angle.
    """
    last = marks[-1]
    config = replace(weights.config, context=max(weights.config.context, last + 8))
    weights = HeldWeights(config, {name: weights.tensor(name) for name in specs(config)})
    found: list[Mark] = []
    with opened(device, weights, Choice(lane, 1, last, 1)) as engine:
        watch = _Watch(engine, frozenset(marks), found, then)
        decode(replace(engine, after=watch), [Request(tuple(prompt), last - len(prompt) + 1)])
    return found


class _Watch:
    def __init__(
        self, engine: Engine, marks: frozenset[int], found: list[Mark], then: Callable[[Mark], None]
    ) -> None:
        c = engine.setting.config
        self.engine, self.marks, self.found, self.then = engine, marks, found, then
        self.layers = [i for i in range(c.layers) if not c.is_attention(i)]
        half = engine.setting.lane.state == "f16"
        self.states = {i: Recurrence.empty(c.v_heads, c.gdn_dim, half=half) for i in self.layers}
        self.tokens = 0

    def __call__(self, _program: str, item: Launch) -> None:
        match = re.fullmatch(r"layers\.(\d+)\.scan", item.label)
        if match is None:
            return
        layer = int(match[1])
        self._follow(self.states[layer])
        if layer == self.layers[-1]:
            self.tokens += 1
            if self.tokens in self.marks:
                self.found.append(self._mark())
                self.then(self.found[-1])

    def _follow(self, state: Recurrence) -> None:
        c = self.engine.setting.config
        row = self.engine.read("conv")[: c.conv_channels].astype(np.float64).reshape(-1, c.gdn_dim)
        key_of = c.k_heads + np.arange(c.v_heads) % c.k_heads
        alpha, beta = (self.engine.read(n)[: c.v_heads].astype(np.float64) for n in ("alpha", "beta"))
        state.token(row[key_of], row[2 * c.k_heads :], alpha, beta)

    def _mark(self) -> Mark:
        made = {i: self.engine.read(f"state.{i}").astype(np.float64).reshape(s.S.shape) for i, s in self.states.items()}
        size = float(np.sqrt(sum((s.S**2).sum() for s in self.states.values())))
        error = float(np.sqrt(sum(((made[i] - s.S) ** 2).sum() for i, s in self.states.items())))
        reach = float(np.sqrt(sum((s.reach**2).sum() for s in self.states.values())))
        share = max(float(s.shares(made[i]).max()) for i, s in self.states.items())
        return Mark(self.tokens, error / size, reach / size, share)
