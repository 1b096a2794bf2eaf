"""Measures the relative effective context length (RECL) of a group of runs (section 4.3, Appendix C)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.core.measures.contexts import eligible_positions, sample_positions
from txlcli.core.measures.recl import Gain, gains, recl
from txlcli.data.context_file import ContextFile
from txlcli.errors import UnknownNameError, UsageError
from txlcli.paper import metrics
from txlcli.system import locks
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.recl.group import Member, open_group
from txlcli.workflows.recl.losses import ReclTask, group_losses
from txlcli.workflows.workspace import Workspace

SPLITS = ("valid", "test")
STEPS = 9  # default number of steps from --start to --longest: ten lengths, 100 to 1,000 (Table 8 goes to 900)
POSITIONS = 2_000
LOSSES = "recl.h5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReclOptions:
    """Context lengths, positions and threshold of a measurement.

    Raises:
        UsageError: a value is out of range.
    """

    split: str = "test"
    start: int = 100
    """First context length c in tokens."""
    step: int = 100
    """Delta in tokens; 100 in Table 8."""
    longest: int | None = None
    """Last context length in tokens; None is nine steps after the first."""
    top_r: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Shares r of the positions, the hardest ones."""
    threshold: float = 0.01
    """Smallest relative gain of perplexity that counts."""
    positions: int | None = None
    """Number of positions to score; None is `POSITIONS`, or all if there are fewer."""
    seed: int = 1111
    """Seed of the sample of positions."""
    batch_size: int | None = None
    """Contexts evaluated at once; the device decides by default."""
    unfinished: bool = False
    """True to accept runs that have not finished training."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.split not in SPLITS:
            raise UnknownNameError("split", self.split, SPLITS)
        if not self.top_r or not all(0 < share <= 1 for share in self.top_r):
            shares = ",".join(f"{share:g}" for share in self.top_r)
            raise UsageError(f"--top-r {shares}: r is a share of the positions; give numbers above 0, at most 1")
        if not 0 < self.threshold < 1:
            raise UsageError(
                f"--threshold {self.threshold:g}: a share of the perplexity, such as 0.01 for 1 %; "
                "give a number between 0 and 1"
            )
        if self.longest is not None and self.longest < self.start + self.step:
            raise UsageError(
                f"--longest {self.longest} is less than one --step {self.step} above --start {self.start}; "
                f"give at least {self.start + self.step}"
            )

    @property
    def contexts(self) -> list[int]:
        """Context lengths to compare."""
        last = self.longest if self.longest is not None else self.start + STEPS * self.step
        return list(range(self.start, last + 1, self.step))


def measure(
    run_names: Sequence[str], options: ReclOptions, workspace: Workspace, *, losses: Path | None = None
) -> dict[str, Any]:
    """Measure the RECL of every run of a group; return the object that --json prints.

    Args:
        run_names: runs, by name or directory.
        options: context lengths, shares r, positions.
        workspace: directories, device, precision.
        losses: file of the losses; `LOSSES` in the directory of runs by default.

    Raises:
        UsageError: the runs or their text do not allow these options.
    """
    path = losses or workspace.runs_dir / LOSSES
    busy = f"another txl recl writes to {path}; wait for it, or give another --losses"
    with locks.exclusive(path.with_name(f".{path.name}.lock"), busy):
        group, text = open_group(run_names, workspace, split=options.split, unfinished=options.unfinished)
        task = ReclTask(
            text,
            _positions(text, options),
            options.contexts,
            ContextFile(path),
            options.batch_size,
            workspace.reporter,
        )
        losses_by_context = group_losses(group, task)
    return _make_result(group, text, losses_by_context, options)


def _positions(text: ScoredText, options: ReclOptions) -> NDArray[np.int64]:
    """Sample the positions to score, which are the same for all models and context lengths."""
    count, longest = len(text.targets), options.contexts[-1]
    eligible = eligible_positions(count, longest=longest)
    if not eligible:
        raise UsageError(
            f"{text.title} has {count:,} tokens to predict, none of them after {longest:,} tokens of context; "
            f"give at most --longest {count}, and a --start and --step that fit"
        )
    if options.positions is not None and options.positions > eligible:
        raise UsageError(
            f"--positions {options.positions}: {text.title} has {eligible:,} tokens after {longest:,} tokens of "
            "context; give at most that"
        )
    return sample_positions(count, longest=longest, sample_size=options.positions or POSITIONS, seed=options.seed)


def _make_result(
    group: Sequence[Member], text: ScoredText, losses: NDArray[np.float32], options: ReclOptions
) -> dict[str, Any]:
    contexts = options.contexts
    by_share = {share: gains(losses, contexts, share) for share in options.top_r}
    models = []
    for number, member in enumerate(group):
        nats = [float(at.mean(dtype="float64")) for at in losses[number]]
        models.append(
            {
                "run": str(member.run.directory),
                "step": member.step,
                "parameters": member.run.parameters,
                **member.context_settings(),
                "precision": member.precision,
                "loss_nats": nats,
                "ppl": [metrics.finite(metrics.perplexity(mean)) for mean in nats],
                "recl": [_recl_point(share, by_share[share][number], options.threshold) for share in options.top_r],
            }
        )
    return {
        "text": text.title,
        "unit": text.unit,
        "positions": losses.shape[2],
        "seed": options.seed,
        "threshold": options.threshold,
        "step_tokens": options.step,
        "context_tokens": contexts,
        "models": models,
    }


def _recl_point(share: float, steps: Sequence[Gain], threshold: float) -> dict[str, Any]:
    """Return the RECL of one model for one r, with the gains it is derived from."""
    effective_context = recl(steps, threshold)
    return {
        "top_r": share,
        "recl_tokens": effective_context.context_len,
        "grid_ended": effective_context.grid_ended,
        "gains": [
            {
                "from_tokens": gain.context_len,
                "to_tokens": gain.longer_context_len,
                "baseline_nats": gain.baseline_nats,
                "relative_loss_nats": gain.relative_loss_nats,
                "relative_gain": gain.relative,
                "ppl_gain": metrics.finite(gain.ppl),
            }
            for gain in steps
        ],
    }
