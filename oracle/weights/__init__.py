"""Weights in and out: our files, synthetic ones, Hugging Face and GGUF checkpoints."""

from oracle.weights.export_gguf import export_gguf
from oracle.weights.load import kind, load, origin
from oracle.weights.quantised import QuantisedWeights
from oracle.weights.save import save
from oracle.weights.synthetic import SyntheticWeights

__all__ = ["QuantisedWeights", "SyntheticWeights", "export_gguf", "kind", "load", "origin", "save"]
