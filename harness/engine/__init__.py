"""Runs plans: memory for a plan's buffers, its weights, and the decode loop over its programs."""

from harness.engine.decode import Request, Stream, decode
from harness.engine.memory import Engine, open_engine

__all__ = ["Engine", "Request", "Stream", "decode", "open_engine"]
