"""The whole model: any split of a prompt, any batch, every buffer by its name, and clear refusals."""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from locks.oracle.exact import rel_l2
from locks.oracle.reference import held
from oracle import model as model_room
from oracle.add import add
from oracle.attention import attention
from oracle.blocks import Run
from oracle.config import preset
from oracle.conv import conv_silu_l2
from oracle.decode import greedy_stream
from oracle.delta_rule import sequential
from oracle.embedding import dense
from oracle.errors import LanelockError
from oracle.functions import exp
from oracle.gate_mul import gate_mul
from oracle.gated_norm import gated_norm
from oracle.gates import gates
from oracle.model import Output, forward
from oracle.model_weights import HeldWeights, specs, take_rows
from oracle.projection import projection
from oracle.qk_norm_rope import qk_norm_rope
from oracle.rms_norm import rms_norm
from oracle.rope import table
from oracle.state import GdnState, State, empty_state
from oracle.swiglu import swiglu
from oracle.weights import load

C = held().config
TOKENS = np.random.default_rng(61).integers(0, C.vocab, (3, 70))
# two float64 forwards in different orders of addition; the reference's two authors were 1e-14 apart.
BOUND = 1e-12


@cache
def whole() -> Output:
    """The batch's prompt in one piece."""
    return forward(Run(held()), TOKENS, rows="all")


def fed(widths: list[int], tokens: np.ndarray = TOKENS) -> tuple[np.ndarray, State]:
    """Logits of every position and the last state, fed in pieces of these widths."""
    state, rows, at = None, [], 0
    for width in widths:
        output = forward(Run(held()), tokens[:, at : at + width], state, rows="all")
        state, at = output.state, at + width
        rows.append(output.logits)
    assert state is not None
    assert at == tokens.shape[1]
    return np.concatenate(rows, axis=1), state


def arrays(state: State) -> list[np.ndarray]:
    """Every array of a state."""
    return [x for layer in state.layers
            for x in ((layer.s, layer.ring) if isinstance(layer, GdnState) else (layer.k, layer.v))]


def furthest(state: State, other: State) -> float:
    """Largest relative difference of two states, which must stand at one position."""
    assert state.position == other.position
    return max(rel_l2(a, b) for a, b in zip(arrays(state), arrays(other), strict=True))


class TestSplits:
    """A prompt at once, in chunks, or token by token."""

    @pytest.mark.parametrize("widths", [[1] * 70, [64, 6], [1, 69], [69, 1], [40, 30], [3, 64, 3], [7] * 10])
    def test_any_split_gives_the_same_logits_and_state(self, widths: list[int], share) -> None:
        """Logits of all positions, recurrent states, rings and caches agree to rounding (handed cases 05 and 06)."""
        logits, state = fed(widths)

        assert share("logits", rel_l2(logits, whole().logits), BOUND) <= 1
        assert share("state", furthest(state, whole().state), BOUND) <= 1

    def test_the_rows_asked_for_are_the_last_all_or_none(self) -> None:
        """`last` is the last of `all`, and `none` has no rows but the same hidden states."""
        last, none = forward(Run(held()), TOKENS), forward(Run(held()), TOKENS, rows="none")

        assert last.logits.shape == (3, 1, C.vocab)
        assert rel_l2(last.logits, whole().logits[:, -1:]) < BOUND
        assert none.logits.shape == (3, 0, C.vocab)
        assert (none.hidden == whole().hidden).all()

    def test_the_state_given_is_left_alone(self) -> None:
        """A forward changes neither its state nor the state it started from."""
        state = whole().state
        before = [x.copy() for x in arrays(state)]
        forward(Run(held()), TOKENS[:, :3], state)

        assert all((x == y).all() for x, y in zip(arrays(state), before, strict=True))


