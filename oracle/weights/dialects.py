"""The names and conventions of the files we read: Hugging Face, GGUF qwen35, GGUF qwen3next."""

from oracle.weights.recipe import Dialect, Fold

HUGGING_FACE = Dialect(
    names={
        "emb": "embed_tokens.weight", "on": "norm.weight", "Wout": "lm_head.weight",
        "an": "input_layernorm.weight", "fn": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
        "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
        "o": "self_attn.o_proj.weight", "Qn": "self_attn.q_norm.weight", "Kn": "self_attn.k_norm.weight",
        "qkv": "linear_attn.in_proj_qkv.weight", "z": "linear_attn.in_proj_z.weight",
        "b": "linear_attn.in_proj_b.weight", "a": "linear_attn.in_proj_a.weight",
        "conv": "linear_attn.conv1d.weight", "A": "linear_attn.A_log", "dt": "linear_attn.dt_bias",
        "Gn": "linear_attn.norm.weight", "out": "linear_attn.out_proj.weight",
        "ehproj": "mtp.fc.weight", "enorm": "mtp.pre_fc_norm_embedding.weight",
        "hnorm": "mtp.pre_fc_norm_hidden.weight", "shnorm": "mtp.norm.weight"},
    block="layers.{layer}.", draft="mtp.layers.0.",
    grouped=True, norm=Fold.PLUS_ONE, decay=Fold.NEGATIVE_EXP, conv_inner=(1,))

_GGUF_NAMES = {
    "emb": "token_embd.weight", "on": "output_norm.weight", "Wout": "output.weight",
    "an": "attn_norm.weight", "fn": "post_attention_norm.weight",
    "gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight",
    "q": "attn_q.weight", "k": "attn_k.weight", "v": "attn_v.weight", "o": "attn_output.weight",
    "Qn": "attn_q_norm.weight", "Kn": "attn_k_norm.weight",
    "qkv": "attn_qkv.weight", "z": "attn_gate.weight", "b": "ssm_beta.weight", "a": "ssm_alpha.weight",
    "ba": "ssm_ba.weight", "conv": "ssm_conv1d.weight", "A": "ssm_a", "dt": "ssm_dt.bias",
    "Gn": "ssm_norm.weight", "out": "ssm_out.weight",
    "ehproj": "blk.{layer}.nextn.eh_proj.weight", "enorm": "blk.{layer}.nextn.enorm.weight",
    "hnorm": "blk.{layer}.nextn.hnorm.weight", "shnorm": "blk.{layer}.nextn.shared_head_norm.weight"}

# the converter has permuted the heads, added 1 to the norms and taken -exp: none of it is done again.
QWEN35 = Dialect(_GGUF_NAMES, block="blk.{layer}.", draft="blk.{layer}.", grouped=False, norm=Fold.AS_IS,
                 decay=Fold.AS_IS, conv_inner=())

# the older converter leaves value heads grouped, and b and a fused.
QWEN3NEXT = Dialect(_GGUF_NAMES, block="blk.{layer}.", draft="blk.{layer}.", grouped=True, norm=Fold.AS_IS,
                    decay=Fold.AS_IS, conv_inner=(), fused_ba=True)
