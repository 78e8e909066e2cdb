"""Checking goldens: decode again and compare. Nothing here writes."""

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from golden.record import DRAFTS, Decoded, Opener, choice_of, decoded
from golden.sources import source
from golden.stream import FOLDER, Golden, config_hash, is_current, weights_hash
from harness.bisect import Run, Side, bisect
from harness.commits import CommitRun, last_change, sources_of, trace_words
from harness.engine import Request
from harness.record import RECORDS
from oracle import json_text
from oracle.bits import ARITHMETIC_VERSION
from oracle.errors import LanelockError
from oracle.model_weights import Weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """One golden checked. problem: what differs, in one sentence, or "" where nothing does."""

    golden: Golden
    problem: str


#: The other run that a mismatch is bisected against: of a golden's weights and lane, for a request.
Reference = Callable[[Weights, Golden, Request], AbstractContextManager[Run]]


def difference(golden: Golden, found: Decoded) -> str:
    """The first step that differs, in words; "" if none does. Its margin tells a near tie from a broken kernel.

    A bounded lane's stream of another device or build is held to its bounds, all others to every bit.
    """
    held_to = bounded_difference if golden.bounds and golden.build != found.build else exact_difference
    return held_to(golden, found)


def exact_difference(golden: Golden, found: Decoded) -> str:
    """The first step whose token or logits' bits differ, then another count of tokens or accept pattern."""
    steps = zip(golden.tokens, golden.logits, golden.margins, strict=True)
    for step, (token, digest, margin) in enumerate(steps):
        gap = f"recorded margin {float.fromhex(margin):.3g} ({margin})"
        if found.tokens[step : step + 1] != [token]:
            came = f"{found.tokens[step]} came" if step < len(found.tokens) else "the stream ends"
            return f"lane {golden.lane}, step {step}: token {token} was recorded, {came}; {gap}"
        if found.logits[step] != digest:
            return f"lane {golden.lane}, step {step}: the same token {token}, but other logits; {gap}"
        if found.margins[step] != margin:
            return f"lane {golden.lane}, step {step}: the same logits, whose margin is {found.margins[step]}; {gap}"
    if tuple(found.tokens) != golden.tokens:
        return f"lane {golden.lane}: {len(golden.tokens)} tokens were recorded, {len(found.tokens)} came"
    if tuple(found.accepted) != golden.accepted:
        at = next((i for i, (a, b) in enumerate(zip(golden.accepted, found.accepted, strict=False)) if a != b), 0)
        return f"lane {golden.lane}, pass {at}: the same tokens, but other drafts were accepted"
    return ""


def bounded_difference(golden: Golden, found: Decoded) -> str:
    """The first step whose margin is off by more than its bound, or whose token differs at a gap wider than it.

    Where another token comes at a gap within the bound the streams part, and comparison stops there.
    """
    steps = zip(golden.tokens, golden.margins, golden.bounds, strict=True)
    for step, (token, margin, bound) in enumerate(steps):
        gap, reach = float.fromhex(margin), float.fromhex(bound)
        said = f"recorded margin {gap:.3g} ({margin}), bound {reach:.3g}"
        if step >= len(found.tokens):
            return f"lane {golden.lane}, step {step}: token {token} was recorded, the stream ends; {said}"
        other = float.fromhex(found.margins[step])
        if found.tokens[step] != token:
            # the gap may have closed and opened again on the other side
            if gap + other <= reach:
                return ""
            came = f"{found.tokens[step]} came with a margin of {other:.3g}"
            return f"lane {golden.lane}, step {step}: token {token} was recorded, {came}; {said}"
        if not abs(gap - other) <= reach:
            return f"lane {golden.lane}, step {step}: the same token {token} with a margin of {other:.3g}; {said}"
    if len(found.tokens) != len(golden.tokens):
        return f"lane {golden.lane}: {len(golden.tokens)} tokens were recorded, {len(found.tokens)} came"
    return ""


def check(
    open_engine: Opener, weights: Weights, goldens: Sequence[Golden], references: Sequence[Reference] = ()
) -> list[Outcome]:
    """Decode the goldens of one model and lane beside each other, and compare; a mismatch is bisected.

    references: what a mismatch is bisected against, in this order until one differs; a golden itself holds no buffers.
    Raises LanelockError where the goldens are of other weights, of several lanes, or of another arithmetic version.
    """
    _fit(weights, goldens)
    requests = [Request(g.prompt, len(g.tokens)) for g in goldens]
    found = decoded(open_engine, weights, goldens[0].lane, requests)
    outcomes = []
    for i, (golden, one) in enumerate(zip(goldens, found, strict=True)):
        problem = difference(golden, one)
        if problem and references:
            count = 1 + first_step(golden, one)
            seen = tuple(Request(r.prompt, min(r.count, count)) for r in requests)
            choice = choice_of(golden.lane, seen)
            this = Side("this run", lambda choice=choice: open_engine(weights, choice), seen, i)  # type: ignore[misc]
            problem += "".join(f"; bisect: {cause}" for cause in _causes(this, references, weights, golden))
        outcomes.append(Outcome(golden, problem))
    return outcomes


