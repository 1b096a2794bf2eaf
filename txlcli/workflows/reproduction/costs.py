"""Forecasts the cost of the training runs that a table or figure needs."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.cost import training_flops_per_token
from txlcli.core.measures.timing import idle_clock_of, peak_flops_per_s
from txlcli.runs import history, run_directory
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.runner import FIRST_SEED
from txlcli.workflows.reproduction.scales import Model, Scale
from txlcli.workflows.training.forecast import SHARE_OF_PEAK, timed_share_of_peak
from txlcli.workflows.workspace import Workspace

BYTES = 256
MAX_S = 10.0
"""Seconds after which no further model is timed."""


@dataclass(frozen=True, kw_only=True)
class ItemCost:
    """Cost of the training runs of a table or figure that are missing."""

    item: str
    models: int
    """Number of all its training runs."""
    missing: int
    training_flops: float
    seconds: float


class Costs:
    """Costs at a scale on this machine, whose peak rate is measured once; small models are timed, once per shape.

    Each model is trained with so many seeds. MAX_S after the first call of the clock, in seconds, no further model is
    timed, and those that are left have the median rate of the others.
    """

    def __init__(
        self, scale: Scale, workspace: Workspace, *, seeds: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scale, self._workspace, self._seeds = scale, workspace, seeds
        self._device = pick_device(workspace.device)
        self.peak = peak_flops_per_s(self._device, "fp32", new_clock=idle_clock_of)
        self._shares: dict[tuple[object, ...], float] = {}
        self._clock, self._timed_until = clock, clock() + MAX_S

    def of(self, item: str) -> ItemCost:
        """Return the number of training runs of an item, of missing ones, and the cost of these."""
        parts, seeds = ITEMS[item].parts, range(FIRST_SEED, FIRST_SEED + self._seeds)
        missing = [part for part in parts for seed in seeds if not self._is_finished(part, seed)]
        costs = [self._flops_and_seconds(self._scale.models[part]) for part in missing]
        return ItemCost(
            item=item,
            models=len(parts) * self._seeds,
            missing=len(missing),
            training_flops=sum(flops for flops, _ in costs),
            seconds=sum(seconds for _, seconds in costs),
        )

    def _is_finished(self, part: str, seed: int) -> bool:
        name, runs_dir = self._scale.run_name(part, seed), self._workspace.runs_dir
        if not run_directory.is_run(name, runs_dir):
            return False
        return history.read(run_directory.open_run(runs_dir / name)).state == "finished"

    def _flops_and_seconds(self, model: Model) -> tuple[float, float]:
        """Return the operations and the time of a training run."""
        settings, vocab_size = model.settings(), self._vocab_size(model)
        train = settings.train
        batch_size, seg_len, mem_len = train.batch_size, train.seg_len, train.mem_len
        flops_per_token = training_flops_per_token(
            settings.model, vocab_size, seg_len=seg_len, mem_len=mem_len, batch_size=batch_size
        )
        flops = train.max_steps * batch_size * seg_len * flops_per_token
        shape = (settings.model, vocab_size, batch_size, seg_len, mem_len)
        if shape not in self._shares and self._clock() < self._timed_until:
            share = timed_share_of_peak(settings.model, vocab_size, train, device=self._device, peak=self.peak)
            self._shares[shape] = share or SHARE_OF_PEAK
        share = self._shares.get(shape) or statistics.median(self._shares.values() or [SHARE_OF_PEAK])
        return flops, flops / (share * self.peak)

    def _vocab_size(self, model: Model) -> int:
        """Return the V of the store, or without a store that of the benchmark or of the options of `txl prepare`.

        The benchmark's V is also used if the store, a part of the benchmark, has fewer words than the model's bands.
        """
        settings = model.settings()
        published = settings.published.vocab_size
        if self._workspace.store_path(settings.corpus.store).is_file():
            size = self._workspace.open_store(settings.corpus.store).vocab.size
            if published is None or size > max(settings.model.cutoffs, default=0):
                return size
        requested = self._scale.texts[settings.corpus.store].options.get("vocab_size")
        return published or (requested if isinstance(requested, int) else BYTES)
