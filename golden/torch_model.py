"""The model in PyTorch, for training alone: one forward over whole sequences, parameters named as in our files.

The truth is `oracle/`; `golden/export.py` ends with the oracle's own loss on the exported file, which would show a
difference. Shapes are [B, T, width] throughout; the delta rule runs in chunks through a triangular solve.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from oracle.config import ModelConfig
from oracle.model_weights import specs

CHUNK = 32

Parameters = dict[str, Tensor]


def initial(config: ModelConfig, seed: int) -> Parameters:
    """Start values: matrices scaled by their input width, norms one, decays spread over 1 to 100 tokens."""
    generator = torch.Generator().manual_seed(seed)
    made: Parameters = {}
    for name, spec in specs(config).items():
        kind = name.rpartition(".")[2]
        if kind == "Al":
            value = -torch.linspace(0.5, 8.0, spec.shape[0])
        elif kind == "Dt":
            value = torch.log(torch.expm1(torch.logspace(-2.3, -0.7, spec.shape[0])))
        elif kind == "Wc":
            value = torch.randn(spec.shape, generator=generator) * 0.3
            value[-1] += 0.7
        elif len(spec.shape) == 1:
            value = torch.ones(spec.shape)
        else:
            width = 1.0 if kind in ("emb",) else math.sqrt(spec.shape[1])
            # what writes to the residual stream starts small, so that depth does not raise its size
            depth = math.sqrt(2 * config.layers) if kind in ("Wo", "Wd") else 1.0
            value = torch.randn(spec.shape, generator=generator) / (width * depth)
        made[name] = value.requires_grad_()
    return made


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """RMS norm of the last axis."""
    return w * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def forward(config: ModelConfig, p: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the next token [B, T, V], and of the one after it from the draft head [B, T - 1, V]."""
    x = p["emb"][tokens]
    for i in range(config.layers):
        x = block(config, p, f"layers.{i}.", x, config.is_attention(i))
    hidden = rms(x, p["on"], config.eps)
    wout = p["emb"] if config.tied else p["Wout"]
    embedded = rms(p["emb"][tokens[:, 1:]], p["mtp.enorm"], config.eps)
    carried = rms(hidden[:, :-1], p["mtp.hnorm"], config.eps)
    entry = torch.cat([embedded, carried], -1) @ p["mtp.ehproj"].T
    drafted = rms(block(config, p, "mtp.", entry, attend=True), p["mtp.shnorm"], config.eps)
    return hidden @ wout.T, drafted @ wout.T


def block(config: ModelConfig, p: Parameters, at: str, x: Tensor, attend: bool) -> Tensor:  # a kind
    """One layer."""
    h = rms(x, p[at + "an"], config.eps)
    x = x + (attention if attend else gdn)(config, p, at, h)
    gate, up = (rms(x, p[at + "fn"], config.eps) @ p[at + "gu"].T).chunk(2, -1)
    return x + (functional.silu(gate) * up) @ p[at + "Wd"].T


def attention(config: ModelConfig, p: Parameters, at: str, h: Tensor) -> Tensor:
    """Gated attention."""
    B, T, D = h.shape[0], h.shape[1], config.head_dim
    q, gate, k, v = (h @ p[at + "qgkv"].T).split([config.q_width] * 2 + [config.kv_width] * 2, -1)
    q = rotate(config, rms(q.view(B, T, -1, D), p[at + "Qn"], config.eps))
    k = rotate(config, rms(k.view(B, T, -1, D), p[at + "Kn"], config.eps))
    group = config.q_heads // config.kv_heads
    k, v = (a.repeat_interleave(group, 2) for a in (k, v.reshape(B, T, -1, D)))
    scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D)
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    out = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).reshape(B, T, -1)
    return (out * gate.sigmoid()) @ p[at + "Wo"].T


def rotate(config: ModelConfig, x: Tensor) -> Tensor:
    """RoPE, half-split, on the first rope_dim dims."""
    half = config.rope_dim // 2
    angle = torch.arange(x.shape[1])[:, None] * config.rope_theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def gdn(config: ModelConfig, p: Parameters, at: str, h: Tensor) -> Tensor:
    """Gated DeltaNet."""
    B, T, D = h.shape[0], h.shape[1], config.gdn_dim
    qkv, z = (h @ p[at + "qkvz"].T).split([config.conv_channels, config.gdn_v], -1)
    padded = functional.pad(qkv, (0, 0, config.conv_taps - 1, 0))
    mixed = functional.silu(sum(p[at + "Wc"][t] * padded[:, t : t + T] for t in range(config.conv_taps)))
    q, k, v = (a.reshape(B, T, -1, D) for a in mixed.split([config.gdn_qk, config.gdn_qk, config.gdn_v], -1))
    q, k = (a * torch.rsqrt(a.square().sum(-1, keepdim=True) + 1e-6) for a in (q, k))
    # tiled order: value head h reads key head h % k_heads
    q, k = (a.repeat(1, 1, config.ratio, 1) for a in (q, k))
    b, a = (h @ p[at + "ba"].T).chunk(2, -1)
    g = p[at + "Al"] * functional.softplus(a + p[at + "Dt"])
    o = delta_rule(q, k, v, g, b.sigmoid()) / math.sqrt(D)
    o = rms(o, p[at + "Gn"], config.eps) * functional.silu(z.view(B, T, -1, D))
    return o.reshape(B, T, -1) @ p[at + "Wo"].T


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The chunked rule over [B, T, H, D]; g is the log decay [B, T, H]. T is a multiple of CHUNK."""
    q, k, v = (a.transpose(1, 2) for a in (q, k, v))
    g, beta = g.transpose(1, 2), beta.transpose(1, 2).unsqueeze(-1)
    state = torch.zeros(*q.shape[:2], v.shape[-1], k.shape[-1])
    eye = torch.eye(CHUNK)
    outputs = []
    for start in range(0, q.shape[2], CHUNK):
        part = slice(start, start + CHUNK)
        Q, K, V, rate = q[:, :, part], k[:, :, part], v[:, :, part], beta[:, :, part]
        G = g[:, :, part].cumsum(-1)
        # differences of cumulative logs, masked before exp: nothing overflows above the diagonal
        decay = (G[..., :, None] - G[..., None, :]).tril().exp().tril()
        system = eye + rate * (decay * (K @ K.transpose(-1, -2))).tril(-1)
        right = rate * (V - G.exp()[..., None] * (K @ state.transpose(-1, -2)))
        C = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        outputs.append(G.exp()[..., None] * (Q @ state.transpose(-1, -2)) + (decay * (Q @ K.transpose(-1, -2))) @ C)
        last = (G[..., -1:] - G).exp()[..., None]
        state = G[..., -1].exp()[..., None, None] * state + C.transpose(-1, -2) @ (last * K)
    return torch.cat(outputs, 2).transpose(1, 2)