def _fit(weights: Weights, goldens: Sequence[Golden]) -> None:
    if not goldens:
        raise LanelockError("golden check: there is nothing to check")
    keys = (config_hash(weights.config), weights_hash(weights))
    for golden in goldens:
        if (golden.config, golden.weights) != keys:
            raise LanelockError(f"golden {golden.name}: it was recorded on other weights than those of {golden.source}")
        if golden.lane != goldens[0].lane:
            raise LanelockError(f"golden {golden.name}: goldens of several lanes are checked one lane at a time")
        if golden.drafts != DRAFTS:
            drafts = f"recorded with {golden.drafts} drafts a step, and checked with {DRAFTS}"
            raise LanelockError(f"golden {golden.name}: {drafts}; record it anew, with the reason")
        if not is_current(golden):
            raise LanelockError(
                f"golden {golden.name}: recorded under arithmetic version {golden.arithmetic}, this is "
                f"{ARITHMETIC_VERSION}; record it anew, with the reason"
            )


def first_step(golden: Golden, found: Decoded) -> int:
    """The first step whose token or logits differ; the last one where the accept pattern alone does."""
    steps = zip(golden.tokens, golden.logits, found.tokens, found.logits, strict=False)  # a stream may end early
    last = min(len(golden.tokens) - 1, len(found.tokens))
    return next((i for i, (token, digest, *mine) in enumerate(steps) if [token, digest] != mine), last)


def _causes(this: Side, references: Sequence[Reference], weights: Weights, golden: Golden) -> Iterator[str]:
    """What bisect says against each reference, up to the first that differs."""
    for reference in references:
        try:
            with reference(weights, golden, this.requests[this.sequence]) as other:
                verdict = bisect(this, other)
        except LanelockError as error:
            yield f"not possible: {error}"
            continue
        if verdict.difference is not None:
            yield verdict.difference.sentence("this run", other.name)
            return
        yield f"all {verdict.compared} written buffers are those of {other.name}"


def device_reference(name: str, open_engine: Opener) -> Reference:
    """The same sources on another device."""

    def reference(weights: Weights, golden: Golden, request: Request) -> AbstractContextManager[Run]:
        choice = choice_of(golden.lane, [request])
        return nullcontext(Side(name, lambda: open_engine(weights, choice), (request,)))

    return reference


def commit_reference(revision: str | None) -> Reference:
    """Another commit, on the host; None: the one that recorded the golden."""

    @contextmanager
    def reference(_weights: Weights, golden: Golden, request: Request) -> Iterator[Run]:
        wanted = revision or last_change(FOLDER / f"{golden.name}.json")
        if wanted is None:
            raise LanelockError(f"no commit of a checkout holds golden {golden.name}")
        choice, path = choice_of(golden.lane, [request]), str(source(golden.source).path)
        words = trace_words("host", path, None, golden.lane, request.prompt, request.count, choice.drafts, choice.chunk)
        with sources_of(wanted) as (commit, folder):
            yield CommitRun(f"commit {commit}", folder, words)

    return reference


def stale(
    goldens: Iterable[Golden], days: float, records: Path = RECORDS, today: datetime.datetime | None = None
) -> list[str]:
    """Names of goldens that no record of a check, and no recording, has seen for so many days.

    A check leaves its record with `lanelock golden check --record`; goldens themselves never change.
    """
    now = today or datetime.datetime.now(datetime.UTC)
    age: dict[str, float] = {}
    for path in records.glob("golden-*.json"):
        date, passed = _checked(path)
        days_ago = (now - date).total_seconds() / 86400
        # a date to come says nothing about today
        age.update({name: min(age.get(name, days_ago), days_ago) for name in passed if days_ago >= 0})
    return [g.name for g in goldens if g.name not in age or age[g.name] > days]


def _checked(path: Path) -> tuple[datetime.datetime, list[str]]:
    """When a record's check was, and the goldens that it saw hold. Raises LanelockError for a file that is none."""
    try:
        data = json_text.loads(path.read_text(encoding="utf-8"))
        return datetime.datetime.fromisoformat(data["date"]), list(data["figures"]["passed"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LanelockError(f"{path}: not the record of a check of goldens ({error})") from error
