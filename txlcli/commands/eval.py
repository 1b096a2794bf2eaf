"""`txl eval`: perplexity or bits per character over a sweep of the memory length."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.commands import eval_adapted, eval_record, eval_rows, eval_search, eval_table, eval_texts
from txlcli.commands.eval_search import AUTO
from txlcli.commands.eval_texts import ScoredText
from txlcli.errors import UnknownNameError, UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    DeviceOption,
    Json,
    Plot,
    Precision,
    PrecisionOption,
    RunsDir,
    parse_lengths,
)

if TYPE_CHECKING:
    from txlcli.opening import OpenRun
    from txlcli.settings import EvalSettings

SPLITS = ("train", "valid", "test")


def evaluate(
    wanted: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; the newest by default.")] = None,
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
    seg_len: Annotated[int | None, typer.Option("--seg-len", min=1, help="Segment length L; changes speed.")] = None,
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
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Evaluate a run over memory lengths.

    Reports perplexity or bits per character, and how much slower a model without memory would be. "auto" takes the
    shortest length beyond which the perplexity of valid falls by less than 0.1 %.

    Example: txl eval --mem-len 0,64,128,256
    """
    from txlcli import loss_file, plots

    if plot is not None:
        plots.check_path(plot)
    if losses is not None:
        loss_file.check_path(losses)
        if cache is not None or dynamic:
            raise UsageError("--losses holds the losses of the model alone; leave out --cache and --dynamic")
    opened, source, result, per_token = _evaluated(
        wanted,
        split=split,
        mem_len=mem_len,
        attn_len=attn_len,
        stride=stride,
        seg_len=seg_len,
        max_distance=max_distance,
        same_length=same_length,
        cache=cache,
        dynamic=dynamic,
        batch_size=batch_size,
        positions=positions,
        text=text,
        plot=plot,
        device=device,
        precision=precision,
        data_dir=data_dir,
        runs_dir=runs_dir,
        shown=not json,
    )
    if json:
        console.show_json(result)
    else:
        eval_table.show(result)
    eval_record.keep(opened, source, result)
    if losses is not None:  # after the result: a full disk must not cost it
        _write_losses(losses, opened, source, per_token)
    if plot is not None:
        eval_table.plot_curve(plot, result)


def measure(wanted: str, **options: Any) -> dict[str, Any]:
    """Evaluate a run as `txl eval` does with these options, and give the object that --json prints."""
    opened, source, result, _ = _evaluated(wanted, **options)
    eval_record.keep(opened, source, result)
    return result


