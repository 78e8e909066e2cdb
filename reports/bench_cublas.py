"""The same projections by cuBLAS, through PyTorch where it is present; run in a process of its own.

`python -m reports.bench_cublas '{"rows": [32], "shapes": {"5120x6144": 64}}'` prints milliseconds of a step by type.
Weights rotate beyond the second-level cache; every shape is one graph. Its results are no reference: only its time is
read.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from reports.peer import answer, milliseconds

#: Bytes of weights that are more than the second-level cache of an H200 holds, several times.
BEYOND_CACHE = 400 << 20


def beside(shapes: Sequence[tuple[int, int]], rows: Sequence[int], seconds: float = 30.0) -> dict[str, Any]:
    """Milliseconds of a step by type and number of rows, or the reason why there are none."""
    asked = json.dumps({"rows": list(rows), "shapes": {f"{N}x{K}": n for (N, K), n in Counter(shapes).items()}})
    return answer("reports.bench_cublas", asked, "PyTorch", seconds)


def _products(torch: Any, kind: str, M: int, N: int, K: int) -> list[Any]:
    """Calls that multiply one activation by weights that differ."""
    dtype, size = {"fp8": (torch.float8_e4m3fn, 1), "int8": (torch.int8, 1), "bf16": (torch.bfloat16, 2)}[kind]
    # cuBLAS refuses int8 products of 16 rows and fewer, and fp8 ones of rows that are no multiple of 16
    tall = max(M, 32) if kind == "int8" else -(-M // 16) * 16 if kind == "fp8" else M
    x, one = _random(torch, dtype, tall, K), torch.ones((), device="cuda")
    count = max(1, BEYOND_CACHE // (N * K * size))
    weights = [_random(torch, dtype, N, K).t() for _ in range(count)]
    if kind == "fp8":
        return [lambda w=w: torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16) for w in weights]
    return [lambda w=w: (torch._int_mm if kind == "int8" else torch.mm)(x, w) for w in weights]


def _random(torch: Any, dtype: Any, rows: int, columns: int) -> Any:
    """Random values, as ours: products of zeros draw less power."""
    if dtype == torch.int8:
        return torch.randint(-127, 128, (rows, columns), device="cuda", dtype=dtype)
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(dtype)


def _milliseconds(torch: Any, products: list[Any]) -> float:
    for product in products:
        product()
    return milliseconds(torch, products, 7)


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
