"""`txl eval`: perplexity or bits per character over a sweep of the memory length."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console, metrics, recipe
from txlcli.errors import StoreError, UnknownNameError, UsageError, VocabularyError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    DeviceOption,
    Json,
    Plot,
    PrecisionOption,
    RunsDir,
    parse_lengths,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.core.evaluation import Scores
    from txlcli.opening import OpenRun
    from txlcli.runs import Run
    from txlcli.settings import EvalSettings
    from txlcli.token_store import TokenStore

SLOWDOWN_WINDOWS = 3
SPLITS = ("train", "valid", "test")
NO_SLOWDOWN = {"one_lane_ms_per_token": None, "vanilla_ms_per_token": None, "slowdown": None}


def evaluate(
    wanted: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; the newest by default.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="train, valid or test (the default).")] = None,
    mem_len: Annotated[
        str | None,
        typer.Option("--mem-len", metavar="M,M,...", help="Memory lengths to sweep; the recipe's by default."),
    ] = None,
    attn_len: Annotated[
        str | None,
        typer.Option("--attn-len", metavar="N,N,...", help="Without memory: predict from windows of these lengths."),
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
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Lanes; 1 is the reference.")] = None,
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

    Reports perplexity or bits per character, and how much slower a model without memory would be.

    Example: txl eval --mem-len 0,64,128,256
    """
    from txlcli import loss_file, opening, plots

    if plot is not None:
        plots.check_path(plot)
    if losses is not None:
        loss_file.check_path(losses)
    _check_source(split, text)
    changes = _changes(seg_len, max_distance, batch_size)
    lengths = parse_lengths("--mem-len", mem_len, least=0) if mem_len is not None else None
    windows = _windows(attn_len, stride, mem_len, seg_len, same_length)
    opened = opening.open_run(wanted, runs_dir, device=device.value, precision=precision.value if precision else None)
    run = opened.run
    console.say(f"evaluating {run.folder} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    reading = _with_same_length(dataclasses.replace(opening.resolved_reading(run), **changes), same_length)
    if text is not None:
        source = _text_source(opened, text, positions)
    else:
        source = _split_source(opened, split or "test", positions, data_dir)
    if windows:
        rows, per_token = _over_windows(opened, source, reading, windows, stride or 1, shown=not json)
    else:
        _check_recurrent(opened, lengths)
        rows, per_token = _over_memory(opened, source, reading, lengths or [reading.mem_len], shown=not json)
    best = min(rows, key=lambda row: row["loss_nats"])
    result = _result(opened, source, reading, [{**row, "best": row is best} for row in rows])
    if json:
        console.show_json(result)
    else:
        _show(result)
    if losses is not None:  # after the result: a full disk must not cost it
        _write_losses(losses, opened, source, per_token)
    if plot is not None:
        _plot(plot, result)


def _changes(seg_len: int | None, max_distance: str | None, batch_size: int | None) -> dict[str, Any]:
    """The settings of [eval] that the options change."""
    changes: dict[str, Any] = {"seg_len": seg_len, "batch_size": batch_size}
    changes = {key: value for key, value in changes.items() if value is not None}
    return changes if max_distance is None else {**changes, "max_distance": _parse_distance(max_distance)}


def _windows(
    attn_len: str | None, stride: int | None, mem_len: str | None, seg_len: int | None, same_length: bool | None
) -> list[int]:
    """The window lengths that were asked for; none is an evaluation with memory, or by segments."""
    if attn_len is None:
        if stride is not None:
            raise UsageError("--stride goes with --attn-len: it says how many tokens a window predicts")
        return []
    idle = {"--mem-len": mem_len, "--seg-len": seg_len, "--same-length": same_length}
    given = [option for option, value in idle.items() if value is not None]
    if given:
        raise UsageError(f"--attn-len evaluates windows without memory; {given[0]} means nothing there, leave it out")
    lengths = parse_lengths("--attn-len", attn_len, least=1)
    if stride is not None and stride > min(lengths):
        raise UsageError(f"--stride {stride} is longer than a window of {min(lengths)}; give at most that")
    return lengths


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


@dataclasses.dataclass(frozen=True)
class _Source:
    """What is scored: inputs and targets (T,), and what the targets stand for."""

    title: str
    inputs: "NDArray[np.integer]"
    targets: "NDArray[np.integer]"
    scored: metrics.Scored
    unit: str
    conventions: dict[str, str]
    paper: float | None = None
    """What the paper reports for the run's recipe on this split, in the corpus's metric."""


def _split_source(opened: "OpenRun", split: str, positions: int | None, data_dir: Path) -> _Source:
    from txlcli.core.segments import scored_stream

    store = opened.store(data_dir)
    ids = store.ids(split)
    inputs, targets = scored_stream(ids, store.vocab.boundary, positions)
    if not len(targets):
        raise StoreError(f"{store.path}: the {split} split has no token to predict; prepare a longer text")
    scored = _scored(store, split, len(targets))
    paper = _published(opened.run, store, split)
    return _Source(f"{store.name} {split}", inputs, targets, scored, store.unit, store.conventions, paper)


def _published(run: "Run", store: "TokenStore", split: str) -> float | None:
    """The paper's result, where this is the paper's model on the paper's corpus."""
    published = run.settings.published
    same_model = (run.vocab_size, run.parameters) == (published.vocab_size, published.parameters)
    if not same_model or run.recipe_name not in recipe.packaged_names():
        return None
    own = recipe.resolve_text(recipe.packaged(run.recipe_name)[1], run.recipe_name).corpus.store
    return getattr(published, split, None) if store.corpus == own else None


def _scored(store: "TokenStore", split: str, count: int) -> metrics.Scored:
    """The words and bytes that the scored tokens stand for; only a whole split has them counted."""
    info = store.info(split)
    whole = count == info.tokens
    words = info.words if whole and info.words else None
    if store.unit == "byte":
        return metrics.Scored(count, words, count if store.every_byte_scored else None)
    return metrics.Scored(count, words, info.bytes if whole and store.every_byte_scored else None)


def _text_source(opened: "OpenRun", file: str, positions: int | None) -> _Source:
    from txlcli.core.segments import scored_stream

    text = _read_text(file)
    ids = opened.vocab.encode(text)
    lost = int((ids == opened.vocab.unknown).sum()) if opened.vocab.unknown is not None else 0
    if lost:
        console.say(f"{lost:,} of {len(ids):,} tokens are unknown to the vocabulary and read as <unk>")
    inputs, targets = scored_stream(ids, opened.vocab.boundary, positions)
    if not len(targets):
        raise VocabularyError(f"--text {file}: no token to predict; give a longer text")
    whole = len(targets) == len(ids)
    words = len(text.split()) + text.count("\n") if opened.vocab.boundary is not None and whole else None
    unit = "piece" if opened.vocab.kind == "sentencepiece" else opened.vocab.kind
    data = len(text.encode()) if whole and unit == "piece" else None
    if unit == "byte" and not opened.vocab.dropped:
        data = len(targets)
    return _Source(file, inputs, targets, metrics.Scored(len(targets), words, data), unit, {})


def _read_text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"--text {file}: cannot be read ({error.strerror}); check the path") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VocabularyError(f"--text {file}: no UTF-8 at byte {error.start}; convert it first") from error


