"""Provides the tables with results: prepares texts, trains models and evaluates runs, each only once."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.core.kernels.device import describe_machine, pick_device
from txlcli.errors import RunError
from txlcli.runs import history, run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import RUNS_DIR, command_line
from txlcli.workflows import generate, speed
from txlcli.workflows.attention import AttentionResult
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.evaluate import describe_settings
from txlcli.workflows.options import EvalOptions, GenerateOptions, PrepareOptions, SpeedOptions, TrainOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.reproduction.evaluations import EvaluationStore, StoredEvaluation, key_of
from txlcli.workflows.reproduction.scales import Model, Scale
from txlcli.workflows.training import resume, start
from txlcli.workflows.workspace import Workspace

FIRST_SEED = 1111
OPTIONS = TrainOptions(caller_continues=True, resume_hint="repeat the same command to continue")


@dataclasses.dataclass(frozen=True)
class Plots:
    """Functions that plot results to a file, from `views`."""

    curves: Callable[..., None]
    """Path, curves by name, and the keywords `x_label`, `y_label`, `title`; the x axis is logarithmic."""
    recl_gains: Callable[[Path, ReclResult], None]
    recl_perplexities: Callable[[Path, ReclResult], None]
    attention: Callable[[AttentionResult, int, Path], None]
    """Result, number of the figure, path."""


@dataclasses.dataclass
class Provenance:
    """Commands, settings and duration of a table or figure."""

    commands: list[str] = dataclasses.field(default_factory=list)
    """Commands that reproduce it by hand."""
    readings: list[str] = dataclasses.field(default_factory=list)
    """Settings of the evaluations, in sentences, each once."""
    seconds: float = 0.0
    """Duration; stored evaluations count with their original duration."""


@dataclasses.dataclass(kw_only=True)
class Runner:
    """Texts, runs and measurements of one reproduction."""

    scale: Scale
    n_seeds: int
    """Number of trainings per model, whose results are averaged."""
    workspace: Workspace
    """Finished runs in its directory of runs are reused, others resumed."""
    directory: Path
    """Directory of the report; its evaluations are reused."""
    plots: Plots

    def __post_init__(self) -> None:
        """Load the evaluations of the report."""
        self.provenance = Provenance()
        self._evaluations = EvaluationStore(self.directory)

    @property
    def seeds(self) -> range:
        """Seeds of the trainings of each model."""
        return range(FIRST_SEED, FIRST_SEED + self.n_seeds)

    @functools.cached_property
    def machine(self) -> str:
        """Device and software, in words."""
        return describe_machine(pick_device(self.workspace.device))

    @contextmanager
    def recording(self) -> Iterator[Provenance]:
        """Record the commands, settings and duration of the block."""
        self.provenance = Provenance()
        started = time.monotonic()
        yield self.provenance
        self.provenance.seconds += time.monotonic() - started

    def model(self, part: str) -> Model:
        """Return the model for a part of the paper at this scale."""
        return self.scale.models[part]

    def run(self, part: str, seed: int = FIRST_SEED) -> Run:
        """Return the finished run of a model; train or resume it if necessary."""
        model = self.model(part)
        name = self.scale.run_name(part, seed)
        directory = self.workspace.runs_dir / name
        changes = [*model.changes, f"train.seed={seed}"]
        self._prepare(model.settings().corpus.store)
        words = [word for change in model.changes for word in ("--set", change)]
        self.record_command("train", model.recipe, "--name", name, "--seed", str(seed), *words)
        if not run_directory.has_weights(
            directory
        ):  # a training that was killed before its first save leaves a directory
            replaces = (directory / run_directory.CARD).is_file()
            options = dataclasses.replace(OPTIONS, name=name, force=replaces, overrides=tuple(changes))
            start.train(model.recipe, options, self.workspace)
            return run_directory.open_run(directory)
        run = run_directory.open_run(directory)
        if run.settings != recipe.load(model.recipe, changes):
            raise RunError(f"{directory} was trained with other settings; remove it, or give another --runs-dir")
        if history.read(run).state != "finished":
            resume.resume(str(directory), OPTIONS, self.workspace)
        return run

    def evaluate(self, run: Run, split: str, **options: Any) -> dict[str, Any]:
        """Return the result of `txl eval`, with options as in `EvalOptions`."""
        options = {"positions": self.scale.positions, **options}
        self.record_command("eval", str(run.directory), "--split", split, *_command_options(options))
        store = self.workspace.open_store(run.settings.corpus.store)
        key = key_of(run, store, split, options, machine=self.machine)
        evaluation = self._evaluations.get(key)
        if evaluation is None:
            evaluation = self._evaluate(run, split, options)
            self._evaluations.add(key, evaluation)
        else:
            self.workspace.reporter.say(f"{run.directory}, {split}: already evaluated")
            self.provenance.seconds += evaluation.seconds
        if evaluation.settings not in self.provenance.readings:
            self.provenance.readings.append(evaluation.settings)
        return evaluation.result

    def _evaluate(self, run: Run, split: str, options: dict[str, Any]) -> StoredEvaluation:
        started = time.monotonic()
        result = evaluate.run(str(run.directory), EvalOptions(split=split, timed=False, **options), self.workspace)
        result.raise_pending()
        settings = describe_settings(result, result.rows[0])
        return StoredEvaluation(result.to_json(), settings, time.monotonic() - started)

    def measure_speed(self, subject: str) -> dict[str, Any]:
        """Return the result of `txl speed` for a recipe."""
        self.record_command("speed", subject, "--attn-len", ",".join(map(str, self.scale.attn_lens)))
        return speed.run(subject, SpeedOptions(attn_len=self.scale.attn_lens), self.workspace).to_json()

    def generate(self, run: Run, *, tokens: int, seed: int) -> generate.GenerateResult:
        """Return the result of `txl generate --reference`."""
        options: dict[str, Any] = {"context": self.scale.context, "tokens": tokens, "seed": seed}
        self.record_command("generate", str(run.directory), "--reference", *_command_options(options))
        return generate.run(str(run.directory), GenerateOptions(reference=True, **options), self.workspace)

    def _prepare(self, store: str) -> None:
        text = self.scale.texts[store]
        options = {**text.options, **({"name": store} if store != text.source else {})}
        self.record_command("prepare", text.source, *_command_options(options))
        if not self.workspace.store_path(store).exists():
            self.workspace.reporter.say(f"preparing {store}")
            wanted = PrepareOptions(**options)  # type: ignore[arg-type]
            preparing.run(text.source, wanted, self.workspace.data_dir, reporter=self.workspace.reporter)
        preparing.clean(self.workspace.data_dir)

    def record_command(self, *words: str) -> None:
        """Record a command line; directories and the device are added unless they are the defaults."""
        workspace = self.workspace
        device = ["--device", workspace.device] if workspace.device != "auto" and words[0] != "prepare" else []
        runs_dir = (
            workspace.runs_dir if words[0] == "train" else RUNS_DIR
        )  # the other commands name the run's directory
        line = command_line(*words, *device, data_dir=workspace.data_dir, runs_dir=runs_dir)
        if line not in self.provenance.commands:
            self.provenance.commands.append(line)


def _command_options(options: Mapping[str, Any]) -> list[str]:
    """Convert keyword arguments to options of a command line."""
    words = []
    for key, value in options.items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{option}", text]
    return words


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return sum(self.values) / len(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.mean:.3f}"
        deviation = (sum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1)) ** 0.5
        return f"{self.mean:.3f} \N{PLUS-MINUS SIGN} {deviation:.3f}"
