"""`txl eval`: perplexity or bits per character, for one or more memory lengths."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from txlcli import console
from txlcli.commands.options import (
    DATA_DIR,
    RUNS_DIR,
    Attention,
    DataDir,
    Device,
    Json,
    Plot,
    Precision,
    Run,
    RunsDir,
    Verbose,
    read_stdin,
)
from txlcli.config.ranges import MAX_COUNT
from txlcli.errors import TxlError, UsageError
from txlcli.runs import run_directory
from txlcli.system import launcher, signals
from txlcli.system.input_files import MAX_TEXT, read_bytes
from txlcli.workflows.evaluation.options import AUTO, PROTOCOLS, EvalOptions, Lengths, UserText
from txlcli.workflows.options import parse_lengths

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.evaluate import Evaluation


def evaluate(
    context: typer.Context,
    run_name: Run = None,
    split: Annotated[str | None, Option(help="train, valid or test [default: test].")] = None,
    mem_len: Annotated[
        str | None,
        Option(
            metavar="M,M,...|auto",
            help="Memory lengths to evaluate, or auto to search for one [default: the recipe's].",
        ),
    ] = None,
    attn_len: Annotated[
        str | None, Option(metavar="N,N,...|auto", help="Evaluate without memory, with windows of these lengths.")
    ] = None,
    stride: Annotated[
        int | None,
        Option(min=1, help="Tokens predicted per window; only 1 is exact [default: 1, of strided windows half of N]."),
    ] = None,
    protocols: Annotated[
        str | None,
        Option(
            metavar="NAME,...|all",
            help=f"Compare protocols of evaluation on the same tokens: {', '.join(PROTOCOLS)}.",
        ),
    ] = None,
    seg_len: Annotated[
        int | None, Option(min=1, help="Segment length L; changes speed, and without memory the context.")
    ] = None,
    max_distance: Annotated[
        str | None, Option(metavar="N|none", help="Distances beyond it share one encoding.")
    ] = None,
    same_length: Annotated[
        bool | None, Option("--same-length/--no-same-length", help="Every query sees M keys, or M + 1 to M + L.")
    ] = None,
    cache: Annotated[
        int | None, Option(metavar="N", min=1, help="Add a continuous cache of N tokens (Grave et al.).")
    ] = None,
    dynamic: Annotated[
        bool, Option("--dynamic", help="Add dynamic evaluation: train on the text while scoring (Krause et al.).")
    ] = False,
    batch_size: Annotated[
        int | None, Option(min=1, help="Lanes, or windows, evaluated side by side; 1 lane is the reference.")
    ] = None,
    positions: Annotated[int | None, Option(min=1, help="Score the first N tokens only.")] = None,
    text: Annotated[
        str | None, Option(metavar="FILE", help="Score a text file instead of a split; - is stdin.")
    ] = None,
    losses: Annotated[
        Path | None, Option(metavar="FILE.h5", help="Write the loss of every token to this file.")
    ] = None,
    processes: Annotated[
        int, Option(min=1, help="Divide the lanes, or the windows, among this many processes, one per GPU.")
    ] = 1,
    plot: Plot = None,
    device: Device = "auto",
    precision: Precision = None,
    attention: Attention = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Evaluate a run.

    Reports perplexity or bits per character for each memory length, and the slowdown of a model without memory.
    --mem-len auto selects the shortest length beyond which perplexity on valid falls by less than 0.1 %.
    --protocols all shows how much of a difference between two systems can come from the way of evaluation.

    Example: txl eval --mem-len 0,64,128,256
    """
    from txlcli.data import loss_file

    launcher.check_processes(processes)
    processes = max(processes, launcher.world_size())
    if losses is not None:
        loss_file.check_path(losses)
        if cache is not None or dynamic:
            raise UsageError("--losses writes the losses of the model alone; leave out --cache and --dynamic")
        if protocols is not None:
            raise UsageError("--losses writes the losses of one protocol; leave out --protocols")
    if text == "-" and processes > 1:
        raise UsageError("--text -: several processes cannot share stdin; give a file, or use one process")
    options = EvalOptions(
        split=split,
        text=_read_text(text) if text is not None else None,
        positions=positions,
        mem_len=_parse_lengths("--mem-len", mem_len, least=0),
        attn_len=_parse_lengths("--attn-len", attn_len, least=1),
        stride=stride,
        protocols=_parse_protocols(protocols),
        seg_len=seg_len,
        max_distance=_parse_distance(max_distance),
        same_length=same_length,
        batch_size=batch_size,
        cache=cache,
        dynamic=dynamic,
        plotted=plot is not None,
        attention=attention,
    )
    options.check_processes(processes)
    run_directory.find(run_name, runs_dir, data_dir=data_dir)  # a wrong name is reported before PyTorch is imported
    if processes > 1 and not launcher.is_started():
        sys.exit(_start_processes(processes, context.find_root().obj))
    with _signals_of_processes():
        from txlcli.workflows.evaluation import evaluate as workflow
        from txlcli.workflows.reporter import SilentReporter
        from txlcli.workflows.workspace import Workspace

        reporter = console.TerminalReporter(bars=not json) if launcher.is_main() else SilentReporter()
        workspace = Workspace(
            data_dir=data_dir, runs_dir=runs_dir, device=device, precision=precision, reporter=reporter
        )
        evaluation = workflow.evaluate(run_name, options, workspace)
        if launcher.is_main():
            _show(evaluation, losses, plot, verbose=verbose, json=json)
        evaluation.raise_pending()


