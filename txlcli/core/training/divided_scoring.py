"""Scores a text in several processes: each reads some of the lanes, or some of the windows.

Axes: B lanes, T tokens scored.
"""

from collections.abc import Callable

import torch

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.scoring import Lanes, Scores, Tokens, score_lanes
from txlcli.core.reading.windows import score_windows
from txlcli.core.training.data_parallel import World, even_parts
from txlcli.errors import UsageError


def check_lanes(tokens: int, settings: EvalSettings, processes: int) -> None:
    """Refuse more processes than lanes.

    Raises:
        UsageError: a process would have no lane of so many tokens.
    """
    lanes = Lanes.of(tokens, settings).number
    if lanes < processes:
        number = "one lane" if lanes == 1 else f"{lanes} lanes"
        raise UsageError(
            f"{processes} processes divide the lanes of the batch, and {tokens:,} tokens with a batch size of "
            f"{settings.batch_size} are {number}; give --batch-size {processes} or more, or use fewer processes"
        )


def score_in_processes(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    settings: EvalSettings,
    *,
    world: World,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> Scores:
    """Score every target once, as `scoring.score` does, with its lanes divided over the processes.

    All processes return the losses of all lanes, and the seconds of the slowest process.

    Raises:
        UsageError: there are fewer lanes than processes.
        DisagreementError: a process has failed.
        TrainingError: a process is gone.
    """
    check_lanes(len(targets), settings, world.size)
    lanes = Lanes.of(len(targets), settings)
    parts = even_parts(lanes.number, world.size)
    with world.failing_together():
        own, seconds = score_lanes(
            model, inputs, targets, settings, parts[world.rank], precision=precision, on_tokens=on_tokens
        )
    losses = world.all_gather(own, [len(part) for part in parts])
    return Scores(lanes.join(losses).numpy(), _slowest(seconds, world), lanes.number)


def score_windows_in_processes(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    *,
    world: World,
    attn_len: int,
    stride: int,
    windows: int | None,
    max_distance: int | None,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> Scores:
    """Score every target once, as `windows.score_windows` does, with the windows divided over the processes."""
    with world.failing_together():
        own = score_windows(
            model,
            inputs,
            targets,
            attn_len=attn_len,
            stride=stride,
            windows=windows,
            max_distance=max_distance,
            precision=precision,
            on_tokens=on_tokens,
            share=(world.rank, world.size),
        )
    of_ranks = world.all_gather(torch.from_numpy(own.losses_nats)[None], [1] * world.size)  # (ranks, T)
    return Scores(of_ranks.sum(dim=0).numpy(), _slowest(own.seconds, world), own.lanes)


def _slowest(seconds: float, world: World) -> float:
    """Return the largest number of seconds of any process."""
    return float(world.all_gather(torch.tensor([seconds], dtype=torch.float64), [1] * world.size).max())
