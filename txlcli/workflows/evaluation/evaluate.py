"""What `txl eval` does: opens a run, reads a text in the ways that are asked for, keeps the rows with the run."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from txlcli import console
from txlcli.config.ranges import MOST_COUNT
from txlcli.config.settings import AttentionBackend
from txlcli.errors import UnknownNameError, UsageError
from txlcli.options import DATA_DIR, RUNS_DIR, Device, Precision, parse_lengths
from txlcli.views import eval_table
from txlcli.workflows.evaluation import adapted, memory, record, texts
from txlcli.workflows.evaluation import search as length_search
from txlcli.workflows.evaluation.memory import Row
from txlcli.workflows.evaluation.search import AUTO
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.config.settings import EvalSettings
    from txlcli.core.model.transformer_xl import TransformerXL
    from txlcli.runs.loading import OpenRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalWishes:
    """What is evaluated of a run, and how it is read; None leaves it to the recipe.

    Raises:
        UsageError: a value is out of range, or two do not go together.
        UnknownNameError: no such split.
    """

    split: str | None = None
    """One of the corpora's SPLITS; test where there is no `text`."""
    text: str | None = None
    """A file to score instead of a split; - is standard input."""
    positions: int | None = None
    """Tokens to score, the first ones; None is all."""
    mem_len: str | None = None
    """Memory lengths with commas between them, or "auto"."""
    attn_len: str | None = None
    """Lengths of windows without memory, or "auto"."""
    stride: int | None = None
    """Tokens that a window predicts; None is 1, which is exact."""
    seg_len: int | None = None
    max_distance: str | None = None
    """A number, or "none"."""
    same_length: bool | None = None
    """Whether all queries see equally many keys."""
    batch_size: int | None = None
    """Lanes, or windows that are read at once."""
    cache: int | None = None
    """Tokens of the continuous cache."""
    dynamic: bool = False
    """Whether the model also learns from the text."""
    attention: AttentionBackend | None = None
    """How attention is computed."""
    plotted: bool = False
    """Whether the rows become a curve."""
    timed: bool = True
    """Whether a vanilla model is timed beside the run's."""

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        from corpora.corpus import SPLITS

        windows, mem_lens = self.windows, self.mem_lens  # which refuse what is no length
        if self.text is not None and self.split is not None:
            raise UsageError("--text is scored instead of a split; leave out --text or --split")
        if self.split is not None and self.split not in SPLITS:
            raise UnknownNameError("split", self.split, SPLITS)
        if self.max_distance is not None:
            _parse_distance(self.max_distance)
        for name, count in (("seg-len", self.seg_len), ("batch-size", self.batch_size), ("stride", self.stride)):
            if count is not None and count > MOST_COUNT:
                raise UsageError(f"--{name} {count}: give at most {MOST_COUNT}")
        if self.stride is not None and self.attn_len is None:
            raise UsageError("--stride goes with --attn-len: it says how many tokens a window predicts")
        if self.stride is not None and windows and self.stride > min(windows):
            raise UsageError(f"--stride {self.stride} is longer than a window of {min(windows)}; give at most that")
        if self.adapts and (self.attn_len is not None or self.searched or len(mem_lens or [0]) > 1):
            raise UsageError("--cache and --dynamic take one --mem-len and no --attn-len")
        if self.adapts and self.plotted:
            raise UsageError("--plot draws a curve by length, and --cache and --dynamic take one length; leave it out")
        unread = {"--mem-len": self.mem_len, "--seg-len": self.seg_len, self.same_length_option: self.same_length}
        if self.attn_len is not None and (option := _first_option(unread)):
            raise UsageError(f"--attn-len evaluates windows without memory; {option} means nothing there, leave it out")

    @property
    def mem_lens(self) -> list[int] | None:
        """The memory lengths; None is the run's own, or one that is searched."""
        return None if self.mem_len in (None, AUTO) else _lengths("--mem-len", str(self.mem_len), least=0)

    @property
    def windows(self) -> list[int]:
        """The lengths of windows; none is an evaluation with memory, or a length that is searched."""
        return [] if self.attn_len in (None, AUTO) else _lengths("--attn-len", str(self.attn_len), least=1)

    @property
    def searched(self) -> str | None:
        """The option whose length is searched."""
        if self.mem_len == AUTO:
            return "--mem-len"
        return "--attn-len" if self.attn_len == AUTO else None

    @property
    def same_length_option(self) -> str:
        """The option of `same_length`, as it was written."""
        return "--no-same-length" if self.same_length is False else "--same-length"

    @property
    def adapts(self) -> bool:
        """Whether the text changes what is predicted of it, beyond the memory."""
        return self.cache is not None or self.dynamic

    def with_length(self, length: int) -> "EvalWishes":
        """The same with the length that a search has found."""
        option = "mem_len" if self.searched == "--mem-len" else "attn_len"
        return dataclasses.replace(self, **{option: str(length)})  # type: ignore[arg-type]

    def change(self, reading: "EvalSettings") -> "EvalSettings":
        """A recipe's reading, with what is wished otherwise."""
        wished = {"seg_len": self.seg_len, "batch_size": self.batch_size}
        changes: dict[str, Any] = {key: value for key, value in wished.items() if value is not None}
        if self.max_distance is not None:
            changes["max_distance"] = _parse_distance(self.max_distance)
        if self.same_length is not None and self.same_length != (reading.same_length != "off"):  # M + 1 stays M + 1
            changes["same_length"] = "m" if self.same_length else "off"
        return dataclasses.replace(reading, **changes)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A run, what was read, and what came of it."""

    opened: "OpenRun"
    source: ScoredText
    result: dict[str, Any]
    """What --json prints."""
    losses_nats: "list[NDArray[np.float32]]"
    """The loss of each token, (T,), for each row of the result."""
    ended_by: BaseException | None
    """What came between: an error, or Ctrl-C; the result then lacks the rows that were still to come."""

    def keep(self) -> None:
        """Add the rows to the run's own."""
        record.keep(self.opened, self.source, self.result)

    def finish(self) -> None:
        """Raise what came between, now that no row is lost by it."""
        if self.ended_by is not None:
            raise self.ended_by


