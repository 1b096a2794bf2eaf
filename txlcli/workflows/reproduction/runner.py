"""Provides the tables with results: prepares texts, trains models and evaluates runs, each only once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import RunError
from txlcli.paper.metrics import in_metric
from txlcli.runs import history, run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import command_line
from txlcli.workflows.attention import AttentionResult
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.result import EvalResult
from txlcli.workflows.options import Options, Split
from txlcli.workflows.preparation import preparing
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.reproduction.models import Model
from txlcli.workflows.reproduction.options import ReproduceOptions
from txlcli.workflows.reproduction.scales import Scale
from txlcli.workflows.reproduction.section import Measured, ReportSection
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

FIRST_SEED = 1111
ReclResults = dict[tuple[str, ...], ReclResult]


@dataclass(frozen=True, kw_only=True)
class ReportWriter:
    """Functions of the caller that show results."""

    write: Callable[[str, Sequence[ReportSection], str, Path], list[str]]
    """Write the report, given its title, sections, last line and directory; return the paths."""
    plot_recl: Mapping[str, Callable[[Path, ReclResult], None]]
    """Plot "figure3" or "figure4" to a file."""
    plot_attention: Callable[[AttentionResult, int, Path], None]
    """Plot Figure 5, 6 or 7 to a file."""


def seeds_of(options: ReproduceOptions) -> range:
    """Return the seeds of the training runs of each model."""
    return range(FIRST_SEED, FIRST_SEED + options.seeds)


def settings_of(model: Model, seed: int) -> Settings:
    """Return the settings of a model's training run with a seed."""
    return recipe.load(model.recipe, TrainOptions(seed=seed, overrides=model.changes).changes)


@dataclass(kw_only=True)
class Runner:
    """Texts, runs and measurements of one table or figure, with the commands that reproduce them by hand."""

    options: ReproduceOptions
    scale: Scale
    workspace: Workspace
    """Finished runs in its directory of runs are reused, others resumed."""
    report: ReportWriter
    machine: str
    """Hardware, in words."""
    resume_command: str
    """Command that reproduces the same items, with the runs that are there."""
    recl_results: ReclResults = field(default_factory=dict)
    """Results of `txl recl` by group, which several items share."""

    commands: list[str] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)
    """Settings of the evaluations, in sentences, each once."""

    @property
    def directory(self) -> Path:
        """Directory of the report."""
        return self.options.directory

    @property
    def seeds(self) -> range:
        """Seeds of the training runs of each model."""
        return seeds_of(self.options)

    @property
    def averaged(self) -> str:
        """Meaning of a number, in words."""
        seeds = len(self.seeds)
        text = "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds"
        if self.scale.positions:
            text += f", the first {self.scale.positions:,} tokens of each split"
        return text

    def settings(self, part: str) -> Settings:
        """Return the settings of the model for a part of the paper at this scale."""
        return self.scale.models[part].settings()

    def run(self, part: str, seed: int = FIRST_SEED) -> Run:
        """Return the finished run of a model; train or resume it if necessary."""
        model = self.scale.models[part]
        name = self.scale.run_name(part, seed)
        options = TrainOptions(name=name, seed=seed, overrides=model.changes, resume_command=self.resume_command)
        settings = settings_of(model, seed)
        directory = self.workspace.runs_dir / name
        self._prepare(settings.corpus.store)
        self.record_command("train", model.recipe, options=options)
        if run_directory.has_weights(directory):
            self._finish(directory, settings)
        else:  # a run that was killed before its first save leaves a directory
            replaces = (directory / run_directory.CARD).is_file()
            train_recipe(model.recipe, replace(options, force=replaces), self.workspace)
        return run_directory.read_run(directory)

    def _finish(self, directory: Path, settings: Settings) -> None:
        """Resume a run that is not finished; it must have the settings."""
        run = run_directory.read_run(directory)
        if run.settings != settings:
            raise RunError(f"{directory} was trained with other settings; remove it, or give another `runs_dir`")
        if history.read(run).state != "finished":
            train_recipe(None, TrainOptions(resume=str(directory), resume_command=self.resume_command), self.workspace)

    def evaluate(self, run: Run, options: EvalOptions) -> EvalResult:
        """Return the result of `txl eval` on as many positions as the scale has."""
        options = replace(options, positions=self.scale.positions, timed=False)
        self.record_command("eval", str(run.directory), options=options)
        result = evaluate.evaluate_run(run, options, self.workspace)
        result.raise_pending()
        reading = result.describe_settings(result.rows[0])
        if reading not in self.readings:
            self.readings.append(reading)
        return result

    def evaluate_all(self, part: str, options: EvalOptions) -> list[EvalResult]:
        """Return the result of `evaluate` for each seed of a model."""
        return [self.evaluate(self.run(part, seed), options) for seed in self.seeds]

    def window_options(self, part: str, split: Split) -> EvalOptions:
        """Return the evaluation of a model without memory, by windows of the segment length."""
        seg_len = self.settings(part).train.seg_len
        return EvalOptions(split=split, attn_len=(seg_len,), stride=min(self.scale.stride, seg_len))

    def measure(self, part: str, split: Split, metric: str, *, mem_len: int | None = None) -> Measured:
        """Return a model's result for each seed, with the evaluation settings of its recipe.

        Models without memory are evaluated by windows; `mem_len` replaces the recipe's memory length.
        """
        settings = self.settings(part)
        if settings.eval.mem_len == 0 and not settings.model.recurrent_state:
            options = self.window_options(part, split)
        elif mem_len:
            options = EvalOptions(split=split, mem_len=(mem_len,))
        else:
            options = EvalOptions(split=split)
        results = self.evaluate_all(part, options)
        return Measured(tuple(in_metric(result.rows[0].loss_nats, metric) for result in results))

    def _prepare(self, store: str) -> None:
        text = self.scale.texts[store]
        workspace = self.workspace
        self.record_command("prepare", text.source, options=text.options)
        if not workspace.store_path(store).exists():
            workspace.reporter.say(f"preparing {store}")
            preparing.run(text.source, text.options, workspace.data_dir, reporter=workspace.reporter)
        preparing.clean(workspace.data_dir)

    def record_command(self, *words: str, options: Options) -> None:
        """Record a command line; directories and the device are added unless they are the defaults."""
        workspace = self.workspace
        changed = options.changed()
        if words[0] != "prepare" and workspace.device != "auto":
            changed["device"] = workspace.device
        changed["data_dir"] = workspace.data_dir
        if words[0] == "train":  # other commands name the run's directory
            changed["runs_dir"] = workspace.runs_dir
        line = command_line(*words, **changed)
        if line not in self.commands:
            self.commands.append(line)
