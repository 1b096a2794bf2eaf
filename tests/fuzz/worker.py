"""Fuzzes one reader in this process until libFuzzer ends it: python -m tests.fuzz.worker TARGET SAMPLE [OPTION ...]."""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import atheris

with atheris.instrument_imports(include=["txlcli"], enable_loader_override=False):
    from tests.fuzz import targets


def main():
    """Fuzz; the options are those of libFuzzer."""
    name, sample, *options = sys.argv[1:]
    with targets.opened(targets.named(name), Path(sample)) as function:
        atheris.Setup([sys.argv[0], *options], function)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
