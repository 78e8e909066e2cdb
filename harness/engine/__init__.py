"""Runs plans: memory for a plan's buffers, its weights, and the decode loop over its programs."""

from harness.engine.decode import Request, Stream, decode
from harness.engine.memory import Engine, captured, open_engine
from harness.engine.rows import draft_logits, prompt_logits
from harness.engine.session import Choice, machine_of, opened, opened_beside

__all__ = [
    "Choice",
    "Engine",
    "Request",
    "Stream",
    "captured",
    "decode",
    "draft_logits",
    "machine_of",
    "open_engine",
    "opened",
    "opened_beside",
    "prompt_logits",
]
