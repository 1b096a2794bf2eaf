"""Does what a table needs, once each: prepares texts, trains models, evaluates runs."""

import dataclasses
import functools
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.commands import generate, speed
from txlcli.config import recipe
from txlcli.core.kernels.device import describe_machine, pick_device
from txlcli.data.token_store import TokenStore
from txlcli.errors import RunError
from txlcli.options import DATA_DIR, RUNS_DIR, Device
from txlcli.runs import history, run_folder
from txlcli.runs.run_folder import Run
from txlcli.views import eval_table
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.preparation.planning import PrepareOptions
from txlcli.workflows.preparation.preparing import prepare
from txlcli.workflows.reproduction.evaluations import Kept, KeptEvaluations, key_of
from txlcli.workflows.reproduction.scales import Model, Scale
from txlcli.workflows.training import resume, start
from txlcli.workflows.training.execution import Limits

FIRST_SEED = 1111
TABLES_FOLLOW = Limits(caller_continues=True, resume_hint="the same command goes on")


@dataclasses.dataclass
class Notes:
    """How a table or figure came about."""

    commands: list[str] = dataclasses.field(default_factory=list)
    """Those that do the same by hand."""
    readings: list[str] = dataclasses.field(default_factory=list)
    """The conventions of the evaluations, each once."""
    seconds: float = 0.0
    """What it took; of evaluations that were there already, what they took."""


class Workshop:
    """The texts, runs and measurements of one reproduction.

    Args:
        scale: sizes.
        seeds: trainings of each model; their numbers are averaged.
        device: of everything.
        data_dir: receives token stores.
        runs_dir: receives the runs; finished ones are used again, others go on.
        folder: receives what the runs were evaluated to, which is used again, too.

    Raises:
        RunError: the evaluations there are damaged.
    """

    def __init__(
        self, scale: Scale, *, seeds: int, device: Device, data_dir: Path, runs_dir: Path, folder: Path
    ) -> None:
        self.scale, self.seeds, self.device = scale, range(FIRST_SEED, FIRST_SEED + seeds), device
        self.data_dir, self.runs_dir = data_dir, runs_dir
        self.notes = Notes()
        self._kept = KeptEvaluations(folder)

    @functools.cached_property
    def machine(self) -> str:
        """What computes, in words."""
        return describe_machine(pick_device(self.device.value))

    @contextmanager
    def noting(self) -> Iterator["Notes"]:
        """What is done in the block, and how."""
        self.notes = Notes()
        started = time.monotonic()
        yield self.notes
        self.notes.seconds += time.monotonic() - started

    def model(self, key: str) -> Model:
        """What plays a part of the paper at this scale."""
        return self.scale.models[key]

    def run(self, key: str, seed: int = FIRST_SEED) -> Run:
        """The finished training of a model: one that is there, gone on with, or new.

        Raises:
            RunError: a run of that name was trained with other settings.
        """
        model = self.model(key)
        name = self.scale.run_name(key, seed)
        folder = self.runs_dir / name
        changes = [*model.changes, f"train.seed={seed}"]
        self._prepare(model.settings().corpus.store)
        words = [word for change in model.changes for word in ("--set", change)]
        self.note("train", model.recipe, "--name", name, "--seed", str(seed), *words)
        where: dict[str, Any] = {
            "device": self.device.value,
            "data_dir": self.data_dir,
            "runs_dir": self.runs_dir,
            "limits": TABLES_FOLLOW,
            "reporter": console.TerminalReporter(),
        }
        if not run_folder.has_weights(folder):  # a training that was killed before it saved any left a folder
            start.train(model.recipe, changes, name=name, force=(folder / run_folder.CARD).is_file(), **where)
            return run_folder.open_run(folder)
        run = run_folder.open_run(folder)
        if run.settings != recipe.load(model.recipe, changes):
            raise RunError(f"{folder} was trained with other settings; remove it, or give another --runs-dir")
        if history.read(run).state != "finished":
            resume.resume(str(folder), [], **where)
        return run

    def evaluated(self, run: Run, split: str, **options: Any) -> dict[str, Any]:
        """What `txl eval` says of a run."""
        options = {"positions": self.scale.positions, **options}
        self.note("eval", str(run.folder), "--split", split, *_as_words(options))
        store = TokenStore.open(self.data_dir / f"{run.settings.corpus.store}.h5")
        key = key_of(run, store, split, options, machine=self.machine)
        kept = self._kept.find(key)
        if kept is None:
            kept = self._evaluate(run, split, options)
            self._kept.keep(key, kept)
        else:
            console.say(f"{run.folder}, {split}: evaluated before")
            self.notes.seconds += kept.seconds
        reading = eval_table.how_read(kept.result)
        if reading not in self.notes.readings:
            self.notes.readings.append(reading)
        return kept.result

    def _evaluate(self, run: Run, split: str, options: dict[str, Any]) -> Kept:
        started = time.monotonic()
        evaluation = evaluate.evaluation(
            str(run.folder),
            evaluate.EvalWishes(split=split, timed=False, **options),
            device=self.device,
            data_dir=self.data_dir,
            runs_dir=self.runs_dir,
        )
        evaluation.keep()
        evaluation.finish()
        return Kept(evaluation.result, time.monotonic() - started)

    def timed(self, subject: str) -> dict[str, Any]:
        """What `txl speed` says of a recipe."""
        lengths = ",".join(map(str, self.scale.attn_lens))
        self.note("speed", subject, "--attn-len", lengths)
        return speed.measure(
            subject,
            attn_len=lengths,
            overrides=[],
            device=self.device,
            data_dir=self.data_dir,
            runs_dir=self.runs_dir,
        )

    def drawn(self, run: Run, *, tokens: int, seed: int) -> dict[str, Any]:
        """What `txl generate` draws from a run, the first time."""
        options = {"context": self.scale.context, "tokens": tokens, "seed": seed}
        self.note("generate", str(run.folder), "--reference", *_as_words(options))
        return generate.draw_beside_reference(
            str(run.folder), device=self.device, data_dir=self.data_dir, runs_dir=self.runs_dir, **options
        )

    def _prepare(self, store: str) -> None:
        text = self.scale.texts[store]
        options = {**text.options, **({"name": store} if store != text.source else {})}
        self.note("prepare", text.source, *_as_words(options))
        if not (self.data_dir / f"{store}.h5").exists():
            console.say(f"preparing {store}")
            prepare(
                text.source,
                self.data_dir,
                PrepareOptions(**options),  # type: ignore[arg-type]
                reporter=console.TerminalReporter(),
            )

    def note(self, *words: str) -> None:
        """Keep a command line that says what is done; folders are added where they are not the usual ones."""
        data = ["--data-dir", str(self.data_dir)] if self.data_dir != DATA_DIR else []
        kept = ["--runs-dir", str(self.runs_dir)] if self.runs_dir != RUNS_DIR else []
        options = data + kept if words[0] == "train" else data
        if self.device != Device.auto and words[0] != "prepare":
            options = [*options, "--device", self.device.value]
        line = shlex.join(["txl", *words, *options])
        if line not in self.notes.commands:
            self.notes.commands.append(line)


def _as_words(options: dict[str, Any]) -> list[str]:
    """Options by their names in Python, as words of a command line."""
    words = []
    for key, value in options.items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        elif value is not None:
            words += [f"--{option}", str(value)]
    return words


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return sum(self.values) / len(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.mean:.3f}"
        spread = (sum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1)) ** 0.5
        return f"{self.mean:.3f} \N{PLUS-MINUS SIGN} {spread:.3f}"
