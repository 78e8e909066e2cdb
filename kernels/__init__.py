"""CUDA C++ kernels and their catalogue: what each kernel takes, writes and is held to."""
