"""Scores a text with a model: what is read, with which settings, in which processes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from txlcli.config.settings import EvalSettings
from txlcli.core.reading.scoring import Stream
from txlcli.core.training.distributed import SINGLE_PROCESS, World
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenModel
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.texts import ScoredText, first_positions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace

Scored = TypeVar("Scored")


@dataclass(frozen=True)
class Scoring:
    """A model, and a text that it scores with given settings."""

    opened: OpenModel
    text: ScoredText
    settings: EvalSettings
    workspace: Workspace
    options: EvalOptions = field(default_factory=EvalOptions)
    world: World = SINGLE_PROCESS
    """Processes that divide the lanes or the windows."""
    temperature: float = 1.0
    """Number that the logits are divided by; `search.with_temperature` chooses it if the settings have "auto"."""

    @property
    def reporter(self) -> Reporter:
        """Receives messages and progress."""
        return self.workspace.reporter

    def score(self, function: Callable[[Stream], Scored], title: str) -> Scored:
        """Score the text with a function of the core; `title` names its progress."""
        text = self.text
        model = self.opened.model.on(temperature=self.temperature)
        with self.reporter.progress(title, total=len(text.targets), unit="tokens") as bar:
            return function(Stream(model, text.inputs, text.targets, self.settings, bar.reach))

    def on_valid(self, positions: int | None = None) -> "Scoring":
        """Return the first positions of the validation split, scored with the same settings."""
        text = first_positions(
            self.opened.as_run,
            "valid",
            positions or self.options.positions,
            self.workspace,
            by_document=self.options.reset_at_documents,
        )
        return replace(self, text=text)

    def changed(self, **settings: Any) -> "Scoring":
        """Return the same text scored with other settings."""
        return replace(self, settings=replace(self.settings, **settings))


def one_lane(run: Run, *, mem_len: int | None, seg_len: int | None = None) -> EvalSettings:
    """Return the run's evaluation settings with one lane, and these lengths if they are given.

    Raises a UsageError for a memory length of a model that has none.
    """
    settings = run.settings
    if mem_len is not None and settings.model.recurrent_state:
        arch = f'(arch = "{settings.model.arch}")'
        raise UsageError(f"{run.directory} has a recurrent state {arch}; leave out `mem_len`")
    if mem_len is None:
        mem_len = settings.eval.mem_len
    settings.check_memory(mem_len, run=run.directory, instead="give `mem_len` 0")
    seg_len = seg_len or settings.eval.seg_len
    return settings.evaluation_settings(batch_size=1, mem_len=mem_len, seg_len=seg_len)
