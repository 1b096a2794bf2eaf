"""`txl quickstart`: the whole pipeline on text you already have."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from txlcli import console
from txlcli.commands.generate import show as show_generated
from txlcli.commands.prepare import show as show_store
from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.runs import history, run_directory
from txlcli.system import signals
from txlcli.system.command_lines import command_line
from txlcli.workflows.options import EvalOptions, GenerateOptions, PrepareOptions, TrainOptions
from txlcli.workflows.workspace import DeviceWorkspace, Workspace

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.evaluate import EvalResult

CORPUS, RUN = "stdlib", "quickstart"
SETTINGS = ("model.norm=pre_released",)
"""Change of the recipe: Hugging Face's class holds this norm, so that the model can be exported."""
MEM_LENS = (0, 32, 64, 128, 256)
PROMPT = "    def __init__(self, "
TOKENS = 600
FIGURE = "memory.png"
"""Figure of the loss and the time by memory length, in the run folder."""
STEPS = ("prepare", "train", "eval", "generate")
TRAINING_SHARE, EVALUATION_SHARE = 0.6, 0.7
"""Shares of --max-minutes for training, and of the time after it for the evaluation."""
EVALUATION_SPEED = 2
"""Tokens that are evaluated in the time of one token of training; 3 were measured on two idle cores."""
FEWEST_POSITIONS = 5_000


def quickstart(
    max_minutes: Annotated[
        float | None,
        Option(min=0.0, help="Take about this time in all: train less, and evaluate fewer tokens."),
    ] = None,
    *,
    workspace: DeviceWorkspace,
) -> None:
    """Run all main steps on Python's own source files.

    Prepares them, trains a small model for a few minutes, evaluates it with and without memory, and generates text.
    Its run is "quickstart" and no other run is touched; a finished one is used again, an interrupted one resumed.

    Example: txl quickstart
    """
    signals.explain_end(f'what was saved is kept; "{_again(workspace)}" continues')
    from txlcli.commands import eval_table
    from txlcli.workflows import generate
    from txlcli.workflows.evaluation import evaluate
    from txlcli.workflows.preparation import preparing

    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    data_dir = workspace.data_dir
    if max_minutes is None:
        console.say("this takes three minutes on two idle cores, longer next to other work; --max-minutes limits it")
    if not workspace.store_path(CORPUS).exists():
        _announce("prepare", CORPUS, data_dir=data_dir)
        show_store(preparing.run(CORPUS, PrepareOptions(), data_dir, reporter=workspace.reporter))
    run = _train(deadline, workspace, f'continue with "{_again(workspace)}"')
    positions = None if deadline is None else _positions(run, deadline - time.monotonic(), workspace)
    limit = [] if positions is None else ["--positions", str(positions)]
    _announce("eval", run, "--mem-len", ",".join(map(str, MEM_LENS)), *limit, data_dir=data_dir)
    evaluation = evaluate.run(run, EvalOptions(mem_len=MEM_LENS, positions=positions), workspace)
    eval_table.show(evaluation)
    evaluation.raise_pending()
    _announce("generate", run, "--prompt", PROMPT, "--tokens", str(TOKENS), data_dir=data_dir)
    show_generated(generate.prepare(run, GenerateOptions(prompt=PROMPT, tokens=TOKENS), workspace))
    eval_table.plot(Path(run) / FIGURE, evaluation)
    _summarize(evaluation, workspace)


def _summarize(evaluation: "EvalResult", where: Workspace) -> None:
    """Say what memory gained, and what can be done next."""
    from txlcli.commands import eval_table

    run, data_dir, runs_dir = evaluation.scoring.opened.run, where.data_dir, where.runs_dir
    past, directory = history.read(run), str(run.directory)
    unfinished = ["--unfinished"] if past.state == "unfinished" else []
    prepare = command_line("prepare", "FOLDER", data_dir=data_dir)
    lines = [
        eval_table.in_a_sentence(evaluation.scoring.text.unit, evaluation.rows),
        f"The figure {run.directory / FIGURE} shows both by memory length. Next:",
        f"  {command_line('generate', directory, '--interactive')}",
        f"  {command_line('attention', directory, *unfinished, data_dir=data_dir)}",
        f"  {prepare} && {command_line('train', 'FOLDER', data_dir=data_dir, runs_dir=runs_dir)}",
    ]
    if unfinished:
        steps = f"{past.step:,} of {run.settings.train.max_steps:,} steps"
        lines.insert(0, f'The model was trained for {steps} only; "{_again(where)}" continues.')
    for line in ("", *lines):
        console.show_line(line)


def _again(where: Workspace) -> str:
    return command_line("quickstart", data_dir=where.data_dir, runs_dir=where.runs_dir)


def _announce(step: str, *words: str, **directories: Path) -> None:
    """Say which step begins, what remains after it, and the command line that does the same."""
    number = STEPS.index(step) + 1
    remaining = f"; then {', '.join(STEPS[number:])}" if STEPS[number:] else ""
    for line in ("", f"step {number} of {len(STEPS)}{remaining}", f"$ {command_line(step, *words, **directories)}"):
        console.say(line)


def _positions(run: str, remaining_s: float, workspace: Workspace) -> int | None:
    """Return how many tokens of the test split can be evaluated in a share of the remaining time; None for all."""
    speed = EVALUATION_SPEED * (history.read(run_directory.open_run(Path(run))).tokens_per_s or 0.0)
    tokens = EVALUATION_SHARE * remaining_s * speed / len(MEM_LENS)
    positions = max(FEWEST_POSITIONS, int(tokens) // 1000 * 1000)
    if positions >= len(workspace.open_store(CORPUS).ids("test")):
        return None
    console.say(f"--max-minutes: the evaluation takes the first {positions:,} tokens of the test split")
    return positions


def _train(deadline: float | None, workspace: Workspace, resume_hint: str) -> str:
    """Train the recipe unless that is done, show the result, and return the folder of the run.

    An interrupted run of the same settings and text is resumed.
    """
    from txlcli.commands import training_tables
    from txlcli.workflows.training import start

    settings, digest = recipe.load(CORPUS, SETTINGS), workspace.open_store(CORPUS).digest("train")
    directory = workspace.runs_dir / RUN
    same = [past for past in history.same_runs(settings, digest, workspace.runs_dir) if past.run.name == RUN]
    if same and same[0].state == "finished":
        console.say(f"using {directory}, which is finished; delete this folder to train it again")
        return str(directory)
    max_minutes = None if deadline is None else max(0.0, TRAINING_SHARE * (deadline - time.monotonic()) / 60)
    options = TrainOptions(max_minutes=max_minutes, caller_continues=True, resume_hint=resume_hint)
    if same:
        source, words = None, ["--resume", str(directory)]
        options = dataclasses.replace(options, resume=str(directory))
    elif directory.exists():
        next_step = "delete this folder, or give another --runs-dir"
        raise RunError(f"{directory} has other settings, another text or no checkpoint; {next_step}")
    else:
        source, words = CORPUS, [CORPUS, "--name", RUN, *(word for setting in SETTINGS for word in ("--set", setting))]
        options = dataclasses.replace(options, name=RUN, overrides=SETTINGS)
    limit = ["--max-minutes", f"{max_minutes:.2f}"] if max_minutes is not None else []
    _announce("train", *words, *limit, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir)
    trained = start.run(source, options, workspace)
    training_tables.show_result(trained)
    return str(trained.run.directory)
