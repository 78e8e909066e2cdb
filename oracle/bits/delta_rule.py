"""The gated delta rule, token by token.

Sizes: B sequences, T tokens, H value heads, K key width (32, 64, 128 or 256), V value width.
"""

import numpy as np

from oracle.bits.fma import F32, f32, fma
from oracle.bits.tree import tree


def scan(q: F32, k: F32, v: F32, alpha: F32, beta: F32, s: F32, *, half: bool = False) -> tuple[F32, F32]:
    """Outputs of every token and the state behind the last.

    Shapes: q, k [B, T, H, K] (a key head repeated for its value heads), v [B, T, H, V], alpha, beta [B, T, H],
            s [B, H, V, K] -> o [B, T, H, V], the last state.
    Units:  o is scaled by 1/sqrt(K). With half the state is rounded to f16 after every token, behind the output.
    Error:  none against the contract.
    Source: ARITHMETIC.md, scan.
    """
    scale = f32(1.0 / np.sqrt(q.shape[-1]))
    o = np.empty(v.shape, np.float32)
    with np.errstate(all="ignore"):
        for t in range(q.shape[1]):
            row_k, row_q = k[:, t, :, None, :], q[:, t, :, None, :]
            s = alpha[:, t, :, None, None] * s
            d = beta[:, t, :, None] * (v[:, t] - tree(s, row_k))
            s = fma(d[..., None], row_k, s)
            o[:, t] = tree(s, row_q) * scale
            if half:
                s = s.astype(np.float16).astype(np.float32)
    return o, s
