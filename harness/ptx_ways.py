"""All ways through the PTX of a kernel, and orders that every one of them must keep."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_LABEL = re.compile(r"(\$[\w$]+):")
_JUMP = re.compile(r"^(@!?%\w+\s+)?bra(?:\.uni)?\s+([\w$]+)")
_LEAD = re.compile(r"^(?:[\w$]+:\s*|@!?%?\w+\s+)*")
S = TypeVar("S")


def statements(body: str) -> list[str]:
    """Statements of a kernel with their labels and predicates; braces of vector operands end none."""
    flat = re.sub(r"\{((?:\s*%\w+\s*,?)+)\}", r"\1", body)
    return [s.strip() for s in re.split(r"[;{}]", flat)]


def bare(statement: str) -> str:
    """A statement without its labels and predicate."""
    return _LEAD.sub("", statement)


def ways(lines: Sequence[str], first: S, step: Callable[[str, S], Iterable[S]]) -> set[tuple[int, S]]:
    """(Statement, state) of everything that some way from the start comes to, in the state that it has then.

    step gives the states behind a statement, without labels, for the state before it; a way ends where it gives none.
    """
    labels = {match[1]: i for i, s in enumerate(lines) for match in _LABEL.finditer(s)}
    found: set[tuple[int, S]] = set()
    onward = [(0, first)]
    while onward:
        i, state = onward.pop()
        if (i, state) in found or i >= len(lines):
            continue
        found.add((i, state))
        line = _LABEL.sub("", lines[i]).strip()
        jump = _JUMP.match(line)
        # another's label stands in a piece of assembly, which is left at its end
        to = labels.get(jump[2]) if jump else None
        ends = line.startswith(("ret", "exit")) or (jump and to is not None and not jump[1])
        for behind in step(line, state):
            if to is not None:
                onward.append((to, behind))
            if not ends:
                onward.append((i + 1, behind))
    return found


BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Order:
    """An automaton that reads opcodes: state -> patterns and the state behind each; no way may come to BROKEN."""

    first: str
    table: Mapping[str, tuple[tuple[str, str], ...]]


_TOUCH = r"(?:ld|st|atom|red)\b.*\.shared\b|ldmatrix\b|stmatrix\b"
_MEET = r"bar\.(?:warp\.)?sync\b|barrier\.(?:sync|cluster\.wait)\b"
_BLOCK_MEETS = r"bar\.sync\b|barrier\.(?:sync|cluster\.wait)\b"
_ARRIVE, _WAIT, _INIT = r"mbarrier\.arrive\b", r"mbarrier\.(?:try|test)_wait\b", r"mbarrier\.init\b"
_COPY = r"cp\.async\.bulk\b(?!\.(?:commit|wait|prefetch))"
_SHOW = r"fence\.mbarrier_init\b"

#: An arrival releases, and a bulk copy follows, only what its own thread did before, and lanes of a warp may be apart.
#: So where one lane arrives or copies for its warp, a barrier stands behind the last load or store of shared memory.
FOR_THE_WARP = Order(
    "met",
    {
        "met": ((_TOUCH, "apart"),),
        "apart": ((_MEET, "met"), (f"{_ARRIVE}|{_COPY}", BROKEN)),
    },
)

#: A barrier exists for the copy engine behind a fence of its own, and for other threads once the block has met: a
#: thread that does not wait for that may find whatever lay there.
SET_UP = Order(
    "before",
    {
        "before": ((_INIT, "set up"), (_BLOCK_MEETS, "met"), (_WAIT, BROKEN)),
        "set up": ((_SHOW, "before"), (f"{_ARRIVE}|{_COPY}|{_WAIT}", BROKEN)),
        "met": ((_INIT, "set up"),),
    },
)


def breaches(body: str, order: Order) -> tuple[str, ...]:
    """Statements at which some way breaks the order, in the order of the text.

    A statement under a predicate is done on one way and passed by on another.
    """
    lines = statements(body)
    compiled = {state: [(re.compile(p), to) for p, to in moves] for state, moves in order.table.items()}
    broken: set[str] = set()

    def step(line: str, state: str) -> set[str]:
        code = bare(line)
        behind = next((to for pattern, to in compiled[state] if pattern.match(code)), state)
        if behind == BROKEN:
            broken.add(line)
        states = {behind, state} if line.startswith("@") else {behind}
        return states - {BROKEN}

    ways(lines, order.first, step)
    return tuple(line for line in dict.fromkeys(lines) if line in broken)
