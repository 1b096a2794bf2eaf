"""What every test needs: one thread per worker, and hypothesis with the same examples on every machine."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch: workers share the cores already

from hypothesis import settings

settings.register_profile("txl", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("txl")
