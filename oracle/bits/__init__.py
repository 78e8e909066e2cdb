"""The contract in NumPy float32, transcribed from kernels/ARITHMETIC.md (never from the CUDA sources), one room a file.

float32 `+ - * /` and sqrt of NumPy are correctly rounded; `fma` is exact by construction. Nothing else is used.
"""

#: The version of kernels/ARITHMETIC.md that this package transcribes; goldens are keyed by it.
ARITHMETIC_VERSION = 2
