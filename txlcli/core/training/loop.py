"""The training loop: a generator that takes steps and yields reports. All processes run the same one.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.cuda_graph import CaptureGraph
from txlcli.core.kernels.device import send
from txlcli.core.kernels.modes import autocast
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import Objective
from txlcli.core.reading.scoring import Scores
from txlcli.core.training import checkpoint
from txlcli.core.training.averaging import Average
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.core.training.distributed import SINGLE_PROCESS, World, micro_batches
from txlcli.core.training.parallel import DataParallel, ZeroParallel
from txlcli.core.training.reports import Interval, Report, StepReport, ValidReport
from txlcli.core.training.saving import Saver
from txlcli.core.training.schedule import scheduled_lr
from txlcli.core.training.segments import StreamPosition, TrainingSegments, band_shares
from txlcli.core.training.step import Batch
from txlcli.core.training.stepper import make_stepper
from txlcli.core.training.validation import Validations, ValidationText, validate
from txlcli.errors import RecipeError, RunError, TrainingError
from txlcli.system.memory import is_out_of_memory

CALMER = "lower train.lr, or train with warm-up or norm = pre"


class StepResult(NamedTuple):
    """One optimizer step."""

    losses: Tensor
    """Mean loss and what the objective adds to it, (2,)."""
    grad_norm: Tensor
    """Norm of the gradient before clipping (0-d)."""
    tokens: int
    """Number of targets, of all processes."""

    @property
    def loss(self) -> Tensor:
        """Mean loss (0-d)."""
        return self.losses[0]


class Training:
    """A model in training, with everything that a checkpoint saves.

    Each of several processes has one of these and runs the same steps. What depends on one of them (a signal, the
    time) is agreed on between steps; only rank 0 writes files.

    A view of the given model is trained, which computes as the settings say. It shares the weights, unless it divides
    them (train.parallel = "fsdp").
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: TrainSettings,
        segments: TrainingSegments,
        valid: ValidationText | None = None,
        saver: Saver | None = None,
        world: World = SINGLE_PROCESS,
        *,
        capture_graph: CaptureGraph | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if settings.reset_at_documents and not model.supports_reset:
            message = f"train.reset_at_documents: {type(model).__name__} does not support it; set it to false"
            raise RecipeError(message, setting="train.reset_at_documents")
        self.settings = settings
        self.segments = segments
        self.valid = valid
        self.saver = saver or Saver()
        self.world = world
        self.device = model.device
        self._clock = clock
        first = world.rank * settings.accumulate
        self._parts = micro_batches(settings, world.size)[first : first + settings.accumulate]
        self.parallel = _parallel(_view_for_training(model, settings, world), settings, world)
        tail_shares = band_shares(model.softmax.bands, segments.ids)[1:]
        self.stepper = make_stepper(self.parallel, capture_graph, tail_shares)
        self.scaler = self.stepper.eager.scaler
        self.average = Average(self.parallel.own_weights(), settings)
        self.validations = Validations(settings)
        self.step = 0
        self.position = StreamPosition()
        self.memories = self.empty_memories()
        self._skipped_in_a_row = 0
        self.checks_every_step = self.device.type == "cpu"
        """True if every step checks that its numbers are finite; on CUDA that would stall the queue of kernels."""
        self._interval = Interval(self.device, clock)
        self._mark_saved()
        if not world.is_rank_zero:
            torch.manual_seed(self.seed_of_step())

    @property
    def model(self) -> LanguageModel:
        """The view of the model that is trained."""
        return self.parallel.model

    @property
    def path(self) -> str:
        """How steps have been computed up to now, as "triton, compiled, captured"."""
        return self.stepper.path

    @property
    def notes(self) -> list[str]:
        """Lines for the user about paths that could not be taken."""
        return self.stepper.fast_path.notes

    def run(
        self,
        *,
        report_every: int,
        should_stop: Callable[[], bool],
        until_step: int | None = None,
        on_valid_tokens: Callable[[int], None] | None = None,
        on_step: Sequence[Callable[[int], None]] = (),
    ) -> Iterator[Report]:
        """Train up to max_steps. Save before every validation, every `train.save_minutes`, and at the end.

        Each function of `on_step` receives the number of every step, `on_valid_tokens` the tokens validated so far.
        Files are written in the background, and all of them are there when this ends. After a validation the last
        checkpoint is not written again: a run that is killed before its next save repeats the validation.
        """
        last_step = min(self.settings.max_steps, until_step or self.settings.max_steps)
        try:
            self._mark_saved()
            self._interval.restart_clock()
            while True:
                self.saver.raise_error()
                stop, save_is_due = self.world.max_of(should_stop(), self._clock() > self._next_save)
                validation_is_due = self.validation_is_due()
                if validation_is_due:
                    yield from self._report_steps(new_interval=True)
                if validation_is_due or save_is_due:  # a validation may take long or run out of memory
                    self._save_new_steps()
                if validation_is_due and not stop:
                    yield from self._validate(should_stop, on_valid_tokens)
                    self._interval.restart_clock()  # speeds do not include a validation
                    stop = self.world.any_of(should_stop())
                if self.step >= last_step or stop or self.has_ended:
                    break
                result = self.update()
                if result is not None:
                    self._interval.add(result.losses, result.grad_norm, result.tokens)
                for observe in on_step:
                    observe(self.step)
                if self.step % report_every == 0:
                    yield from self._report_steps(new_interval=True)
                if self.settings.keep_every and self.step % self.settings.keep_every == 0:
                    self._write_weights(self.saver.last_path.with_name(f"step-{self.step}.safetensors"))
            yield from self._report_steps(new_interval=False)  # if a stop came between two reports
            self.save_last()
            self.saver.wait()
        finally:
            self.saver.settle()

    def validation_is_due(self) -> bool:
        """Return True if this step ends with a validation that is not complete; a stop may have interrupted it."""
        on_time = self.steps_of_interval == 0 or self.step == self.settings.max_steps
        return self.step > 0 and on_time and self.validations.last_step != self.step

    @property
    def steps_of_interval(self) -> int:
        """Steps since the last one that ended with a validation."""
        if self.settings.valid_every == "epoch":
            return self.position.segment
        return self.step % self.settings.valid_every

    @property
    def has_ended(self) -> bool:
        """True if the last step is taken and validated."""
        return self.settings.ends_after(self.step, self.validations.stale) and not self.validation_is_due()

    def update(self) -> StepResult | None:
        """Take one optimizer step; return None if it is skipped (train.skip_nonfinite)."""
        if self.position.segment == 0:
            self.memories = self.empty_memories()  # every epoch starts without memory
        batches = [self._batch(part) for part in self._parts]
        self.model.train()
        losses = self.stepper.gradients(batches, self.memories)
        checks = self.checks_every_step or self.settings.skip_nonfinite > 0
        if checks and not losses[0].isfinite():
            self._skip("loss")
            return None
        grad_norm = self.stepper.norm()
        if checks and not self.scaler.is_enabled() and not grad_norm.isfinite():
            self._skip("gradient")
            return None
        self._skipped_in_a_row = 0
        self.step += 1
        if self.checks_every_step:
            self._check_scale()
        self.stepper.update(self._rate_of_group)
        self.average.update(self.step)
        self.position = self.segments.next_position(self.position)
        tokens = self.settings.batch_size * batches[0].targets.shape[1]
        return StepResult(losses, grad_norm, tokens)

    def _rate_of_group(self, factor: float) -> float:
        """Return the learning rate of a parameter group in the step at work, for a jittered segment by its length."""
        rate = self.lr(self.step, factor)
        if self.settings.seg_len_jitter:
            rate *= self.segments.sampled_length(self.position) / self.settings.seg_len
        return rate

    def _skip(self, what: str) -> None:
        """Pass over the segment without an update; the next step begins without memory.

        More of these in a row than train.skip_nonfinite end the training.
        """
        self.step += 1
        self._interval.skipped += 1
        self._skipped_in_a_row += 1
        self.model.forget_gradients()
        self.memories = self.empty_memories()
        self.position = self.segments.next_position(self.position)
        if self._skipped_in_a_row > self.settings.skip_nonfinite:
            steps = f"step {self.step}"
            if self._skipped_in_a_row > 1:
                steps = f"{self._skipped_in_a_row} steps in a row up to {steps}"
            raise self._failed(f"the {what} is not finite at {steps}")

    def _batch(self, part: range) -> Batch:
        """Return the segments of the lanes of a micro-batch at the position."""
        lanes = slice(part.start, part.stop)
        inputs, targets = self._read(lanes, self.position)
        settings = self.settings
        since_reset = None
        if settings.reset_at_documents:
            since_reset = send(torch.from_numpy(self.segments.since_reset(self.position, lanes)), self.device)
        goal = Objective(
            mem_len=settings.mem_len,
            part=settings.loss_part,
            progress=self.step / settings.max_steps,
            reread_len=settings.reread_len,
            since_reset=since_reset,
            activation_penalty=settings.activation_penalty,
            slowness_penalty=settings.slowness_penalty,
        )
        return Batch(inputs, targets, goal)

    def _read(self, lanes: slice, position: StreamPosition) -> tuple[Tensor, Tensor]:
        """Return the inputs (lanes, E + L) and targets (lanes, L) at a position."""
        on_host = torch.from_numpy(self.segments.at(position, lanes))  # (lanes, E + L + 1)
        seg_len = len(self.segments.range_of(position))
        on_device = send(on_host, self.device)
        targets = on_host if self.model.targets_device.type == "cpu" else on_device
        return on_device[:, :-1], targets[:, -seg_len:]

    def _report_steps(self, *, new_interval: bool) -> Iterator[StepReport]:
        """Report the steps since the previous report, if any, and begin a new interval if `new_interval`.

        Otherwise a resumed run reports the interval as if there had been no stop.
        """
        interval = self._interval
        if not interval.has_steps:
            return
        loss_nats, penalty, tokens_per_s = self._checked_means()
        if not (self.settings.activation_penalty or self.settings.slowness_penalty):
            penalty = 0.0  # auxiliary losses are not penalties
        yield StepReport(
            step=self.step,
            epoch=self.epoch,
            loss_nats=loss_nats,
            lr=self.lr(self.step),
            grad_norm=float(interval.grad_norm),
            tokens_per_s=tokens_per_s,
            skipped_steps=interval.skipped,
            penalty=penalty,
            path=self.path,
            after=interval.after,
        )
        interval.restart_clock()
        if new_interval:
            self._interval = Interval(self.device, self._clock, after=self.step)

    def _checked_means(self) -> tuple[float, float, float]:
        """Return the means of the interval; its losses and gradients must be finite."""
        means = self._interval.means()
        if not math.isfinite(means[0]):
            raise self._failed(f"the loss is not finite at step {self.step}")
        self._check_scale()
        if not self.scaler.is_enabled() and not self._interval.max_grad_norm.isfinite():
            raise self._failed(f"the gradient is not finite at a step up to {self.step}")
        return means

    def _check_scale(self) -> None:
        """Raise if gradients overflow in fp16 at any scale of the loss."""
        if self.stepper.eager.is_stuck:
            raise self._failed(
                f"gradients overflow in fp16 up to step {self.step}, even without loss scaling",
                "train with `precision` bf16 or fp32",
            )

    def _validate(
        self, should_stop: Callable[[], bool], on_tokens: Callable[[int], None] | None
    ) -> Iterator[ValidReport]:
        """Validate the average, or the weights, and report; do nothing if a stop interrupts the validation."""
        if self.valid is None:
            self.validations.last_step = self.step
            return
        compute = functools.partial(validate, self.parallel, self.valid, should_stop=should_stop, on_tokens=on_tokens)
        with self.average.swapped_in():
            scores = self.stepper.on_fast_path(compute)
        if scores:
            yield self.on_validation(scores)

    def on_validation(self, scores: Scores) -> ValidReport:
        """Save the weights if they are the best so far, and update learning rate and average."""
        tokens = len(scores.losses_nats)
        loss_nats = scores.total_nats / tokens
        if not math.isfinite(loss_nats):
            raise TrainingError(
                f"the validation loss is not finite after step {self.step}, although the training loss is; resume from "
                f"{self.saver.last_path.parent} in another `precision`, or start a new run with a lower train.lr"
            )
        after = self.validations.last_step
        is_best = self.validations.add(self.step, loss_nats)
        report = ValidReport(
            step=self.step,
            epoch=self.epoch,
            loss_nats=loss_nats,
            tokens=tokens,
            seconds=scores.seconds,
            best=is_best,
            averaged=bool(self.average.weights),
            after=after,
        )
        if is_best:
            self._write_weights(self.saver.best_path)
        self.average.on_validation(loss_nats)
        return report

    def _write_weights(self, path: Path) -> None:
        """Write the weights to evaluate; all processes must call this."""
        self.saver.wait()  # rank 0 may have no memory for two whole models
        weights = self.average.weights or self.parallel.own_weights()
        self._save(path, grouped("model", self.parallel.gather(weights)))

    def _save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        if self.world.is_rank_zero:
            self.saver.save(path, tensors, self.state(), copied=self.parallel.is_divided)

    def _failed(self, what: str, next_step: str = CALMER) -> TrainingError:
        self.saver.settle()
        if self.saver.last_path.exists():
            what += f"; the last good checkpoint is {self.saver.last_path}"
        return TrainingError(f"{what}; {next_step}")

    def _mark_saved(self) -> None:
        """Restart the timer of saves."""
        self._next_save = self._clock() + 60 * self.settings.save_minutes
        self._saved_step = self.step

    def save_last(self) -> None:
        """Save everything that a resumed run needs, in the background; all processes must call this.

        The older file is kept if the weights, the memory or the loss that they give are not finite.
        """
        if self._interval.has_steps:
            self._checked_means()
        self.saver.wait()  # as in `_write_weights`
        tensors = self.gather()
        is_finite = all(
            tensor.isfinite().all() for name, tensor in tensors.items() if name.startswith(("model.", "memory."))
        )
        if self.world.any_of(not is_finite):
            raise self._failed(f"the weights are not finite after step {self.step}")
        # All losses so far were computed before the last update, which may have made the weights useless.
        if not self._next_loss_is_finite():
            raise self._failed(f"the loss is not finite after step {self.step}")
        self._save(self.saver.last_path, tensors)
        self._mark_saved()

    def _save_new_steps(self) -> None:
        """Save the steps since the last save, if any; the time is not part of the speed of steps."""
        if self.step > self._saved_step:
            started = self._clock()
            self.save_last()
            self._interval.exclude(self._clock() - started)

    def _next_loss_is_finite(self) -> bool:
        """Return True if the weights give a finite loss in the next segment that is not skipped.

        Each process reads its first lane.
        """
        position = self.position
        memories = self.memories
        first_lane = self._parts[0].start
        for _ in range(1 + self.settings.skip_nonfinite):
            if position.segment == 0:
                memories = self.empty_memories()  # as `update` does
            memory = [layer[:1] for layer in memories[0]]
            inputs, targets = self._read(slice(first_lane, first_lane + 1), position)
            loss = self.stepper.on_fast_path(functools.partial(self._loss, inputs, targets, memory))
            if not self.world.any_of(not loss.isfinite()):
                return True
            position = self.segments.next_position(position)
            memories = self.empty_memories()  # as `_skip` does
        return False

    @torch.no_grad()
    def _loss(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Return the mean loss (0-d) of inputs (B, E + L), targets (B, L) with the current weights, without dropout.

        Documents do not begin anew: this tells if the loss is finite. All processes must call this with as many tokens.
        """
        self.parallel.receive_updates()
        model = self.model.eval()
        with autocast(model.device, self.settings.precision), model.uncompiled():
            read = self.parallel.with_all_weights(model)
            hidden, _ = read(inputs, memory, mem_len=self.settings.mem_len)
            return model.losses(hidden[:, -targets.shape[1] :], targets).mean()

    @property
    def epoch(self) -> float:
        """Epochs read so far."""
        return self.position.epoch + self.position.segment / self.segments.segments_in(self.position.epoch)

    def lr(self, step: int, factor: float = 1.0) -> float:
        """Return the learning rate of step number `step`, for parameters whose peak has a factor."""
        return scheduled_lr(self.settings, step, factor, self.validations.lr_scale)

    def empty_memories(self) -> list[Memory]:
        """Return the memory before the first segment, one for each micro-batch of this process."""
        return [self.parallel.first_memory(len(part), self.settings.mem_len) for part in self._parts]

    def gather(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint by full name on rank 0; all processes must call this."""
        tensors = grouped("model", self.parallel.gather(self.parallel.own_weights()))
        tensors |= grouped("average", self.parallel.gather(self.average.weights))
        tensors |= grouped("memory", checkpoint.gather_memories(self.world, self.memories))
        tensors |= grouped("rng", checkpoint.gather_generators(self.world, self.device))
        tensors |= grouped("optimizer", self.parallel.gather_optimizer())
        return tensors

    def state(self) -> dict[str, Any]:
        """Return the plain data of a checkpoint."""
        state = {
            "step": self.step,
            "place": self.position._asdict(),
            **self.validations.state(),
            "average": {"kind": self.settings.average, **self.average.state()},
            "scaler": self.scaler.state_dict(),
            "interval": self._interval.state(),
            "skipped_in_a_row": self._skipped_in_a_row,
        }
        if self.device.type == "cuda":
            state["compiled"] = self.stepper.fast_path.compiles
        return state

    def restore(self, saved: Checkpoint) -> None:
        """Resume exactly where a checkpoint was written; the model has its weights already."""
        if not saved.group("rng"):
            raise RunError(f"{self.saver.last_path}: holds weights only; restore it from a copy")
        try:
            self._restore(saved)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            reason = f"missing {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise checkpoint.damaged(self.saver.last_path, reason) from error

    def _restore(self, saved: Checkpoint) -> None:
        state = saved.state
        self.step = state["step"]
        self._skipped_in_a_row = state.get("skipped_in_a_row", 0)  # checkpoints of earlier versions have none
        self.validations.restore(state)
        self.position = StreamPosition(**state["place"])
        if self.position.segment >= self.segments.segments_in(self.position.epoch):
            raise ValueError(f"its epoch has no segment {self.position.segment}")
        interval = state.get("interval", {"after": self.step})  # checkpoints of earlier versions have none
        self._interval = Interval(self.device, self._clock, **interval)
        if state["scaler"] and self.scaler.is_enabled():  # another precision begins with its own scale
            self.scaler.load_state_dict(state["scaler"])
        averages = {name: self.parallel.own_part(whole) for name, whole in saved.group("average").items()}
        self.average.restore(state["average"], averages, step=self.step)
        self.parallel.restore_optimizer(saved.group("optimizer"))
        self.stepper.eager.weights.refresh()
        with autocast(self.device, self.model.backend.precision):
            first = self.parallel.first_memory(self.settings.batch_size, self.settings.mem_len)
        self.memories = checkpoint.restored_memories(saved.group("memory"), first, self._parts, self.device)
        checkpoint.restore_generators(saved.group("rng"), self.world, self.device, seed=self.seed_of_step())

    @property
    def reported(self) -> int:
        """Step up to which reports are complete; a resumed run reports later ones again."""
        return self._interval.after

    def seed_of_step(self) -> int:
        """Return a seed for the random numbers of this process after this step."""
        key = [self.settings.seed, self.step]
        if not self.world.is_rank_zero:
            key.append(self.world.rank)
        return int(np.random.default_rng(key).integers(1 << 63))


def _view_for_training(model: LanguageModel, settings: TrainSettings, world: World) -> LanguageModel:
    """Return a view of a model that computes as the settings say."""
    return model.on(
        attention=settings.attention,
        precision=settings.precision,
        compiles=settings.compile == "on",
        recompute=settings.recompute,
        gradient_of_rows=world.size == 1 and model.settings.tie_embeddings,
    )


def _parallel(model: LanguageModel, settings: TrainSettings, world: World) -> DataParallel:
    """Return the mode that train.parallel names; a single process holds everything."""
    if world.size > 1 and settings.parallel == "zero":
        return ZeroParallel(model, settings, world)
    if world.size > 1 and settings.parallel == "fsdp":  # the imports take a second
        from txlcli.core.training.parallel_fsdp import FullyShardedParallel  # noqa: PLC0415

        return FullyShardedParallel(model, settings, world)
    return DataParallel(model, settings, world)
