"""`txl recl`: how many tokens of context the models of a group make use of (section 4.3, Appendix C)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import UnknownNameError, UsageError
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
    Seed,
    Unfinished,
)
from txlcli.paper import metrics
from txlcli.system import locks
from txlcli.views import recl_table
from txlcli.workflows.recl.group import Member, open_group
from txlcli.workflows.recl.losses import group_losses

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.core.measures.recl import Gain
    from txlcli.workflows.evaluation.texts import ScoredText

SPLITS = ("valid", "test")
STEPS = 9  # from --start to --longest where nobody says: ten context lengths, 100 to 1,000 (Table 8 goes to 900)
POSITIONS = 2_000
LOSSES = "recl.h5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReclWishes:
    """What is measured of a group.

    Raises:
        UsageError: a value is out of range.
    """

    split: str = "test"
    start: int = 100
    """The first context length c, tokens."""
    step: int = 100
    """Delta, tokens; Table 8 has 100."""
    longest: int | None = None
    """The last context length, tokens; nine steps from the first where it is left out."""
    top_r: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Shares r of the positions, the hardest ones."""
    threshold: float = 0.01
    """The least relative gain that makes a context length worth it."""
    positions: int | None = None
    """Positions that are scored; by default `POSITIONS`, or all where there are fewer."""
    seed: int = 1111
    """Draws the positions."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.split not in SPLITS:
            raise UnknownNameError("split", self.split, SPLITS)
        if not self.top_r or not all(0 < share <= 1 for share in self.top_r):
            said = ",".join(f"{share:g}" for share in self.top_r)
            raise UsageError(f"--top-r {said}: r is a share of the positions; give numbers above 0, at most 1")
        if not 0 < self.threshold < 1:
            raise UsageError(
                f"--threshold {self.threshold:g}: it is a share of the perplexity, 0.01 for 1 %; "
                "give a number between 0 and 1"
            )
        if self.longest is not None and self.longest < self.start + self.step:
            raise UsageError(
                f"--longest {self.longest} leaves no step from --start {self.start} by --step {self.step}; "
                f"give at least {self.start + self.step}"
            )

    @property
    def contexts(self) -> list[int]:
        """The grid of context lengths."""
        last = self.longest if self.longest is not None else self.start + STEPS * self.step
        return list(range(self.start, last + 1, self.step))


def recl(
    run_names: Annotated[list[str], typer.Argument(metavar="RUN...", help="The runs of the group; one is allowed.")],
    split: Annotated[str, typer.Option("--split", help="valid or test (the default).")] = "test",
    start: Annotated[int, typer.Option("--start", min=1, help="Shortest context length, in tokens.")] = 100,
    step: Annotated[int, typer.Option("--step", min=1, help="Step to the next context length, in tokens.")] = 100,
    longest: Annotated[
        int | None, typer.Option("--longest", min=1, help="Longest context length, in tokens; nine steps by default.")
    ] = None,
    top_r: Annotated[
        str, typer.Option("--top-r", metavar="R,R,...", help="Compare on these shares of the hardest positions.")
    ] = "0.1,0.5,1.0",
    threshold: Annotated[
        float, typer.Option("--threshold", help="Least relative gain of perplexity that counts; the paper's is 1 %.")
    ] = 0.01,
    positions: Annotated[
        int | None,
        typer.Option("--positions", min=1, help=f"Score N positions drawn by --seed; {POSITIONS:,} by default."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Contexts read side by side; changes speed and memory.")
    ] = None,
    losses: Annotated[
        Path | None,
        typer.Option("--losses", metavar="FILE.h5", help=f"Keep all losses here; {LOSSES} beside the runs by default."),
    ] = None,
    plot: Plot = None,
    plot_ppl: Annotated[
        Path | None, typer.Option("--plot-ppl", help="Draw perplexity by context length to this file (Figure 4).")
    ] = None,
    unfinished: Unfinished = False,
    seed: Seed = 1111,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Measure how much context a group of runs makes use of.

    The Relative Effective Context Length of Table 8: the context length from which one step more gains less than 1 %,
    on the hardest positions, over the best model of the group. --plot draws the gains for the first r (Figure 3).

    Example: txl recl stdlib vanilla-stdlib --start 16 --step 16 --positions 500
    """
    from txlcli.views import plots

    for option, path in (("--plot", plot), ("--plot-ppl", plot_ppl)):
        if path is not None:
            plots.check_path(path, option)
    shares = _parse_shares(top_r)
    wishes = ReclWishes(
        split=split,
        start=start,
        step=step,
        longest=longest,
        top_r=shares,
        threshold=threshold,
        positions=positions,
        seed=seed,
    )
    result = measure(
        run_names,
        wishes,
        losses=losses,
        batch_size=batch_size,
        device=device.value,
        precision=precision.value if precision else None,
        data_dir=data_dir,
        runs_dir=runs_dir,
        unfinished=unfinished,
        shown=not json,
    )
    if json:
        console.show_json(result)
    else:
        recl_table.show(result)
    if plot is not None:
        recl_table.plot_gains(plot, result)
    if plot_ppl is not None:
        recl_table.plot_perplexities(plot_ppl, result)