def _over_memory(
    opened: "OpenRun", source: _Source, reading: "EvalSettings", lengths: list[int], *, shown: bool
) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """A row for each memory length, and the losses per token by it."""
    rows, per_token = [], {}
    for length in lengths:
        how = dataclasses.replace(reading, mem_len=length)
        scores = _score(opened, source, how, shown=shown)
        rows.append({**_row(opened, source, how, scores), **_slowdown(opened, how)})
        per_token[length] = scores.losses_nats
    return rows, per_token


def _over_windows(
    opened: "OpenRun", source: _Source, reading: "EvalSettings", lengths: list[int], stride: int, *, shown: bool
) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """A row for each window length, and the losses per token by it."""
    from txlcli.core.model import TransformerXL
    from txlcli.core.windows import score_windows

    if not isinstance(opened.model, TransformerXL):
        raise UsageError(f"{opened.run.folder} carries a state and reads no windows; leave out --attn-len")
    rows, per_token = [], {}
    for length in lengths:
        with console.progress(f"N = {length}", total=len(source.targets), unit="tokens", shown=shown) as bar:
            scores = score_windows(
                opened.model,
                source.inputs,
                source.targets,
                attn_len=length,
                stride=stride,
                windows=reading.batch_size,
                precision=opened.precision,
                on_tokens=bar.reach,
            )
        how = dataclasses.replace(reading, mem_len=0, seg_len=length)
        row = {**_row(opened, source, how, scores), **NO_SLOWDOWN}
        rows.append({**row, "attn_len_min": length - stride + 1, "attn_len_max": length, "stride": stride})
        per_token[length] = scores.losses_nats
    return rows, per_token


def _score(opened: "OpenRun", source: _Source, how: "EvalSettings", *, shown: bool) -> "Scores":
    from txlcli.core.evaluation import score

    with console.progress(f"M = {how.mem_len}", total=len(source.targets), unit="tokens", shown=shown) as bar:
        return score(opened.model, source.inputs, source.targets, how, precision=opened.precision, on_tokens=bar.reach)


def _row(opened: "OpenRun", source: _Source, how: "EvalSettings", scores: "Scores") -> dict[str, Any]:
    from txlcli.core.evaluation import attention_span

    fewest, most = attention_span(how)
    return {
        "mem_len": how.mem_len,
        "attn_len_min": fewest,
        "attn_len_max": most,
        "tokens": len(scores.losses_nats),
        "lanes": scores.lanes,
        "loss_nats": scores.total_nats / len(scores.losses_nats),
        **{name: _finite(value) for name, value in metrics.measures(scores.total_nats, source.scored).items()},
        "ms_per_token": scores.ms_per_token,
    }


