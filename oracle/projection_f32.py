"""Product of activations with float32 weights: beta and decay of the GDN layer."""

from oracle.arrays import F64


def projection_f32(x: F64, w: F64) -> F64:
    """Activations times the transpose of weights.

    Shapes: x [..., K], w [N, K] -> [..., N].
    Units:  those of x times those of w.
    Error:  K * 2**-53 * sum of |x||w| an element, in whatever order the BLAS adds.
    Source: the model's definition. Raises ValueError where the widths differ.
    """
    if x.shape[-1] != w.shape[1]:
        raise ValueError(f"activations of width {x.shape[-1]} meet weights of width {w.shape[1]}")
    return x @ w.T
