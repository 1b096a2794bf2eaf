"""Collects what a report of a run shows: its history, samples, attention, and place among published results."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from txlcli.errors import RunError, TxlError
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.system.atomic_files import errors_of_writing
from txlcli.workflows import attention, generate, ranking
from txlcli.workflows.attention import AttentionResult
from txlcli.workflows.generate import GenerateResult
from txlcli.workflows.options import AttentionOptions, GenerateOptions, ReportOptions
from txlcli.workflows.ranking import PublishedTable
from txlcli.workflows.workspace import Workspace

SAMPLE_TOKENS = 300
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Contents of a report; None for a part that the run does not have."""

    directory: Path
    """Directory of the report."""
    history: History
    samples: list[GenerateResult] | None
    attention: AttentionResult | None
    published: PublishedTable | None
    missing: dict[str, str]
    """Why a part is None, by its name."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs report --json` prints, apart from the paths of the files."""
        return {"run": str(self.history.run.directory), "missing": self.missing}


def run(run_name: str | None, options: ReportOptions, workspace: Workspace) -> RunReport:
    """Collect the contents of a report of a run, by default the most recent one; a part that fails is left out."""
    found = run_directory.find(run_name, workspace.runs_dir)
    directory = options.out or found.directory / "report"
    with errors_of_writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()) and not options.force:
            raise RunError(f"{directory} has files; give another `out`, or overwrite them with `force`")
    past, name, missing = history.read(found), str(found.directory), dict[str, str]()

    def attempt(part: str, collect: Callable[[], Result]) -> Result | None:
        try:
            return collect()
        except TxlError as error:
            missing[part] = str(error)
            return None

    return RunReport(
        directory=directory,
        history=past,
        samples=attempt("samples", lambda: _samples(name, options, workspace)),
        attention=attempt("attention", lambda: attention.run(name, AttentionOptions(unfinished=True), workspace)),
        published=attempt("published", lambda: ranking.run(name, workspace.runs_dir)),
        missing=missing,
    )


def _samples(name: str, options: ReportOptions, workspace: Workspace) -> list[GenerateResult]:
    """Generate texts after random passages of the test split, with their actual continuations."""
    seeds = range(options.seed, options.seed + options.samples)
    all_options = [GenerateOptions(tokens=SAMPLE_TOKENS, reference=True, seed=seed) for seed in seeds]
    return [generate.run(name, of_sample, workspace) for of_sample in all_options]
