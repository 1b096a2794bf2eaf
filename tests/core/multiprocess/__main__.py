"""Run checks in turn in all processes, and write the results of rank 0 as one JSON object.

python -m torch.distributed.run --nproc-per-node N -m tests.core.multiprocess FILE '[["name", "check", {...}], ...]'
"""

import json
import os
import sys
from pathlib import Path

from torch import distributed

from tests.core.multiprocess import checks


def main(file, names):
    results = {name: getattr(checks, check)(**arguments) for name, check, arguments in json.loads(names)}
    if checks.WORLD.is_rank_zero:
        Path(file).write_text(json.dumps(results), encoding="utf-8")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # destroying PyTorch's process groups may hang


main(*sys.argv[1:])
