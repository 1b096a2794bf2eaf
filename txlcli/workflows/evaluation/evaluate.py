"""Evaluates a run: opens it, scores a text with each requested setting, and collects the results."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.compilation import check_attention
from txlcli.core.kernels.device import pick_device
from txlcli.core.training import data_parallel
from txlcli.core.training.data_parallel import SINGLE_PROCESS, World
from txlcli.core.training.divided_scoring import check_lanes
from txlcli.data import loss_file
from txlcli.data.loss_file import TokenLosses
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import protocols, record, texts
from txlcli.workflows.evaluation.adapted import adapted_rows
from txlcli.workflows.evaluation.lengths import RowAndLosses, lanes, over_memory, over_windows
from txlcli.workflows.evaluation.options import EvalOptions, first_option
from txlcli.workflows.evaluation.record import Row
from txlcli.workflows.evaluation.search import search
from txlcli.workflows.evaluation.texts import ScoredText, Scoring
from txlcli.workflows.training.execution import settings_facts
from txlcli.workflows.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, with the run and the text."""

    scoring: Scoring
    result: dict[str, Any]
    """Object that --json prints."""
    losses_nats: list[NDArray[np.float32]]
    """Loss of each token, (T,), for each row of the result."""
    ended_by: BaseException | None
    """Error or Ctrl-C that ended the sweep; the result then lacks the remaining rows."""

    def record(self) -> None:
        """Append the rows to the run's evals.jsonl."""
        record.record(self.scoring, self.result)

    def write_losses(self, path: Path) -> None:
        """Write the loss of every token of the text to an HDF5 file.

        Raises:
            StoreError: it cannot be written.
        """
        text, run, result = self.scoring.text, self.scoring.opened.run, self.result
        facts = {
            **{key: result[key] for key in ("run", "step", "text", "precision", "max_distance")},
            "store": run.settings.corpus.store if text.split else None,
            "split": text.split,
            "vocab_fingerprint": run.vocab_fingerprint,
        }
        token_losses = []
        for row, losses in zip(result["rows"], self.losses_nats, strict=True):
            if "stride" in row:
                settings = {"stride": row["stride"]}
                token_losses.append(TokenLosses("attn_len", row["attn_len"], losses, settings))
            else:
                settings = {"seg_len": result["seg_len"], "lanes": row["lanes"], "same_length": result["same_length"]}
                token_losses.append(TokenLosses("mem_len", row["mem_len"], losses, settings))
        loss_file.write(path, text.targets, token_losses, facts)
        self.scoring.reporter.say(f"the loss of {len(text.targets):,} tokens written to {path}")

    def raise_pending(self) -> None:
        """Raise the exception that ended the sweep; call this after the rows have been shown and recorded."""
        if self.ended_by is not None:
            raise self.ended_by


def evaluate(run_name: str | None, options: EvalOptions, workspace: Workspace) -> Evaluation:
    """Evaluate a run, by default the most recent one, without recording the result.

    If a launcher started several processes, they divide the lanes or windows, and all of them return the result.

    An exception after the first row ends the sweep: `Evaluation.ended_by`.

    Raises:
        RunError: the run does not exist or cannot be opened.
        UsageError: the options do not fit the run.
        StoreError: the store is missing, or is not the one the run was trained on.
        DisagreementError: another process has failed, or evaluates something else.
        TrainingError: another process is gone.
    """
    run = run_directory.find(run_name, workspace.runs_dir)
    world = data_parallel.join(
        pick_device(workspace.device), rank_timeout_s=run.settings.train.rank_timeout, say=workspace.reporter.say
    )
    with world.watching():
        with world.failing_together():
            opened = workspace.open_run(run_name)
        return evaluate_opened(opened, options, workspace, world)


def evaluate_opened(
    opened: OpenRun, options: EvalOptions, workspace: Workspace, world: World = SINGLE_PROCESS
) -> Evaluation:
    """Evaluate an open run, in the processes of `world`; see `evaluate`."""
    with world.failing_together():
        text, settings = _prepare(opened, options, workspace)
        if options.reads_lanes:
            check_lanes(len(text.targets), settings, world.size)
    if world.size > 1:
        world.agree(_common_facts(opened, text, options))
    selected = None
    if options.searched:
        selected = search(opened, settings, options, workspace, world)
        options = options.with_length(selected["found"])
    scoring = Scoring(opened, text, settings, workspace.reporter, world)
    rows: list[Row] = []
    losses: list[NDArray[np.float32]] = []
    ended_by = None
    try:
        for row, token_losses in _rows(scoring, options, workspace):
            rows.append(row)
            losses.append(token_losses)
    except BaseException as error:  # a sweep can take hours: finished rows are shown and recorded first
        if not rows:
            raise
        ended_by = error
    result = record.make_result(scoring, rows, selected, complete=ended_by is None)
    if options.protocols:
        result["lacking"] = protocols.lacking(opened, options)
    return Evaluation(scoring, result, losses, ended_by)


