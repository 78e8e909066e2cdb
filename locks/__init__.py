"""The locks: pytest tests, each a sentence of the specification."""

import os

# before NumPy is imported: a lock's matrices are small, and workers that each spin a thread a core made the oracle's
# locks 3.5 times slower (57 locks, 2 cores, 10.7 s against 3.0 s with other work on the machine).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
