"""Every single mistake of mapping or formula is seen by the independent reference.

Each case makes one mistake and asserts that the logits then miss the reference by far more than the bound that the
right model keeps. A case that stopped being red would mean that the reference no longer guards that line.
"""

from collections.abc import Callable

import numpy as np
import pytest

from locks.oracle.exact import rel_l2
from locks.oracle.reference import BOUND, draft_logits, held, prompt_logits, recorded, variant
from oracle import attention as attention_room
from oracle import blocks, conv, delta_rule, mtp, qk_norm_rope, rope, roundings
from oracle.functions import sigmoid, silu
from oracle.model_weights import HeldWeights
from oracle.rms_norm import rms_norm

C = held().config
GDN = [i for i in range(C.layers) if not C.is_attention(i)]
ATTENTION = [i for i in range(C.layers) if C.is_attention(i)]
# from our tiled order back to the grouped order of the checkpoint: head HF at place HF.
BACK = np.argsort([C.ratio * (h % C.k_heads) + h // C.k_heads for h in range(C.v_heads)])
BACK_ROWS = (BACK[:, None] * C.gdn_dim + np.arange(C.gdn_dim)).ravel()
QK2, Z0 = 2 * C.gdn_qk, C.conv_channels


def changed(layers: list[int], name: str, change: Callable[[np.ndarray], np.ndarray]) -> HeldWeights:
    """The reference with that tensor changed in those layers."""
    names = [f"layers.{i}.{name}" for i in layers]
    return variant({n: change(np.array(held().tensor(n))) for n in names})


def top(name: str, change: Callable[[np.ndarray], np.ndarray]) -> HeldWeights:
    """The reference with one tensor changed."""
    return variant({name: change(np.array(held().tensor(name)))})


def rows(start: int, order: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Put the rows from `start` on in another order."""
    return lambda x: np.concatenate([x[:start], x[start : start + len(order)][order], x[start + len(order) :]])


def interleaved(x: np.ndarray) -> np.ndarray:
    """Q and gate left interleaved a head, as q_proj has them."""
    q, gate = x[: C.q_width], x[C.q_width : 2 * C.q_width]
    pairs = np.stack([y.reshape(C.q_heads, C.head_dim, -1) for y in (q, gate)], axis=1)
    return np.concatenate([pairs.reshape(2 * C.q_width, -1), x[2 * C.q_width :]])


def halves(x: np.ndarray, start: int, width: int) -> np.ndarray:
    """Swap two neighbouring parts of the rows."""
    parts = [x[:start], x[start + width : start + 2 * width], x[start : start + width], x[start + 2 * width :]]
    return np.concatenate(parts)


WRONG_TENSORS = {
    "V rows in grouped order": lambda: changed(GDN, "qkvz", rows(QK2, BACK_ROWS)),
    "Z rows in grouped order": lambda: changed(GDN, "qkvz", rows(Z0, BACK_ROWS)),
    "b rows in grouped order": lambda: changed(GDN, "ba", rows(0, BACK)),
    "a rows in grouped order": lambda: changed(GDN, "ba", rows(C.v_heads, BACK)),
    "b and a swapped": lambda: changed(GDN, "ba", lambda x: halves(x, 0, C.v_heads)),
    "A in grouped order": lambda: changed(GDN, "Al", rows(0, BACK)),
    "dt in grouped order": lambda: changed(GDN, "Dt", rows(0, BACK)),
    "conv V channels in grouped order": lambda: changed(GDN, "Wc", lambda x: rows(QK2, BACK_ROWS)(x.T).T),
    "out_proj columns in grouped order": lambda: changed(GDN, "Wo", lambda x: x[:, BACK_ROWS]),
    "key heads swapped": lambda: changed(GDN, "qkvz", lambda x: halves(x, C.gdn_qk, C.gdn_dim)),
    "query heads swapped": lambda: changed(GDN, "qkvz", lambda x: halves(x, 0, C.gdn_dim)),
    "Q and K swapped": lambda: changed(GDN, "qkvz", lambda x: halves(x, 0, C.gdn_qk)),
    "V and Z swapped": lambda: changed(GDN, "qkvz", lambda x: halves(x, QK2, C.gdn_v)),
    "conv taps reversed": lambda: changed(GDN, "Wc", lambda x: x[::-1]),
    "conv not transposed": lambda: changed(GDN, "Wc", lambda x: x.T.reshape(x.shape)),
    "A = A_log": lambda: changed(GDN, "Al", lambda x: np.log(-x)),
    "A = -exp(A)": lambda: changed(GDN, "Al", lambda x: -np.exp(x)),
    "GDN norm + 1": lambda: changed(GDN, "Gn", lambda x: x + 1),
    "input norm without + 1": lambda: changed(list(range(C.layers)), "an", lambda x: x - 1),
    "FFN norm without + 1": lambda: changed(list(range(C.layers)), "fn", lambda x: x - 1),
    "norms swapped": lambda: variant({
        "layers.0.an": held().tensor("layers.0.fn"), "layers.0.fn": held().tensor("layers.0.an")}),
    "q norm without + 1": lambda: changed(ATTENTION, "Qn", lambda x: x - 1),
    "k norm without + 1": lambda: changed(ATTENTION, "Kn", lambda x: x - 1),
    "final norm without + 1": lambda: top("on", lambda x: x - 1),
    "q and gate interleaved": lambda: changed(ATTENTION, "qgkv", interleaved),
    "q and gate swapped": lambda: changed(ATTENTION, "qgkv", lambda x: halves(x, 0, C.q_width)),
    "k and v swapped": lambda: changed(ATTENTION, "qgkv", lambda x: halves(x, 2 * C.q_width, C.kv_width)),
    "gate and up swapped": lambda: changed([0], "gu", lambda x: halves(x, 0, C.ffn)),
    "head tied to the embedding": lambda: top("Wout", lambda _: np.array(held().tensor("emb"))),
    "theta 1e6": lambda: variant({}, rope_theta=1e6),
    "twice the rotated dims": lambda: variant({}, rope_dim=16),
    "half the rotated dims": lambda: variant({}, rope_dim=4),
    "epsilon 1e-5": lambda: variant({}, eps=1e-5),
    "epsilon of float32": lambda: variant({}, eps=9.999999974752427e-07),
}

WRONG_DRAFTS = {
    "hidden half first": lambda: top("mtp.ehproj", lambda x: np.roll(x, C.d, axis=1)),
    "entry norms swapped": lambda: variant({
        "mtp.enorm": held().tensor("mtp.hnorm"), "mtp.hnorm": held().tensor("mtp.enorm")}),
    "embedding norm without + 1": lambda: top("mtp.enorm", lambda x: x - 1),
    "hidden norm without + 1": lambda: top("mtp.hnorm", lambda x: x - 1),
    "own final norm without + 1": lambda: top("mtp.shnorm", lambda x: x - 1),
    "the main model's final norm": lambda: variant({"mtp.shnorm": held().tensor("on")}),
    "q and gate interleaved": lambda: top("mtp.qgkv", interleaved),
}


def by_grouped_heads(config, qkv):
    """Value head h reads key head h // ratio: right for a checkpoint's order, wrong for ours."""
    lead, qk, dim = qkv.shape[:2], config.gdn_qk, config.gdn_dim
    q, k = (np.repeat(x.reshape(*lead, -1, dim), config.ratio, axis=2) for x in (qkv[..., :qk], qkv[..., qk : 2 * qk]))
    return q, k, qkv[..., 2 * qk :].reshape(*lead, -1, dim)


def strided_groups(q, k, v, start):
    """Query head h reads kv head h % HK."""
    order = np.argsort(np.arange(q.shape[2]) % k.shape[2], kind="stable")
    return attention_room.attention(q[:, :, order], k, v, start)[:, :, np.argsort(order)]


def error_before_decay(q, k, v, g, beta, s):
    """The prediction error is taken from the state before it decays."""
    error = beta[..., None] * (v - np.einsum("bhvk,bhk->bhv", s, k))
    s = np.exp(g)[..., None, None] * s + error[..., :, None] * k[..., None, :]
    return np.einsum("bhvk,bhk->bhv", s, q) / np.sqrt(q.shape[-1]), s


def decay_after_update(q, k, v, g, beta, s):
    """The state decays after the write."""
    error = beta[..., None] * (v - np.einsum("bhvk,bhk->bhv", s, k))
    s = np.exp(g)[..., None, None] * (s + error[..., :, None] * k[..., None, :])
    return np.einsum("bhvk,bhk->bhv", s, q) / np.sqrt(q.shape[-1]), s


def output_of_the_old_state(q, k, v, g, beta, s):
    """The output is read before the write."""
    o = np.einsum("bhvk,bhk->bhv", np.exp(g)[..., None, None] * s, q) / np.sqrt(q.shape[-1])
    return o, RIGHT_STEP(q, k, v, g, beta, s)[1]


RIGHT_STEP, RIGHT_RULE, RIGHT_ROPE, RIGHT_GATES = delta_rule.step, delta_rule.sequential, rope.rope, blocks.gates
RIGHT_TABLE = rope.table


def scan_with(step: Callable[..., object]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run the GDN layers token by token with another step."""

    def patch(m: pytest.MonkeyPatch) -> None:
        m.setattr(delta_rule, "step", step)
        m.setattr(roundings, "chunked", RIGHT_RULE)

    return patch


def replaced(module: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    """Put another function in the place of one."""
    return lambda m: m.setattr(module, name, value)


def adjacent_pairs(x, cos, sin):
    """Rotate pairs (2j, 2j + 1)."""
    half = cos.shape[-1]
    order = np.concatenate([np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2), np.arange(2 * half, x.shape[-1])])
    return RIGHT_ROPE(x[..., order], cos, sin)[..., np.argsort(order)]


def far_partner(x, cos, sin):
    """Rotate pairs (j, j + D/2)."""
    half, d = cos.shape[-1], x.shape[-1]
    near = np.arange(half)
    order = np.concatenate([near, near + d // 2, np.setdiff1d(np.arange(d), [*near, *(near + d // 2)])])
    return RIGHT_ROPE(x[..., order], cos, sin)[..., np.argsort(order)]


def unscaled_value(x, ring, w, k_heads, dim):
    """Values are scaled to unit length as well."""
    y, ring = conv.conv_silu_l2(x, ring, w, k_heads, dim)
    v = y[..., 2 * k_heads * dim :]
    normed = conv.l2_norm(v.reshape(*v.shape[:-1], -1, dim)).reshape(v.shape)
    return np.concatenate([y[..., : 2 * k_heads * dim], normed], axis=-1), ring


WRONG_FORMULAS = {
    "value head h reads key head h // ratio": replaced(blocks, "_split_heads", by_grouped_heads),
    "query head h reads kv head h % HK": replaced(blocks, "attention", strided_groups),
    "error before decay": scan_with(error_before_decay),
    "decay after update": scan_with(decay_after_update),
    "output of the old state": scan_with(output_of_the_old_state),
    "output not scaled": scan_with(lambda *a: (RIGHT_STEP(*a)[0] * np.sqrt(C.gdn_dim), RIGHT_STEP(*a)[1])),
    "decay of 1": replaced(blocks, "gates", lambda *a: (RIGHT_GATES(*a)[0], 0 * RIGHT_GATES(*a)[1])),
    "beta of 1": replaced(blocks, "gates", lambda *a: (0 * RIGHT_GATES(*a)[0] + 1, RIGHT_GATES(*a)[1])),
    "no convolution activation": replaced(conv, "silu", lambda x: x),
    "no unit norm": replaced(conv, "l2_norm", lambda x: x),
    "unit norm without epsilon": replaced(conv, "L2_EPS", 0.0),
    "unit norm of the mean": replaced(conv, "L2_EPS", 1e-6 * C.gdn_dim),
    "values normed": replaced(blocks, "conv_silu_l2", unscaled_value),
    "gate before norm": replaced(blocks, "gated_norm", lambda o, z, w, eps: rms_norm(o * silu(z), w, eps)),
    "GDN gate a sigmoid": replaced(blocks, "gated_norm", lambda o, z, w, eps: rms_norm(o, w, eps) * sigmoid(z)),
    "attention gate a silu": replaced(blocks, "gate_mul", lambda x, gate: x * silu(gate)),
    "no attention gate": replaced(blocks, "gate_mul", lambda x, _: x),
    "pairs side by side": replaced(qk_norm_rope, "rope", adjacent_pairs),
    "partner half a head away": replaced(qk_norm_rope, "rope", far_partner),
    "angles turned back": replaced(qk_norm_rope, "rope", lambda x, c, s: RIGHT_ROPE(x, c, -s)),
    "exponent over the head": replaced(blocks, "table", lambda p, dim, t: tuple(
        x[..., : dim // 2] for x in RIGHT_TABLE(p, C.head_dim, t))),
    "up through silu": replaced(blocks, "swiglu", lambda gu: gu[..., : C.ffn] * silu(gu[..., C.ffn :])),
}


# a float32 epsilon moves logits by 1e-9 or so and no other mistake by less: a thousand times the bound is red.
RED = 1000 * BOUND


class TestTensors:
    """Tensors as a wrong import would leave them."""

    @pytest.mark.parametrize("name", WRONG_TENSORS)
    def test_a_wrong_tensor_is_red(self, name: str) -> None:
        """The logits miss the reference."""
        with np.errstate(all="ignore"):
            assert rel_l2(prompt_logits(WRONG_TENSORS[name]()), recorded()["logits"]) > RED

    @pytest.mark.parametrize("name", WRONG_DRAFTS)
    def test_a_wrong_draft_tensor_is_red(self, name: str) -> None:
        """The draft logits miss the reference."""
        assert rel_l2(draft_logits(WRONG_DRAFTS[name]()), recorded()["mtp_logits"]) > RED


class TestFormulas:
    """Formulas as a wrong reading would have them."""

    @pytest.mark.parametrize("name", WRONG_FORMULAS)
    def test_a_wrong_formula_is_red(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The logits miss the reference."""
        WRONG_FORMULAS[name](monkeypatch)

        assert rel_l2(prompt_logits(held()), recorded()["logits"]) > RED

    def test_a_rotation_that_is_off_by_one_is_not_seen_and_need_not_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Turning queries and keys by the same extra angle changes nothing: attention sees distances alone."""
        monkeypatch.setattr(blocks, "table", lambda p, dim, t: RIGHT_TABLE(p + 1, dim, t))

        assert rel_l2(prompt_logits(held()), recorded()["logits"]) < BOUND

    def test_a_query_rotated_at_position_zero_is_red(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Queries keep their own angle: rotating keys alone misses the reference."""
        right, calls = blocks.qk_norm_rope, []

        def keys_only(x, w, cos, sin, eps):
            calls.append(x.shape)
            still = x.shape[2] == C.q_heads
            return right(x, w, np.ones_like(cos) if still else cos, np.zeros_like(sin) if still else sin, eps)

        monkeypatch.setattr(blocks, "qk_norm_rope", keys_only)

        assert rel_l2(prompt_logits(held()), recorded()["logits"]) > RED
        assert calls

    def test_a_hidden_state_from_before_the_final_norm_is_red(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The draft head reads the hidden state after the final norm: leaving out its weights is seen."""
        weight = np.array(held().tensor("on"))
        right = mtp.mtp_cat
        monkeypatch.setattr(mtp, "mtp_cat", lambda e, h, a, b, eps: right(e, h / weight, a, b, eps))

        assert rel_l2(draft_logits(held()), recorded()["mtp_logits"]) > RED
