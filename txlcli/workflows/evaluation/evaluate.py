"""Evaluates a model: opens it, reads the text, chooses the settings, scores a row with each, and records the result."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from txlcli import __version__
from txlcli.config import recipe
from txlcli.core.kernels.device import pick_device
from txlcli.core.training import distributed
from txlcli.core.training.distributed import SINGLE_PROCESS, World
from txlcli.core.training.validation import check_lanes
from txlcli.runs import history
from txlcli.runs.loading import OpenModel
from txlcli.runs.run_directory import Run
from txlcli.system.processors import ShareClock
from txlcli.workflows.evaluation import result
from txlcli.workflows.evaluation.adapted import adapted_rows
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.result import EvalResult
from txlcli.workflows.evaluation.rows import EvalRow, score_row, with_times
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.search import search_length, with_temperature
from txlcli.workflows.evaluation.settings import (
    RowSetting,
    check_options,
    eval_settings,
    lacks_recurrence,
    row_settings,
    searched_setting,
)
from txlcli.workflows.evaluation.texts import read_text, text_of_split, warn_if_trained_on
from txlcli.workflows.evaluation.words import words_of_parts
from txlcli.workflows.exchange import external_run
from txlcli.workflows.workspace import Workspace, compile_reading

NOT_COMPARED = ("text", "losses", "words", "html", "plot")
"""Options that need not be the same in all processes, or are compared by what they name."""


def evaluate_run(run: Run, options: EvalOptions, workspace: Workspace) -> EvalResult:
    """Evaluate a run, and append the rows to its evals.jsonl.

    If a launcher started several processes, they divide the lanes or windows, and all of them return the result.
    An exception after the first row ends the sweep: `EvalResult.ended_by`.
    """
    world = distributed.join(
        pick_device(workspace.device), rank_timeout_s=run.settings.train.rank_timeout, next_step="evaluate again"
    )
    with world.failing_together():
        history.check_results(run)
        opened = workspace.open_run(run)
        evaluated = evaluate(opened, options, workspace, world)
    if world.is_rank_zero:
        result.record(evaluated)
    return evaluated


def evaluate_external(name: str, options: EvalOptions, workspace: Workspace) -> EvalResult:
    """Evaluate a model of Transformers, hf:FOLDER or a GGUF file, on a text or a split of a token store as text.

    The result is not recorded.
    """
    opened = external_run.open_external(
        name,
        device=workspace.device,
        precision=workspace.precision,
        trust_remote_code=options.trust_remote_code,
    )
    options = replace(options, timed=False)
    if options.store is not None:
        text = text_of_split(workspace, options.store, options.split or "test")
        options = replace(options, text=(text,), split=None)
    return evaluate(opened, options, workspace)


def evaluate(
    opened: OpenModel, options: EvalOptions, workspace: Workspace, world: World = SINGLE_PROCESS
) -> EvalResult:
    """Evaluate an open model, in the processes of `world`, without recording the result; see `evaluate_run`."""
    check_options(opened, options)
    if options.attention is not None:
        opened = opened.on(attention=options.attention)
    opened = compile_reading(opened, options, options.compile)
    workspace.reporter.say(f"evaluating {opened.subject} ({opened.weights_title})")

    text = read_text(opened, options, workspace)
    settings = eval_settings(opened.settings, text, options)
    scoring = Scoring(opened, text, settings, workspace, options, world, settings.fixed_temperature)
    if options.words is not None:
        words_of_parts(scoring)  # a text without words is an error before it is scored
    chosen_on_valid = bool(options.searched or options.adapts or settings.temperature == "auto")
    if chosen_on_valid and text.split is None:
        warn_if_trained_on(opened.as_run, "valid", workspace)
    if world.size > 1:
        facts = _common_facts(scoring)
        world.agree(facts)

    search = None
    if options.searched:
        setting = searched_setting(options)
        search = search_length(scoring, setting)
        planned = [setting.at(search.length)]
    else:
        planned = row_settings(opened.settings, options)
    rows, ended_by = _collect(_rows(scoring, planned), world)
    return EvalResult(
        scoring=scoring,
        rows=tuple(_compared(rows, opened.metric)),
        search=search,
        in_sample=chosen_on_valid and text.split == "valid",
        lacks_recurrence=lacks_recurrence(opened, options),
        ended_by=ended_by,
    )


def _common_facts(scoring: Scoring) -> dict[str, str]:
    """Return what must be the same in all processes of an evaluation, by name."""
    options = scoring.options
    opened = scoring.opened.as_run
    facts = {"the release of txl": __version__, **recipe.facts(opened.settings)}
    for name, value in vars(options).items():
        if name not in NOT_COMPARED:
            facts[f"`{name}`"] = str(value)
    facts["the precision"] = opened.precision
    facts["the checkpoint"] = opened.checkpoint.fingerprint()
    digest = scoring.text.digest
    if options.text:
        digest = hashlib.sha256(scoring.text.targets.tobytes()).hexdigest()
    facts["the text (SHA-256)"] = str(digest)
    return facts


def _rows(scoring: Scoring, settings: Sequence[RowSetting]) -> Iterator[EvalRow]:
    """Yield the rows, on a CPU with the share of a processor that each of them got."""
    on_cpu = scoring.opened.model.device.type == "cpu"
    clock = ShareClock()
    for row in _scored_rows(scoring, settings):
        share = clock.share() if on_cpu else None
        yield replace(row, processor_share=share)
        clock = ShareClock()


def _scored_rows(scoring: Scoring, settings: Sequence[RowSetting]) -> Iterator[EvalRow]:
    """Yield the row of each setting, or the rows of the models that adapt to the text."""
    if scoring.options.adapts:
        yield from adapted_rows(scoring.changed(mem_len=settings[0].mem_len))
        return
    if any(setting.protocol == "recurrence" for setting in settings):  # before rows take hours
        check_lanes(len(scoring.text.targets), scoring.settings, scoring.world.size)
    for setting in settings:
        tempered = with_temperature(scoring, partial(score_row, setting=setting))
        row = score_row(tempered, setting)
        reads_stream = setting.attn_len is None and setting.protocol is None and not scoring.text.document_spans
        if scoring.options.timed and reads_stream:
            row = with_times(tempered, row)
        yield row


def _collect(yielded: Iterator[EvalRow], world: World) -> tuple[list[EvalRow], BaseException | None]:
    """Return the rows up to an error, and the error: a sweep can take hours, so finished rows are shown and recorded.

    An error before the first row is raised.
    """
    rows = []
    try:
        for row in yielded:
            rows.append(row)
    except BaseException as error:
        if not rows:
            raise
        return rows, world.explained(error)
    return rows, None


def _compared(rows: Sequence[EvalRow], metric: str) -> Iterator[EvalRow]:
    """Yield the rows with the best one marked, and the relative change of the metric from the first protocol."""
    best = min(rows, key=lambda row: row.loss_nats)
    before = rows[0].measures[metric]
    for row in rows:
        now = row.measures[metric]
        change = None
        if row.protocol and before and now is not None:
            change = now / before - 1
        yield replace(row, best=row is best, change=change)
