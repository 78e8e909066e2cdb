"""Where the time of one program goes, behind the prompt of a case (`lanelock ablate`, `lanelock bench decode`)."""

from typing import Any

from harness.device import Device
from harness.engine import Choice, Request, opened
from harness.engine.decode import prefill
from oracle.model_weights import Weights
from reports.bench_decode import Case, enter, prompts
from reports.step_profile import profile


def measure(device: Device, weights: Weights, case: Case, program: str, read: float, repeats: int) -> dict[str, Any]:
    """Rows of kernels and of parts; shapes, units and error as `profile`. Raises what `opened` raises."""
    choice = Choice(case.lane, case.B, case.prompt + case.count + 1, case.chunk, case.drafts)
    with opened(device, weights, choice) as engine:
        entering = {b: Request(p, case.count) for b, p in enumerate(prompts(case, weights.config.vocab))}
        enter(engine, case)
        prefill(engine, entering)
        return {"name": f"{case.lane} B={case.B} {program}", **profile(engine, program, read, repeats)}
