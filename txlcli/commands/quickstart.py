"""`txl quickstart`: the whole pipeline on text you already have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from txlcli import console
from txlcli.commands.generate import show as show_generated
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Device, RunsDir, Verbose
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
"""Changes of the recipe: Hugging Face's class holds this norm, so that the model can be exported."""
MEM_LENS = (0, 32, 64, 128, 256)
PROMPT = "    def __init__(self, "
TOKENS = 600
FIGURE = "memory.png"
"""Figure of the loss and the time by memory length, in the run folder."""
STEPS = ("prepare", "train", "eval", "generate")


def quickstart(
    max_minutes: Annotated[float | None, Option(min=0.0, help="Stop training after this time.")] = None,
    device: Device = "auto",
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
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
    from txlcli.workflows.workspace import Workspace

    reporter = console.TerminalReporter()
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, reporter=reporter)
    if not workspace.store_path(CORPUS).exists():
        _announce("prepare", CORPUS, data_dir=data_dir)
        show_store(preparing.run(CORPUS, PrepareOptions(), data_dir, reporter=reporter))
    run = _train(max_minutes, workspace)
    _announce("eval", run, "--mem-len", ",".join(map(str, MEM_LENS)), data_dir=data_dir)
    evaluation = evaluate.run(run, EvalOptions(mem_len=MEM_LENS), workspace)
    eval_table.show(evaluation, verbose=verbose)
    evaluation.raise_pending()
    _announce("generate", run, "--prompt", PROMPT, "--tokens", str(TOKENS), data_dir=data_dir)
    show_generated(generate.prepare(run, GenerateOptions(prompt=PROMPT, tokens=TOKENS), workspace))
    figure = Path(run) / FIGURE
    eval_table.plot_loss_and_time(figure, evaluation)
    console.show_line("")
    console.show_line(eval_table.in_a_sentence(evaluation.scoring.text.unit, evaluation.rows))
    console.show_line(f"The figure {figure} shows both by memory length. Next:")
    directories = {"data_dir": data_dir, "runs_dir": runs_dir}
    for line in (
        command_line("generate", run, "--interactive"),
        command_line("attention", run, data_dir=data_dir),
        command_line("prepare", "FOLDER", data_dir=data_dir) + " && " + command_line("train", "FOLDER", **directories),
    ):
        console.show_line(f"  {line}")


def _announce(step: str, *words: str, **directories: Path) -> None:
    """Say which step begins, what remains after it, and the command line that does the same."""
    number = STEPS.index(step)
    remaining = f"; then {', '.join(STEPS[number + 1 :])}" if number + 1 < len(STEPS) else ""
    console.say("")
    console.say(f"step {number + 1} of {len(STEPS)}{remaining}")
    console.say(f"$ {command_line(step, *words, **directories)}")


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
    if directory.exists() and not same:
        next_step = "delete this folder, or give another --runs-dir"
        raise RunError(f"{directory} has other settings, another text or no checkpoint; {next_step}")
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["--resume", str(directory)] if same else [CORPUS, "--name", RUN, *changes]
    limit = ["--max-minutes", f"{max_minutes:g}"] if max_minutes is not None else []
    _announce("train", *words, *limit, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir)
    if same:
        options = TrainOptions(resume=str(directory), max_minutes=max_minutes, caller_continues=True)
    else:
        options = TrainOptions(name=RUN, overrides=SETTINGS, max_minutes=max_minutes, caller_continues=True)
    trained = start.run(None if same else CORPUS, options, workspace)
    training_tables.show_result(trained)
    return str(trained.run.directory)
