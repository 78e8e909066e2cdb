"""Checking goldens: decode again and compare. Nothing here writes."""

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from golden.record import Decoded, Opener, choice_of, decoded
from golden.stream import Golden, config_hash, is_current, weights_hash
from harness.bisect import Side, bisect
from harness.engine import Request
from harness.record import RECORDS
from oracle.bits import ARITHMETIC_VERSION
from oracle.errors import LanelockError
from oracle.model_weights import Weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """One golden checked. problem: what differs, in one sentence, or "" where nothing does."""

    golden: Golden
    problem: str


def difference(golden: Golden, found: Decoded) -> str:
    """The first step that differs, in words; "" if none does. Its margin tells a near tie from a broken kernel."""
    steps = zip(golden.tokens, golden.logits, golden.margins, strict=True)
    for step, (token, digest, margin) in enumerate(steps):
        gap = f"recorded margin {float.fromhex(margin):.3g} ({margin})"
        if step >= len(found.tokens):
            return f"lane {golden.lane}, step {step}: token {token} was recorded, the stream ends; {gap}"
        if found.tokens[step] != token:
            return f"lane {golden.lane}, step {step}: token {token} was recorded, {found.tokens[step]} came; {gap}"
        if found.logits[step] != digest:
            return f"lane {golden.lane}, step {step}: the same token {token}, but other logits; {gap}"
    if tuple(found.tokens) != golden.tokens:
        return f"lane {golden.lane}: {len(golden.tokens)} tokens were recorded, {len(found.tokens)} came"
    if tuple(found.accepted) != golden.accepted:
        at = next((i for i, (a, b) in enumerate(zip(golden.accepted, found.accepted, strict=False)) if a != b), 0)
        return f"lane {golden.lane}, pass {at}: the same tokens, but other drafts were accepted"
    return ""


def check(
    open_engine: Opener, weights: Weights, goldens: Sequence[Golden], reference: Opener | None = None
) -> list[Outcome]:
    """Decode the goldens of one model and lane beside each other, and compare; a mismatch is bisected.

    reference: where a mismatch is bisected against, such as the host device when a GPU is checked. Raises LanelockError
    where the goldens are of other weights, of several lanes, or of another arithmetic version.
    """
    _fit(weights, goldens)
    requests = [Request(g.prompt, len(g.tokens)) for g in goldens]
    found = decoded(open_engine, weights, goldens[0].lane, requests)
    outcomes = []
    for golden, request, one in zip(goldens, requests, found, strict=True):
        problem = difference(golden, one)
        if problem and reference is not None:
            problem += f"; {_cause(open_engine, reference, weights, golden.lane, request)}"
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
        if not is_current(golden):
            raise LanelockError(
                f"golden {golden.name}: recorded under arithmetic version {golden.arithmetic}, this is "
                f"{ARITHMETIC_VERSION}; record it anew, with the reason"
            )


def _cause(checked: Opener, reference: Opener, weights: Weights, lane: str, request: Request) -> str:
    """What bisect says."""
    choice = choice_of(lane, [request])
    this = Side("this run", lambda: checked(weights, choice), (request,))
    verdict = bisect(this, Side("the other", lambda: reference(weights, choice), (request,)))
    if verdict.difference is None:
        return f"bisect: all {verdict.compared} launches agree with the other run; the recorded bits are of other code"
    return f"bisect: {verdict.difference.sentence('this run', 'the other')}"


def stale(
    goldens: Iterable[Golden], days: float, records: Path = RECORDS, today: datetime.datetime | None = None
) -> list[str]:
    """Names of goldens that no record of a check, and no recording, has seen for so many days.

    A check leaves its record with `lanelock golden check --record`; goldens themselves never change.
    """
    now = today or datetime.datetime.now(datetime.UTC)
    seen: dict[str, datetime.datetime] = {}
    for path in records.glob("golden-*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        date = datetime.datetime.fromisoformat(data["date"])
        for name in data["figures"]["passed"]:
            seen[name] = max(seen.get(name, date), date)
    never = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return [g.name for g in goldens if now - seen.get(g.name, never) > datetime.timedelta(days=days)]