def measure(
    run_names: Sequence[str],
    wishes: ReclWishes,
    *,
    losses: Path | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    precision: str | None = None,
    data_dir: Path = DATA_DIR,
    runs_dir: Path = RUNS_DIR,
    unfinished: bool = False,
    shown: bool = True,
) -> dict[str, Any]:
    """The RECL of every run of a group, with all gains and perplexities: the object that --json prints.

    Args:
        run_names: runs, by name or folder.
        wishes: the grid, the shares r, the positions.
        losses: the file that keeps the losses; `LOSSES` in the folder of runs by default.
        batch_size: contexts read side by side; by the device where it is left out.
        device: auto, cpu or cuda.
        precision: number format of matrix products; each run's own where it is left out.
        data_dir: the token stores.
        runs_dir: the runs.
        unfinished: whether runs may have steps to take.
        shown: whether to show how far it is.

    Raises:
        UsageError: the group or its text cannot be measured like this.
    """
    from txlcli.data.context_file import ContextFile

    path = losses or runs_dir / LOSSES
    busy = f"another txl recl keeps losses in {path}; wait for it, or give another --losses"
    with locks.exclusive(path.with_name(f".{path.name}.lock"), busy):
        group, text = open_group(
            run_names,
            split=wishes.split,
            device=device,
            precision=precision,
            data_dir=data_dir,
            runs_dir=runs_dir,
            unfinished=unfinished,
        )
        context_file = ContextFile(path)
        positions = _positions(text, wishes)
        losses_by_context = group_losses(
            group, text, positions, wishes.contexts, context_file=context_file, windows=batch_size, shown=shown
        )
    return _as_result(group, text, losses_by_context, wishes)


def _parse_shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--top-r {text}: write numbers like 0.1,0.5,1.0") from None


def _positions(text: "ScoredText", wishes: ReclWishes) -> "NDArray[np.int64]":
    """The positions that are scored, the same for all models and context lengths."""
    from txlcli.core.measures.contexts import eligible_positions, sample_positions

    count, longest = len(text.targets), wishes.contexts[-1]
    eligible = eligible_positions(count, longest=longest)
    if not eligible:
        raise UsageError(
            f"{text.title} has {count:,} tokens to predict, none of them with {longest:,} tokens before it; "
            f"give --longest {count} at most, and a --start and --step that fit"
        )
    if wishes.positions is not None and wishes.positions > eligible:
        raise UsageError(
            f"--positions {wishes.positions}: {text.title} has {eligible:,} tokens with {longest:,} tokens before "
            "them; give at most so many"
        )
    return sample_positions(count, longest=longest, sample_size=wishes.positions or POSITIONS, seed=wishes.seed)


def _as_result(
    group: Sequence[Member], text: "ScoredText", losses: "NDArray[np.float32]", wishes: ReclWishes
) -> dict[str, Any]:
    from txlcli.core.measures.recl import gains

    contexts = wishes.contexts
    by_share = {share: gains(losses, contexts, share) for share in wishes.top_r}
    models = []
    for number, member in enumerate(group):
        nats = [float(at.mean(dtype="float64")) for at in losses[number]]
        models.append(
            {
                "run": str(member.run.folder),
                "step": member.step,
                "parameters": member.run.parameters,
                **member.reading(),
                "precision": member.precision,
                "loss_nats": nats,
                "ppl": [metrics.finite(metrics.perplexity(mean)) for mean in nats],
                "recl": [_as_point(share, by_share[share][number], wishes.threshold) for share in wishes.top_r],
            }
        )
    return {
        "text": text.title,
        "unit": text.unit,
        "positions": losses.shape[2],
        "seed": wishes.seed,
        "threshold": wishes.threshold,
        "step_tokens": wishes.step,
        "context_tokens": contexts,
        "models": models,
    }


def _as_point(share: float, steps: "Sequence[Gain]", threshold: float) -> dict[str, Any]:
    """The RECL of one model at one r, with the gains that it comes from."""
    from txlcli.core.measures.recl import recl as stops

    effective_context = stops(steps, threshold)
    return {
        "top_r": share,
        "recl_tokens": effective_context.context_len,
        "grid_ended": effective_context.grid_ended,
        "gains": [
            {
                "from_tokens": one.context_len,
                "to_tokens": one.longer_context_len,
                "baseline_nats": one.baseline_nats,
                "relative_loss_nats": one.relative_loss_nats,
                "relative_gain": one.relative,
                "ppl_gain": metrics.finite(one.ppl),
            }
            for one in steps
        ],
    }
