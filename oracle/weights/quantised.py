"""Any weights as our files hold them: matrices encoded to Q8_0 once, everything else rounded to float32."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.config import ModelConfig
from oracle.formats import Q8_0, q8_0_encode
from oracle.model_weights import Tensor, Weights
from oracle.weights.assemble import check_finite, is_quantised


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """A view of other weights that encodes what is not encoded yet; Q8_0 passes untouched, once seen to be finite.

    Error:  what `q8_0_encode` says for matrices; one float32 rounding for the rest.
    Raises LanelockError, naming the tensor, for a value or a scale that becomes infinite.
    """

    weights: Weights

    @property
    def config(self) -> ModelConfig:
        """Sizes that every tensor fits."""
        return self.weights.config

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        return _quantise(self.weights.tensor(name), name)

    def rows(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Those rows of a matrix, in that order."""
        return _quantise(self.weights.rows(name, index), name)


def _quantise(tensor: Tensor, name: str) -> Tensor:
    if isinstance(tensor, Q8_0):
        check_finite(tensor, f"tensor {name!r}")
        return tensor
    if is_quantised(name):
        return q8_0_encode(tensor, f"tensor {name!r}")
    with np.errstate(over="ignore"):
        rounded = tensor.astype(np.float32)
    check_finite(rounded, f"tensor {name!r} as float32")
    return rounded
