"""The gated delta rule: token by token, in chunks, and with a state of half width.

Sizes: B sequences, T tokens, H value heads, K key width, V value width. The state S [B, H, V, K] starts at zero.
"""

from collections.abc import Callable

import numpy as np

from oracle.arrays import F64
from oracle.formats import bf16_round, f16_round
from oracle.functions import exp

CHUNK = 64

# how a state is stored after every token
STORES: dict[str, Callable[[F64], F64]] = {"f64": np.asarray, "f16": f16_round, "bf16": bf16_round}


def step(q: F64, k: F64, v: F64, g: F64, beta: F64, s: F64) -> tuple[F64, F64]:
    """One token: decay, then correct what the decayed state says of k, then read with q.

    Shapes: q, k [B, H, K], v [B, H, V], g, beta [B, H], s [B, H, V, K] -> o [B, H, V], the next state.
    Units:  o is scaled by 1/sqrt(K).
    Error:  (K + 6) * 2**-53 of the sums of absolute products.
    Source: Yang et al. 2024, Gated Delta Networks; the model's definition, GDN step 6.
    """
    s = exp(g)[..., None, None] * s
    error = beta[..., None] * (v - np.einsum("bhvk,bhk->bhv", s, k))
    s = s + error[..., :, None] * k[..., None, :]
    return np.einsum("bhvk,bhk->bhv", s, q) / np.sqrt(q.shape[-1]), s


def sequential(q: F64, k: F64, v: F64, g: F64, beta: F64, s: F64, store: str = "f64") -> tuple[F64, F64]:
    """The rule token by token, the state rounded to its storage after every token.

    Shapes: q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], s [B, H, V, K] -> o [B, T, H, V], the last state.
    Units:  as `step`; store is f64, f16 or bf16. The output is read before the rounding, as a kernel does in registers.
    Error:  that of `step` for every token, decayed like the state; a half-width store adds one rounding a token.
    Source: as `step`.
    """
    rounded = STORES[store]
    o = np.empty(v.shape)
    for t in range(q.shape[1]):
        o[:, t], s = step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], s)
        s = rounded(s)
    return o, s


def chunked(q: F64, k: F64, v: F64, g: F64, beta: F64, s: F64, size: int = CHUNK) -> tuple[F64, F64]:
    """The rule in chunks of `size` tokens, each through one triangular solve; the last may be shorter.

    Shapes: as `sequential`.
    Units:  as `step`.
    Error:  equal to `sequential` in exact arithmetic; rounding differs by a few units times the chunk's length.
    Source: Yang et al. 2024, Gated Delta Networks, the WY form; the model's definition, chunked rule.
    """
    # a NaN must reach later tokens only; in a chunk it would spread backwards through masked zeros.
    if not all(np.isfinite(x).all() for x in (q, k, v, beta, s)) or np.isnan(g).any():
        return sequential(q, k, v, g, beta, s)
    o = np.empty(v.shape)
    for start in range(0, q.shape[1], size):
        piece = slice(start, start + size)
        q_t, k_t, v_t, g_t, beta_t = (np.moveaxis(x[:, piece], 1, 2) for x in (q, k, v, g, beta))
        o[:, piece], s = _chunk(q_t, k_t, v_t, g_t, beta_t, s)
    return o, s


def decays(g: F64) -> F64:
    """Decay from after token j to token t, zero above the diagonal.

    Shapes: g [..., T] -> [..., T, T], row t, column j.
    Units:  exp of the sum of g over j+1..t.
    Error:  T * 2**-53 of the sum, which makes the decay itself no worse than T ulp where it is not vanishing.
    Source: each sum is added on its own. A difference of prefix sums would be NaN after g = -inf and would have lost
    every later g after g = -1e30; here a vanished decay is a clean reset.
    """
    length = g.shape[-1]
    later = np.tri(length, length, -1, dtype=bool)
    sums = np.cumsum(np.where(later, g[..., :, None], 0.0), axis=-2)
    return np.where(later | np.eye(length, dtype=bool), exp(sums), 0.0)


def _chunk(q: F64, k: F64, v: F64, g: F64, beta: F64, s: F64) -> tuple[F64, F64]:
    # everything is [B, H, T, ...] here. D[t, j] decays row j to token t, A[t] decays the incoming state to token t.
    between = decays(g)
    since_start = exp(np.cumsum(g, axis=-1))[..., None]
    mixing = beta[..., None] * between * (k @ np.swapaxes(k, -1, -2))
    rows = beta[..., None] * (v - since_start * (k @ np.swapaxes(s, -1, -2)))
    rows = _unit_lower_solve(mixing, rows)
    o = since_start * (q @ np.swapaxes(s, -1, -2)) + (between * (q @ np.swapaxes(k, -1, -2))) @ rows
    last = since_start[..., -1:, :] * s + np.swapaxes(between[..., -1, :, None] * rows, -1, -2) @ k
    return np.moveaxis(o, 2, 1) / np.sqrt(q.shape[-1]), last


def _unit_lower_solve(mixing: F64, rows: F64) -> F64:
    # forward substitution with a diagonal of ones, whatever stands on or above the diagonal of `mixing`.
    solved = rows.copy()
    for t in range(1, rows.shape[-2]):
        solved[..., t, :] -= np.einsum("...j,...jv->...v", mixing[..., t, :t], solved[..., :t, :])
    return solved
