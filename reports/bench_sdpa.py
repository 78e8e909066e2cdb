"""The same attention by PyTorch's scaled_dot_product_attention, where it is present; a script of its own process.

`python reports/bench_sdpa.py '{"heads": [24, 4, 256], "cases": {"decode": [32, 1, 640]}}'` prints microseconds of a
layer by case and backend: float16 queries, keys and values, the last of T rows sees the whole context. Buffers rotate
beyond the second-level cache; every case is one graph. Its results are no reference: only its time is read.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

#: Bytes of keys and values that are more than the second-level cache of an H200 holds, several times.
BEYOND_CACHE = 256 << 20
MOST_LAYERS = 64
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
#: Scores that the backend which stores them all may have to hold, in bytes.
MOST_SCORES = 4 << 30


def beside(heads: Sequence[int], cases: Mapping[str, Sequence[int]], seconds: float = 60.0) -> dict[str, Any]:
    """Microseconds of a layer by case and backend, or the reason why there are none.

    Shapes: heads is HQ, HKV, D; a case is B, T, context.
    Units:  microseconds.
    """
    asked = json.dumps({"heads": list(heads), "cases": {name: list(case) for name, case in cases.items()}})
    command = (sys.executable, str(Path(__file__)), asked)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            return {"reason": done.stderr.strip().splitlines()[-1][:200]}
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"reason": f"{type(error).__name__}: PyTorch did not answer within {seconds:g} s"}


def _layers(torch: Any, heads: Sequence[int], case: Sequence[int], shared: bool) -> list[Callable[[], Any]]:
    """Calls over caches that differ; `shared`: query heads share a KV head inside the kernel, else it is repeated."""
    attend = torch.nn.functional.scaled_dot_product_attention
    (HQ, HKV, D), (B, T, context) = heads, case
    q = torch.randn(B, HQ, T, D, device="cuda", dtype=torch.float16)
    size = 4 * B * HKV * context * D
    count = max(1, min(MOST_LAYERS, -(-BEYOND_CACHE // size)))
    more: dict[str, Any] = {"enable_gqa": True} if shared else {}
    if context == T:
        more["is_causal"] = True
    elif T > 1:
        from torch.nn.attention.bias import causal_lower_right

        more["attn_mask"] = causal_lower_right(T, context)
    calls: list[Callable[[], Any]] = []
    for _ in range(count):
        k, v = (torch.randn(B, HKV, context, D, device="cuda", dtype=torch.float16) for _ in range(2))
        if not shared:
            k, v = (x.repeat_interleave(HQ // HKV, dim=1) for x in (k, v))
        calls.append(partial(attend, q, k, v, **more))
    return calls


def _microseconds(torch: Any, calls: Sequence[Callable[[], Any]]) -> float:
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[4]) * 1e3 / len(calls)


def _timed(torch: Any, backend: str, heads: Sequence[int], case: Sequence[int]) -> float | str:
    """The faster of sharing a KV head inside the kernel and repeating it, or the backend's refusal."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    B, T, context = case
    if backend == "MATH" and 4 * B * heads[0] * T * context > MOST_SCORES:
        return "scores too large"
    found: list[float] = []
    refusal = ""
    for shared in (True, False):
        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                found.append(_microseconds(torch, _layers(torch, heads, case, shared)))
        except (RuntimeError, ValueError, TypeError) as error:
            refusal = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        torch.cuda.empty_cache()
    return min(found) if found else refusal


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Microseconds: case -> backend -> time, or the library's refusal."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__}
    for name, case in asked["cases"].items():
        found[name] = {backend: _timed(torch, backend, asked["heads"], case) for backend in BACKENDS}
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
