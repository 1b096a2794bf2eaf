"""Settings of all tests: one thread per worker, and the same hypothesis examples on every machine."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: the workers share the cores already

from hypothesis import settings

settings.register_profile("txl", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("txl")
