"""Fuzz every reader of files for some seconds, and show how many inputs were tried.

python -m tests.fuzz [--target NAME] [--seconds N] [--corpus DIRECTORY]

Needs `pip install -e ".[fuzz]"` (Linux). An input that a reader neither accepts nor refuses with an error of txl is
written to the corpus and named, and the exit code is 1. With a directory for the corpus, a later call continues where
this one ended; without it, the corpus is kept only if it has such an input.
"""

import concurrent.futures
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

os.environ["OMP_NUM_THREADS"] = "1"

from tests.fuzz import worker  # first, since it instruments what it imports

# isort: split
from tests.faults.sample import build
from tests.fuzz import targets
from txlcli import console
from txlcli.system import processors

INPUT_S = 20
"""Longest time for one input, in seconds."""
MEMORY_MB = 2048
"""Largest memory for one input."""


def fuzz(name, sample, corpus, seconds):
    """Fuzz one reader in a child process; return its name, the number of inputs and of branches, and a defect.

    Inputs that reach new branches are added to the corpus.
    """
    directory = corpus / name
    directory.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.named(name).seeds(sample)):
        (directory / f"seed-{number}").write_bytes(seed)
    options = [
        *(str(directory), f"-max_total_time={seconds}", f"-max_len={targets.MAX_BYTES}", f"-timeout={INPUT_S}"),
        *(f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={directory}/", "-seed=1", "-print_final_stats=1"),
    ]
    log = sample.with_name(f"{name}.log")
    code = worker.fuzz(name, sample, options, log)
    said = log.read_text(encoding="utf-8", errors="replace")
    inputs, covered = re.search(r"stat::number_of_executed_units: (\d+)", said), re.findall(r"cov: (\d+)", said)
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*$", said, re.MULTILINE)
    reason = (raised or said.strip().splitlines()[-1:] or ["no reason given"])[0]
    artifact = re.search(r"Test unit written to (\S+)", said)
    defect = f"{reason[:200]}; input: {artifact[1] if artifact else 'none'}" if code else None
    return name, int(inputs[1]) if inputs else 0, int(covered[-1]) if covered else 0, defect


def main(
    target: Annotated[str | None, typer.Option(help=f"{', '.join(targets.NAMES)} [default: all].")] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Time for each reader.")] = 300,
    corpus: Annotated[
        Path | None, typer.Option(help="Folder of inputs to begin with and to add to [default: temporary].")
    ] = None,
) -> None:
    """Fuzz every reader of files."""
    if target is not None and target not in targets.NAMES:
        raise typer.BadParameter(f"--target {target}: must be one of {', '.join(targets.NAMES)}")
    with tempfile.TemporaryDirectory(prefix="txl-fuzz-") as name:
        sample = build(Path(name) / "sample").directory
        keep = corpus or Path(tempfile.mkdtemp(prefix="txl-fuzz-corpus-"))
        with concurrent.futures.ThreadPoolExecutor(processors.available()) as pool:
            names = [target] if target else targets.NAMES
            ended = list(pool.map(lambda one: fuzz(one, sample, keep, seconds), names))
    failed = any(defect is not None or inputs == 0 for _, inputs, _, defect in ended)
    if corpus is None and not failed:
        shutil.rmtree(keep)
    rows = [[name, f"{inputs:,}", f"{covered:,}", "yes" if defect else "no"] for name, inputs, covered, defect in ended]
    console.show_table("readers fuzzed", ("reader", "inputs", "branches", "defect"), rows)
    for name, _, _, defect in ended:
        if defect is not None:
            console.complain(f"{name}: {defect}")
    sys.exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
