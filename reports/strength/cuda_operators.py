"""Operators on CUDA and C++ sources: the faults of locks.md that apply to any kernel, found by pattern.

Patterns are matched in a masked copy of the text in which comments, strings, preprocessor lines, declarations that a
compiler checks (static_assert, launch bounds) and hints that only its scheduling reads (how far a loop is unrolled,
blocks an SM) are blanks of the same length, so positions agree.
"""

import re
from collections.abc import Callable, Iterator

import numpy as np

from reports.strength import edit
from reports.strength.active import inactive
from reports.strength.edit import Edit

_MASKED = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:\\\n|[^\n])*|\bstatic_assert\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    r"|\b__launch_bounds__\s*\([^()]*\)|\bconstexpr int (?:UNROLL|BLOCKS_OF_SM) = [^;]*;"
    r"|\btemplate\s*<[^;{]*?>(?=\s)",
    re.MULTILINE | re.DOTALL,
)
Rewrite = str | Callable[[re.Match[str]], str]

_NEXT = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_OPPOSITE = {"+": "-", "-": "+", "&&": "||", "||": "&&", "==": "!=", "!=": "=="}
_CALL = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"


def masked(text: str) -> str:
    """The text with everything that is not code, or not compiled here, blanked; line breaks kept."""
    for start, end in inactive(text):
        text = text[:start] + _blank(text[start:end]) + text[end:]
    return _MASKED.sub(lambda m: _blank(m.group()), text)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _swapped(match: re.Match[str]) -> str:
    return f"? {match['b']} : {match['a']}"


def _last_step_skipped(match: re.Match[str]) -> str:
    """The bound one step lower: by less than a step it would be the same loop."""
    step = re.match(r" (?:\w+ (?P<by>[+*])= (?P<size>\d+))", match["step"])
    if step is None:
        return f"{match['x']} - 1"
    return f"({match['x']}) {'-' if step['by'] == '+' else '/'} {step['size']}"


def _next_float(match: re.Match[str]) -> str:
    """The neighbouring float32: the smallest change that a contract can see."""
    value = np.float32(match["value"])
    largest = value == np.finfo(np.float32).max
    spelled = f"{float(np.nextafter(value, np.float32(0 if largest else np.inf))):.9g}"
    return spelled + ("f" if "." in spelled or "e" in spelled else ".0f")


def _next_hex_float(match: re.Match[str]) -> str:
    value = np.float32(float.fromhex(match.group()[:-1]))
    return float(np.nextafter(value, np.float32(np.inf))).hex() + "f"


