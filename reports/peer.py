"""Another library as a peer: a module of this package asks it, in a process of its own, and prints JSON."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def answer(module: str, asked: str, name: str, seconds: float) -> dict[str, Any]:
    """What `python -m MODULE ASKED` prints in its last line, or under `reason` why there is nothing. Raises nothing."""
    command = (sys.executable, "-m", module, asked)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
        if done.returncode != 0:
            return {"reason": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"reason": f"{type(error).__name__}: {name} did not answer within {seconds:g} s"}


def milliseconds(torch: Any, calls: Sequence[Callable[[], Any]], repeats: int, warm: int = 0) -> float:
    """Of one call: the median of an odd number of timed replays of a graph of all calls, after `warm` replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(warm):
        graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[repeats // 2]) / len(calls)
