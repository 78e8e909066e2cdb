"""The draft head: its rows, its cache, and drafts of several tokens."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from locks.oracle.exact import rel_l2
from locks.oracle.reference import held
from oracle.blocks import Run
from oracle.errors import LanelockError
from oracle.model import Output, forward
from oracle.model_weights import HeldWeights
from oracle.mtp import draft, mtp_cat, mtp_forward
from oracle.projection import projection
from oracle.rms_norm import rms_norm
from oracle.state import Cache, empty_cache

C = held().config
RUN = Run(held())
TOKENS = np.random.default_rng(71).integers(0, C.vocab, (2, 12))
BOUND = 1e-12


@cache
def main() -> Output:
    """The main model over the prompt."""
    return forward(RUN, TOKENS, rows="all")


@cache
def drafted(last: int = 12):
    """Rows 0 to last - 2 of the draft head."""
    return mtp_forward(RUN, TOKENS[:, 1:last], main().hidden[:, : last - 1], empty_cache(C, 2))


def same(one: Cache, other: Cache) -> bool:
    """Whether two caches agree to rounding."""
    return max(rel_l2(one.k, other.k), rel_l2(one.v, other.v)) < BOUND


class TestCat:
    """The entry's two halves."""

    def test_the_embedding_half_comes_first(self) -> None:
        """Each half has its own norm and its own weights."""
        e, h, we, wh = np.random.default_rng(72).standard_normal((4, 8))
        both = mtp_cat(e[None], h[None], we, wh, 1e-6)[0]

        assert (both[:8] == rms_norm(e, we, 1e-6)).all()
        assert (both[8:] == rms_norm(h, wh, 1e-6)).all()


class TestRows:
    """Row t holds hidden state t and token t + 1."""

    @pytest.mark.parametrize("split", [1, 5, 10])
    def test_any_split_gives_the_same_logits_and_cache(self, split: int) -> None:
        """A chunk's last row may wait for its next token: pieces agree with all rows at once."""
        hidden = main().hidden
        first = mtp_forward(RUN, TOKENS[:, 1 : 1 + split], hidden[:, :split], empty_cache(C, 2))
        second = mtp_forward(RUN, TOKENS[:, 1 + split :], hidden[:, split:-1], first.cache)
        whole = drafted()

        assert rel_l2(np.concatenate([first.logits, second.logits], axis=1), whole.logits) < BOUND
        assert rel_l2(np.concatenate([first.hidden, second.hidden], axis=1), whole.hidden) < BOUND
        assert same(second.cache, whole.cache)

    def test_every_row_has_its_cache_row(self) -> None:
        """Eleven rows leave eleven keys and values: no position is a hole."""
        rows = drafted().cache

        assert rows.k.shape == rows.v.shape == (2, 11, C.kv_heads, C.head_dim)
        assert np.abs(rows.k).min(axis=(-1, -2)).all()

    def test_logits_come_from_the_shared_head(self) -> None:
        """The head's own normed output times the main model's head."""
        out = drafted()

        assert rel_l2(out.logits, projection(out.hidden, held().tensor("Wout"))) < BOUND

    def test_its_buffers_have_names(self) -> None:
        """embed, cat, entry, an attention layer's buffers, final_norm and logits, behind `mtp.`."""
        seen: dict[str, np.ndarray] = {}
        mtp_forward(Run(held(), record=seen.__setitem__), TOKENS[:, 1:], main().hidden[:, :-1], empty_cache(C, 2))
        layer = ["norm1", "qgkv", "k", "q", "K", "V", "attention", "gated", "mixer", "residual1"]
        layer += ["norm2", "gu", "swiglu", "down", "residual"]

        assert set(seen) == {f"mtp.{n}" for n in ["embed", "cat", "entry", *layer, "final_norm", "logits"]}


class TestDrafts:
    """Several guesses ahead."""

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_later_guesses_read_the_heads_own_output(self, count: int) -> None:
        """Guess j + 1 is made from guess j and the head's normed output for it, at the next row."""
        hidden, before = main().hidden[:, -1], drafted().cache
        token = np.argmax(main().logits[:, -1], axis=-1)
        want, row, cache, last = [], hidden[:, None], before, token
        for _ in range(count):
            step = mtp_forward(RUN, last[:, None], row, cache)
            last, row, cache = np.argmax(step.logits[:, 0], axis=-1), step.hidden, step.cache
            want.append(last)

        assert draft(RUN, token, hidden, before, count)[0].tolist() == np.stack(want, axis=1).tolist()

    def test_fewer_guesses_are_a_prefix_of_more(self) -> None:
        """Asking for four changes nothing in the first two."""
        args = (RUN, TOKENS[:, -1], main().hidden[:, -2], drafted(11).cache)

        assert (draft(*args, 4)[0][:, :2] == draft(*args, 2)[0]).all()

    @pytest.mark.parametrize("count", [1, 3])
    def test_only_the_accepted_row_is_kept(self, count: int) -> None:
        """The cache gains the row of the accepted token and no row made of guesses."""
        _, cache = draft(RUN, TOKENS[:, -1], main().hidden[:, -2], drafted(11).cache, count)

        assert same(cache, drafted().cache)

    def test_guesses_do_not_depend_on_the_batch(self) -> None:
        """Each sequence alone gets the guesses it gets beside another."""
        cache = drafted(11).cache
        both, _ = draft(RUN, TOKENS[:, -1], main().hidden[:, -2], cache, 3)
        alone = [draft(RUN, TOKENS[i : i + 1, -1], main().hidden[i : i + 1, -2],
                       Cache(cache.k[i : i + 1], cache.v[i : i + 1]), 3)[0] for i in range(2)]

        assert (np.concatenate(alone) == both).all()


class TestRefusals:
    """What the draft head will not be fed."""

    def test_a_model_without_one_says_so(self) -> None:
        """The model is named."""
        bare = HeldWeights(dataclasses.replace(C, mtp=False, name="bare"), held().tensors)

        with pytest.raises(LanelockError, match="bare has no draft head"):
            mtp_forward(Run(bare), TOKENS, main().hidden, empty_cache(C, 2))

    def test_rows_must_pair(self) -> None:
        """As many tokens as hidden states, and no row past the context, which may be filled."""
        small = HeldWeights(dataclasses.replace(C, context=5), held().tensors)
        with pytest.raises(LanelockError, match="do not fit"):
            mtp_forward(RUN, TOKENS, main().hidden[:, :-1], empty_cache(C, 2))
        with pytest.raises(LanelockError, match="context of 5"):
            mtp_forward(Run(small), TOKENS[:, :6], main().hidden[:, :6], empty_cache(C, 2))

        assert mtp_forward(Run(small), TOKENS[:, :5], main().hidden[:, :5], empty_cache(C, 2)).cache.k.shape[1] == 5
