"""Whole decodes of a small model: one prompt gives one stream of bits, however it is computed."""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from golden.sources import LANES as EVERY_EXACT_LANE
from harness.cli import main
from harness.device import Device
from harness.engine import Choice, Engine, Request, captured, decode, memory, opened_beside, session
from harness.engine.decode import Stream, prefill
from harness.engine.rows import draft_logits
from kernels.entry import Instance
from kernels.plan import Launch
from kernels.tuning import Tuning
from locks.device_probes import SPIN
from locks.models import (
    CONFIG,
    LANES,
    POISONED,
    engine,
    poisoned,
    prompt,
    run,
    slot_state,
    tokens,
    weights,
    with_logits,
)
from locks.support import Arrays, assert_same_bits, assert_same_outputs
from oracle.errors import LanelockError
from oracle.formats import Q8_0, q8_0_decode
from oracle.model_weights import HeldWeights, specs
from oracle.weights import load
from reports import bench_decode
from reports.bench_decode import Case

LONG = Request(prompt(20), 10)
BATCH = [Request(prompt(20), 10), Request(prompt(1, 2), 6), Request(prompt(5, 3), 12), Request(prompt(12, 4), 1)]


def alone(device: Device, lane: str, request: Request) -> tuple[Stream, np.ndarray]:
    """A request in an engine of its own, whole prompt in one chunk: stream and logits."""
    with engine(device, Choice(lane, 1, 40, 20)) as e:
        streams, logits = with_logits(e, [request])
    return streams[0], logits[0]


@pytest.mark.parametrize("lane", LANES)
class TestPrefill:
    """A prompt in chunks."""

    def test_any_chunk_width_gives_the_bits_of_one_token_at_a_time(self, device: Device, lane: str) -> None:
        """Logits, recurrent state, conv ring and cache do not depend on the chunk width; the last chunk may be short.

        Red: fault 14 (a grid of B blocks for B * T rows), 21 (the last prompt token consumed without logits).
        """
        seen = []
        for width in (1, 2, 3, 7, 20, 32):
            with engine(device, Choice(lane, 1, 40, width)) as e:
                streams, logits = with_logits(e, [LONG])
                seen.append({"tokens": np.array(streams[0].tokens), "logits": logits[0], **slot_state(e, 0)})

        assert all(s["tokens"].size == LONG.count for s in seen)
        for other in seen[1:]:
            assert_same_outputs(other, seen[0])


@pytest.mark.parametrize("lane", LANES)
class TestBatch:
    """Sequences beside each other."""

    def test_each_stream_is_that_of_its_prompt_alone(self, device: Device, lane: str) -> None:
        """Prompts of different lengths and counts, in any order, give the logits that each gives alone."""
        expected = [alone(device, lane, r) for r in BATCH]
        with engine(device, Choice(lane, 4, 40, 6)) as e:
            # each prompt in each lane
            for order in ((0, 1, 2, 3), (2, 0, 3, 1), (1, 3, 0, 2), (3, 2, 1, 0)):
                streams, logits = with_logits(e, [BATCH[i] for i in order])
                for at, i in enumerate(order):
                    assert streams[at].tokens == expected[i][0].tokens
                    assert_same_bits(logits[at], expected[i][1], f"prompt {i} in lane {at}")

    def test_a_sequence_enters_the_slot_that_another_leaves(self, device: Device, lane: str) -> None:
        """Six requests through two lanes, each entering as another ends, give the streams that each gives alone."""
        requests = [*BATCH, BATCH[1], Request(prompt(7, 5), 9)]

        assert tokens(run(device, Choice(lane, 2, 40, 6), requests)) == [
            alone(device, lane, r)[0].tokens for r in requests
        ]


