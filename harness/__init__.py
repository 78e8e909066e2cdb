"""The same kernels and plans on two devices: a GPU through cuda-python, and the host processor."""
