"""A census of PTX: which instructions a kernel holds, and which of them the contract on bits forbids."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.ptx_ways import bare, statements, ways

#: Kernels are .visible, instantiations of a template .weak.
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(")
_FUNCTION = re.compile(r"\.func\b[^;{]*\{")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
#: One instruction: an optional predicate, then the opcode with its modifiers, which end at the operands.
_OPCODE = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w]*(?:\.[\w:]+)*)")

_FLOAT = r"\.(?:f16|f16x2|bf16|bf16x2|f32|f32x2|f64)\b"
_ROUNDING = re.compile(r"\.r[nzmp]\b")
_ROUNDED = re.compile(rf"^(?:add|sub|mul|fma|mad|div|rcp|sqrt)\b.*{_FLOAT}")

#: What an exact kernel must not hold: (pattern of the opcode, reason).
FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.approx\b"), "approximate"),
    (re.compile(r"\.full\b"), "approximate (full range)"),
    (re.compile(r"\.ftz\b"), "flushes subnormals"),
    (re.compile(rf"^(?:atom|red)\b.*{_FLOAT}"), "a float atomic has no order"),
    (re.compile(r"^(?:ex2|lg2|sin|cos|tanh|rsqrt)\b"), "a function of the device"),
    (re.compile(r"^(?:mma|wgmma)\b.*\.f(?:32|16)\."), "a float accumulator of a tensor core has no stated order"),
)

#: Families of instructions that a kernel may be named for, and the opcodes that count.
FAMILIES: Mapping[str, re.Pattern[str]] = {
    "mma": re.compile(r"^mma\.sync\b"),
    "wgmma": re.compile(r"^wgmma\.mma_async\b"),
    "dp4a": re.compile(r"^dp4a\b"),
    "cp.async": re.compile(r"^cp\.async\.c[ag]\b"),
    "cp.async.wait": re.compile(r"^cp\.async\.wait_(?:group|all)\b"),
    "bulk": re.compile(r"^cp\.async\.bulk\b(?!\.(?:commit|wait))"),
    "mbarrier": re.compile(r"^mbarrier\b"),
    "ldmatrix": re.compile(r"^ldmatrix\b"),
    "barrier": re.compile(r"^(?:bar|barrier)\b"),
    "shuffle": re.compile(r"^shfl\b"),
    "vote": re.compile(r"^vote\b"),
    "fma": re.compile(rf"^fma\b.*{_FLOAT}"),
}


@dataclass(frozen=True, slots=True)
class Census:
    """Opcodes of one kernel with their counts, and one sentence for each that the contract forbids."""

    opcodes: Mapping[str, int]
    violations: tuple[str, ...]

    def count(self, family: str) -> int:
        """Instructions of a family of FAMILIES."""
        pattern = FAMILIES[family]
        return sum(n for opcode, n in self.opcodes.items() if pattern.search(opcode))


def census(ptx: str, entry: str) -> Census:
    """Count the instructions of one entry and of every function beside it, which it may call.

    Raises KeyError if the PTX has no such entry: a census of nothing must not pass.
    """
    counts: dict[str, int] = {}
    for body in (entries(ptx)[entry], *functions(ptx)):
        for opcode in opcodes(body):
            counts[opcode] = counts.get(opcode, 0) + 1
    return Census(counts, tuple(sorted(s for opcode in counts if (s := violation(opcode)))))


def violation(opcode: str) -> str:
    """Why an exact kernel must not hold this instruction; empty when it may."""
    for pattern, reason in FORBIDDEN:
        if pattern.search(opcode):
            return f"{opcode}: {reason}"
    if _ROUNDED.search(opcode) and not _ROUNDING.search(opcode):
        return f"{opcode}: no rounding mode, so it may be contracted"
    return ""


@functools.lru_cache(maxsize=4)  # a room of many instantiations is read once, not once each
def entries(ptx: str) -> Mapping[str, str]:
    """Kernel name -> body between its braces."""
    text = _COMMENT.sub(" ", ptx)
    bodies = {match[1]: _braces(text, text.find("{", match.end())) for match in _ENTRY.finditer(text)}
    return MappingProxyType(bodies)


@functools.lru_cache(maxsize=4)
def functions(ptx: str) -> tuple[str, ...]:
    """Bodies of the functions that were not inlined."""
    text = _COMMENT.sub(" ", ptx)
    return tuple(_braces(text, match.end() - 1) for match in _FUNCTION.finditer(text))


def most_threads(ptx: str, entry: str) -> int:
    """Threads of a block that an entry is compiled for at most. Raises KeyError if it does not say."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\([^)]*\)[^{{]*\.maxntid\s+(\d+)", ptx)
    if not found:
        raise KeyError(f"{entry} does not say how many threads a block has at most")
    return int(found[1])


def opcodes(body: str) -> Iterator[str]:
    """Opcodes with modifiers, in order; declarations and labels are none."""
    for statement in re.split(r"[;{}]", body):
        line = re.sub(r"^[\w$]+:\s*", "", statement.strip())
        if line and not line.startswith(".") and (match := _OPCODE.match(line)):
            yield match[1]


_WAIT = "griddepcontrol.wait"
_REGISTER = re.compile(r"%\w+")
_PARAMETER = re.compile(r"^ld\.param\.[bus]64\s+(%\w+),\s*\[[\w$]+_param_(\d+)\]")
# a prefetch into the second-level cache reads no value, and every write meets it there
_HARMLESS = r"param|shared|local|const|commit|wait|global\.L2"
_MEMORY = re.compile(rf"^(?:ld|st|atom|red|cp\.async|prefetch)\b(?!\.(?:{_HARMLESS}))")


def touched_before_wait(body: str) -> frozenset[int]:
    """64-bit parameters, by position, that addresses of global memory come from where no wait has been passed.

    Every statement counts that some way from the start reaches without the wait. Where a value comes from is followed
    through every instruction, whatever it does: more may be named than are touched, and none is missed. A kernel that
    does not wait raises KeyError.
    """
    every = statements(body)
    if not any(_WAIT in s for s in every):
        raise KeyError("the kernel does not wait")
    lines = [bare(every[i]) for i in sorted(_before_wait(every))]
    origins: dict[str, frozenset[int]] = {}
    for _ in range(3):  # a value that a loop carries is defined behind its first use
        for line in lines:
            if match := _PARAMETER.match(line):
                origins[match[1]] = frozenset({int(match[2])})
            elif registers := _REGISTER.findall(line):
                into, *sources = registers
                origins[into] = origins.get(into, frozenset()).union(*(origins.get(r, ()) for r in sources))
    addresses = (a for line in lines if _MEMORY.match(line) for a in re.findall(r"\[([^\]]*)\]", line))
    named = (register for a in addresses for register in _REGISTER.findall(a))
    return frozenset().union(*(origins.get(r, frozenset()) for r in named))


def _before_wait(lines: Sequence[str]) -> set[int]:
    """Statements that a way from the start reaches without the wait; one under a predicate may be no wait."""
    return {i for i, _ in ways(lines, None, lambda line, state: () if line.startswith(_WAIT) else (state,))}


def _braces(text: str, start: int) -> str:
    """The text between the brace at `start` and its partner."""
    depth = 0
    for brace in re.compile("[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start + 1 : brace.start()]
    return text[start + 1 :]