def _show(evaluation: "Evaluation", losses: Path | None, plot: Path | None, *, verbose: bool, json: bool) -> None:
    """Record and show the result, and write the files."""
    from txlcli.views import eval_table, protocol_table

    table = protocol_table if "lacking" in evaluation.result else eval_table
    evaluation.record()  # first, since stdout may have been closed
    try:
        console.show_result(evaluation.result, partial(table.show, verbose=verbose), json=json)
        if losses is not None:  # after the result, which a full disk must not cost
            evaluation.write_losses(losses)
        if plot is not None:
            eval_table.plot_curve(plot, evaluation.result)
    except (OSError, TxlError) as error:
        if evaluation.ended_by is None:
            raise
        console.say(str(error))  # the earlier exception decides the exit code


def _start_processes(processes: int, arguments: list[str]) -> int:
    """Run this command line in several processes; return their exit code."""
    from txlcli.workflows.training import follow

    code = follow.start_processes(processes, arguments, next_step="evaluate again")
    if code - 128 in signals.WORDS:
        console.complain(signals.WORDS[code - 128])
    return code


@contextmanager
def _signals_of_processes() -> Iterator[None]:
    """Let one of several processes end by a signal: silently, except rank 0 if no other process of txl reports it."""
    if not launcher.is_main():
        with launcher.handle_signals(signal.SIG_DFL):
            yield
        return
    try:
        yield
    except (KeyboardInterrupt, signals.Terminated) as ended:
        if launcher.is_own():
            sys.exit(128 + signals.number_of(ended))
        raise


def _read_text(file: str) -> UserText:
    try:
        return UserText(
            "stdin" if file == "-" else file,
            read_stdin(MAX_TEXT) if file == "-" else read_bytes(Path(file), MAX_TEXT),
            label=f"--text {file}",
        )
    except OSError as error:
        raise UsageError(f"--text {file}: cannot be read ({error.strerror}); check the path") from error


def _parse_lengths(option: str, text: str | None, *, least: int) -> Lengths:
    if text is None:
        return None
    if text == AUTO:
        return AUTO
    if AUTO in text.split(","):
        raise UsageError(
            f'{option} {text}: give "{AUTO}" alone, which searches for one length, or lengths like 160,640'
        )
    lengths = parse_lengths(text, f"{option} {text}")
    if min(lengths) < least:
        raise UsageError(f"{option} {text}: a length cannot be below {least}")
    return lengths


def _parse_protocols(text: str | None) -> tuple[str, ...]:
    """Return the protocols in the order of the table, without repetitions; the options refuse unknown ones."""
    if text is None:
        return ()
    names = PROTOCOLS if text == "all" else tuple(text.split(","))
    return tuple(sorted(dict.fromkeys(names), key=(*PROTOCOLS, *names).index))


def _parse_distance(text: str | None) -> int | Literal["none"] | None:
    if text is None:
        return None
    if text.lower() in ("none", "off"):
        return "none"
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f'--max-distance {text}: give a whole number greater than 0, or "none"')
    if int(text) > MAX_COUNT:
        raise UsageError(f'--max-distance {text}: give at most {MAX_COUNT}, or "none"')
    return int(text)