def _slowdown(opened: "OpenRun", how: "EvalSettings") -> dict[str, Any]:
    """How much slower the vanilla model is, one prediction per window of as many keys."""
    from txlcli.core.evaluation import attention_span
    from txlcli.core.timing import time_evaluation, time_vanilla

    if how.mem_len == 0:
        return NO_SLOWDOWN
    _, most = attention_span(how)
    one_lane = dataclasses.replace(how, batch_size=1)
    xl = time_evaluation(opened.model, one_lane, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    vanilla = time_vanilla(opened.model, most, windows=1, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    return {
        "one_lane_ms_per_token": xl.median,
        "vanilla_ms_per_token": vanilla.median,
        "slowdown": vanilla.median / xl.median,
    }


def _finite(value: float) -> float | None:
    return value if value != float("inf") else None


def _result(opened: "OpenRun", source: _Source, reading: "EvalSettings", rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "run": str(opened.run.folder),
        "step": opened.checkpoint.state["step"],
        "text": source.title,
        "unit": source.unit,
        "metric": opened.run.metric,
        "conventions": source.conventions,
        "seg_len": reading.seg_len,
        "max_distance": reading.max_distance,
        "same_length": reading.same_length,
        "precision": opened.precision,
        "slowdown_windows": SLOWDOWN_WINDOWS,
        "paper": source.paper,
        "rows": rows,
    }


def _show(result: dict[str, Any]) -> None:
    rows = result["rows"]
    names = metrics.wanted_measures(result["unit"], rows[0])
    columns = ["M", "attention", *(metrics.METRIC_TITLES[name] for name in names)]
    columns += ["ms/token", "one lane", "vanilla", "slowdown"]
    lines = []
    for row in rows:
        keys = (row["attn_len_min"], row["attn_len_max"])
        measured = [f"{row[name]:.3f}" if row[name] is not None else "inf" for name in names]
        cost = ["-", "-", "-"]
        if row["slowdown"] is not None:
            cost = [
                f"{row['one_lane_ms_per_token']:.3f}",
                f"{row['vanilla_ms_per_token']:.2f}",
                console.times(row["slowdown"]),
            ]
        lines.append(
            [
                f"{row['mem_len']}{' *' if row['best'] else ''}",
                f"{keys[0]}" if keys[0] == keys[1] else f"{keys[0]}-{keys[1]}",
                *measured,
                f"{row['ms_per_token']:.3f}",
                *cost,
            ]
        )
    title = f"{result['run']} on {result['text']}, {rows[0]['tokens']:,} tokens scored"
    console.show_table(title, columns, lines, caption=_caption(result))


def _caption(result: dict[str, Any]) -> str:
    if "stride" in result["rows"][0]:
        return _caption_of_windows(result)
    lanes = result["rows"][0]["lanes"]
    said = [
        f"* best. L = {result['seg_len']}, same_length = {result['same_length']}, max_distance = "
        f"{result['max_distance'] or 'none'}, {result['precision']}; "
        + (f"{lanes} lanes, of which {lanes - 1} start without context." if lanes > 1 else "one lane."),
        "vanilla: ms/token of the same weights without memory, each window computed anew, one at a time (median of "
        f"{result['slowdown_windows']} windows);",
        "one lane: ms/token with memory, one lane; slowdown: vanilla / one lane, as in Table 9.",
    ]
    return "\n".join([*said, *_context_of(result)])


def _caption_of_windows(result: dict[str, Any]) -> str:
    stride = result["rows"][0]["stride"]
    how = "one prediction per window" if stride == 1 else f"the last {stride} predictions of each window"
    said = f"* best. Without memory: windows of the text computed anew, {how}, {result['precision']}."
    return "\n".join([said, *_context_of(result)])


def _context_of(result: dict[str, Any]) -> list[str]:
    """What the numbers are to be compared with."""
    said = [f"{key}: {value}" for key, value in result["conventions"].items()]
    if result["paper"] is not None:
        said.insert(0, f"The paper's result for this recipe: {result['paper']} {result['metric']}.")
    return said


def _plot(path: Path, result: dict[str, Any]) -> None:
    from txlcli import plots

    metric = metrics.wanted_measures(result["unit"], result["rows"][0])[0]
    ordered: Sequence[dict[str, Any]] = sorted(result["rows"], key=lambda row: row["attn_len_max"])
    curve = ([row["attn_len_max"] for row in ordered], [row[metric] for row in ordered])
    plots.draw_curves(
        path,
        {Path(result["run"]).name: curve},
        x_label="attention length (tokens)",
        y_label=metrics.METRIC_TITLES[metric],
        title=result["text"],
    )
    console.say(f"drawn to {path}")


def _write_losses(path: Path, opened: "OpenRun", source: _Source, per_token: dict[int, Any]) -> None:
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