class TestBatches:
    """Sequences side by side."""

    @pytest.mark.parametrize("row", range(3))
    def test_a_sequence_alone_gives_what_it_gives_in_the_batch(self, row: int) -> None:
        """Neighbours change nothing but rounding."""
        alone = forward(Run(held()), TOKENS[row : row + 1], rows="all")

        assert rel_l2(alone.logits, whole().logits[row : row + 1]) < BOUND

    def test_later_tokens_change_nothing_before_them(self) -> None:
        """Padding behind a prompt leaves every logit of the prompt alone."""
        padded = np.concatenate([TOKENS[:, :50], np.full((3, 20), 7)], axis=1)
        logits = forward(Run(held()), padded, rows="all").logits[:, :50]

        assert rel_l2(logits, whole().logits[:, :50]) < BOUND


class Watched:
    """Weights that count what they are asked for."""

    def __init__(self) -> None:
        self.config, self.asked, self.most = C, Counter(), 0

    def tensor(self, name: str):
        """A tensor, counted."""
        self.asked[name] += 1
        return held().tensor(name)

    def rows(self, name: str, index: np.ndarray):
        """Rows, counted; how many are asked for at most is kept."""
        self.asked[name] += 1
        self.most = max(self.most, len(index))
        return take_rows(held().tensor(name), index)