#: class, pattern, replacement. A group named `x`, where there is one, is the part that is replaced.
RULES: tuple[tuple[str, str, Rewrite], ...] = (
    (edit.BARRIER, r"\b(?:lane::)?(?:__syncthreads|__syncwarp|barrier|cluster_sync)\s*\([^()]*\)\s*;", ";"),
    (edit.BARRIER, r"\b(?:lane::)?\w*wait\w*(?:<[^<>;]*>)?\s*\([^()]*\)\s*;", ";"),
    (edit.MASK, r"(?<=\()(?P<x>lane::FULL|FULL|0xffffffffu?)(?=,)", "0x7fffffffu"),
    (edit.LANE, r"\b(?:threadIdx|blockIdx)\.[xyz]\b", lambda m: f"({m.group()} + 1)"),
    (edit.LOOP, r"\bfor \([^;]*;[^;]*? < (?P<x>[^;&|]+?);(?P<step>[^;{]*)", _last_step_skipped),
    (edit.START, r"\bfor \((?:[\w ]+?) \w+ = (?P<x>0)\b", "1"),
    (edit.SCALE, r"\b\w*scale\w*\[(?P<x>[^\[\]]+)\]", lambda m: f"{m['x']} + 1"),
    (edit.NEIGHBOUR, r"\b(?!\w*scale)\w+\[(?P<x>[^\[\]]*[a-z][^\[\]]*)\]", lambda m: f"{m['x']} + 1"),
    (edit.ORDER, r"\bfor \(int (\w+) = 16; \1 > 0; \1 (?:/= 2|>>= 1)\)(?=[^;]* = [^;=]* \+ )",
     lambda m: f"for (int {m[1]} = 1; {m[1]} < 32; {m[1]} *= 2)"),
    (edit.ORDER, r"\bfor \(int (\w+) = 0; \1 < (?P<n>[^;]+); \+\+\1\)(?=[^;]*\b(\w+) = (?:\3 \+|fmaf\([^;]*, \3\)))",
     lambda m: f"for (int {m[1]} = ({m['n']}) - 1; {m[1]} >= 0; --{m[1]})"),
    (edit.CONSTANT, r"(?<![\w.])(?P<value>\d+\.\d*(?:e[-+]?\d+)?)f\b", _next_float),
    (edit.CONSTANT, r"(?<![\w.\[<])(?<!\bint )(?P<x>\d+)(?![\w.\]>])(?!\.)", lambda m: str(int(m["x"]) + 1)),
    (edit.CONSTANT, r"(?<!\w)0x[0-9a-fA-F]+\.?[0-9a-fA-F]*p[-+]?\d+f\b", _next_hex_float),
    (edit.CONSTANT, r"(?<!\w)(?P<x>0x[0-9a-fA-F]+)(?:u|\b)(?![.\w])", lambda m: hex(int(m["x"], 16) ^ 1)),
    (edit.WRITE, r"(?<=[;{})\n])(?P<lead>\s*)(?P<x>(?:\*\w+|\w+\[[^;={}]*\]) [-+^|&]?= [^;{}]*;)", ";"),
    (edit.WRITE, r"\b(?:lane::)?store\w+\s*(?:<\w+>)?" + _CALL + ";", ";"),
    (edit.EPSILON, r" \+ (?:eps|epsilon)\b", ""),
    (edit.TIE, r"\brintf\(", "rintf(1.00000012f * "),
    (edit.GUARD, r"\bif (?P<x>" + _CALL + r")(?=\s*return)", "(false)"),
    (edit.GUARD, r"\bif (?P<x>" + _CALL + r")(?!\s*return)", "(true)"),
    (edit.COMPARE, r"(?<= )(?:<=|>=|<|>)(?= )", lambda m: _NEXT[m.group()]),
    (edit.SIGN, r"(?<=[\w)\]] )[-+](?= [\w(])", lambda m: _OPPOSITE[m.group()]),
    (edit.REMAINDER, r"(?<= )%(?= )", "/"),
    (edit.CONDITION, r"(?<= )(?:&&|\|\||==|!=)(?= )", lambda m: _OPPOSITE[m.group()]),
    (edit.SELECTION, r"\? (?P<a>[\w.:\[\]()-]+) : (?P<b>[\w.:\[\]()-]+)", _swapped),
)  # fmt: skip


def cuda_edits(text: str) -> Iterator[Edit]:
    """Every edit that an operator makes of a C++ or CUDA text, in the order of the rules."""
    code = masked(text)
    for kind, pattern, rewrite in RULES:
        for match in re.finditer(pattern, code):
            start, end = match.span("x") if "x" in match.re.groupindex else match.span()
            fresh = rewrite if isinstance(rewrite, str) else rewrite(match)
            if fresh != text[start:end]:
                yield Edit(start, end, fresh, kind)
    yield from _split_fma(text, code)


def _split_fma(text: str, code: str) -> Iterator[Edit]:
    """fmaf(a, b, c) as a product and a sum: two roundings where the contract has one."""
    for match in re.finditer(r"\bfmaf\(", code):
        parts, end = _arguments(code, match.end())
        if len(parts) == 3:
            a, b, c = (text[s:e].strip() for s, e in parts)
            yield Edit(match.start(), end, f"(({a}) * ({b}) + ({c}))", edit.FMA)


def _arguments(code: str, start: int) -> tuple[list[tuple[int, int]], int]:
    """Spans of the top-level arguments behind an opening parenthesis, and the end behind the closing one."""
    depth, begin, parts = 0, start, []
    for at in range(start, len(code)):
        letter = code[at]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            parts.append((begin, at))
            begin = at + 1
        if depth < 0:
            return parts, at + 1
    return [], len(code)