class TestBoundedLane:
    """+delta, whose prefill goes through the chunked rule: what holds there to the bit, and what need not."""

    @pytest.mark.parametrize("lane", ["a15+delta", "a8+s16+kv16+delta"])
    def test_each_stream_is_that_of_its_prompt_alone_in_the_same_chunks(self, device: Device, lane: str) -> None:
        """Beside others in any order, in a run again, from graphs and with drafts: tokens and the bits of all logits.

        Red: a chunk that reads its neighbour's decays, a length of the batch in place of the sequence's.
        """
        expected = []
        for request in BATCH:
            with engine(device, Choice(lane, 1, 40, 6)) as e:
                streams, logits = with_logits(e, [request])
            expected.append((streams[0].tokens, logits[0]))
        for order, graphs, drafts in (((0, 1, 2, 3), False, 0), ((2, 0, 3, 1), True, 0), ((3, 2, 1, 0), False, 2)):
            with engine(device, Choice(lane, 4, 40, 6, drafts, graphs)) as e:
                streams, logits = with_logits(e, [BATCH[i] for i in order])
            for at, i in enumerate(order):
                assert streams[at].tokens == expected[i][0]
                assert_same_bits(logits[at], expected[i][1], f"prompt {i} in lane {at}")


class TestEmptyLanes:
    """A lane that no sequence holds."""

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_touches_nothing(self, device: Device, drafts: int) -> None:
        """After a stop token, while the neighbour goes on, position, history, state, ring and cache stay.

        Red: rows of a step for a lane without a sequence (`end` or `slot` left as they were).
        """
        seen: list[Arrays] = []
        program = "verify" if drafts else "step"

        def note(e: Engine, _program: str, item: Launch) -> None:
            if item is e.plan.programs[program][-1] and e.read("slot")[0] < 0:
                control = {n: e.read(n).reshape(2, -1)[0].copy() for n in ("position", "current", "history")}
                seen.append({**control, **slot_state(e, 0, draft_head=True)})

        with engine(device, Choice("a15", 2, 40, 6, drafts)) as e:
            stop = decode(e, [Request(prompt(5), 2)])[0].tokens[1]
            decode(also(e, note), [Request(prompt(5), 20, frozenset([stop])), Request(prompt(9), 14)])

        assert len(seen) >= 4
        for later in seen[1:]:
            assert_same_outputs(later, seen[0])


    @pytest.mark.parametrize("drafts", [0, 2])
    def test_is_left_alone_by_replays(self, device: Device, drafts: int) -> None:
        """Where the neighbour goes on for ten tokens more, by graphs, the lane's slot holds what it held at its end.

        Red: a capture that holds a lane which has become empty.
        """
        held = []
        for count in (3, 13):
            with engine(device, Choice("a15", 2, 40, 6, drafts, graphs=True)) as e:
                decode(e, [Request(prompt(5), 3), Request(prompt(9), count)])
                held.append({**slot_state(e, 0), "history": e.read("history").reshape(2, -1)[0][:8].copy()})

        assert_same_outputs(held[1], held[0])


class TestFaults:
    """A sequence whose logits hold a NaN."""

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_is_frozen_and_named_while_the_others_go_on(self, device: Device, drafts: int) -> None:
        """Its stream ends with what is wrong, a valid token is stored, and its neighbours' tokens are those alone.

        Red: fault 25 (argmax of a NaN returning token 0).
        """
        bad = Request((*prompt(4), POISONED, *prompt(2)), 8)
        requests = [BATCH[0], bad, BATCH[2]]
        with engine(device, Choice("a15", 3, 40, 6, drafts), poisoned()) as e:
            streams = decode(e, requests)

        assert [s.stopped for s in streams] == ["count", "its logits hold a NaN", "count"]
        assert streams[1].tokens == []
        assert tokens([streams[0], streams[2]]) == [alone(device, "a15", r)[0].tokens for r in (BATCH[0], BATCH[2])]

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_leaves_a_slot_that_the_next_sequence_can_use(self, device: Device, drafts: int) -> None:
        """After a sequence full of NaN, the next one in its slot gives the stream that it gives alone."""
        requests = [Request((*prompt(4), POISONED, *prompt(3)), 5), BATCH[0], BATCH[2]]
        streams = run(device, Choice("a15", 1, 40, 6, drafts), requests, poisoned())

        assert tokens(streams[1:]) == [alone(device, "a15", r)[0].tokens for r in requests[1:]]


