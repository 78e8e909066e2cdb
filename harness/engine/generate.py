"""Synthetic weights made where they are read: 27 GB of them in seconds on a GPU, and nothing to copy there."""

from typing import TYPE_CHECKING

from harness.engine.load import Make
from harness.run import arguments
from kernels.catalogue import kernel
from kernels.entry import instance, resolve
from oracle.config import BLOCK
from oracle.model_weights import Weights, specs
from oracle.weights.synthetic import SyntheticWeights, key, scale_bits

if TYPE_CHECKING:
    from harness.engine.memory import Engine


def maker(engine: "Engine", weights: Weights) -> Make | None:
    """What makes the quantised tensors of synthetic weights on the engine's device; None for stored weights."""
    if not isinstance(weights, SyntheticWeights):
        return None
    inst = instance(kernel("synthetic"))
    built = engine.device.build(inst)
    table = specs(weights.config)

    def make(tensor: str, codes: str, scales: str) -> None:
        rows, columns = table[tensor].shape
        keys = {f"{part}_key": signed(key(weights.seed, f"{tensor}.{part}s")) for part in ("code", "scale")}
        given = {**keys, "lowest_scale": int(scale_bits(tensor, columns)), "blocks": rows * columns // BLOCK}
        dims = resolve(inst, given)
        memory = {"codes": engine.memory[codes], "scales": engine.memory[scales]}
        engine.device.launch(built, inst.kernel.geometry(dims), arguments(inst.kernel, dims, memory))

    return make


def signed(value: int) -> int:
    """A 64-bit key as the signed argument that carries it."""
    return value - 2**64 if value >= 2**63 else value
