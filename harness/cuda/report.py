"""What ptxas says about each kernel of a compilation, read from the log that NVRTC keeps."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """Resources of one kernel. registers a thread; all others in bytes: stack and spills a thread, smem static."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    smem: int
    cmem: int

    @property
    def spills(self) -> int:
        """Bytes spilled, stores and loads together."""
        return self.spill_stores + self.spill_loads


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_CMEM = re.compile(r"(\d+) bytes cmem\[\d+\]")


def parse_reports(log: str) -> dict[str, Report]:
    """Lowered kernel name -> report, for every entry of the log.

    A device function that was not inlined has a stack frame of its own; its stack and spills count for the entry
    that it is listed under, since a thread of that kernel pays them. An entry without a line of registers is left
    out: a caller that asks for it must fail, not read zeros.
    """
    found: dict[str, Report] = {}
    for name, text in _sections(log):
        registers = _REGISTERS.search(text)
        frames = [tuple(map(int, m)) for m in _FRAME.findall(text)]
        if registers is None or not frames:
            continue
        stack, stores, loads = (sum(frame[i] for frame in frames) for i in range(3))
        smem = _SMEM.search(text)
        cmem = sum(int(n) for n in _CMEM.findall(text))
        found[name] = Report(int(registers[1]), stack, stores, loads, int(smem[1]) if smem else 0, cmem)
    return found


def _sections(log: str) -> list[tuple[str, str]]:
    """(entry name, text up to the next entry); none for a log without entries."""
    marks = list(_ENTRY.finditer(log))
    ends = [m.start() for m in marks[1:]] + [len(log)]
    return [(mark[1], log[mark.end() : end]) for mark, end in zip(marks, ends, strict=False)]
