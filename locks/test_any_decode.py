"""Any decode: whatever is chosen, each request gives the stream that it gives alone."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from golden.sources import LANES
from harness.device import Device
from harness.engine import Choice, Request
from kernels.tuning import Tuning
from locks.models import CONFIG, POISONED, engine, poisoned, prompt, weights, with_logits
from locks.support import assert_same_bits

#: Draws of a lock: few by day, many by night.
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 64))]


@dataclass(frozen=True, slots=True)
class Draw:
    """What a decode is made of. every: each so many-th step is plain beside drafts (0: none); sms: plan for so many."""

    choice: Choice
    requests: tuple[Request, ...]
    poisoned: bool
    every: int
    sms: int


def any_request(g: np.random.Generator, nan: bool) -> Request:
    """1 to 29 tokens and as many more, with up to three stop tokens; with `nan` one in three reads a NaN."""
    tokens = list(prompt(int(g.integers(1, 30)), int(g.integers(1, 50))))
    if nan and g.random() < 1 / 3:
        tokens[int(g.integers(len(tokens)))] = POISONED
    stops = g.integers(0, CONFIG.vocab, int(g.integers(0, 4)))
    return Request(tuple(tokens), int(g.integers(1, 30)), frozenset(int(t) for t in stops))


def draw(seed: int) -> Draw:
    """One to eight requests through one to five lanes: chunks, drafts, graphs, forms and the cache's length drawn."""
    g = np.random.default_rng(seed)
    nan = bool(g.random() < 0.25)
    requests = tuple(any_request(g, nan) for _ in range(int(g.integers(1, 9))))
    needed = max(len(r.prompt) + r.count - 1 for r in requests)
    limit = needed + int(g.integers(0, 2)) * int(g.integers(1, 10))
    choice = Choice(
        LANES[g.integers(len(LANES))], int(g.integers(1, 6)), limit, int(g.integers(1, limit + 1)),
        int(g.integers(0, 5)), bool(g.integers(2)), Tuning(tiled=bool(g.integers(2))),
    )  # fmt: skip  # a choice
    return Draw(choice, requests, nan, int(g.integers(0, 4)), int(g.choice([0, 16, 64, 132])))


@functools.cache
def alone(device: Device, lane: str, request: Request, nan: bool) -> tuple[list[int], str, np.ndarray]:
    """Tokens, why they end, and logits of a request in an engine of its own: one chunk, no drafts, no graphs."""
    with engine(device, Choice(lane, 1, 60, 60), poisoned() if nan else weights()) as e:
        [stream], [logits] = with_logits(e, [request])
    return stream.tokens, stream.stopped, logits


class TestAnyDecode:
    """Requests beside and behind each other."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_gives_each_request_the_stream_that_it_gives_alone(self, device: Device, seed: int) -> None:
        """Tokens, the bits of all logits, and why it ended, among stops, NaN, drafts and plain steps.

        Red: what a sequence leaves in its lane, and what only two causes together show.
        """
        drawn = draw(seed)
        with engine(device, drawn.choice, poisoned() if drawn.poisoned else weights(), drawn.sms) as e:
            plain = lambda step: drawn.every > 0 and step % drawn.every == 0  # noqa: E731  # a callback
            streams, logits = with_logits(e, list(drawn.requests), plain=plain)

        for i, (stream, rows) in enumerate(zip(streams, logits, strict=True)):
            tokens, stopped, expected = alone(device, drawn.choice.lane, drawn.requests[i], drawn.poisoned)
            assert (stream.tokens, stream.stopped) == (tokens, stopped), f"request {i} of {drawn}"
            assert rows.shape == expected.shape
            if tokens:
                assert_same_bits(rows, expected, f"request {i} of {drawn}")

    def test_are_of_every_kind(self) -> None:
        """The draws hold every lane, number of drafts and form, a NaN, a full cache, requests that wait."""
        drawn = [draw(seed) for seed in range(len(SEEDS))]

        assert {d.choice.lane for d in drawn} == set(LANES)
        assert {d.choice.drafts for d in drawn} == set(range(5))
        assert {(d.choice.graphs, d.choice.tuning.tiled) for d in drawn} == {(a, b) for a in (0, 1) for b in (0, 1)}
        assert {d.poisoned for d in drawn} == {len(d.requests) > d.choice.B for d in drawn} == {True, False}
        full = [d.choice.limit == max(len(r.prompt) + r.count - 1 for r in d.requests) for d in drawn]
        assert set(full) == {True, False}
        assert drawn[0] == draw(0)
