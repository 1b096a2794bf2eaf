"""Searches for the length of `txl eval --mem-len auto` and `--attn-len auto` on the validation split."""

from typing import Any

from txlcli.config.settings import EvalSettings
from txlcli.core.training.data_parallel import World
from txlcli.errors import UsageError
from txlcli.paper import effective_length, metrics
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.lengths import over_memory, over_windows
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.texts import ScoredText, Scoring
from txlcli.workflows.workspace import Workspace

STEPS = 16  # the resolution of the search is the trained length / 16


def search(
    opened: OpenRun, settings: EvalSettings, options: EvalOptions, workspace: Workspace, world: World
) -> dict[str, Any]:
    """Find the shortest memory, or window, beyond which longer ones hardly lower the perplexity.

    Raises:
        UsageError: the run has no memory, or the stride is longer than its windows.
        StoreError: the store has no validation split.
    """
    train, option, stride = opened.run.settings.train, options.searched, options.stride or 1
    reporter = workspace.reporter
    with_memory = option == "--mem-len"
    if with_memory and train.mem_len == 0:
        raise UsageError(
            f"{opened.run.directory} was trained without memory; give --attn-len auto instead of --mem-len"
        )
    # Windows are tried in steps of at least a stride, since the shortest one is a step long and predicts a stride.
    step = max(stride, (train.mem_len if with_memory else train.seg_len) // STEPS)
    if options.text is not None:
        texts.warn_if_trained_on(opened, "valid", workspace)
    valid = texts.first_positions(opened, "valid", options.positions, workspace.data_dir)
    scoring = Scoring(opened, valid, settings, reporter, world)
    longest = _longest(opened, valid, with_memory=with_memory, stride=stride)
    reporter.say(
        f"searching for the shortest length beyond which perplexity falls by less than "
        f"{effective_length.THRESHOLD:.1%}, on {len(valid.targets):,} tokens of valid, in steps of {step}"
    )

    def loss_at(length: int) -> float:
        if with_memory:
            rows = over_memory(scoring, [length], timed=False)
        else:
            rows = over_windows(scoring, [length], stride=stride, batch_size=options.batch_size)
        row, _ = next(rows)
        reporter.say(f"{option} {length}: valid perplexity {metrics.format_measure(row['ppl'])}, {row['bpc']:.4f} bits")
        return float(row["loss_nats"])

    # If every query sees M keys, M = 0 is not comparable: queries then see the 1 to L keys of their segment.
    least = 0 if with_memory and settings.same_length == "off" else step
    outcome = effective_length.find(loss_at, least=least, step=step, longest=longest)
    remark = "" if outcome.ended else "; the longest length tried still lowers the perplexity"
    reporter.say(f"selected {option} {outcome.length}{remark}")
    return {
        "option": option,
        "split": "valid",
        "threshold": effective_length.THRESHOLD,
        "found": outcome.length,
        "gains_ended": outcome.ended,
        "tried": [{"length": length, "loss_nats": loss} for length, loss in outcome.tried.items()],
    }


def _longest(opened: OpenRun, valid: ScoredText, *, with_memory: bool, stride: int) -> int:
    """Return the longest length to try: the text's, or that of the learned positions.

    Raises:
        UsageError: the stride is longer.
    """
    longest, known = len(valid.targets), opened.run.settings.model.longest_window
    if not with_memory and known is not None:
        longest = min(longest, known)
    if stride > longest:
        raise UsageError(
            f"--stride {stride} exceeds the longest window that can be tried, {longest}; give at most that"
        )
    return longest