class TestStops:
    """Where a stream ends."""

    @pytest.mark.parametrize("drafts", [0, 1, 3])
    def test_a_stop_token_ends_its_stream_alone(self, device: Device, drafts: int) -> None:
        """The stop token is the last of its stream; a neighbour goes on to its count."""
        whole = alone(device, "a15", LONG)[0].tokens
        stop = whole[4]
        streams = run(
            device, Choice("a15", 2, 40, 8, drafts), [Request(LONG.prompt, 10, frozenset([stop])), BATCH[2]]
        )

        assert streams[0].tokens == whole[: whole.index(stop) + 1]
        assert [s.stopped for s in streams] == ["stop token", "count"]
        assert streams[1].tokens == alone(device, "a15", BATCH[2])[0].tokens

    @pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4])
    def test_the_last_position_of_the_cache_is_used_and_none_behind_it(self, device: Device, drafts: int) -> None:
        """A cache that a sequence fills to its last row ends it where a longer cache would; guards stay whole.

        Red: a row of drafts too many at the end, `at + 1 < limit` turned into `<=`.
        """
        choice = Choice("a15", 1, len(LONG.prompt) + LONG.count - 1, 8, drafts)

        assert tokens(run(device, choice, [LONG])) == [alone(device, "a15", LONG)[0].tokens]


def enter(e: Engine, request: Request) -> None:
    """A sequence in the only lane, its prompt consumed."""
    bench_decode.enter(e, Case("", 1, len(request.prompt), request.count))
    prefill(e, {0: request})


def stepped(e: Engine) -> np.ndarray:
    """Logits of one step more."""
    e.run("step")
    return e.read("logits").copy()


class TestGraphs:
    """Programs captured once and replayed."""

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_replay_gives_the_eager_bits_across_a_context_threshold(self, device: Device, drafts: int) -> None:
        """Handed case 20: every step from position 250 on, past the 256 where attention's chunks and splits change.

        Captured before any sequence entered, replayed for two prompts of which one leaves; logits, tokens and all state
        equal the eager run's. Red: a length, an offset or a branch frozen at capture.
        """
        requests = [Request(prompt(250), 12), Request(prompt(9, 6), 4)]
        seen = []
        for graphs in (False, True):
            with engine(device, Choice("a15", 2, 270, 64, drafts, graphs), sms=64) as e:
                names = {item.instance.kernel.name for item in e.plan.programs["step"]}
                # a block for either chunk
                assert names & {"attention_split", "attention_cluster"}
                _, logits = with_logits(e, requests)
                states = {f"{n}.{b}": v for b in range(2) for n, v in slot_state(e, b, draft_head=True).items()}
                seen.append({"logits": np.concatenate(logits), **states})

        assert_same_outputs(seen[1], seen[0])

    @pytest.mark.nightly
    def test_captured_at_position_100_replays_to_1200(self, device: Device) -> None:
        """Handed case 20: 1100 steps from one capture, across every chunk of the context and every split, are eager's.

        Red: what a length at capture decides: a grid, a split, a branch.
        """
        seen = []
        for capture in (captured, lambda e: e):
            with engine(device, Choice("a15", 1, 1204, 100), sms=64) as e:
                enter(e, Request(prompt(100), 1104))
                run_it = capture(e)
                seen.append(np.stack([stepped(run_it) for _ in range(1100)]))
                assert e.read("position")[0] == 1200

        assert_same_bits(seen[0], seen[1])

    @pytest.mark.parametrize("name", ["current", "position", "residual", "state.0", "keys.3"])
    def test_a_buffer_that_moved_between_replays_is_refused_until_it_is_captured_again(
        self, device: Device, name: str
    ) -> None:
        """Handed case 20: input, scratch and state at another address: no replay reads what stands at the old one.

        Captured again, the steps are eager's. Red: a graph that replays stale pointers.
        """
        with engine(device, Choice("a15", 1, 40, 20)) as e:
            enter(e, LONG)
            expected = [stepped(e) for _ in range(4)]
        with engine(device, Choice("a15", 1, 40, 20, graphs=True)) as e:
            enter(e, LONG)
            found = [stepped(e) for _ in range(2)]
            old = e.memory[name]
            fresh = device.alloc(name, old.nbytes, 256)
            device.write(fresh, device.read(old))
            device.fill(old, 0)
            moved = replace(e, memory={**e.memory, name: fresh})
            with pytest.raises(LanelockError, match="program step was captured over other buffers"):
                moved.run("step")
            again = captured(replace(moved, graphs={}))
            found += [stepped(again) for _ in range(2)]
            device.free(fresh)

        assert_same_bits(np.stack(found), np.stack(expected))

    def test_a_replay_on_another_stream_waits_for_what_was_written(self, device: Device) -> None:
        """Handed case 20: tokens written, and steps replayed on a second stream, behind 10 ms of other work: eager's.

        Red: a copy that does not wait, or is not waited for.
        """
        if device.properties.kind == "host":
            pytest.skip("not run: a host stream runs everything at once")
        busy = device.build(Instance(SPIN))
        with engine(device, Choice("a15", 1, 40, 20)) as e:
            enter(e, LONG)
            expected = [stepped(e) for _ in range(4)]
        with engine(device, Choice("a15", 1, 40, 20, graphs=True)) as e:
            enter(e, LONG)
            stream, word, found = device.stream(), device.alloc("word", 4), []
            for _ in range(4):
                token = e.read("current").copy()
                e.write("current", np.zeros(1, np.int32))
                device.launch(busy, SPIN.geometry({}), [word, 20_000_000], stream)
                e.write("current", token)
                device.launch(busy, SPIN.geometry({}), [word, 20_000_000], stream)
                e.run("step", stream)
                found.append(e.read("logits").copy())
            device.free(word)

        assert_same_bits(np.stack(found), np.stack(expected))

    def test_another_program_between_replays_changes_nothing(self, device: Device) -> None:
        """A draft graph, replayed between a step and the reading of its results, leaves them as they were.

        Handed case 20: so does the hidden state. Red: scratch of one graph over the output of another.
        """
        with engine(device, Choice("a15", 1, 40, 8, 1, graphs=True)) as e:
            decode(e, [LONG])
            before = {n: e.read(n).copy() for n in ("logits", "hidden", "position", "accepted", "history")}
            e.run("draft")

            assert_same_outputs({n: e.read(n) for n in before}, before)


