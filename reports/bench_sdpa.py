"""The same attention by PyTorch's scaled_dot_product_attention, where it is present; run in a process of its own.

`python -m reports.bench_sdpa '{"heads": [24, 4, 256], "cases": {"decode": [32, 1, 640]}}'` prints microseconds of a
layer by case and backend: float16 queries, keys and values, the last of T rows sees the whole context. Buffers rotate
beyond the second-level cache; every case is one graph. Its results are no reference: only its time is read.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reports.peer import answer, milliseconds

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
    return answer("reports.bench_sdpa", asked, "PyTorch", seconds)


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
    return milliseconds(torch, calls, 9) * 1e3


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
