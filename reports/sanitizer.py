"""What compute-sanitizer said, as data: findings by kernel, and the ledger of those that are proven false alarms."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oracle.errors import LanelockError

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: The kernel of locks/kernels/sanitizer.cu that holds a fault of each tool's own kind.
PLANTED = dict(zip(TOOLS, ("planted_stray", "planted_race", "planted_unset", "planted_divergence"), strict=True))
LEDGER = Path(__file__).parent / "sanitizer_ledger.toml"
FIELDS = ("tool", "kernel", "text", "proof")

_MARK = "========= "
#: Lines that head no finding: also of processes that never come to the GPU, and of locks that fail, which are counted.
_FRAME = ("COMPUTE-SANITIZER", "LEAK SUMMARY", "Target application ", "Error: process didn't terminate")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed)")
_UNABLE = re.compile(r"Internal Sanitizer Error|Unable to|not supported|"
                     r"No attachable process|Failed to|could not be")  # fmt: skip  # what keeps a tool from running
#: `at void lane::gemm_tc<(int)1>(const char *, ...)+0x70`: what stands in front of template values and arguments.
_KERNEL = re.compile(r"\bat (?:void )?(?:\w+::)*(\w+)(?:<.*>)?(?:\(.*\))?\+0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """One complaint. kernel: symbol of the kernel, "" where the complaint is about none; text: its first line."""

    tool: str
    kernel: str
    text: str
    detail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """One process under one tool. counted: what its own summary says; None where there is none; unable: why not."""

    findings: tuple[Finding, ...]
    counted: int | None
    unable: str


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """A finding that is proven to be none: of a tool, in a kernel, its first line containing `text`."""

    tool: str
    kernel: str
    text: str
    proof: str

    def explains(self, finding: Finding) -> bool:
        """Whether the finding is this one."""
        return (self.tool, self.kernel) == (finding.tool, finding.kernel) and self.text in finding.text


def parse(tool: str, text: str) -> Log:
    """The log of one process. Lines that the tool did not write (no mark in front) do not count."""
    findings: list[Finding] = []
    block: list[str] = []
    counted: int | None = None
    unable = ""

    def close() -> None:
        if block:
            named = next((m[1] for m in map(_KERNEL.search, block) if m), "")
            findings.append(Finding(tool, named, block[0], tuple(block[1:])))
            block.clear()

    for line in (raw.removeprefix(_MARK) for raw in text.splitlines() if raw.startswith(_MARK)):
        if line.startswith(" "):
            if block:
                block.append(line.strip())
            continue
        close()
        if summary := _SUMMARY.match(line):
            counted = (counted or 0) + int(summary[1] or summary[2])
        elif _UNABLE.search(line):
            unable = line
        elif line.strip() and not line.startswith(_FRAME):
            block.append(line)
    close()
    return Log(tuple(findings), counted, unable)


def read_ledger(path: Path = LEDGER) -> tuple[FalseAlarm, ...]:
    """The proven false alarms. Raises LanelockError for an entry without one of its four texts."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("false_alarm", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LanelockError(f"{path}: not a readable ledger ({error})") from error
    alarms = []
    for number, table in enumerate(tables, start=1):
        if sorted(table) != sorted(FIELDS) or not all(isinstance(table[f], str) for f in FIELDS):
            raise LanelockError(f"{path}: entry {number} needs exactly the texts {', '.join(FIELDS)}")
        if table["tool"] not in TOOLS or not table["text"] or not table["proof"]:
            raise LanelockError(f"{path}: entry {number} names no tool, no text or no proof")
        alarms.append(FalseAlarm(**table))
    return tuple(alarms)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One tool over the locks. status: clean, found or not run; explained: false alarms; reason: why not run."""

    tool: str
    status: str
    locks: int
    findings: tuple[Finding, ...]
    explained: tuple[Finding, ...]
    reason: str = ""


def judge(tool: str, logs: Sequence[Log], ledger: Iterable[FalseAlarm], locks: int) -> ToolResult:
    """Clean only where the tool watched something that passed and every complaint is explained and accounted for."""
    alarms = tuple(ledger)
    found = [f for log in logs for f in log.findings]
    explained = tuple(f for f in found if any(a.explains(f) for a in alarms))
    rest = tuple(f for f in found if f not in explained)
    unable = [log.unable for log in logs if log.unable]
    watched = [log for log in logs if log.counted is not None]
    if rest:
        return ToolResult(tool, "found", locks, rest, explained)
    if unable or not watched:
        return ToolResult(tool, "not run", locks, (), explained, unable[0] if unable else "it left no summary")
    lost = sum(log.counted or 0 for log in watched) - len(found)
    if lost > 0:
        hidden = Finding(tool, "", f"{lost} more, which its log does not show", ())
        return ToolResult(tool, "found", locks, (hidden,), explained)
    if not locks:
        return ToolResult(tool, "not run", 0, (), explained, "no lock ran under it")
    return ToolResult(tool, "clean", locks, (), explained)
