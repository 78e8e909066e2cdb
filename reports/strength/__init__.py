"""Proof that the locks can fail: plant a fault, run the locks of its room, count what they noticed."""
