"""Carries out checks in turn, with all processes, and writes what the leading one found as one JSON object.

python -m torch.distributed.run --nproc-per-node N -m tests.core.several FILE '[["name", "check", {arguments}], ...]'
"""

import json
import os
import sys
from pathlib import Path

from torch import distributed

from tests.core.several import checks


def main(file, wanted):
    found = {name: getattr(checks, check)(**arguments) for name, check, arguments in json.loads(wanted)}
    if checks.WORLD.is_rank_zero:
        Path(file).write_text(json.dumps(found), encoding="utf-8")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's process groups may wait for themselves when they are taken apart


main(*sys.argv[1:])
