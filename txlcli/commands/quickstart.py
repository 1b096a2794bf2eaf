"""`txl quickstart`: the whole pipeline on text you already have."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from txlcli import console
from txlcli.commands.generate import show as show_generated
from txlcli.commands.options import Place, Verbose, with_options
from txlcli.commands.prepare import show as show_store
from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.runs import history
from txlcli.system.command_lines import command_line
from txlcli.workflows.options import EvalOptions, GenerateOptions, PrepareOptions, TrainOptions

if TYPE_CHECKING:
    from txlcli.workflows.workspace import Workspace

CORPUS, RUN = "stdlib", "quickstart"
SETTINGS = ("model.norm=pre_released",)
"""Change of the recipe: Hugging Face's class holds this norm, so that the model can be exported."""
MEM_LENS = (0, 32, 64, 128, 256)
PROMPT = "    def __init__(self, "
TOKENS = 600
FIGURE = "memory.png"
"""Figure of the loss and the time by memory length, in the run folder."""
STEPS = ("prepare", "train", "eval", "generate")


@with_options
def quickstart(
    max_minutes: Annotated[
        float | None,
        Option(min=0.0, help="Stop training after this time; the evaluation that follows takes a minute or more."),
    ] = None,
    *,
    where: Place,
    verbose: Verbose = False,
) -> None:
    """Run all main steps on Python's own source files.

    Prepares them, trains a small model for a few minutes, evaluates it with and without memory, and generates text.
    Its run is "quickstart" and no other run is touched; a finished one is used again, an interrupted one resumed.

    Example: txl quickstart
    """
    from txlcli.commands import eval_table
    from txlcli.workflows import generate
    from txlcli.workflows.evaluation import evaluate
    from txlcli.workflows.preparation import preparing

    workspace, data_dir, runs_dir = where.workspace(json=False), where.data_dir, where.runs_dir
    if not workspace.store_path(CORPUS).exists():
        _announce("prepare", CORPUS, data_dir=data_dir)
        show_store(preparing.run(CORPUS, PrepareOptions(), data_dir, reporter=workspace.reporter))
    run = _train(max_minutes, workspace)
    _announce("eval", run, "--mem-len", ",".join(map(str, MEM_LENS)), data_dir=data_dir)
    evaluation = evaluate.run(run, EvalOptions(mem_len=MEM_LENS), workspace)
    eval_table.show(evaluation, verbose=verbose)
    evaluation.raise_pending()
    _announce("generate", run, "--prompt", PROMPT, "--tokens", str(TOKENS), data_dir=data_dir)
    show_generated(generate.prepare(run, GenerateOptions(prompt=PROMPT, tokens=TOKENS), workspace))
    figure = Path(run) / FIGURE
    eval_table.plot(figure, evaluation)
    prepare = command_line("prepare", "FOLDER", data_dir=data_dir)
    for line in (
        "",
        eval_table.in_a_sentence(evaluation.scoring.text.unit, evaluation.rows),
        f"The figure {figure} shows both by memory length. Next:",
        f"  {command_line('generate', run, '--interactive')}",
        f"  {command_line('attention', run, data_dir=data_dir)}",
        f"  {prepare} && {command_line('train', 'FOLDER', data_dir=data_dir, runs_dir=runs_dir)}",
    ):
        console.show_line(line)


def _announce(step: str, *words: str, **directories: Path) -> None:
    """Say which step begins, what remains after it, and the command line that does the same."""
    number = STEPS.index(step) + 1
    remaining = f"; then {', '.join(STEPS[number:])}" if STEPS[number:] else ""
    for line in ("", f"step {number} of {len(STEPS)}{remaining}", f"$ {command_line(step, *words, **directories)}"):
        console.say(line)


def _train(max_minutes: float | None, workspace: "Workspace") -> str:
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
    options = TrainOptions(max_minutes=max_minutes, caller_continues=True)
    if same:
        source, words = None, ["--resume", str(directory)]
        options = dataclasses.replace(options, resume=str(directory))
    elif directory.exists():
        next_step = "delete this folder, or give another --runs-dir"
        raise RunError(f"{directory} has other settings, another text or no checkpoint; {next_step}")
    else:
        source, words = CORPUS, [CORPUS, "--name", RUN, *(word for setting in SETTINGS for word in ("--set", setting))]
        options = dataclasses.replace(options, name=RUN, overrides=SETTINGS)
    limit = ["--max-minutes", f"{max_minutes:g}"] if max_minutes is not None else []
    _announce("train", *words, *limit, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir)
    trained = start.run(source, options, workspace)
    training_tables.show_result(trained)
    return str(trained.run.directory)
