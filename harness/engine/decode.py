"""The decode loop: prompts in by chunks, steps plain or speculative, sequences entering and leaving their slots."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.engine.memory import Engine
from kernels.programs import Setting
from oracle.errors import LanelockError

#: What a flag of a sequence means (kernels/greedy.cu).
FLAGS = {1: "its logits hold a NaN", 2: "its logits hold nothing above -inf", 3: "its cache is full"}


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, how many tokens to make, and the tokens that end it early."""

    prompt: tuple[int, ...]
    count: int
    stops: frozenset[int] = frozenset()


@dataclass(slots=True)
class Stream:
    """What one request made so far. stopped: count, stop token, or what its flag means."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    stopped: str = ""

    def take(self, token: int) -> None:
        """Add one token and see whether the stream ends with it."""
        self.tokens.append(token)
        if token in self.request.stops:
            self.stopped = "stop token"
        elif len(self.tokens) == self.request.count:
            self.stopped = "count"


#: Called with (stream index, token index, logits row) for every token; the row is float32 [vocab].
Watcher = Callable[[int, int, np.ndarray], None]


def check_requests(s: Setting, requests: Sequence[Request]) -> None:
    """Raises LanelockError, naming the sequence, for a request that an engine of this setting cannot hold."""
    for i, request in enumerate(requests):
        _check(s, request, i)


def _check(s: Setting, request: Request, index: int) -> None:
    where = f"sequence {index}"
    if not request.prompt:
        raise LanelockError(f"{where}: the prompt is empty")
    if request.count < 1:
        raise LanelockError(f"{where}: {request.count} tokens were asked for, at least 1 is made")
    for at, token in enumerate(request.prompt):
        if not 0 <= token < s.config.vocab:
            raise LanelockError(f"{where}: prompt token {at} is {token}, the vocabulary has {s.config.vocab}")
    for token in sorted(request.stops):
        if not 0 <= token < s.config.vocab:
            raise LanelockError(f"{where}: stop token {token} is none of the vocabulary's {s.config.vocab}")
    if len(request.prompt) + request.count - 1 > s.limit:
        raise LanelockError(
            f"{where}: {len(request.prompt)} prompt tokens and {request.count} more need "
            f"{len(request.prompt) + request.count - 1} positions, the cache has {s.limit}"
        )


def decode(
    engine: Engine,
    requests: Sequence[Request],
    watch: Watcher | None = None,
    plain: Callable[[int], bool] = lambda _step: False,
) -> list[Stream]:
    """Greedy streams of all requests, in order; more requests than lanes wait for one to leave.

    A plan made with drafts speculates, but for the steps that `plain` says. The tokens are the same either way. Raises
    LanelockError for a request that does not fit, before anything runs.
    """
    check_requests(engine.setting, requests)
    streams = [Stream(request) for request in requests]
    waiting = deque(range(len(requests)))
    lanes: list[int | None] = [None] * engine.setting.B
    step = 0
    while waiting or any(lane is not None for lane in lanes):
        entering = _admit(engine, lanes, waiting, streams)
        if entering:
            prefill(engine, {b: streams[i].request for b, i in entering.items()})
            _collect(engine, entering, streams, watch, "chunk.logits")
        running = {b: i for b, i in enumerate(lanes) if i is not None and not streams[i].stopped}
        if running:
            for program in step_programs(engine, plain(step)):
                engine.run(program)
            step += 1
            _collect(engine, running, streams, watch, "logits")
        _release(engine, lanes, streams)
    return streams


def step_programs(engine: Engine, plain: bool = False) -> tuple[str, ...]:
    """The programs of one step; beside drafts a plain one still feeds the draft head and commits the step before."""
    if "verify" not in engine.plan.programs:
        return ("step",)
    return ("draft.fill", "commit", "step") if plain else ("draft", "commit", "verify")


def _admit(engine: Engine, lanes: list[int | None], waiting: deque[int], streams: list[Stream]) -> dict[int, int]:
    entering = {}
    for b, held in enumerate(lanes):
        if held is None and waiting:
            lanes[b] = entering[b] = waiting.popleft()
    for b, i in entering.items():
        request = streams[i].request
        _set(engine, b, slot=b, end=len(request.prompt) + request.count - 1, taken=0, pending=0)
    return entering


def _release(engine: Engine, lanes: list[int | None], streams: list[Stream]) -> None:
    for b, i in enumerate(lanes):
        if i is not None and streams[i].stopped:
            lanes[b] = None
            # end 0: the lane has no rows in a step until a sequence enters it
            _set(engine, b, slot=-1, end=0, taken=0, pending=0)


def _set(engine: Engine, b: int, **values: int) -> None:
    for name, value in values.items():
        if name in engine.plan.buffers:
            engine.write(name, np.array([value], np.int32), b)


def chunks(lengths: Sequence[int], width: int) -> Iterator[tuple[int, list[int]]]:
    """Start and lengths of each chunk of prompts that begin together; a short prompt has 0 in later chunks."""
    for start in range(0, max(lengths), width):
        yield start, [min(max(n - start, 0), width) for n in lengths]


def prefill(engine: Engine, entering: dict[int, Request], then: Callable[[], None] | None = None) -> None:
    """Feed the prompts of the lanes that enter; every other lane takes no part. `then` is called after each chunk."""
    B, width = engine.setting.B, chunk_width(engine)
    prompts = [entering[b].prompt if b in entering else () for b in range(B)]
    for start, lengths in chunks([len(p) for p in prompts], width):
        tokens = np.zeros((width, B), np.int32)
        for b, prompt in enumerate(prompts):
            tokens[: lengths[b], b] = prompt[start : start + lengths[b]]
        length = np.array(lengths, np.int32)
        ends = np.array([n > 0 and start + n == len(p) for n, p in zip(lengths, prompts, strict=True)])
        _write_chunk(engine, start, tokens, length, ends)
        for b in np.flatnonzero(ends).tolist():
            _set(engine, b, position=start + lengths[b] - 1)
        engine.run("prefill.first" if start == 0 else "prefill.next")
        if then is not None:
            then()


def _write_chunk(engine: Engine, start: int, tokens: np.ndarray, length: np.ndarray, ends: np.ndarray) -> None:
    start_of = np.full(length.shape, start, np.int32)
    values = {
        "chunk.tokens": tokens,
        "chunk.length": length,
        "chunk.position": start_of,
        "chunk.before": start_of - 1,
        "chunk.paired": np.maximum(length - 1, 0),
        "chunk.last": np.where(ends, 1, -1).astype(np.int32),
    }
    for name, value in values.items():
        if name in engine.plan.buffers:
            engine.write(name, value)


def chunk_width(engine: Engine) -> int:
    """Tokens a chunk of the plan's prefill."""
    return engine.plan.buffers["chunk.tokens"].elements // engine.setting.B


def _collect(
    engine: Engine, lanes: dict[int, int], streams: list[Stream], watch: Watcher | None, logits: str
) -> None:
    """Take what the last pass accepted into the streams."""
    B, V = engine.setting.B, engine.setting.config.vocab
    pending, flags = engine.read("pending"), engine.read("flags")
    accepted = engine.read("accepted").reshape(-1, B)
    rows = engine.read(logits).reshape(-1, B, V) if watch else None
    for b, i in lanes.items():
        stream = streams[i]
        for t in range(int(pending[b])):
            if stream.stopped:
                break
            if watch is not None and rows is not None:
                watch(i, len(stream.tokens), rows[t, b])
            stream.take(int(accepted[t, b]))
        stream.accepted.append(int(pending[b]))
        if flags[b] and not stream.stopped:
            stream.stopped = FLAGS[int(flags[b])]