class TestStreaming:
    """Weights that are read one tensor at a time."""

    def test_a_forward_asks_for_every_tensor_once(self) -> None:
        """However long the prompt, each tensor is read once, the embedding by rows, and the draft head's not at all."""
        weights = Watched()
        forward(Run(weights), TOKENS)

        assert weights.asked == {name: 1 for name in specs(C) if not name.startswith("mtp.")}
        assert weights.most == TOKENS.size

    def test_threads_do_not_matter(self, tmp_path: Path) -> None:
        """Logits with one BLAS thread and with two agree to 1e-13."""
        script = (
            "import sys, numpy as np; from oracle.weights import load; from oracle.config import preset;"
            "from oracle.blocks import Run; from oracle.model import forward;"
            "w = load('synthetic:1', preset('mini'));"
            "np.save(sys.argv[1], forward(Run(w), np.arange(40)[None], rows='all').logits)"
        )
        for threads in ("1", "2"):
            env = os.environ | {f"{name}_NUM_THREADS": threads for name in ("OPENBLAS", "OMP", "MKL", "VECLIB")}
            command = [sys.executable, "-c", script, str(tmp_path / threads)]
            subprocess.run(command, env=env, check=True, cwd=Path(__file__).parents[2])

        assert rel_l2(np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy")) < 1e-13


@cache
def recorded() -> dict[str, np.ndarray]:
    """Every buffer of a chunk of 6 tokens after 4, of two sequences."""
    buffers: dict[str, np.ndarray] = {}
    start = forward(Run(held()), TOKENS[:2, :4]).state
    forward(Run(held(), record=buffers.__setitem__), TOKENS[:2, 4:10], start, rows="all")
    return buffers


class TestBuffers:
    """Every intermediate value by the name that plans use."""

    def test_the_table_names_every_buffer_and_no_other(self) -> None:
        """What a recorder is told of is what the module's table lists, for a GDN and an attention layer."""
        listed = set(re.findall(r"`([a-zA-Z_]+(?:I\.\w+)?)`(?=[,\s\[])", model_room.__doc__.split("| name")[1]))
        seen = {re.sub(r"layer\d+", "layerI", name) for name in recorded()}

        assert seen == listed

    def test_each_step_makes_its_buffer_from_those_before(self) -> None:
        """Recomputed by the rooms from recorded inputs, every buffer of a GDN layer is met to rounding."""
        b, w = recorded(), held().tensor
        before = forward(Run(held()), TOKENS[:2, :4]).state.layers[1]
        assert isinstance(before, GdnState)
        heads = (2, 6, C.v_heads, C.gdn_dim)
        q, k = (np.tile(b["layer1.conv"][..., i * C.gdn_qk : (i + 1) * C.gdn_qk].reshape(2, 6, C.k_heads, -1),
                        (1, 1, C.ratio, 1)) for i in range(2))
        v = b["layer1.conv"][..., 2 * C.gdn_qk :].reshape(heads)
        beta, g = gates(b["layer1.ba"], w("layers.1.Al"), w("layers.1.Dt"))
        o, s = sequential(q, k, v, g, beta, before.s)
        conv, ring = conv_silu_l2(b["layer1.qkvz"][..., : C.conv_channels], before.ring, w("layers.1.Wc"), C.k_heads,
                                  C.gdn_dim)
        z = b["layer1.qkvz"][..., C.conv_channels :].reshape(heads)
        want = {
            "norm1": rms_norm(b["layer0.residual"], w("layers.1.an"), C.eps),
            "qkvz": projection(b["layer1.norm1"], w("layers.1.qkvz")), "beta": beta, "g": g, "alpha": exp(g),
            "ba": projection(b["layer1.norm1"], w("layers.1.ba")), "conv": conv, "ring": ring, "scan": o, "S": s,
            "gated": gated_norm(b["layer1.scan"].reshape(heads), z, w("layers.1.Gn"), C.eps),
            "mixer": projection(b["layer1.gated"], w("layers.1.Wo")),
            "residual1": add(b["layer0.residual"], b["layer1.mixer"]),
            "norm2": rms_norm(b["layer1.residual1"], w("layers.1.fn"), C.eps),
            "gu": projection(b["layer1.norm2"], w("layers.1.gu")), "swiglu": swiglu(b["layer1.gu"]),
            "down": projection(b["layer1.swiglu"], w("layers.1.Wd")),
            "residual": add(b["layer1.residual1"], b["layer1.down"]),
        }

        assert want.keys() == {n.removeprefix("layer1.") for n in b if n.startswith("layer1.")}
        for name, value in want.items():
            assert rel_l2(b[f"layer1.{name}"], value.reshape(b[f"layer1.{name}"].shape)) < BOUND, name

    def test_an_attention_layers_buffers_are_those_of_its_steps(self) -> None:
        """Rotation at positions 4 to 9, cache of ten rows, attention and gate, recomputed by the rooms."""
        b, w = recorded(), held().tensor
        q, gate, k, v = np.split(b["layer3.qgkv"], np.cumsum([C.q_width, C.q_width, C.kv_width]), axis=-1)
        cos, sin = table(np.arange(4, 10), C.rope_dim, C.rope_theta)
        q, k = (qk_norm_rope(x.reshape(2, 6, -1, C.head_dim), w(f"layers.3.{n}"), cos, sin, C.eps)
                for x, n in ((q, "Qn"), (k, "Kn")))
        keys, values = b["layer3.K"], b["layer3.V"]
        o = attention(q, keys, values, 4).reshape(2, 6, -1)

        assert keys.shape == values.shape == (2, 10, C.kv_heads, C.head_dim)
        assert rel_l2(keys[:, 4:], k) < BOUND
        assert rel_l2(b["layer3.k"], k.reshape(2, 6, -1)) < BOUND
        assert (values[:, 4:].reshape(v.shape) == v).all()
        assert rel_l2(b["layer3.q"], q.reshape(2, 6, -1)) < BOUND
        assert rel_l2(b["layer3.attention"], o) < BOUND
        assert rel_l2(b["layer3.gated"], gate_mul(o, gate)) < BOUND

    def test_the_ends_of_the_model(self) -> None:
        """Embedding rows, final norm and logits."""
        b, w = recorded(), held().tensor

        assert (b["embed"] == dense(w("emb"))[TOKENS[:2, 4:10]]).all()
        assert rel_l2(b["final_norm"], rms_norm(b[f"layer{C.layers - 1}.residual"], w("on"), C.eps)) < BOUND
        assert rel_l2(b["logits"], projection(b["final_norm"], w("Wout"))) < BOUND


class TestTied:
    """A model whose head is its embedding."""

    def test_the_head_is_the_embedding(self) -> None:
        """Tied, the logits are those of an untied model whose head equals its embedding."""
        tensors = dict(held().tensors)
        tied = HeldWeights(preset("tiny").from_dict(C.to_dict() | {"tied": True}),
                           {k: v for k, v in tensors.items() if k != "Wout"})
        untied = HeldWeights(C, tensors | {"Wout": tensors["emb"]})

        assert (forward(Run(tied), TOKENS).logits == forward(Run(untied), TOKENS).logits).all()


class TestState:
    """State before the first token."""

    def test_it_is_zero_and_of_the_models_shapes(self) -> None:
        """Zero states [B, HV, V, K], rings of three inputs, caches of no rows, position 0."""
        state = empty_state(preset("qwen3.5-0.8b"), 2)
        gdn, cache = state.layers[0], state.layers[3]

        assert [x.shape for x in (*arrays(State(0, (gdn,))), *arrays(State(0, (cache,))))] == [
            (2, 16, 128, 128), (2, 3, 6144), (2, 0, 2, 256), (2, 0, 2, 256)]
        assert not any(x.any() for x in arrays(state))
        assert (state.position, len(state.layers)) == (0, 24)


class TestRefusals:
    """What the model will not be fed."""

    @pytest.mark.parametrize("token", [-1, C.vocab])
    def test_a_token_outside_the_vocabulary_is_named(self, token: int) -> None:
        """The sequence, the place and the vocabulary are named."""
        with pytest.raises(LanelockError, match=f"sequence 1, token 2 is {token}, outside the vocabulary of 256"):
            forward(Run(held()), np.array([[0, 1, 2], [0, 1, token]]))

    @pytest.mark.parametrize("tokens", [np.zeros((1, 0), int), np.zeros(3, int)])
    def test_no_token_is_refused(self, tokens: np.ndarray) -> None:
        """A chunk has at least one token of every sequence."""
        with pytest.raises(LanelockError, match="at least one token"):
            forward(Run(held()), tokens)

    def test_the_context_may_be_filled_and_not_overrun(self) -> None:
        """Six tokens fit a context of six; the seventh is refused with its position."""
        small = HeldWeights(C.from_dict(C.to_dict() | {"context": 6}), held().tensors)
        state = forward(Run(small), TOKENS[:, :6]).state

        with pytest.raises(LanelockError, match="1 tokens from position 6 overrun the context of 6"):
            forward(Run(small), TOKENS[:, 6:7], state)

    def test_a_decode_that_meets_nan_names_sequence_and_step(self) -> None:
        """A NaN in the head ends the decode at its first step with a sentence, not a token."""
        broken = np.array(held().tensor("Wout"))
        broken[5] = np.nan
        run = Run(HeldWeights(C, {**held().tensors, "Wout": broken}))

        with pytest.raises(LanelockError, match="sequence 0, step 0"):
            next(greedy_stream(run, TOKENS, 1))


class TestFaults:
    """What is not finite is found in the logits."""

    @pytest.mark.parametrize("name", ["layers.0.qkvz", "layers.3.qgkv", "layers.2.Wd", "on"])
    def test_an_infinite_weight_reaches_the_logits(self, name: str) -> None:
        """No step but a gate, which saturates, hides an infinity: it reaches the logits, and no warning is raised."""
        broken = np.array(held().tensor(name))
        broken.flat[3] = np.inf
        logits = forward(Run(HeldWeights(C, {**held().tensors, name: broken})), TOKENS[:, :9]).logits

        assert not np.isfinite(logits).all()

    def test_a_token_that_is_not_finite_leaves_those_before_it(self) -> None:
        """An embedding row of NaN at position 5 changes no logit before it and every one from it on."""
        broken = np.array(held().tensor("emb"))
        broken[TOKENS[0, 5]] = np.nan
        first = int(np.flatnonzero(TOKENS[0] == TOKENS[0, 5])[0])
        logits = forward(Run(HeldWeights(C, {**held().tensors, "emb": broken})), TOKENS[:1], rows="all").logits

        assert rel_l2(logits[:, :first], whole().logits[:1, :first]) < BOUND
        assert np.isnan(logits[0, first:]).all()


def test_synthetic_models_run() -> None:
    """The small presets run from synthetic weights to finite logits."""
    for name in ("tiny", "mini"):
        config = preset(name)
        logits = forward(Run(load("synthetic:1", config)), np.array([[1, 2, 3]])).logits

        assert logits.shape == (1, 1, config.vocab)
        assert np.isfinite(logits).all()
