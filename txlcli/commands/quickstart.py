"""`txl quickstart`: the whole pipeline on text you already have."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from txlcli import console
from txlcli.commands import eval as eval_
from txlcli.commands.generate import show as show_generated
from txlcli.commands.options import write_figure
from txlcli.commands.prepare import show as show_store
from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.report import figures
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.runs.run_directory import Run
from txlcli.system import signals
from txlcli.system.command_lines import command_line
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.options import Options
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.workspace import DeviceWorkspace, Workspace

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.result import EvalResult

CORPUS = "stdlib"
RUN = "quickstart"
SETTINGS = ("model.norm=post",)
"""Change of the recipe: norms after the sublayers, as in the paper."""
MEM_LENS = (0, 32, 64, 128, 256)
PROMPT = "    def __init__(self, "
TOKENS = 600
FIGURE = "memory.png"
"""Figure of the loss and the time by memory length, in the run folder."""
STEPS = ("prepare", "train", "eval", "generate")
TRAINING_SHARE = 0.6
"""Share of --max-minutes until the end of training."""
EVAL_SHARE = 0.4
"""Share of the time after training in which tokens are evaluated; timing and generating take the rest."""
TRAINED_PER_POSITION = 5
"""Tokens that are trained in the time in which one is evaluated with all memory lengths."""
FEWEST_POSITIONS = 1000


def quickstart(
    max_minutes: Annotated[
        float | None,
        Option(min=0, metavar="X", help="Take about this time in all: train less, and evaluate fewer tokens."),
    ] = None,
    *,
    workspace: DeviceWorkspace,
) -> None:
    """Run all main steps on Python's own source files.

    Prepares them, trains a small model for a few minutes, evaluates it with and without memory, and generates text.
    Its run is "quickstart" and no other run is touched; a finished one is used again, an interrupted one resumed.

    Example: txl quickstart
    """
    started = time.monotonic()
    signals.explain_end(f'what was saved is kept; "{_again(workspace)}" continues')
    from txlcli.workflows import generate
    from txlcli.workflows.evaluation import evaluate
    from txlcli.workflows.preparation import preparing

    data_dir = workspace.data_dir
    if max_minutes is None:
        console.say("this takes three to five minutes on two idle cores, else longer; --max-minutes limits it")
    if not workspace.store_path(CORPUS).exists():
        preparation = PrepareOptions()
        _announce("prepare", CORPUS, options=preparation, data_dir=data_dir)
        show_store(preparing.run(CORPUS, preparation, data_dir, reporter=workspace.reporter))
    minutes = None
    if max_minutes is not None:
        passed = (time.monotonic() - started) / 60
        minutes = round(max(0.0, TRAINING_SHARE * max_minutes - passed), 2)
    run = _train(minutes, workspace)
    directory = str(run.directory)
    positions = None
    if max_minutes is not None:
        positions = _positions(run, 60 * max_minutes - (time.monotonic() - started))
    lengths = EvalOptions(mem_len=MEM_LENS, positions=positions)
    _announce("eval", directory, options=lengths, data_dir=data_dir)
    evaluation = evaluate.evaluate_run(run, lengths, workspace)
    eval_.show(evaluation)
    evaluation.raise_pending()
    sample = GenerateOptions(prompt=PROMPT, tokens=TOKENS)
    _announce("generate", directory, options=sample, data_dir=data_dir)
    show_generated(generate.prepare(run, sample, workspace))
    write_figure(run.directory / FIGURE, figures.plot_evaluation, evaluation)
    _summarize(evaluation, workspace)


def _positions(run: Run, left_s: float) -> int:
    """Return how many tokens to evaluate in the seconds that are left, by the speed at which this machine trained."""
    rate = history.read(run).tokens_per_s or 0.0  # None if training took no step
    return max(FEWEST_POSITIONS, int(EVAL_SHARE * left_s * rate / TRAINED_PER_POSITION))


def _summarize(evaluation: "EvalResult", where: Workspace) -> None:
    """Say what memory gained, and what can be done next."""
    run = evaluation.scoring.opened.as_run.run
    directory = str(run.directory)
    past = history.read(run)
    console.show_line("")
    if past.state == "unfinished":
        steps = f"{past.step:,} of {run.settings.train.max_steps:,} steps"
        console.show_line(f'The model was trained for {steps} only; "{_again(where)}" continues.')
    console.show_line(eval_.in_a_sentence(evaluation.scoring.text.unit, evaluation.rows))
    console.show_line(f"The figure {run.directory / FIGURE} shows both by memory length. Next:")
    console.show_line(f"  {command_line('generate', directory, '--interactive')}")
    console.show_line(f"  {command_line('attention', directory, data_dir=where.data_dir)}")
    prepare = command_line("prepare", "FOLDER", data_dir=where.data_dir)
    train = command_line("train", "FOLDER", data_dir=where.data_dir, runs_dir=where.runs_dir)
    console.show_line(f"  {prepare} && {train}")


def _again(where: Workspace) -> str:
    return command_line("quickstart", data_dir=where.data_dir, runs_dir=where.runs_dir)


def _announce(step: str, *words: str, options: Options, **directories: Path) -> None:
    """Say which step begins, and the command line that does the same."""
    console.say("")
    console.say(f"step {STEPS.index(step) + 1} of {len(STEPS)}: {step}")
    console.say(f"$ {command_line(step, *words, **options.changed(), **directories)}")


def _train(minutes: float | None, workspace: Workspace) -> Run:
    """Train the recipe unless that is done, show the result, and return the run.

    An interrupted run of the same settings is resumed.
    """
    from txlcli.commands import training_tables
    from txlcli.workflows.training.run import train_recipe

    directory = workspace.runs_dir / RUN
    again = _again(workspace)
    recipe_source = None
    words: list[str] = []
    if not directory.exists():
        recipe_source = CORPUS
        words = [CORPUS]
        options = TrainOptions(name=RUN, overrides=SETTINGS, max_minutes=minutes, resume_command=again)
    elif _check_earlier(directory).state != "finished":
        options = TrainOptions(resume=str(directory), max_minutes=minutes, resume_command=again)
    else:
        console.say(f"using {directory}, which is finished; delete this folder to train it again")
        return run_directory.read_run(directory)
    _announce("train", *words, options=options, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir)
    training_tables.show_result(train_recipe(recipe_source, options, workspace))
    return run_directory.read_run(directory)


def _check_earlier(directory: Path) -> History:
    """Return the history of the run of an earlier call; reject another run in its place."""
    past = history.read(run_directory.read_run(directory))
    wanted = recipe.load(CORPUS, SETTINGS)
    is_same = past.run.settings.without_log() == wanted.without_log()
    if is_same and past.saved and not past.run.origin:
        return past
    next_step = "delete this folder, or give another --runs-dir"
    raise RunError(f"{directory} has other settings or no checkpoint; {next_step}")