def _prepare(opened: OpenRun, options: EvalOptions, workspace: Workspace) -> tuple[ScoredText, EvalSettings]:
    """Check the options, and return the text to score and the settings."""
    reporter = workspace.reporter
    _check_options(opened, options)
    if options.attention is not None:
        check_attention(options.attention, opened.model.device, d_head=opened.run.settings.model.head_width)
        opened.model.set_attention_backend(options.attention)
    run = opened.run
    reporter.say(f"evaluating {run.directory} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    settings = options.apply_to(run.settings.evaluation_settings())
    if options.text is not None:
        text = texts.encode_text(opened, options.text, options.positions, reporter)
        if options.batch_size is None:
            longest = max((settings.seg_len, *(options.mem_lens or [settings.mem_len])))
            settings = dataclasses.replace(settings, batch_size=lanes(settings.batch_size, len(text.targets), longest))
    else:
        text = texts.split_text(opened, options.split or "test", options.positions, workspace)
    return text, settings


def _common_facts(opened: OpenRun, text: ScoredText, options: EvalOptions) -> dict[str, str]:
    """Return what must be the same in all processes of an evaluation, by name."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    user_text = given.pop("text")
    digest = text.digest if user_text is None else hashlib.sha256(user_text.data).hexdigest()
    return {
        **settings_facts(opened.run.settings),
        **{f"--{name.replace('_', '-')}": str(value) for name, value in given.items()},
        "the precision": opened.precision,
        "the checkpoint": opened.checkpoint.fingerprint(),
        "the text (SHA-256)": str(digest),
    }


def _rows(scoring: Scoring, options: EvalOptions, workspace: Workspace) -> Iterator[RowAndLosses]:
    """Yield a row for each setting, with the loss of each token."""
    mem_lens = options.mem_lens or (scoring.settings.mem_len,)
    if options.protocols:
        return protocols.protocol_rows(scoring, options)
    if options.adapts:
        return adapted_rows(scoring.with_settings(mem_len=mem_lens[0]), options, workspace)
    if options.windows:
        return over_windows(scoring, options.windows, stride=options.stride or 1, batch_size=options.batch_size)
    return over_memory(scoring, mem_lens, timed=options.timed)


def _check_options(opened: OpenRun, options: EvalOptions) -> None:
    """Refuse options that do not fit the model or its precision."""
    settings, directory = opened.run.settings, opened.run.directory
    of_attention: dict[str, object] = {
        "--max-distance": options.max_distance,
        options.same_length_option: options.same_length,
        "--attention": options.attention,
    }
    of_memory = {"--mem-len": options.mem_len, "--plot": options.plotted or None}
    if not options.protocols:  # which read a recurrent state in windows, too
        of_memory["--attn-len"] = options.attn_len
    if settings.model.recurrent_state and (option := first_option(of_memory)):
        without = "" if settings.model.has_attention else " and no attention"
        raise UsageError(
            f'{directory} has a recurrent state (arch = "{settings.model.arch}"){without}; leave out {option}'
        )
    if settings.model.recurrent_state and not settings.model.has_attention and (option := first_option(of_attention)):
        raise UsageError(
            f'{directory} has a recurrent state (arch = "{settings.model.arch}") and no attention; leave out {option}'
        )
    if not settings.model.has_attention and (option := first_option(of_attention)):
        raise UsageError(f'{directory} has no attention (arch = "{settings.model.arch}"); leave out {option}')
    if options.same_length and not settings.model.keys_are_tokens:
        raise UsageError(f'{directory}: arch = "{settings.model.arch}" sees all of its memory; leave out --same-length')
    if options.max_distance is not None and not settings.model.limits_distance:
        raise UsageError(f"{directory}: its encoding of positions has no such limit; leave out --max-distance")
    settings.check_memory(
        max(options.mem_lens, default=0), run=directory, instead="give --attn-len instead of --mem-len"
    )
    settings.check_attn_lens(options.windows, subject=directory)
    if options.protocols:
        protocols.check(opened, options)
    if options.dynamic and opened.precision == "fp16":
        raise UsageError("--dynamic trains the model, which fp16 is too coarse for; add --precision bf16 or fp32")
