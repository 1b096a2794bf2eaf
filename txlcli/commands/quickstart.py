"""`txl quickstart`: the whole pipeline on text you already have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from txlcli import console
from txlcli.commands.generate import show as show_generated
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Device, RunsDir, Verbose
from txlcli.commands.prepare import show as show_store
from txlcli.commands.speed import show as show_speed
from txlcli.config import recipe
from txlcli.runs import history
from txlcli.system.command_lines import command_line
from txlcli.workflows.options import EvalOptions, GenerateOptions, PrepareOptions, SpeedOptions, TrainOptions

if TYPE_CHECKING:
    from txlcli.workflows.workspace import Workspace

CORPUS = "stdlib"
MEM_LENS = (0, 32, 64, 128, 256)
ATTN_LENS = (128, 256, 512)
PROMPT = "    def __init__(self, "
TOKENS = 600
FIGURE = "memory.png"
"""Figure of the loss and the time by memory length, in the run folder."""


def quickstart(
    max_minutes: Annotated[float | None, Option(min=0.0, help="Stop training after this time.")] = None,
    device: Device = "auto",
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
) -> None:
    """Run all main steps on Python's own source files.

    Prepares them, trains a small model for about two minutes, evaluates it, measures its speed and generates text. A
    run of the same settings is used again if it is finished, and resumed if it was interrupted.

    Example: txl quickstart
    """
    from txlcli.commands import eval_table
    from txlcli.workflows import generate, speed
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
    _announce("speed", run, "--attn-len", ",".join(map(str, ATTN_LENS)), data_dir=data_dir)
    show_speed(speed.run(run, SpeedOptions(attn_len=ATTN_LENS), workspace))
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


def _announce(*words: str, **directories: Path) -> None:
    console.say("")
    console.say(f"$ {command_line(*words, **directories)}")


def _train(max_minutes: float | None, workspace: "Workspace") -> str:
    """Train the recipe unless that is done, show the result, and return the folder of the run.

    An interrupted run of the same settings and text is resumed.
    """
    from txlcli.commands import training_tables
    from txlcli.workflows.training import start

    settings, digest = recipe.load(CORPUS), workspace.open_store(CORPUS).digest("train")
    same = list(history.same_runs(settings, digest, workspace.runs_dir))
    for run, _, is_finished in same:
        if is_finished:
            console.say(f"using {run.directory}, which is finished; txl train {CORPUS} --force trains it again")
            return str(run.directory)
    resumed = str(same[0][0].directory) if same else None
    words = ["--resume", resumed] if resumed else [CORPUS]
    limit = ["--max-minutes", f"{max_minutes:g}"] if max_minutes is not None else []
    _announce("train", *words, *limit, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir)
    options = TrainOptions(resume=resumed, max_minutes=max_minutes, caller_continues=True)
    trained = start.run(None if resumed else CORPUS, options, workspace)
    training_tables.show_result(trained)
    return str(trained.run.directory)
