"""The locks: pytest tests, each a sentence of the specification."""

import os

# before NumPy is imported: a lock's matrices are small, and workers that each spin a thread a core hinder each other
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
