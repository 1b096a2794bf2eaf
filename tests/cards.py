"""Reads run.json and the files of reports as an earlier version of txl wrote them, without checksums and ids."""

import json
from pathlib import Path


def read_card(directory):
    """Return the contents of run.json without its checksum and the id of the run."""
    card = json.loads((Path(directory) / "run.json").read_text())
    card.pop("checksum", None)
    card.pop("id", None)
    return card


def read_log(path):
    """Return the lines of metrics.jsonl or evals.jsonl without their checksums and the id of the run."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.pop("checksum", None)
        line.pop("run_id", None)
    return lines
