"""The gated delta rule of flash-linear-attention, where it is installed; run in a process of its own.

`python -m reports.bench_fla FOLDER` reads `asked.json` and arrays from the folder, prints milliseconds, and leaves
outputs and states beside them. It is an optional peer: only its time and its error are read.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reports.peer import answer, milliseconds

#: Bytes of states that one graph goes through at least, as in `bench_state`.
BEYOND_CACHE = 400 << 20
REPEATS, WARM = 15, 3
ARRAYS = ("q", "k", "v", "g", "beta")


def beside(
    sizes: dict[str, int], decode: Sequence[int], prefill: dict[int, dict[str, np.ndarray]], seconds: float = 300.0
) -> dict[str, Any]:
    """What the peer measured, or the reason why there is nothing.

    Shapes: sizes has HK, HV, D and layers; prefill maps T to q, k [1, T, HK, D], v [1, T, HV, D], g, beta [1, T, HV].
    Units:  us of a layer. `decode` maps B to it, `chunk` maps T to it; `arrays` maps T to outputs [T, HV, D] and state
    [HV, D, D], heads in our order (value head h reads key head h mod HK).
    Error:  none. Source: events around replays of a graph. Raises nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = {**sizes, "decode": list(decode), "prefill": list(prefill)}
        (Path(folder) / "asked.json").write_text(json.dumps(asked))
        for T, arrays in prefill.items():
            np.savez(Path(folder) / f"in-{T}.npz", allow_pickle=False, **{n: arrays[n] for n in ARRAYS})
        found = answer("reports.bench_fla", folder, "flash-linear-attention", seconds)
        if "reason" in found:
            return found
        paths = {T: Path(folder) / f"out-{T}.npz" for T in prefill}
        found["arrays"] = {T: dict(np.load(path)) for T, path in paths.items() if path.is_file()}
    return found


def _grouped(x: np.ndarray, HK: int, axis: int) -> np.ndarray:
    """Value heads of one key head side by side, as this peer wants them, from ours."""
    shape = (*x.shape[:axis], -1, HK, *x.shape[axis + 1 :])
    return np.ascontiguousarray(np.swapaxes(x.reshape(shape), axis, axis + 1)).reshape(x.shape)


def _ungrouped(x: np.ndarray, HK: int, axis: int) -> np.ndarray:
    """The inverse."""
    shape = (*x.shape[:axis], HK, -1, *x.shape[axis + 1 :])
    return np.ascontiguousarray(np.swapaxes(x.reshape(shape), axis, axis + 1)).reshape(x.shape)


def _microseconds(torch: Any, layers: Sequence[Callable[[], Any]]) -> float:
    """Of one layer, from replays of a graph of all."""
    for _ in range(2):
        layers[0]()
    torch.cuda.synchronize()
    kept: list[Any] = []  # outputs: each layer has memory of its own, as ours has
    calls = [lambda layer=layer: kept.append(layer()) for layer in layers]  # bound at once
    return milliseconds(torch, calls, REPEATS, WARM) * 1e3


def _decode(torch: Any, rule: Any, a: dict[str, Any], B: int) -> float:
    def layer(state: Any) -> Callable[[], Any]:
        return lambda: rule(q, k, v, g, beta=beta, initial_state=state, output_final_state=True, state_v_first=True)

    def random(*shape: int) -> Any:
        return torch.randn(B, 1, *shape, device="cuda", dtype=torch.bfloat16)

    q, k, v = random(a["HK"], a["D"]), random(a["HK"], a["D"]) / a["D"], random(a["HV"], a["D"])
    g, beta = -torch.rand(B, 1, a["HV"], device="cuda"), torch.rand(B, 1, a["HV"], device="cuda")
    count = min(a["layers"], -(-BEYOND_CACHE // (B * a["HV"] * a["D"] ** 2 * 4)))
    states = [torch.randn(B, a["HV"], a["D"], a["D"], device="cuda") for _ in range(count)]
    return _microseconds(torch, [layer(s) for s in states])


def _chunk(torch: Any, rule: Any, a: dict[str, Any], folder: Path, T: int) -> float:
    def layer(own: tuple[Any, ...]) -> Callable[[], Any]:
        return lambda: rule(*own, g, beta, initial_state=zero, output_final_state=True, state_v_first=True)

    given = dict(np.load(folder / f"in-{T}.npz"))
    for name in ("v", "g", "beta"):
        given[name] = _grouped(given[name], a["HK"], 2)
    q, k, v, g, beta = (torch.from_numpy(given[n]).cuda() for n in ARRAYS)
    wide = [t.to(torch.bfloat16) for t in (q, k, v)]  # exact: bench_state gives values that bf16 holds
    zero = torch.zeros(1, a["HV"], a["D"], a["D"], device="cuda")
    with torch.no_grad():
        o, state = layer(tuple(wide))()
        out, last = (_ungrouped(t[0].float().cpu().numpy(), a["HK"], axis) for t, axis in ((o, 1), (state, 0)))
        np.savez(folder / f"out-{T}.npz", o=out, state=last)
        rows = 4 * T * (2 * a["HK"] + 2 * a["HV"]) * a["D"]
        count = min(a["layers"], -(-BEYOND_CACHE // rows))
        return _microseconds(torch, [layer(tuple(t.clone() for t in wide)) for _ in range(count)])


def main(folder: Path) -> dict[str, Any]:
    """Microseconds of a layer by batch and by length, or the library's refusal of one."""
    # one of its dependencies imports a package called `kernels` if it finds one: ours is none of its business
    sys.modules["kernels"] = None  # type: ignore[assignment]  # the spelling of "not there"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from fla.ops import gated_delta_rule as fla

    a = json.loads((folder / "asked.json").read_text())
    found: dict[str, Any] = {"torch": torch.__version__, "decode": {}, "chunk": {}}
    for kind, sizes in (("decode", a["decode"]), ("chunk", a["prefill"])):
        for n in sizes:
            try:
                if kind == "decode":
                    found[kind][n] = _decode(torch, fla.fused_recurrent_gated_delta_rule, a, n)
                else:
                    found[kind][n] = _chunk(torch, fla.chunk_gated_delta_rule, a, folder, n)
            except (RuntimeError, ValueError, AssertionError) as error:
                found[kind][n] = str(error).splitlines()[0][:120]
            torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
