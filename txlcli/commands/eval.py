"""`txl eval`: perplexity or bits per character over a sweep of the memory length."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txlcli import console
from txlcli.errors import TxlError, UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    AttentionOption,
    DataDir,
    Device,
    DeviceOption,
    Json,
    Plot,
    PrecisionOption,
    RunsDir,
)
from txlcli.views import eval_table
from txlcli.workflows.evaluation.evaluate import Evaluation, EvalWishes, evaluation

if TYPE_CHECKING:
    from txlcli.data.loss_file import TokenLosses


def evaluate(
    run_name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; the newest by default.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="train, valid or test (the default).")] = None,
    mem_len: Annotated[
        str | None,
        typer.Option(
            "--mem-len", metavar="M,M,...|auto", help="Memory lengths to sweep; the recipe's by default; auto searches."
        ),
    ] = None,
    attn_len: Annotated[
        str | None,
        typer.Option(
            "--attn-len", metavar="N,N,...|auto", help="Without memory: predict from windows of these lengths."
        ),
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", min=1, help="Tokens predicted per window; 1 (the default) is exact.")
    ] = None,
    seg_len: Annotated[
        int | None, typer.Option("--seg-len", min=1, help="Segment length L: speed; without memory, context.")
    ] = None,
    max_distance: Annotated[
        str | None,
        typer.Option("--max-distance", metavar="N|none", help="Distances beyond it share one encoding."),
    ] = None,
    same_length: Annotated[
        bool | None,
        typer.Option("--same-length/--no-same-length", help="Every query sees M keys, or M + 1 to M + L."),
    ] = None,
    cache: Annotated[
        int | None,
        typer.Option("--cache", metavar="N", min=1, help="Also with a continuous cache of N tokens (Grave et al.)."),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Also learning from the text while it is scored (Krause et al.).")
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Lanes, of which 1 is the reference; or windows read at once."),
    ] = None,
    positions: Annotated[int | None, typer.Option("--positions", min=1, help="Score the first N tokens only.")] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="FILE", help="Score this text; - is stdin.")] = None,
    losses: Annotated[
        Path | None, typer.Option("--losses", metavar="FILE.h5", help="Write the loss of every token.")
    ] = None,
    plot: Plot = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    attention: AttentionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Evaluate a run over memory lengths.

    Reports perplexity or bits per character, and how much slower a model without memory would be. "auto" takes the
    shortest length beyond which the perplexity of valid falls by less than 0.1 %.

    Example: txl eval --mem-len 0,64,128,256
    """
    from txlcli.data import loss_file
    from txlcli.views import plots

    if plot is not None:
        plots.check_path(plot)
    if losses is not None:
        loss_file.check_path(losses)
        if cache is not None or dynamic:
            raise UsageError("--losses holds the losses of the model alone; leave out --cache and --dynamic")
    wishes = EvalWishes(
        split=split,
        text=text,
        positions=positions,
        mem_len=mem_len,
        attn_len=attn_len,
        stride=stride,
        seg_len=seg_len,
        max_distance=max_distance,
        same_length=same_length,
        batch_size=batch_size,
        cache=cache,
        dynamic=dynamic,
        plotted=plot is not None,
        attention=attention.value if attention else None,
    )
    evaluated = evaluation(
        run_name,
        wishes,
        device=device,
        precision=precision,
        data_dir=data_dir,
        runs_dir=runs_dir,
        shown=not json,
    )
    evaluated.keep()  # before the result is shown: who reads it may have been interrupted, too
    try:
        if json:
            console.show_json(evaluated.result)
        else:
            eval_table.show(evaluated.result)
        if losses is not None:  # after the result: a full disk must not cost it
            _write_losses(losses, evaluated)
        if plot is not None:
            eval_table.plot_curve(plot, evaluated.result)
    except (OSError, TxlError) as error:
        if evaluated.ended_by is None:
            raise
        console.say(str(error))  # what came before it decides how the command ends
    evaluated.finish()


def _write_losses(path: Path, evaluated: Evaluation) -> None:
    from txlcli.data import loss_file

    source, result, run = evaluated.source, evaluated.result, evaluated.opened.run
    facts = {
        **{key: result[key] for key in ("run", "step", "text", "precision", "max_distance")},
        "store": run.settings.corpus.store if source.split else None,
        "split": source.split,
        "vocab_fingerprint": run.vocab_fingerprint,
    }
    loss_file.write(path, source.targets, _readings(evaluated), facts)
    console.say(f"the loss of {len(source.targets):,} tokens written to {path}")


def _readings(evaluated: Evaluation) -> "Iterator[TokenLosses]":
    from txlcli.data.loss_file import TokenLosses

    for row, losses in zip(evaluated.result["rows"], evaluated.losses_nats, strict=True):
        if "stride" in row:
            yield TokenLosses("attn_len", row["attn_len"], losses, {"stride": row["stride"]})
        else:
            how = {
                "seg_len": evaluated.result["seg_len"],
                "lanes": row["lanes"],
                "same_length": evaluated.result["same_length"],
            }
            yield TokenLosses("mem_len", row["mem_len"], losses, how)
