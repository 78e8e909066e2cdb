"""The whole model against an independent implementation run in float64."""

import numpy as np
import pytest

from locks.oracle.exact import rel_l2
from locks.oracle.reference import BOUND, GGUF, SAFETENSORS, draft_logits, held, prompt_logits, recorded
from oracle.blocks import Run
from oracle.decode import greedy_stream
from oracle.model import forward
from oracle.weights import load


class TestFromSafetensors:
    """The model in its published values."""

    def test_prompt_logits_are_met(self, share) -> None:
        """Logits of all 24 prompt positions agree to rel_L2 1e-12."""
        assert share("logits", rel_l2(prompt_logits(held()), recorded()["logits"]), BOUND) <= 1

    def test_they_are_met_one_token_at_a_time(self, share) -> None:
        """The same logits come from 24 steps of one token."""
        run, state, rows = Run(held()), None, []
        for token in recorded()["prompt"]:
            output = forward(run, np.array([[token]]), state)
            state = output.state
            rows.append(output.logits[0, 0])

        assert share("token by token", rel_l2(np.array(rows), recorded()["logits"]), BOUND) <= 1

    def test_the_greedy_stream_is_met(self, share) -> None:
        """The 32 tokens that follow are equal, and so are the logits after each of the first 31, to 1e-12."""
        stream = list(greedy_stream(Run(held()), recorded()["prompt"][None], 32))
        logits = np.array([row[0] for _, row in stream])[1:]

        assert [int(token[0]) for token, _ in stream] == recorded()["greedy"].tolist()
        assert share("greedy", rel_l2(logits, recorded()["greedy_logits"]), BOUND) <= 1

    def test_draft_logits_are_met(self, share) -> None:
        """Logits of the draft head for all 11 rows agree to rel_L2 1e-12."""
        assert share("mtp", rel_l2(draft_logits(held()), recorded()["mtp_logits"]), BOUND) <= 1


class TestFromGguf:
    """The model as another engine's converter quantised it."""

    def test_prompt_logits_are_met(self, share) -> None:
        """Logits on the dequantised values of the GGUF agree to rel_L2 1e-12."""
        run = Run(load(GGUF))
        logits = forward(run, recorded()["prompt"][None], rows="all").logits[0]

        assert share("Q8_0 logits", rel_l2(logits, recorded()["logits_q8_0"]), BOUND) <= 1

    def test_its_quantisation_is_seen(self) -> None:
        """The two imports differ by the quantisation, so neither stands in for the other."""
        assert rel_l2(recorded()["logits_q8_0"], recorded()["logits"]) > 1e-2


@pytest.mark.parametrize("path", [SAFETENSORS, GGUF])
def test_the_config_is_read_from_the_file(path) -> None:
    """Sizes, epsilon, theta and rotated width come from either file."""
    c = load(path).config

    assert (c.layers, c.d, c.ffn, c.vocab, c.q_heads, c.kv_heads, c.head_dim, c.rope_dim, c.rope_theta) == (
        8, 96, 160, 256, 6, 2, 32, 8, 1e7)
    assert (c.k_heads, c.v_heads, c.gdn_dim, c.eps, c.context, c.tied, c.mtp) == (2, 6, 32, 1e-6, 262144, False, True)