Pattern = Callable[[int, int], int]
PAIR = [Request(prompt(9), 16), Request(prompt(4, 7), 16)]
PATTERNS: dict[str, Pattern] = {
    "none": lambda _step, _b: 0,
    "all": lambda _step, _b: 4,
    "one": lambda _step, _b: 1,
    "mixed": lambda step, b: (step * 7 + b * 3 + step // 3) % 5,
}


def forced(e: Engine, truth: list[list[int]], pattern: Pattern) -> Engine:
    """The engine, decoding PAIR, with every draft overwritten before its verify: pattern(step, sequence) are right."""
    step, B = [0], e.setting.B
    last = e.plan.programs["draft"][-1]

    def after(program: str, item: Launch) -> None:
        if program != "draft" or item is not last:
            return
        position, k = e.read("position"), e.plan.buffers["drafts"].elements // B
        drafts = np.zeros((k, B), np.int32)
        for b, stream in enumerate(truth):
            behind = int(position[b]) - len(PAIR[b].prompt) + 1
            following = (stream[behind:] + [0] * k)[:k]
            right = pattern(step[0], b)
            drafts[:, b] = [t if j < right else (t + 1) % CONFIG.vocab for j, t in enumerate(following)]
        e.write("drafts", drafts)
        step[0] += 1

    return replace(e, after=after)


def also(e: Engine, note: Callable[[Engine, str, Launch], None]) -> Engine:
    """The engine with `note` called after every launch, before what is called already."""
    inner = e.after

    def after(program: str, item: Launch) -> None:
        note(e, program, item)
        if inner is not None:
            inner(program, item)

    return replace(e, after=after)


def snapshots(e: Engine, program: str, found: dict[tuple[int, int], Arrays]) -> Engine:
    """The engine, noting by sequence and position what its tokens made, each time the state stands at the position."""
    last = e.plan.programs[program][-1]

    def note(e: Engine, _program: str, item: Launch) -> None:
        if item is last:
            for b in np.flatnonzero(e.read("slot") >= 0).tolist():
                at = int(e.read("position")[b])
                found[b, at] = consumed(slot_state(e, b), at)

    return also(e, note)


def consumed(state: Arrays, count: int) -> Arrays:
    """The part of a slot's state that its first `count` tokens made: behind it are rejected rows and older inputs."""
    kept = {}
    for name, value in state.items():
        if name.startswith("ring"):
            kept[name] = value.reshape(8, -1)[[p % 8 for p in range(count - 3, count)]]
        elif name.startswith("state"):
            kept[name] = value
        else:
            kept[name] = value.reshape(CONFIG.kv_heads, -1, CONFIG.head_dim)[:, :count]
    return kept


@functools.cache
def plain(
    device: Device, lane: str = "a8+s16+kv16"
) -> tuple[list[list[int]], np.ndarray, dict[tuple[int, int], Arrays]]:
    """PAIR decoded plainly: tokens, all logits, and the state of each sequence at each position."""
    found: dict[tuple[int, int], Arrays] = {}
    with engine(device, Choice(lane, 2, 40, 9)) as e:
        streams, logits = with_logits(snapshots(e, "step", found), PAIR)
    return tokens(streams), np.concatenate(logits), found


class TestSpeculation:
    """Drafts verified as a chunk."""

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    @pytest.mark.parametrize("pattern", sorted(PATTERNS))
    def test_whatever_is_accepted_the_stream_is_the_greedy_one(self, device: Device, k: int, pattern: str) -> None:
        """Logits of every token, and after every commit the recurrent state, ring and cache, are plain decoding's.

        Two sequences with accept counts of their own. Red: fault 9 (hidden row 0 also when a draft was accepted), 17
        (rolled back from a checkpoint nobody wrote), case 14 (the state of another row).
        """
        truth, logits, states = plain(device)
        found: dict[tuple[int, int], Arrays] = {}
        with engine(device, Choice("a8+s16+kv16", 2, 40, 9, k)) as e:
            streams, drafted = with_logits(snapshots(forced(e, truth, PATTERNS[pattern]), "commit", found), PAIR)
        compared = sorted(set(found) & set(states))

        assert tokens(streams) == truth
        assert_same_bits(np.concatenate(drafted), logits)
        assert len(compared) >= 2 * max(1, 15 // (k + 1) - 1)
        for at in compared:
            assert_same_outputs(found[at], states[at])
        most = {"none": 1, "all": k + 1, "one": 2, "mixed": k + 1}[pattern]
        assert max(n for s in streams for n in s.accepted) == most
        assert [sum(s.accepted) for s in streams] == [r.count for r in PAIR]

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_prompts_as_long_as_the_verify_window_are_prompts(self, device: Device, k: int) -> None:
        """Handed case 15: prompts of 1 to k + 3 tokens, and last chunks of k + 1, give the plain stream and state.

        Red: the kind of a pass taken from its shape.
        """
        requests = [Request(prompt(n, 10 + n), 6) for n in (*range(1, k + 4), 8 + k + 1)]
        expected = tokens(run(device, Choice("a15", 4, 20, 8), requests))
        for width in (k + 1, 8):
            assert tokens(run(device, Choice("a15", 4, 20, width, k), requests)) == expected
        for length in (k + 1, 8 + k + 1):
            states = []
            for choice in (Choice("a15", 1, 20, 8, k), Choice("a15", 1, 20, k + 1, k), Choice("a15", 1, 20, 1)):
                with engine(device, choice) as e:
                    decode(e, [Request(prompt(length, 11), 1)])
                    states.append(consumed(slot_state(e, 0), length))
            assert all(np.any(states[0][f"state.{i}"] != 0) for i in range(3))
            assert_same_outputs(states[0], states[2])
            assert_same_outputs(states[1], states[2])

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    @pytest.mark.parametrize("pattern", ["all", "mixed", "none"])
    def test_the_end_of_the_cache_is_greedys_whatever_is_accepted(self, device: Device, k: int, pattern: str) -> None:
        """A cache that ends with the longer stream's last token: rows behind it are cut off a verify, right or wrong.

        Red: a draft accepted behind the end, a stream that ends a token early.
        """
        truth, logits, _ = plain(device)
        with engine(device, Choice("a8+s16+kv16", 2, len(PAIR[0].prompt) + PAIR[0].count - 1, 9, k)) as e:
            streams, drafted = with_logits(forced(e, truth, PATTERNS[pattern]), PAIR)

        assert tokens(streams) == truth
        assert_same_bits(np.concatenate(drafted), logits)

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_a_stop_token_among_accepted_drafts_ends_the_stream_there(self, device: Device, k: int) -> None:
        """At every place of a verify whose drafts are all right; the neighbour goes on to its count.

        Red: tokens that were accepted behind a stop token.
        """
        truth, _, _ = plain(device)
        with engine(device, Choice("a8+s16+kv16", 2, 40, 9, k)) as e:
            for at in range(2, 3 + k):
                stop = truth[0][at]
                requests = [replace(PAIR[0], stops=frozenset([stop])), PAIR[1]]
                streams = decode(forced(e, truth, PATTERNS["all"]), requests)

                assert streams[0].tokens == truth[0][: truth[0].index(stop) + 1]
                assert [s.stopped for s in streams] == ["stop token", "count"]
                assert streams[1].tokens == truth[1]

    @pytest.mark.parametrize("k", [1, 3])
    def test_plain_steps_between_verifies_change_nothing(self, device: Device, k: int) -> None:
        """Handed case 14: any mixture of plain and speculative steps, with forced drafts, gives the greedy stream."""
        truth, _, _ = plain(device)
        with engine(device, Choice("a8+s16+kv16", 2, 40, 9, k)) as e:
            for kind in range(3):
                pushed = forced(e, truth, PATTERNS["mixed"])
                streams = decode(pushed, PAIR, plain=lambda step, kind=kind: (step + kind) % 3 == 0)  # type: ignore[misc]
                assert tokens(streams) == truth

    @pytest.mark.nightly
    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_two_hundred_steps_of_any_kind_keep_the_state_of_plain_decoding(self, device: Device, k: int) -> None:
        """Handed case 14: any right drafts, any plain steps: state, ring and cache at each commit are plain's.

        Red: a plain step that reads the state of a row of the verify before it.
        """
        requests, wide = [replace(r, count=200) for r in PAIR], Choice("a8+s16+kv16", 2, 210, 9)
        plain_states: dict[tuple[int, int], Arrays] = {}
        with engine(device, wide) as e:
            truth = tokens(decode(snapshots(e, "step", plain_states), requests))
        draw = np.random.default_rng(k).integers(0, [[4, 4, 3]], (200, 3)).tolist()
        found: dict[tuple[int, int], Arrays] = {}
        with engine(device, replace(wide, drafts=k)) as e:
            pushed = forced(e, truth, lambda step, b: int(draw[step][b]))
            streams = decode(snapshots(pushed, "commit", found), requests, plain=lambda step: draw[step][2] == 0)
        compared = sorted(set(found) & set(plain_states))

        assert tokens(streams) == truth
        assert len(compared) > 100
        for at in compared:
            assert_same_outputs(found[at], plain_states[at])

    @pytest.mark.parametrize("k", [2, 4])
    def test_drafts_depend_on_the_accepted_prefix_alone(self, device: Device, k: int) -> None:
        """The drafts of a position are the same after other accept patterns, plain steps, and other chunk widths.

        The draft head's cache has its row for every token, prompt and accepted ones. Red: fault 18 (holes at accepted
        positions, or none for the prompt).
        """
        truth, _, _ = plain(device)
        seen: dict[tuple[int, int], set[tuple[int, ...]]] = {}

        def note(e: Engine, program: str, item: Launch) -> None:
            if program == "draft" and item is e.plan.programs["draft"][-1]:
                drafts = e.read("drafts").reshape(k, 2)
                for b, at in enumerate(e.read("position").tolist()):
                    if e.read("slot")[b] >= 0:
                        seen.setdefault((b, at), set()).add(tuple(drafts[:, b].tolist()))

        for width in (1, 9):
            with engine(device, Choice("a8+s16+kv16", 2, 40, width, k)) as e:
                for pattern, skip in (("none", 9), ("all", 9), ("mixed", 3)):
                    pushed = also(forced(e, truth, PATTERNS[pattern]), note)
                    decode(pushed, PAIR, plain=lambda step, skip=skip: step % skip == 1)  # type: ignore[misc]

        assert len(seen) >= 24
        assert {at: found for at, found in seen.items() if len(found) > 1} == {}


class TestEveryExactLane:
    """What the locks above hold of a few lanes, of all."""

    @pytest.mark.parametrize("lane", [
        # every format by day, with every other one by night
        pytest.param(lane, marks=() if (i + i // 4) % 2 == 0 else pytest.mark.nightly)
        for i, lane in enumerate(EVERY_EXACT_LANE)
    ])  # fmt: skip
    def test_gives_one_stream_however_it_is_computed(self, device: Device, lane: str) -> None:
        """Alone, in chunks of any width, from graphs, and speculating from graphs: tokens and the bits of all logits.

        Red: a kernel that is built for two words a code, for Q4 or for a half-width state, and differs there alone.
        """
        truth, logits, _ = plain(device, lane)

        for width, drafts, graphs in ((1, 0, False), (20, 0, True), (4, 2, True)):
            choice = Choice(lane, 2, 40, width, drafts, graphs)
            with engine(device, choice) as e:
                streams, found = with_logits(e, PAIR)
            assert tokens(streams) == truth
            assert_same_bits(np.concatenate(found), logits, f"{choice}")
        each = [alone(device, lane, request) for request in PAIR]
        assert [stream.tokens for stream, _ in each] == truth
        assert_same_bits(np.concatenate([rows for _, rows in each]), logits)

    @pytest.mark.parametrize(("lane", "k"), [
        # every number of drafts with every format by day, all pairs by night
        pytest.param(lane, k, marks=() if (i + i // 4) % 4 == k - 1 else pytest.mark.nightly)
        for i, lane in enumerate(EVERY_EXACT_LANE) for k in (1, 2, 3, 4)
    ])  # fmt: skip
    def test_speculates_greedily_to_the_end_of_its_cache(self, device: Device, lane: str, k: int) -> None:
        """Right and wrong drafts in a cache that ends with the stream: logits, and the state behind every commit.

        Red: a replay of the state, a ring or a cache row of one lane that is not plain decoding's.
        """
        truth, logits, states = plain(device, lane)
        found: dict[tuple[int, int], Arrays] = {}
        with engine(device, Choice(lane, 2, len(PAIR[0].prompt) + PAIR[0].count - 1, k + 1, k)) as e:
            streams, drafted = with_logits(snapshots(forced(e, truth, PATTERNS["mixed"]), "commit", found), PAIR)
        compared = sorted(set(found) & set(states))

        assert tokens(streams) == truth
        assert_same_bits(np.concatenate(drafted), logits)
        assert len(compared) >= 4
        for at in compared:
            assert_same_outputs(found[at], states[at])


class TestRefusals:
    """Requests that an engine cannot hold."""

    @pytest.mark.parametrize(("request_", "sentence"), [
        (Request((), 1), "sequence 0: the prompt is empty"),
        (Request((1,), 0), "sequence 0: 0 tokens were asked for"),
        (Request((1, 64), 1), "sequence 0: prompt token 1 is 64, the vocabulary has 64"),
        (Request((-1,), 1), "sequence 0: prompt token 0 is -1"),
        (Request((1,), 1, frozenset([3, 64])), "sequence 0: stop token 64 is none of the vocabulary's 64"),
        (Request((1,) * 20, 2), "sequence 0: 20 prompt tokens and 2 more need 21 positions, the cache has 20"),
    ])  # fmt: skip
    def test_are_refused_before_anything_runs(self, device: Device, request_: Request, sentence: str) -> None:
        """One sentence names the sequence and what does not fit."""
        with engine(device, Choice("a15", 1, 20, 8)) as e, pytest.raises(LanelockError, match=sentence):
            decode(e, [request_])


    @pytest.mark.parametrize("drafts", ["0", "3"])
    def test_of_the_whole_context_are_decoded_and_one_token_more_is_not(
        self, drafts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A cache of twelve rows makes ten tokens of three, as a longer one does. Red: a row that nothing fills."""
        words = ["decode", "--weights", "synthetic:3", "--tokens", "1,2,3", "--engine", "host", "--drafts", drafts]
        said = []
        for context, count in ((40, "10"), (12, "10"), (12, "11")):
            config = tmp_path / f"{context}.json"
            config.write_text(json.dumps({**CONFIG.to_dict(), "context": context}))
            code = main([*words, "--config", str(config), "--n", count])
            said.append((code, capsys.readouterr().out))

        assert said[0] == said[1]
        assert [code for code, _ in said] == [0, 0, 2]
        assert said[0][1].count(",") == 9

    @pytest.mark.parametrize("command", ["decode", "logits", "mtp-logits", "trace", "bisect"])
    def test_are_refused_before_anything_is_loaded(
        self, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A token outside a model of 29 GB is named before its first buffer. Red: minutes of loading, and then that."""
        monkeypatch.setattr(session, "open_engine", lambda *_: pytest.fail("the model is loaded"))
        more = {"decode": ["--n", "1"], "bisect": ["--against-batch", "2"], "trace": []}
        words = more.get(command, ["--out", str(tmp_path / "x.npy")])
        model = "--weights synthetic:1 --config qwen3.8-27b --engine host --tokens 1,248320"

        assert main([command, *model.split(), *words]) == 2
        assert capsys.readouterr().err == (
            "lanelock: sequence 0: prompt token 1 is 248320, the vocabulary has 248320\n"
        )
        assert list(tmp_path.iterdir()) == []

    def test_of_a_model_that_memory_does_not_hold_is_a_sentence(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is left of a host's memory is asked for first. Red: a process that is killed, and others with it."""
        (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:     100 kB\n")
        monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
        model = "--weights synthetic:1 --config tiny --engine host --tokens 1"

        assert main(["decode", *model.split(), "--n", "1"]) == 2
        assert re.fullmatch(
            r"lanelock: plan: its buffers take \d+\.\d MB, and host has 0\.1 MB left\n", capsys.readouterr().err
        )


class TestWeights:
    """What an engine's weight buffers hold."""

    @pytest.mark.parametrize("name", ["a15", "q4"])
    @pytest.mark.parametrize("tiled", [False, True])
    def test_made_on_the_device_are_those_copied_there(self, device: Device, name: str, tiled: bool) -> None:
        """Synthetic weights by a kernel have every bit of the same weights loaded. Red: a tensor made in part."""
        choice = Choice(lane=name, drafts=1, tuning=Tuning(tiled=tiled))
        with engine(device, choice, load("synthetic:3", CONFIG)) as made, engine(device, choice) as copied:
            names = [b for b in copied.plan.buffers if b.startswith("w.")]

            assert len(names) > 30
            assert_same_outputs({b: made.read(b) for b in names}, {b: copied.read(b) for b in names})

    def test_of_one_engine_serve_others_beside_it(self, device: Device) -> None:
        """Another batch, chunk and no drafts over the same weights: each prompt's stream, and then the first one's.

        Red: weights that are given back with an engine that borrowed them, or of which some are nobody's.
        """
        expected = [alone(device, "q4", r)[0].tokens for r in BATCH]
        with engine(device, Choice("q4", 1, 40, 7, 2)) as first:
            for graphs in (False, True):
                with opened_beside(first, Choice("q4", 4, 40, 6, graphs=graphs)) as e:
                    assert tokens(decode(e, BATCH)) == expected
            assert tokens(decode(first, BATCH)) == expected

    @pytest.mark.parametrize("choice", [Choice("q4"), Choice("a8", drafts=1)])
    def test_that_nobody_holds_are_named(self, device: Device, choice: Choice) -> None:
        """An engine of another form, or without a draft head, lends nothing. Red: poison read as weights."""
        with (
            engine(device, Choice("a8")) as e,
            pytest.raises(LanelockError, match=r"^plan: no weights w\.\S+ of \d+ \w+ stand in the engine beside it$"),
            opened_beside(e, choice),
        ):
            pass

    @pytest.mark.parametrize(
        ("tensor", "sentence"),
        [
            ("on", "weights: on is quantised, the plan reads it as float32"),
            ("layers.0.gu", "weights: layers.0.gu is not quantised, the plan reads it as Q8_0"),
        ],
    )
    def test_of_another_form_are_named(self, device: Device, tensor: str, sentence: str) -> None:
        """A norm of codes and a projection of floats are refused by name. Red: bytes read as another type."""
        held = {name: weights().tensor(name) for name in specs(CONFIG)}
        q = held["layers.0.gu"]
        assert isinstance(q, Q8_0)
        held[tensor] = q if tensor == "on" else q8_0_decode(q).astype(np.float32)

        with pytest.raises(LanelockError, match=f"^{sentence}$"), engine(
            device, Choice(), HeldWeights(CONFIG, held)
        ):
            pass


class TestRows:
    """Logits of every position of a prompt."""

    def test_of_the_draft_head_are_one_fewer_than_tokens(self, device: Device) -> None:
        """Row t is made of hidden state t and token t + 1, and knows of no later one. Red: a row lost at an end."""
        text = prompt(6)
        with engine(device, Choice(chunk=1, drafts=1)) as e:
            longer = draft_logits(e, text)
        with engine(device, Choice(chunk=1, drafts=1)) as e:
            shorter = draft_logits(e, text[:4])

        assert (len(longer), len(shorter)) == (5, 3)
        assert_same_bits(longer[:3], shorter)
