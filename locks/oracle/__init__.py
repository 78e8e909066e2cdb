"""Locks of the float64 oracle."""
