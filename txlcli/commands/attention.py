"""`txl attention`: attention of a run's heads (Appendix D, Figures 5 to 7)."""

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from txlcli import console
from txlcli.commands.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    Force,
    Json,
    Precision,
    Run,
    RunsDir,
    Seed,
    Unfinished,
    Verbose,
)
from txlcli.errors import RunError, UnknownNameError, UsageError
from txlcli.runs import history, run_directory

DIRECTORY = "figures"
FIGURES = {"5": 5, "6": 6, "7": 7}


def attention(
    run_name: Run = None,
    figure: Annotated[
        str, Option(metavar="5,6,7|all", help="Figures of the paper; all that the encoding allows.")
    ] = "all",
    heads: Annotated[str | None, Option(metavar="LAYER.HEAD,...", help="Heads of Figure 6, counted from 1.1.")] = None,
    auto: Annotated[
        int | None, Option(metavar="N", min=1, help="Or select the N heads with the widest attention [default: 3].")
    ] = None,
    at: Annotated[int | None, Option(min=0, help="First token of Figure 6 [default: random, by --seed].")] = None,
    positions: Annotated[
        int | None, Option(metavar="N", min=1, help="Tokens to average over [default: 5,000 at most].")
    ] = None,
    split: Annotated[str, Option(help="train, valid or test.")] = "valid",
    mem_len: Annotated[int | None, Option(min=0, help="Memory length M [default: the recipe's].")] = None,
    seg_len: Annotated[int | None, Option(min=1, help="Segment length L [default: the recipe's].")] = None,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Folder of the figures [default: RUN/figures].")] = None,
    format_: Annotated[Literal["png", "svg", "pdf"], Option("--format", help="File format of the figures.")] = "png",
    unfinished: Unfinished = False,
    force: Force = False,
    seed: Seed = 1111,
    device: Device = "auto",
    precision: Precision = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Plot where attention heads look.

    Figure 5 of the paper shows the attention of all heads by distance, Figure 6 that of selected heads to a passage of
    text, Figure 7 the attention that the terms (a), (b) and (d) of the score would give alone. The width of a head is
    the number of distances over which its average attention is spread.

    Example: txl attention --heads 2.3,4.1 --out figures
    """
    from txlcli.corpora.corpus import SPLITS

    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if heads is not None and auto is not None:
        raise UsageError("--heads and --auto both select heads; leave out one of them")
    figures = _parse_figures(figure)
    given = [option for option, value in {"--heads": heads, "--auto": auto, "--at": at}.items() if value is not None]
    if given and figures and 6 not in figures:
        raise UsageError(f"{given[0]} applies to Figure 6 only; leave it out, or add 6 to --figure {figure}")
    run = run_directory.find(run_name, runs_dir, data_dir=data_dir)
    if not unfinished:
        history.check_finished(run)
    from txlcli.views import attention_result
    from txlcli.workflows import attention as workflow
    from txlcli.workflows.workspace import Workspace

    options = workflow.AttentionOptions(
        figures=figures,
        heads=_parse_heads(heads) if heads is not None else (),
        widest=auto,
        split=split,
        positions=positions,
        at=at,
        seed=seed,
        mem_len=mem_len,
        seg_len=seg_len,
    )
    directory = run.directory / DIRECTORY if out is None else out
    paths = {number: directory / f"figure{number}.{format_}" for number in workflow.check_figures(run, options)}
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--out {directory}: this is a file; give a folder")
    reporter = console.TerminalReporter(bars=not json)
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, precision=precision, reporter=reporter)
    measurement = workflow.prepare_measurement(str(run.directory), options, workspace)
    if not force:
        _check_free(list(paths.values()))  # after all options, since a wrong one would be refused with --force, too
    measured = measurement.run(reporter)
    _make_directory(directory)
    for number, path in paths.items():
        attention_result.plot_figure(measured, number, path)
    result = {**attention_result.to_json(measured), "files": [str(path) for path in paths.values()]}
    console.show_result(result, partial(attention_result.show, verbose=verbose), json=json)


def _check_free(paths: list[Path]) -> None:
    existing = [path for path in paths if path.exists()]
    if existing:
        raise RunError(f"{existing[0]} exists; give another --out, or overwrite it with --force")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: cannot be created ({error.strerror}); give another --out") from error


def _parse_figures(text: str) -> tuple[int, ...] | None:
    """Parse `5,7` to (5, 7), and `all` to None."""
    if text == "all":
        return None
    parts = text.split(",")
    if not all(part in FIGURES for part in parts):
        raise UsageError(f'--figure {text}: write 5, 6 or 7, several like 5,6, or "all"')
    return tuple(sorted({FIGURES[part] for part in parts}))


def _parse_heads(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `2.3,5.10` to (2, 3), (5, 10), each once, in the order given."""
    parsed = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)\.(\d+)", part)
        if match is None:
            raise UsageError(f"--heads {text}: {part!r} is not a head; write layer.head, both from 1, like 2.3,5.1")
        parsed.append((int(match[1]), int(match[2])))
    return tuple(dict.fromkeys(parsed))
