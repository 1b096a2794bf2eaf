"""Options of `txl recl`, without PyTorch."""

from pathlib import Path
from typing import Literal

from txlcli.config.ranges import PositiveInt, PositiveShare, Seed
from txlcli.errors import UsageError
from txlcli.workflows.options import FIGURE_FORMATS, PlotOptions, option, seed_option

DEFAULT_RECL_STEPS = 9  # ten lengths, 100 to 1,000; Table 8 goes to 900
DEFAULT_RECL_POSITIONS = 2_000


class ReclOptions(PlotOptions):
    """Options of `txl recl`."""

    split: Literal["valid", "test"] = option("Split to score.", default="test")
    start: PositiveInt = option("Shortest context length, in tokens.", default=100)
    step: PositiveInt = option("Step to the next context length, in tokens.", default=100)
    longest: PositiveInt | None = option("Longest context length, in tokens [default: nine steps from --start].")
    top_r: tuple[PositiveShare, ...] = option(
        "Compare on these shares of the hardest positions [default: 0.1,0.5,1.0].", default=(0.1, 0.5, 1.0)
    )
    threshold: PositiveShare = option(
        "Smallest relative gain of perplexity that counts; 1 % in the paper.", default=0.01
    )
    positions: PositiveInt | None = option(
        f"Score N positions, sampled with --seed [default: {DEFAULT_RECL_POSITIONS:,} at most]."
    )
    batch_size: PositiveInt | None = option("Contexts evaluated at once; changes speed and memory.")
    plot_ppl: Path | None = option(
        "Also plot perplexity by context length to this file (Figure 4).",
        writes=FIGURE_FORMATS,
    )
    seed: Seed = seed_option()

    def _check(self) -> None:
        if self.longest is not None and self.longest < self.start + self.step:
            raise UsageError(f"`longest` {self.longest}: give at least `start` + `step`, {self.start + self.step}")
        if self.plot is not None and self.plot == self.plot_ppl:
            raise UsageError(f"`plot` and `plot_ppl` are both {self.plot}; give each its own file")

    @property
    def contexts(self) -> list[int]:
        """Context lengths to compare, in tokens."""
        longest = self.longest
        if longest is None:
            longest = self.start + DEFAULT_RECL_STEPS * self.step
        return list(range(self.start, longest + 1, self.step))
