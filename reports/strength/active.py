"""Which lines of a C++ source the host device compiles on this machine: a fault elsewhere could not be seen here."""

import platform
import re

#: What the host device's compilations define, and what they do not. Anything else counts as unknown, and is kept.
KNOWN = {
    "LANELOCK_HOST": True,
    "LANELOCK_SOFT_HALF": False,
    "__CUDA_ARCH__": False,
    "__CUDACC_RTC__": False,
    "__FLT16_MANT_DIG__": True,
    "__AVX2__": platform.machine() == "x86_64",
    "__x86_64__": platform.machine() == "x86_64",
    "__aarch64__": platform.machine() == "aarch64",
}
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b([^\n]*)", re.MULTILINE)


def inactive(text: str) -> list[tuple[int, int]]:
    """Spans of the branches that are not compiled."""
    spans: list[tuple[int, int]] = []
    # of each open #if: whether a branch before was surely taken, and whether the present one may be compiled
    stack: list[tuple[bool, bool]] = []
    begin = 0
    for match in _DIRECTIVE.finditer(text):
        if stack and not all(open_ for _, open_ in stack):
            spans.append((begin, match.start()))
        word, condition = match[1], re.sub(r"//.*|/\*.*?\*/", "", match[2]).strip()
        if word in ("if", "ifdef", "ifndef"):
            holds = _truth(f"defined({condition})" if word != "if" else condition)
            holds = None if holds is None else holds != (word == "ifndef")
            stack.append((holds is True, holds is not False))
        elif word == "endif" and stack:
            stack.pop()
        elif stack:
            taken, _ = stack.pop()
            holds = _truth(condition) if word == "elif" else True
            stack.append((taken or holds is True, not taken and holds is not False))
        begin = match.end()
    return spans


def _truth(condition: str) -> bool | None:
    """A conjunction or disjunction of `defined(NAME)`; None where a part is unknown and decides."""
    for word, decides in (("||", True), ("&&", False)):
        if word in condition:
            parts = [_truth(p.strip()) for p in condition.split(word)]
            return decides if decides in parts else None if None in parts else not decides
    match = re.fullmatch(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?", condition)
    known = KNOWN.get(match[2]) if match else None
    return None if match is None or known is None else known != bool(match[1])
