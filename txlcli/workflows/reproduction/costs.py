"""Forecasts the cost of the trainings that a table or figure needs."""

from typing import Any

from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.cost import training_flops_per_token
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.runs import history, run_folder
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.runner import FIRST_SEED
from txlcli.workflows.reproduction.scales import Model, Scale
from txlcli.workflows.training.forecast import SHARE_OF_PEAK
from txlcli.workflows.workspace import Workspace

BYTES = 256


class Costs:
    """Costs at a scale on this machine, whose peak rate is measured once."""

    def __init__(self, scale: Scale, workspace: Workspace, *, seeds: int) -> None:
        self._scale, self._workspace, self._seeds = scale, workspace, seeds
        self.peak = peak_flops_per_s(pick_device(workspace.device), "fp32")
        self.share = SHARE_OF_PEAK

    def of(self, item: str) -> dict[str, Any]:
        """Return the number of trainings of an item, of missing ones, and the cost of these."""
        parts, seeds = ITEMS[item].parts, range(FIRST_SEED, FIRST_SEED + self._seeds)
        missing = [part for part in parts for seed in seeds if not self._is_finished(part, seed)]
        flops = sum(self._flops(self._scale.models[part]) for part in missing)
        return {
            "item": item,
            "models": len(parts) * self._seeds,
            "missing": len(missing),
            "training_flops": flops,
            "seconds": flops / (self.share * self.peak),
        }

    def _is_finished(self, part: str, seed: int) -> bool:
        name, runs_dir = self._scale.run_name(part, seed), self._workspace.runs_dir
        if not run_folder.is_run(name, runs_dir):
            return False
        return history.read(run_folder.open_run(runs_dir / name)).state == "finished"

    def _flops(self, model: Model) -> float:
        settings = model.settings()
        train = settings.train
        per_token = training_flops_per_token(
            settings.model,
            self._vocab_size(model),
            seg_len=train.seg_len,
            mem_len=train.mem_len,
            batch_size=train.batch_size,
        )
        return train.max_steps * train.batch_size * train.seg_len * per_token

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
