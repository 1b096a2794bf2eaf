"""The training loop: one generator that yields reports.

Axes: B lanes, L segment, M memory, d model width, N layers.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.compilation import compile_layers
from txlcli.core.kernels.device import send
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.registry import make_model
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training import checkpoint, resume_state
from txlcli.core.training.averaging import NoAverage, make_average
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.data_parallel import SINGLE_PROCESS, Command, Objective, World, micro_batches
from txlcli.core.training.optimizer import Plateau, scheduled_lr
from txlcli.core.training.optimizer_step import Descent
from txlcli.core.training.reports import Interval, Report, StepReport, ValidReport
from txlcli.core.training.segments import StreamPosition, TrainingSegments
from txlcli.core.training.step import TrainingPass
from txlcli.core.training.validation import ValidSplit, validate
from txlcli.errors import RecipeError, RunError, TrainingError

SAVE_INTERVAL_S = 600.0  # a crash costs at most this much of training, however rare validations are


class Training:
    """A model in training: everything that must survive a stop.

    Where several processes train, each has one of these; that of rank 0 runs, the others follow.

    Args:
        model: on its device.
        settings: the recipe's [train] section.
        segments: the training split in lanes.
        valid: the validation split, None where the store has none.
        folder: receives `last.safetensors` and `best.safetensors`.
        identity: plain data that checkpoints carry along, to know their run by.
        world: the processes among which the lanes are divided.

    Raises:
        RecipeError: there are fewer lanes than processes.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: TrainSettings,
        segments: TrainingSegments,
        valid: ValidSplit | None,
        folder: Path,
        identity: dict[str, Any],
        world: World = SINGLE_PROCESS,
    ) -> None:
        self.model, self.settings, self.segments = model, settings, segments
        self.valid, self.folder, self.identity, self.world = valid, folder, identity, world
        self.device = model.device
        self._all_parts = micro_batches(settings, world.size)
        first = world.rank * settings.accumulate
        self._parts = self._all_parts[first : first + settings.accumulate]
        model.recompute(settings.recompute)
        on_one_cpu = self.device.type == "cpu" and world.size == 1
        model.embedding.gradient_of_rows = on_one_cpu and model.settings.tie_embeddings
        if isinstance(model, TransformerXL):
            model.attend_by(settings.attention)
            if settings.compile:
                compile_layers(model)
        self.descent = Descent(model, settings)
        self.average = make_average(model, settings) if world.is_rank_zero else NoAverage(model)
        self.plateau = Plateau(settings)
        self.step = 0
        self.position = StreamPosition()
        self.validated = 0  # the step of the last validation
        self.best_nats = math.inf
        self.memories = self._empty_memories()
        self._objective = Objective(model, world)
        self._pass = TrainingPass(model, settings, self._objective, self.descent, processes=world.size)
        if not world.is_rank_zero:
            torch.manual_seed(self._seed_from_here())

    @property
    def last_path(self) -> Path:
        """The checkpoint that a resumed run goes on from."""
        return self.folder / "last.safetensors"

    @property
    def best_path(self) -> Path:
        """The weights with the lowest validation loss."""
        return self.folder / "best.safetensors"

    def run(
        self,
        *,
        report_every: int,
        should_stop: Callable[[], bool],
        until_step: int | None = None,
        on_valid_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[Report]:
        """Train up to max_steps; save around every validation, now and then between, and at the end or a stop.

        Other processes follow until this ends.

        Args:
            report_every: steps between two StepReports.
            should_stop: asked between steps and during validations; True saves and ends.
            until_step: end after this step although the schedule goes on.
            on_valid_tokens: called during a validation with the number of tokens that it has scored so far.

        Raises:
            TrainingError: the loss or a gradient is not finite; the last checkpoint is the last good one.
        """
        with self.world.ending_others():
            yield from self._run(report_every, should_stop, until_step, on_valid_tokens)

    def execute_commands(self) -> None:
        """Do what the leading process orders, until it ends."""
        while True:
            order, number = self.world.receive_command()
            if order == Command.update:
                self.plateau.scale = number
                self._update()
            elif order == Command.save:
                self._collect()
            else:
                return

    def _run(
        self,
        report_every: int,
        should_stop: Callable[[], bool],
        until_step: int | None,
        on_valid_tokens: Callable[[int], None] | None,
    ) -> Iterator[Report]:
        last_step = min(self.settings.max_steps, until_step or self.settings.max_steps)
        interval = Interval(self.device)
        saved_at, saved_step = time.monotonic(), self.step
        while True:
            validate = self.validation_is_due()
            if self.step > saved_step and (validate or time.monotonic() - saved_at > SAVE_INTERVAL_S):
                if interval.tokens:
                    yield self._step_report(interval)  # which also sees that the loss is finite
                self.save_last()  # before a validation, too: it may take long, or find no room
                interval = Interval(self.device)
                saved_at, saved_step = time.monotonic(), self.step
            if validate:
                yield from self._validate(should_stop, on_valid_tokens)
            if self.step >= last_step or should_stop():
                break
            if validate and self.valid is not None:
                self.save_last()
                interval = Interval(self.device)
                saved_at = time.monotonic()
            interval.add(*self.update())
            if self.step % report_every == 0 or self.step == last_step:
                yield self._step_report(interval)
                interval = Interval(self.device)
        if interval.tokens:  # stopped between two reports
            yield self._step_report(interval)
        self.save_last()

    def validation_is_due(self) -> bool:
        """Whether this step ends with a validation that has not been made: a stop may have cut it short."""
        on_time = self.step % self.settings.valid_every == 0 or self.step == self.settings.max_steps
        return self.step > 0 and on_time and self.validated != self.step

    @property
    def has_ended(self) -> bool:
        """Whether all steps are taken, and the last one is validated."""
        return self.step == self.settings.max_steps and not self.validation_is_due()

    def update(self) -> tuple[Tensor, Tensor, int]:
        """Take one optimizer step: mean loss (0-d), gradient norm before clipping (0-d), tokens."""
        self.world.send_command(Command.update, self.plateau.scale)
        return self._update()

    def _update(self) -> tuple[Tensor, Tensor, int]:
        if self.position.segment == 0:
            self.memories = self._empty_memories()  # every epoch starts with nothing to remember
        self.model.train()
        mine = range(self._parts[0].start, self._parts[-1].stop)
        inputs, targets = self._read(mine)
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(self._parts):
            lanes = slice(part.start - mine.start, part.stop - mine.start)
            with self._until_averaged(number):
                loss = self._pass(
                    inputs[lanes],
                    targets[lanes],
                    self.memories[number],
                    progress=self.step / self.settings.max_steps,
                )
            total += loss * (len(part) / self.settings.batch_size)
        self.world.all_reduce(total)
        if self._sees_every_step and not total.isfinite():
            raise self._not_finite(f"the loss is not finite at step {self.step + 1}")
        self.step += 1
        grad_norm = self.descent.clip()
        if self._sees_every_step:
            self._check_gradients(grad_norm)
        self.descent.step(self.lr(self.step))
        self.average.update()
        self.position = self.segments.next_position(self.position)
        return total, grad_norm, self.settings.batch_size * inputs.shape[1]

    def _read(self, lanes: range) -> tuple[Tensor, Tensor]:
        """What lanes of the next step read and predict, (lanes, L) each."""
        on_host = torch.from_numpy(self.segments.at(self.position, lanes))  # (lanes, L + 1)
        on_device = send(on_host, self.device)
        targets = on_host if self.model.targets_device.type == "cpu" else on_device
        return on_device[:, :-1], targets[:, 1:]

    def _until_averaged(self, number: int) -> contextlib.AbstractContextManager[object]:
        """Processes average the gradients of a step once, with its last part."""
        return contextlib.nullcontext() if number == len(self._parts) - 1 else self._objective.held_back()

    @property
    def _sees_every_step(self) -> bool:
        """Whether this process looks at the numbers of a step at once: on CUDA that would stall the queue."""
        return self.device.type == "cpu" and self.world.is_rank_zero

    def lr(self, step: int) -> float:
        """The learning rate of update number `step`."""
        return scheduled_lr(self.settings, step) * self.plateau.scale

    @property
    def epoch(self) -> float:
        """Epochs read so far."""
        return self.position.epoch + self.position.segment / self.segments.per_epoch

    def _step_report(self, interval: Interval) -> StepReport:
        loss_nats, tokens_per_s = interval.mean()
        if not math.isfinite(loss_nats):
            raise self._not_finite(f"the loss is not finite at step {self.step}")
        self._check_gradients(interval.largest_norm)
        return StepReport(self.step, self.epoch, loss_nats, self.lr(self.step), float(interval.grad_norm), tokens_per_s)

    def _check_gradients(self, largest_norm: Tensor) -> None:
        """Refuse to go on where no step is taken, or none that means anything.

        Raises:
            TrainingError: a gradient is not finite, or the sum of its squares; with fp16 at many steps in turn.
        """
        if self.descent.is_stuck:
            raise self._given_up(
                f"gradients overflow in fp16 up to step {self.step}, however small its scale of the loss",
                "train with --precision bf16 or fp32",
            )
        if not self.descent.leaves_out_steps and not largest_norm.isfinite():
            when = "at step" if self._sees_every_step else "at a step up to"
            raise self._not_finite(f"the gradient is not finite {when} {self.step}")

    def _validate(
        self, should_stop: Callable[[], bool], on_valid_tokens: Callable[[int], None] | None
    ) -> Iterator[ValidReport]:
        if self.valid is None:
            self.validated = self.step
            return

        with self.average.in_place():
            scores = validate(self.model, self.valid, self.settings, should_stop=should_stop, on_tokens=on_valid_tokens)
        if scores is None:
            return
        loss_nats = scores.total_nats / len(scores.losses_nats)
        if not math.isfinite(loss_nats):
            raise TrainingError(
                f"the validation loss is not finite after step {self.step}, though that of training is; go on from "
                f"{self.last_path} in another --precision, or start a new run with a lower train.lr"
            )
        self.validated = self.step
        best = loss_nats < self.best_nats
        self.plateau.see(improved=best)
        averaged = self.average.active
        if best:
            self.best_nats = loss_nats
            with self.average.in_place():
                self._save(self.best_path, {})
        self.average.see(loss_nats)
        yield ValidReport(self.step, self.epoch, loss_nats, len(scores.losses_nats), scores.seconds, best, averaged)

    def _empty_memories(self) -> list[Memory]:
        return [self.model.first_memory(len(part), self.settings.mem_len) for part in self._parts]

    def _not_finite(self, what: str) -> TrainingError:
        return self._given_up(what, "lower train.lr, or train with warm-up or norm = pre")

    def _given_up(self, why: str, next_step: str) -> TrainingError:
        kept = f"; the last good checkpoint is {self.last_path}" if self.last_path.exists() else ""
        return TrainingError(f"{why}{kept}; {next_step}")

    def _save(self, path: Path, more: dict[str, Tensor]) -> None:
        tensors = {**checkpoint.grouped("model", dict(self.model.named_parameters())), **more}
        state = {
            **self.identity,
            "step": self.step,
            "place": asdict(self.position),
            "validated": self.validated,
            "best_nats": self.best_nats if math.isfinite(self.best_nats) else None,
            "average": {"kind": self.settings.average, **self.average.state()},
            "plateau": self.plateau.state(),
            "scaler": self.descent.state(),
        }
        checkpoint.save(path, Checkpoint(tensors, state))

    def save_last(self) -> None:
        """Write everything that going on needs.

        Raises:
            RunError: the file cannot be written.
            TrainingError: the weights, the memory or the loss that they give are not finite; the older checkpoint
                stays.
        """
        self.world.send_command(Command.save)
        memory, rng = self._collect()
        if not all(tensor.isfinite().all() for tensor in (*self.model.parameters(), *memory.values())):
            raise self._not_finite(f"the weights are not finite after step {self.step}")
        # The losses so far are of the weights before the last update, which may have spoilt them.
        if not self._pass.loss(*self._read(self._parts[0]), self.memories[0]).isfinite():
            raise self._not_finite(f"the loss is not finite after step {self.step}")
        optimizer = checkpoint.optimizer_tensors(self.model, self.descent.optimizer)
        groups = {"memory": memory, "rng": rng, "optimizer": optimizer, "average": self.average.tensors()}
        self._save(
            self.last_path,
            {
                name: tensor
                for group, tensors in groups.items()
                for name, tensor in checkpoint.grouped(group, tensors).items()
            },
        )

    def _collect(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the checkpoint keeps of every process: memories and random generators."""
        memories = resume_state.collect_memories(self.world, self.memories, self._all_parts)
        return memories, resume_state.collect_generators(self.world, self.device)

    def restore(self, saved: Checkpoint) -> None:
        """Go on from exactly where a checkpoint was written: the model has its weights already.

        As many processes as wrote it go on to the bit; others, or another device, draw other masks of dropout.

        Raises:
            RunError: the file holds weights to evaluate, and not what going on needs.
            RecipeError: the run so far has made no mean of the kind that train.average names.
        """
        state = saved.state
        if not saved.group("rng"):
            raise RunError(f"{self.last_path}: holds weights only, as a best checkpoint does; restore it from a copy")
        self.step = state["step"]
        self.position = StreamPosition(**state["place"])
        self.validated = state["validated"]
        self.best_nats = math.inf if state["best_nats"] is None else state["best_nats"]
        self.plateau.restore(state["plateau"])
        self.descent.restore(state["scaler"])
        self._restore_average(saved)
        checkpoint.restore_optimizer(self.model, self.descent.optimizer, saved.group("optimizer"))
        resume_state.restore_memories(saved.group("memory"), self.memories, self._parts)
        resume_state.restore_generators(saved.group("rng"), self.world, self.device, seed=self._seed_from_here())

    def _seed_from_here(self) -> int:
        """A seed of this process for all that it draws after this step."""
        key = (self.settings.seed, self.step, self.world.rank)
        return int(np.random.default_rng(key if self.world.rank else key[:2]).integers(1 << 63))

    def _restore_average(self, saved: Checkpoint) -> None:
        if not self.world.is_rank_zero:
            return
        state = saved.state.get("average", {"kind": "none"})  # files written before there were averages have none
        if state["kind"] != self.settings.average:
            raise RecipeError(
                f'{self.last_path}: trained with train.average = "{state["kind"]}", which cannot become '
                f'"{self.settings.average}" on the way; start a new run instead'
            )
        if state["kind"] != "none":
            self.average.restore(state, saved.group("average"))


def new_model(settings: ModelSettings, vocab_size: int, *, seed: int, device: torch.device) -> LanguageModel:
    """A model with fresh weights; dropout goes on from the same seed."""
    torch.manual_seed(seed)
    return make_model(settings, vocab_size).to(device)