def _evaluated(
    wanted: str | None,
    *,
    split: str | None = None,
    mem_len: str | None = None,
    attn_len: str | None = None,
    stride: int | None = None,
    seg_len: int | None = None,
    max_distance: str | None = None,
    same_length: bool | None = None,
    cache: int | None = None,
    dynamic: bool = False,
    batch_size: int | None = None,
    positions: int | None = None,
    text: str | None = None,
    plot: Path | None = None,
    device: Device = Device.auto,
    precision: Precision | None = None,
    data_dir: Path = DATA_DIR,
    runs_dir: Path = RUNS_DIR,
    shown: bool = True,
) -> "tuple[OpenRun, ScoredText, dict[str, Any], dict[int, Any]]":
    """The run, the text, the result, and the losses per token by length."""
    from txlcli import opening

    _check_source(split, text)
    changes = _changes(seg_len, max_distance, batch_size)
    wish = _wish(mem_len, attn_len, stride, batch_size, cache, dynamic)
    if attn_len is not None:
        _refuse_beside_windows({"--mem-len": mem_len, "--seg-len": seg_len, "--same-length": same_length})
    opened = opening.open_run(wanted, runs_dir, device=device.value, precision=precision.value if precision else None)
    run = opened.run
    memory = {"--mem-len": mem_len, "--attn-len": attn_len, "--max-distance": max_distance, "--plot": plot}
    _check_state(opened, {**memory, "--same-length": same_length})
    console.say(f"evaluating {run.folder} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    reading = _with_same_length(dataclasses.replace(opening.resolved_reading(run), **changes), same_length)
    if text is not None:
        source = eval_texts.of_file(opened, text, positions)
    else:
        source = eval_texts.of_split(opened, split or "test", positions, data_dir)
    search = None
    if wish.searched:
        search = eval_search.search(
            opened, reading, wish.searched, wish.stride, wish.side_by_side, positions, data_dir, shown=shown
        )
        wish = wish.found(search["found"])
    rows, per_token = _rows(opened, source, reading, wish, data_dir, shown=shown)
    best = min(rows, key=lambda row: row["loss_nats"])
    marked = [{**row, "best": row is best} for row in rows]
    return opened, source, eval_table.as_result(opened, source, reading, marked, search), per_token


def _changes(seg_len: int | None, max_distance: str | None, batch_size: int | None) -> dict[str, Any]:
    """The settings of [eval] that the options change."""
    changes: dict[str, Any] = {"seg_len": seg_len, "batch_size": batch_size}
    changes = {key: value for key, value in changes.items() if value is not None}
    return changes if max_distance is None else {**changes, "max_distance": _parse_distance(max_distance)}


@dataclasses.dataclass(frozen=True)
class _Wish:
    """How the text is to be read."""

    lengths: list[int] | None
    """Memory lengths; None is the run's own."""
    windows: list[int]
    """Window lengths; none is an evaluation with memory, or by segments."""
    searched: str | None
    """The option whose length is searched."""
    stride: int
    side_by_side: int | None
    """Windows that are read at once; None leaves it to the device."""
    cache: int | None
    dynamic: bool

    @property
    def adapts(self) -> bool:
        return self.cache is not None or self.dynamic

    def found(self, length: int) -> "_Wish":
        """This wish with the length that a search has found."""
        if self.searched == "--mem-len":
            return dataclasses.replace(self, lengths=[length], searched=None)
        return dataclasses.replace(self, windows=[length], searched=None)


def _wish(
    mem_len: str | None,
    attn_len: str | None,
    stride: int | None,
    batch_size: int | None,
    cache: int | None,
    dynamic: bool,
) -> _Wish:
    """What the options ask for, where they go together."""
    if stride is not None and attn_len is None:
        raise UsageError("--stride goes with --attn-len: it says how many tokens a window predicts")
    lengths = parse_lengths("--mem-len", mem_len, least=0) if mem_len not in (None, AUTO) else None
    windows = parse_lengths("--attn-len", attn_len, least=1) if attn_len not in (None, AUTO) else []
    if stride is not None and windows and stride > min(windows):
        raise UsageError(f"--stride {stride} is longer than a window of {min(windows)}; give at most that")
    searched = next(
        (option for option, text in (("--mem-len", mem_len), ("--attn-len", attn_len)) if text == AUTO), None
    )
    wish = _Wish(lengths, windows, searched, stride or 1, batch_size, cache, dynamic)
    if wish.adapts and (attn_len is not None or searched or len(lengths or [0]) > 1):
        raise UsageError("--cache and --dynamic take one --mem-len and no --attn-len")
    return wish


def _refuse_beside_windows(options: dict[str, Any]) -> None:
    """Refuse what means nothing where windows are read without memory."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise UsageError(f"--attn-len evaluates windows without memory; {given[0]} means nothing there, leave it out")


def _rows(
    opened: "OpenRun", source: ScoredText, reading: "EvalSettings", wish: _Wish, data_dir: Path, *, shown: bool
) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """A row for each way of reading, and the losses per token by length."""
    if wish.adapts:
        how = dataclasses.replace(reading, mem_len=wish.lengths[0]) if wish.lengths else reading
        return eval_adapted.rows(opened, source, how, data_dir, cache=wish.cache, dynamic=wish.dynamic, shown=shown)
    if wish.windows:
        return eval_rows.over_windows(
            opened, source, reading, wish.windows, wish.stride, windows=wish.side_by_side, shown=shown
        )
    _check_recurrent(opened, wish.lengths)
    return eval_rows.over_memory(opened, source, reading, wish.lengths or [reading.mem_len], shown=shown)


def _check_state(opened: "OpenRun", options: dict[str, Any]) -> None:
    """Refuse what asks for a length of memory or attention of a model that carries a state."""
    given = [option for option, value in options.items() if value is not None]
    if given and opened.run.settings.model.recurrent_state:
        arch = opened.run.settings.model.arch
        raise UsageError(
            f'{opened.run.folder} carries a state (arch = "{arch}"), which is all its memory; leave out {given[0]}'
        )


def _check_recurrent(opened: "OpenRun", lengths: list[int] | None) -> None:
    """Refuse a memory for positions that no memory was ever trained with."""
    settings = opened.run.settings
    absolute = getattr(settings.model, "position", "relative") in ("sinusoid", "learned")
    if absolute and settings.train.mem_len == 0 and any(lengths or []):
        raise UsageError(
            f"{opened.run.folder} was trained without memory and with absolute positions; "
            "give --attn-len instead of --mem-len"
        )


def _with_same_length(reading: "EvalSettings", wanted: bool | None) -> "EvalSettings":
    """Every query sees the same number of keys, or not; M + 1 of them stay M + 1."""
    if wanted is None or wanted == (reading.same_length != "off"):
        return reading
    return dataclasses.replace(reading, same_length="m" if wanted else "off")


def _check_source(split: str | None, text: str | None) -> None:
    if text is not None and split is not None:
        raise UsageError("--text is scored instead of a split; leave out --text or --split")
    if split is not None and split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)


def _write_losses(path: Path, opened: "OpenRun", source: ScoredText, per_token: dict[int, Any]) -> None:
    from txlcli import loss_file

    facts = {"run": str(opened.run.folder), "text": source.title, "vocab_fingerprint": opened.run.vocab_fingerprint}
    loss_file.write(path, source.targets, per_token, facts)
    console.say(f"the loss of {len(source.targets):,} tokens written to {path}")


def _parse_distance(text: str) -> int | None:
    if text.lower() in ("none", "off"):
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f'--max-distance {text}: give a whole number greater than 0, or "none"')
    return int(text)
