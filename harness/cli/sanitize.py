"""`lanelock sanitize`: compute-sanitizer's four tools over the kernels' locks, on a GPU, at small shapes."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from harness.cuda.gpus import list_gpus
from harness.cuda.memory import WATCHED
from harness.device import NotRun
from harness.progress import shown
from harness.record import check_records, record
from kernels.catalogue import ROOMS
from kernels.places import places
from reports.sanitizer import PLANTED, TOOLS, FalseAlarm, Log, ToolResult, judge, parse, read_ledger

ROOT = Path(__file__).resolve().parents[2]
#: What a tool cannot look through: guards take in strays, poison sets what nobody set.
LEFT_OUT = {"initcheck": "guards,poison"}
#: The harness reads whole buffers back; rows of sequences that take no part, and what lies between the rows of a wide
#: pitch, are unset by contract (locks/sequences.py). A kernel that reads unset memory is named all the same.
OPTIONS = {"initcheck": ("--check-api-memory-access", "no")}


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("sanitize", help="compute-sanitizer's four tools over the kernels' locks, on a GPU")
    sub.add_argument("--room", action="append", choices=ROOMS, metavar="ROOM", help="this room (default: all)")
    sub.add_argument("--tool", action="append", choices=TOOLS, help="this tool (default: all four)")
    sub.add_argument("--match", metavar="EXPR", help="of their locks those whose names match, as pytest's -k does")
    sub.add_argument("--processes", type=int, default=1, metavar="N", help="worker processes (default: 1)")
    sub.add_argument("--record", action="store_true", help="write a record under reports/records/")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if every tool ran and complained of nothing unexplained, 1 for a finding, 2 where a tool did not run."""
    if args.record:
        check_records()
    sanitizer, ledger = find(), read_ledger()
    list_gpus().require(0)
    tools, results = tuple(dict.fromkeys(args.tool or TOOLS)), []
    with shown("sanitize") as progress:
        for i, tool in enumerate(tools):
            progress(tool, i, len(tools))
            results.append(check(sanitizer, tool, args.room or ROOMS, args.match, args.processes, ledger))
    whole = args.room is None and args.match is None
    explained = [f for r in results for f in r.explained]
    stale = [a for a in ledger if whole and a.tool in tools and not any(a.explains(f) for f in explained)]
    figures = {"rooms": list(args.room or ROOMS), "match": args.match, "tools": [asdict(r) for r in results],
               "stale": [asdict(a) for a in stale]}  # fmt: skip  # a map
    if args.record:
        record("sanitize", figures)
    print(json.dumps(figures, indent=1) if args.json else "\n".join(words(results, stale)))
    if stale or any(r.status == "found" for r in results):
        return 1
    return 2 if any(r.status == "not run" for r in results) else 0


def find() -> str:
    """The path of compute-sanitizer. Raises NotRun where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes = [home for home in (*homes, "/usr/local/cuda") if home]
    folders = [f"{home}/{part}" for home in homes for part in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if found is None:
        raise NotRun("sanitize not run: compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    return found


def check(
    sanitizer: str, tool: str, rooms: Sequence[str], match: str | None, processes: int, ledger: Sequence[FalseAlarm]
) -> ToolResult:
    """One tool, first over its planted fault, then over the locks of the rooms whose names match."""
    logs, _ = watched(sanitizer, tool, ["locks.sanitizer_probes", tool])
    kernels = Counter(f.kernel for log in logs for f in log.findings)
    if set(kernels) - {""} != {PLANTED[tool]}:
        reason = next((log.unable for log in logs if log.unable), "it does not see the planted fault, and that alone")
        return ToolResult(tool, "not run", 0, (), (), reason)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "results.json"
        files = sorted({places(room)["locks"].as_posix() for room in rooms})
        named = f"cuda and ({match})" if match else "cuda"
        command = ["pytest", *files, "-q", "-k", named, "--device", "cuda", "--results", str(target)]
        logs, said = watched(sanitizer, tool, command + (["-n", str(processes)] if processes > 1 else []))
        rows = json.loads(target.read_text())["locks"] if target.exists() else []
    verdict = judge(tool, logs, ledger, sum(row["outcome"] == "passed" for row in rows))
    failed = [row["node"] for row in rows if row["outcome"] == "failed"]
    if verdict.status == "found":  # often why locks fail
        return verdict
    # without poison the locks that look at it cannot hold; under the other tools they must
    if failed and tool not in LEFT_OUT:
        return replace(verdict, status="not run", reason=f"{len(failed)} locks fail under it, such as {failed[0]}")
    if not rows:
        return replace(verdict, status="not run", reason=f"the locks could not be run: {said[-300:]}")
    return verdict


def watched(sanitizer: str, tool: str, module: Sequence[str]) -> tuple[list[Log], str]:
    """`python -m ...` under a tool: the log of every process, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--tool", tool, "--target-processes", "all", "--show-backtrace", "no", "--print-limit", "10000",
                   *OPTIONS.get(tool, ())]  # fmt: skip  # a command
        command = [sanitizer, *options, "--log-file", f"{folder}/%p.log", sys.executable, "-m", *module]
        environment = {**os.environ, WATCHED: LEFT_OUT.get(tool, "guards")}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
        texts = [path.read_text(errors="replace") for path in sorted(Path(folder).glob("*.log"))]
    return [parse(tool, text) for text in texts], done.stdout + done.stderr


def words(results: Sequence[ToolResult], stale: Sequence[FalseAlarm]) -> list[str]:
    """A line a tool, a line a kind of finding, a line a stale entry."""
    lines = []
    for r in results:
        note = f"{r.reason}" if r.status == "not run" else f"{len(r.findings)} findings, {len(r.explained)} explained"
        lines.append(f"{r.tool}: {r.status}, {r.locks} locks; {note}")
        for (kernel, text), count in Counter((f.kernel, f.text) for f in r.findings).items():
            lines.append(f"  {count} x {kernel or 'no kernel'}: {text}")
    return lines + [f"STALE {a.tool} {a.kernel}: {a.text!r} explains nothing" for a in stale]
