"""The state of a training run that checkpoints save: kept between two steps, gathered from all processes, restored.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.training import checkpoint
from txlcli.core.training.averaging import make_average
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.core.training.distributed import World, micro_batches
from txlcli.core.training.parallel import DataParallel
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import StreamPosition, TrainingSegments
from txlcli.core.training.step import CaptureGraph, make_step
from txlcli.errors import RecipeError, RunError


def scheduled_lr(settings: TrainSettings, step: int) -> float:
    """Return the learning rate of step number `step`, counted from 1, without the reductions of `Plateau`.

    Step n of the warm-up has the fraction n / warmup_steps. The released PyTorch code is one step behind during the
    warm-up, with its very first step at the full rate; the first step of the released TF code has rate 0.
    """
    floor, end = settings.min_lr_ratio, max(1, settings.schedule_steps)
    if settings.average == "mean" and step > end:
        return settings.average_lr_factor * scheduled_lr(settings, end)
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    ratio = 1.0
    if settings.schedule == "cosine":
        start = settings.warmup_steps if settings.cosine_from == "warmup" else 0
        done = (step - 1 - start) / max(1, end - start)  # a short run may end within its warm-up
        ratio = floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "wsd":
        ratio = floor + (1 - floor) * min(1.0, (end + 1 - step) / (settings.decay_share * end))
    elif settings.schedule == "inverse_sqrt":
        ratio = math.sqrt(max(settings.warmup_steps, 1) / step)
    return settings.lr * max(ratio, floor)


class Plateau:
    """Reduction of the learning rate when the validation loss stops falling; inactive for other schedules.

    torch's ReduceLROnPlateau is not used: it overwrites the learning rates of an optimizer, while this scale multiplies
    the scheduled rate, and resumes from two numbers.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self.scale = 1.0
        """Factor of the scheduled learning rate."""
        self._waited = 0

    def on_validation(self, *, improved: bool) -> None:
        """Reduce the learning rate if more than `plateau_patience` validations have not improved."""
        settings = self._settings
        if settings.schedule == "plateau":
            self._waited = 0 if improved else self._waited + 1
            if self._waited > settings.plateau_patience:
                self.scale = max(self.scale * settings.plateau_factor, settings.min_lr_ratio)
                self._waited = 0

    def state(self) -> dict[str, float]:
        """Return plain data for a checkpoint."""
        return {"scale": self.scale, "waited": self._waited}

    def restore(self, state: dict[str, float]) -> None:
        """Restore the state from a checkpoint; another schedule keeps its own rate."""
        if self._settings.schedule == "plateau":
            self.scale, self._waited = state["scale"], int(state["waited"])