def evaluation(
    run_name: str | None,
    wishes: EvalWishes,
    *,
    device: Device = Device.auto,
    precision: Precision | None = None,
    data_dir: Path = DATA_DIR,
    runs_dir: Path = RUNS_DIR,
    shown: bool = True,
) -> Evaluation:
    """Read a run, the newest where none is named, and keep nothing; what comes between ends it after the first row.

    Raises:
        RunError: there is no such run, or it cannot be opened.
        UsageError: the run cannot be read that way.
        StoreError: the corpus is not there, or not the one that the run was trained on.
    """
    from txlcli.runs import loading

    opened = loading.open_run(run_name, runs_dir, device=device.value, precision=precision.value if precision else None)
    _check_model(opened, wishes)
    if wishes.attention is not None:
        _attend_by(wishes.attention, opened)
    run = opened.run
    console.say(f"evaluating {run.folder} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    reading = wishes.change(run.settings.evaluation_settings())
    source = _source(opened, wishes, data_dir)
    search = None
    if wishes.searched:
        search = length_search.search(opened, reading, wishes, data_dir, shown=shown)
        wishes = wishes.with_length(search["found"])
    rows: list[Row] = []
    losses: list[NDArray[np.float32]] = []
    ended_by = None
    try:
        for row, of_tokens in _rows(opened, source, reading, wishes, data_dir, shown=shown):
            rows.append(row)
            losses.append(of_tokens)
    except BaseException as error:  # a sweep takes hours: what it has found is shown and kept first
        if not rows:
            raise
        ended_by = error
    best = min(rows, key=lambda row: row["loss_nats"])
    marked = [{**row, "best": row is best} for row in rows]
    result = eval_table.as_result(opened, source, reading, marked, search, complete=ended_by is None)
    return Evaluation(opened, source, result, losses, ended_by)


def _check_model(opened: "OpenRun", wishes: EvalWishes) -> None:
    """Refuse what this model, or the number format it is read in, has no sense for."""
    _check_state(opened, wishes)
    _check_distance(opened, wishes)
    opened.run.settings.check_memory(
        max(wishes.mem_lens or [0]), run=opened.run.folder, instead="give --attn-len instead of --mem-len"
    )
    opened.run.settings.check_attn_lens(wishes.windows, subject=opened.run.folder)
    if wishes.dynamic and opened.precision == "fp16":
        raise UsageError("--dynamic learns, and fp16 is too coarse for small gradients; add --precision bf16 or fp32")


def _source(opened: "OpenRun", wishes: EvalWishes, data_dir: Path) -> ScoredText:
    if wishes.text is not None:
        return texts.of_file(opened, wishes.text, wishes.positions)
    return texts.of_split(opened, wishes.split or "test", wishes.positions, data_dir)


def _attend_by(kind: AttentionBackend, opened: "OpenRun") -> None:
    """Let the model compute attention in a way that can be had here."""
    from txlcli.core.kernels.compilation import check_attention

    check_attention(kind, opened.model.device)
    cast("TransformerXL", opened.model).attend_by(kind)


def _rows(
    opened: "OpenRun", source: ScoredText, reading: "EvalSettings", wishes: EvalWishes, data_dir: Path, *, shown: bool
) -> "Iterator[tuple[Row, NDArray[np.float32]]]":
    """A row for each way of reading, with the loss of each token."""
    mem_lens = wishes.mem_lens or [reading.mem_len]
    if wishes.adapts:
        how = dataclasses.replace(reading, mem_len=mem_lens[0])
        return adapted.rows(opened, source, how, data_dir, cache=wishes.cache, dynamic=wishes.dynamic, shown=shown)
    if wishes.windows:
        return memory.over_windows(
            opened, source, reading, wishes.windows, wishes.stride or 1, windows=wishes.batch_size, shown=shown
        )
    return memory.over_memory(opened, source, reading, mem_lens, shown=shown, timed=wishes.timed)


def _lengths(option: str, text: str, *, least: int) -> list[int]:
    if AUTO in text.split(","):
        raise UsageError(f'{option} {text}: "{AUTO}" finds a length by itself; give it alone, or lengths like 160,640')
    return parse_lengths(option, text, least=least)


def _first_option(options: Mapping[str, object]) -> str | None:
    """The first option that has a value."""
    return next((option for option, value in options.items() if value is not None), None)


def _check_state(opened: "OpenRun", wishes: EvalWishes) -> None:
    """Refuse what asks for a length of memory or attention of a model that carries a state."""
    lengths = {
        "--mem-len": wishes.mem_len,
        "--attn-len": wishes.attn_len,
        "--max-distance": wishes.max_distance,
        "--plot": wishes.plotted or None,
        wishes.same_length_option: wishes.same_length,
        "--attention": wishes.attention,
    }
    if (option := _first_option(lengths)) and opened.run.settings.model.recurrent_state:
        arch = opened.run.settings.model.arch
        raise UsageError(
            f'{opened.run.folder} carries a state (arch = "{arch}"), which is all its memory; leave out {option}'
        )


def _check_distance(opened: "OpenRun", wishes: EvalWishes) -> None:
    """Refuse a limit on distance of a model that knows no distances."""
    model = opened.run.settings.model
    if wishes.max_distance is not None and not model.scores_distances:
        raise UsageError(
            f"{opened.run.folder} has absolute positions, which know no distances; leave out --max-distance"
        )


def _parse_distance(text: str) -> int | None:
    if text.lower() in ("none", "off"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f'--max-distance {text}: give a whole number greater than 0, or "none"')
    if int(text) > MOST_COUNT:
        raise UsageError(f'--max-distance {text}: give at most {MOST_COUNT}, or "none"')
    return int(text)
