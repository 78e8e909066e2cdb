"""Sizes of the small checkpoint."""

from oracle.config import ModelConfig

#: Ratio 3, two attention layers of eight, 32-wide heads, a draft head: 1.1 M weights.
CONFIG = ModelConfig(
    name="kjv-1m",
    layers=8,
    d=96,
    ffn=192,
    vocab=256,
    q_heads=4,
    kv_heads=2,
    head_dim=32,
    rope_dim=16,
    rope_theta=10000.0,
    k_heads=2,
    v_heads=6,
    gdn_dim=32,
    context=4096,
)
