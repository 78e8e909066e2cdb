"""The same projections by cuBLAS, through PyTorch where it is present; run as a script of its own process.

`python reports/bench_cublas.py '{"rows": [32], "shapes": {"5120x6144": 64}}'` prints milliseconds of a step by type.
Weights rotate beyond the second-level cache; every shape is one graph. Its results are no reference: only its time is
read.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Bytes of weights that are more than the second-level cache of an H200 holds, several times.
BEYOND_CACHE = 400 << 20


def beside(shapes: Sequence[tuple[int, int]], rows: Sequence[int], seconds: float = 30.0) -> dict[str, Any]:
    """Milliseconds of a step by type and number of rows, or the reason why there are none."""
    asked = json.dumps({"rows": list(rows), "shapes": {f"{N}x{K}": n for (N, K), n in Counter(shapes).items()}})
    command = (sys.executable, str(Path(__file__)), asked)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            return {"reason": done.stderr.strip().splitlines()[-1][:200]}
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"reason": f"{type(error).__name__}: PyTorch did not answer within {seconds:g} s"}


def _products(torch: Any, kind: str, M: int, N: int, K: int) -> list[Any]:
    """Calls that multiply one activation by weights that differ."""
    dtype, size = {"fp8": (torch.float8_e4m3fn, 1), "int8": (torch.int8, 1), "bf16": (torch.bfloat16, 2)}[kind]
    # cuBLAS refuses int8 products of 16 rows and fewer, and fp8 ones of rows that are no multiple of 16
    tall = max(M, 32) if kind == "int8" else -(-M // 16) * 16 if kind == "fp8" else M
    x, one = torch.zeros(tall, K, device="cuda").to(dtype), torch.ones((), device="cuda")
    count = max(1, BEYOND_CACHE // (N * K * size))
    weights = [torch.zeros(N, K, device="cuda", dtype=torch.bfloat16).to(dtype).t() for _ in range(count)]
    if kind == "fp8":
        return [lambda w=w: torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16) for w in weights]
    return [lambda w=w: (torch._int_mm if kind == "int8" else torch.mm)(x, w) for w in weights]


def _milliseconds(torch: Any, products: list[Any]) -> float:
    for product in products:
        product()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product()
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[3]) / len(products)


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a step: type -> rows -> time, or the library's refusal."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__}
    for kind in ("fp8", "int8", "bf16"):
        for M in asked["rows"]:
            try:
                sizes = {shape: tuple(map(int, shape.split("x"))) for shape in asked["shapes"]}
                ms = {s: _milliseconds(torch, _products(torch, kind, M, *sizes[s])) for s in sizes}
                found[f"{kind} {M} rows"] = sum(ms[s] * n for s, n in asked["shapes"].items())
            except RuntimeError as error:
                found[f"{kind} {M} rows"] = str(error).splitlines()[0][:120]
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