class TrainingState:
    """A model, its optimizer, average and memory, and the position in the text."""

    def __init__(
        self,
        model: LanguageModel,
        settings: TrainSettings,
        segments: TrainingSegments,
        saver: Saver,
        world: World,
        *,
        capture_graph: CaptureGraph | None,
    ) -> None:
        self.model, self.settings, self.segments, self.saver, self.world = model, settings, segments, saver, world
        first = world.rank * settings.accumulate
        self._parts = micro_batches(settings, world.size)[first : first + settings.accumulate]
        self.parallel = make_parallel(model, settings, world)
        self.device = model.device
        self._prepare_model()
        self.train_step = make_step(
            self.parallel, capture_graph, [segments.share(band.first, band.end) for band in model.softmax.bands[1:]]
        )
        self.average = make_average(self.parallel.own_weights(), settings)
        self.plateau = Plateau(settings)
        self.step = 0
        self.position = StreamPosition()
        self.validated = 0
        """The step of the last validation."""
        self.best_nats = math.inf
        self.stale = 0
        """Validations since the last improvement."""
        self.memories = self.empty_memories()

    def _prepare_model(self) -> None:
        model, settings = self.model, self.settings
        model.recompute(settings.recompute)
        one_cpu_process = self.device.type == "cpu" and self.world.size == 1
        model.embedding.gradient_of_rows = one_cpu_process and model.settings.tie_embeddings
        model.set_attention_backend(settings.attention)
        if settings.compile == "on":
            model.compile_layers()

    @property
    def epoch(self) -> float:
        """Epochs read so far."""
        return self.position.epoch + self.position.segment / self.segments.segments_in(self.position.epoch)

    def lr(self, step: int) -> float:
        """Return the learning rate of step number `step`."""
        return scheduled_lr(self.settings, step) * self.plateau.scale

    def empty_memories(self) -> list[Memory]:
        """Return the memory before the first segment, one for each micro-batch of this process."""
        return [self.parallel.first_memory(len(part), self.settings.mem_len) for part in self._parts]

    def gather(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint by full name on rank 0; all processes must call this."""
        return {
            **self.gather_weights(),
            **grouped("memory", checkpoint.gather_memories(self.world, self.memories)),
            **grouped("rng", checkpoint.gather_generators(self.world, self.device)),
            **grouped("optimizer", self.parallel.gather_optimizer(self.train_step.optimizer)),
        }

    def gather_weights(self) -> dict[str, Tensor]:
        """Return the weights and their average by full name on rank 0; all processes must call this."""
        model, average = map(self.parallel.gather_weights, (self.parallel.own_weights(), self.average.weights))
        return grouped("model", model) | grouped("average", average)

    def state(self) -> dict[str, Any]:
        """Return the plain data of a checkpoint."""
        return {
            "step": self.step,
            "place": asdict(self.position),
            "validated": self.validated,
            "best_nats": self.best_nats if math.isfinite(self.best_nats) else None,
            "stale": self.stale,
            "average": {"kind": self.settings.average, **self.average.state()},
            "plateau": self.plateau.state(),
            "scaler": self.train_step.scaler.state_dict(),
            **({"compiled": self.train_step.compiles} if self.device.type == "cuda" else {}),
        }

    def restore(self, saved: Checkpoint) -> None:
        """Resume exactly where a checkpoint was written; the model has its weights already."""
        if not saved.group("rng"):
            raise RunError(f"{self.saver.last_path}: holds weights only; restore it from a copy")
        state = saved.state
        if (kind := state["average"]["kind"]) != self.settings.average:
            raise RecipeError(
                f'{self.saver.last_path}: trained with train.average = "{kind}", which cannot become '
                f'"{self.settings.average}" during the training; start a new run instead'
            )
        self.step, self.validated, self.position = state["step"], state["validated"], StreamPosition(**state["place"])
        self.best_nats = math.inf if state["best_nats"] is None else state["best_nats"]
        self.stale = state["stale"]
        self.plateau.restore(state["plateau"])
        if state["scaler"] and self.train_step.scaler.is_enabled():  # another precision begins with its own scale
            self.train_step.scaler.load_state_dict(state["scaler"])
        averages = saved.group("average").items()
        self.average.restore(state["average"], {name: self.parallel.own_part(whole) for name, whole in averages})
        self.parallel.restore_optimizer(self.train_step.optimizer, saved.group("optimizer"))
        checkpoint.restore_memories(saved.group("memory"), self.memories, self._parts)
        checkpoint.restore_generators(saved.group("rng"), self.world, self.device, seed=self.seed_of_step())

    def seed_of_step(self) -> int:
        """Return a seed for the random numbers of this process after this step."""
        key = (self.settings.seed, self.step, self.world.rank)
        return int(np.random.default_rng(key if self.world.rank else key[:2]).integers(1 << 63))


def make_parallel(model: LanguageModel, settings: TrainSettings, world: World) -> DataParallel:
    """Return the mode that train.parallel names; a single process holds everything."""
    if world.size > 1 and settings.parallel == "zero":  # the imports take a second
        from txlcli.core.training.parallel_zero import ZeroParallel  # noqa: PLC0415

        return ZeroParallel(model, settings, world)
    if world.size > 1 and settings.parallel == "fsdp":
        from txlcli.core.training.parallel_fsdp import FullyShardedParallel  # noqa: PLC0415

        return FullyShardedParallel(model, settings, world)
    return DataParallel(model, settings, world)
