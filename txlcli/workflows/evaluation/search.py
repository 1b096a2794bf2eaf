"""Searches for `txl eval --mem-len auto` and `--attn-len auto`: the length on the validation split where gains end."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.errors import UsageError
from txlcli.paper import effective_length, metrics
from txlcli.workflows.evaluation import memory, texts

if TYPE_CHECKING:
    from txlcli.config.settings import EvalSettings
    from txlcli.runs.loading import OpenRun
    from txlcli.workflows.evaluation.evaluate import EvalWishes

AUTO = "auto"
STEPS = 16  # parts of the trained length that lengths are told apart by


def search(
    opened: "OpenRun", reading: "EvalSettings", wishes: "EvalWishes", data_dir: Path, *, shown: bool
) -> dict[str, Any]:
    """The shortest memory or window, whichever is wished, that does no worse than longer ones.

    Raises:
        UsageError: the run cannot be read that way.
        StoreError: there is no valid split to search on.
    """
    train, known = opened.run.settings.train, opened.run.settings.model.longest_window
    option, stride = wishes.searched, wishes.stride or 1
    recurrent = option == "--mem-len"
    if recurrent and train.mem_len == 0:
        raise UsageError(f"{opened.run.folder} was trained without memory; give --attn-len auto instead of --mem-len")
    # The shortest window that is tried is a step long, and predicts a stride.
    step = max(stride, (train.mem_len if recurrent else train.seg_len) // STEPS)
    if wishes.text is not None:
        texts.tell_learned(opened, opened.store(data_dir), "valid")
    valid = texts.to_search_on(opened, wishes.positions, data_dir)
    longest = len(valid.targets)
    if not recurrent and known is not None:
        longest = min(longest, known)
    if stride > longest:
        raise UsageError(
            f"--stride {stride} is longer than the longest window that can be tried, {longest}; give at most that"
        )
    console.say(
        f"searching on {len(valid.targets):,} tokens of valid, in steps of {step}, for the length beyond which "
        f"perplexity falls by less than {effective_length.THRESHOLD:.1%}"
    )

    def loss_at(length: int) -> float:
        if recurrent:
            rows = memory.over_memory(opened, valid, reading, [length], shown=shown, timed=False)
        else:
            rows = memory.over_windows(opened, valid, reading, [length], stride, windows=wishes.batch_size, shown=shown)
        row, _ = next(rows)
        console.say(f"{option} {length}: valid perplexity {metrics.format_measure(row['ppl'])}, {row['bpc']:.4f} bits")
        return float(row["loss_nats"])

    # Where every query sees M keys, M = 0 is another reading: 1 to L keys, those of the segment.
    least = 0 if recurrent and reading.same_length == "off" else step
    outcome = effective_length.find(loss_at, least=least, step=step, longest=longest)
    console.say(
        f"found {option} {outcome.length}{'' if outcome.ended else '; the longest that could be tried still gains'}"
    )
    return {
        "option": option,
        "split": "valid",
        "threshold": effective_length.THRESHOLD,
        "found": outcome.length,
        "gains_ended": outcome.ended,
        "tried": [{"length": length, "loss_nats": loss} for length, loss in outcome.tried.items()],
    }
