"""The training loop: a generator that takes steps and yields reports.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.device import check_free_memory, send
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.registry import count_parameters, make_model
from txlcli.core.reading.scoring import Total
from txlcli.core.training import checkpoint
from txlcli.core.training.data_parallel import SINGLE_PROCESS, Command, World
from txlcli.core.training.reports import Interval, Report, StepReport, ValidReport
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import StreamPosition, TrainingSegments
from txlcli.core.training.state import Boundary, TrainingState, by_full_name
from txlcli.core.training.step import CaptureGraph, ForwardBackward, capture_step
from txlcli.core.training.validation import ValidSplit, validate
from txlcli.errors import TrainingError


class Training(TrainingState):
    """A model in training, with everything that a checkpoint saves.

    With several processes, each has one of these: rank 0 calls `run`, the other ranks call `execute_commands`.

    Args:
        model: on its device.
        settings: the recipe's [train] section.
        segments: of the training split.
        valid: the validation split, None if the store has none; in all processes.
        directory: receives `last.safetensors` and `best.safetensors`.
        identity: plain data that checkpoints store to identify their run.
        world: the processes that share a batch.
        device: to train on; that of the model by default.
        capture_graph: makes the CUDA graph if train.cuda_graph is set.
        saver: writes the checkpoints.

    Raises:
        RecipeError: the batch is smaller than the number of processes, or the optimizer cannot train this model.
    """

    save_interval_s = 600.0
    """Longest time between two saves, so that a crash costs at most this much training even with rare validations."""
    clock = staticmethod(time.perf_counter)
    """Time in seconds, for saves and speeds."""

    def __init__(
        self,
        model: LanguageModel,
        settings: TrainSettings,
        segments: TrainingSegments,
        valid: ValidSplit | None,
        directory: Path,
        identity: dict[str, Any],
        world: World = SINGLE_PROCESS,
        *,
        device: torch.device | None = None,
        capture_graph: CaptureGraph = capture_step,
        saver: Saver | None = None,
    ) -> None:
        super().__init__(model, settings, segments, directory, identity, world, device=device)
        self.valid = valid
        self._skipped = self._skipped_in_a_row = 0
        self.checks_every_step = self.device.type == "cpu"
        """True if every step checks that its numbers are finite; on CUDA that would stall the queue of kernels."""
        self._objective = self.parallel.objective
        self._forward_backward = ForwardBackward(
            model, settings, self._objective, self.optimizer_step, processes=world.size, capture_graph=capture_graph
        )
        self._interval = Interval(self.device, self.clock)
        self._saver = saver or Saver()
        self._saved_at, self._saved_step = self.clock(), 0
        self._boundary: Boundary | None = None
        """State before the step that is being taken, if other processes may end within it."""
        if not world.is_rank_zero:
            torch.manual_seed(self.seed_of_step())

    def run(
        self,
        *,
        report_every: int,
        should_stop: Callable[[], bool],
        until_step: int | None = None,
        on_valid_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[Report]:
        """Train up to max_steps. Save before every validation, every `save_interval_s`, and at the end.

        Files are written in the background, and all of them are there when this ends. After a validation the last
        checkpoint is not written again: a run that is killed before its next save repeats the validation. Other ranks
        execute commands until this ends.

        Args:
            report_every: steps between two StepReports.
            should_stop: called between steps and during validations; True saves and ends.
            until_step: end after this step, without changing the schedule.
            on_valid_tokens: called during a validation with the number of tokens scored so far.

        Raises:
            TrainingError: the loss or a gradient is not finite; the last checkpoint is kept.
            RunError: a checkpoint cannot be written.
        """
        with self._saver.running(), self.world.ending_others(self.save_alone):
            first_step, last_step = self.step, min(self.settings.max_steps, until_step or self.settings.max_steps)
            self._mark_saved()
            while True:
                self._saver.raise_error()
                validation_is_due = self.validation_is_due()
                if self.step > self._saved_step and (validation_is_due or self._save_is_due):
                    yield from self._report_steps()  # checks that the loss is finite
                    self.save_last(wait=False)  # also before a validation, which may take long or run out of memory
                if validation_is_due:
                    yield from self._validate(should_stop, on_valid_tokens)
                if self.step >= last_step or should_stop():
                    break
                if validation_is_due:
                    self._interval = Interval(self.device, self.clock)  # speeds do not include a validation
                if (taken := self.update()) is not None:
                    self._interval.add(*taken)
                if self.step == first_step + 1:
                    self._reserve_snapshot()
                if self.step % report_every == 0 or self.step == last_step:
                    yield from self._report_steps()
            yield from self._report_steps()  # steps since the last report, if a stop came between two reports
            self.save_last()

    def execute_commands(self) -> None:
        """Execute the commands of rank 0 until it ends."""
        while True:
            command, number = self.world.receive_command()
            with self.world.explaining_lost_processes():
                if command == Command.update:
                    self.plateau.scale = number
                    self._update()
                elif command == Command.end:
                    return
                else:
                    self._help(command, number)

    def _help(self, command: Command, number: float) -> None:
        """Execute a command of rank 0 between two steps."""
        if command == Command.save:
            self.gather()
        elif command == Command.read:
            self._objective.help_reading()
        elif command == Command.send_weights:
            self.gather_weights()
        elif command == Command.swap_average:
            self.average.swap()
        elif command == Command.validate:
            self._score_validation(averaged=bool(number))
        elif command == Command.on_validation:
            self.validated = self.step
            self.average.on_validation(number)

    def validation_is_due(self) -> bool:
        """Return True if this step ends with a validation that is not complete; a stop may have interrupted it."""
        on_time = self.step % self.settings.valid_every == 0 or self.step == self.settings.max_steps
        return self.step > 0 and on_time and self.validated != self.step

    @property
    def has_ended(self) -> bool:
        """True if all steps are taken and the last one is validated."""
        return self.step == self.settings.max_steps and not self.validation_is_due()

    def update(self) -> tuple[Tensor, Tensor, int] | None:
        """Take one optimizer step; return mean loss (0-d), gradient norm before clipping (0-d), number of tokens.

        None for a step that is skipped (train.skip_nonfinite).
        """
        self.world.send_command(Command.update, self.plateau.scale)
        if self.world.size > 1 and self.device.type == "cpu":
            self._boundary = Boundary.of(self)
        taken = self._update()
        self._boundary = None
        return taken

    def _update(self) -> tuple[Tensor, Tensor, int] | None:
        if self.position.segment == 0:
            self.memories = self.empty_memories()  # every epoch starts without memory
        loss, tokens = self._accumulate_gradients()
        may_skip = self.settings.skip_nonfinite > 0
        if may_skip and not loss.isfinite():
            self._skip("loss")
            return None
        if self.checks_every_step and not loss.isfinite():
            self._raise_on_rank_0(self._not_finite(f"the loss is not finite at step {self.step + 1}"))
            return None
        grad_norm = self.optimizer_step.clip()
        if may_skip and not self.optimizer_step.skips_steps and not grad_norm.isfinite():
            self._skip("gradient")
            return None
        self._skipped_in_a_row = 0
        self.step += 1
        if self.checks_every_step and (error := self._error_of_gradients(grad_norm)):
            self._raise_on_rank_0(error)
            return None
        self.optimizer_step.step(self.lr(self.step))
        self.average.update()
        self.position = self.segments.next_position(self.position)
        return loss, grad_norm, tokens

    def _skip(self, what: str) -> None:
        """Pass over the segment without an update; the next step begins without memory.

        Raises:
            TrainingError: more steps in a row than train.skip_nonfinite.
        """
        self.step += 1
        self._skipped += 1
        self._skipped_in_a_row += 1
        self.model.forget_gradients()
        self.memories = self.empty_memories()
        self.position = self.segments.next_position(self.position)
        if self.world.is_rank_zero and self._skipped_in_a_row > self.settings.skip_nonfinite:
            steps = f"{self._skipped_in_a_row} steps in a row up to step {self.step}"
            raise self._not_finite(f"the {what} is not finite at {steps}")

    def _accumulate_gradients(self) -> tuple[Tensor, int]:
        """Add the gradients of all micro-batches; return the mean loss of all processes (0-d) and their tokens."""
        self.model.train()
        own = range(self._parts[0].start, self._parts[-1].stop)
        inputs, targets = self._read(own, self.position)
        progress = self.step / self.settings.max_steps
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(self._parts):
            lanes = slice(part.start - own.start, part.stop - own.start)
            with self._sync_with_last_part(number):
                loss = self._forward_backward(inputs[lanes], targets[lanes], self.memories[number], progress=progress)
            total += loss * (len(part) / self.settings.batch_size)
        self.world.all_reduce(total)
        return total, self.settings.batch_size * inputs.shape[1]

    def _read(self, lanes: range, position: StreamPosition) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at a position, (lanes, L) each."""
        on_host = torch.from_numpy(self.segments.at(position, lanes))  # (lanes, L + 1)
        on_device = send(on_host, self.device)
        targets = on_host if self.model.targets_device.type == "cpu" else on_device
        return on_device[:, :-1], targets[:, 1:]

    def _sync_with_last_part(self, number: int) -> contextlib.AbstractContextManager[object]:
        """Average the gradients of all processes once per step, with the last micro-batch."""
        return contextlib.nullcontext() if number == len(self._parts) - 1 else self._objective.no_sync()

    def _report_steps(self) -> Iterator[StepReport]:
        """Report the steps since the previous report, if any, and begin a new interval."""
        interval = self._interval
        if not interval.tokens:
            return
        loss_nats, tokens_per_s = interval.means()
        if not math.isfinite(loss_nats):
            raise self._not_finite(f"the loss is not finite at step {self.step}")
        if error := self._error_of_gradients(interval.max_grad_norm):
            raise error
        grad_norm = float(interval.grad_norm)
        lr = self.lr(self.step)
        yield StepReport(self.step, self.epoch, loss_nats, lr, grad_norm, tokens_per_s, self._skipped)
        self._skipped = 0
        self._interval = Interval(self.device, self.clock)

    def _raise_on_rank_0(self, error: TrainingError) -> None:
        """Raise an error that all processes have found in a step; the other ranks wait for the command to end."""
        if self.world.is_rank_zero:
            raise error

    def _error_of_gradients(self, max_norm: Tensor) -> TrainingError | None:
        """Return an error if the largest gradient norm of one or several steps is not finite.

        With fp16, it must be so at many steps in turn.
        """
        if self.optimizer_step.is_stuck:
            return self._failed(
                f"gradients overflow in fp16 up to step {self.step}, even without loss scaling",
                "train with --precision bf16 or fp32",
            )
        if not self.optimizer_step.skips_steps and not max_norm.isfinite():
            when = "at step" if self.checks_every_step else "at a step up to"
            return self._not_finite(f"the gradient is not finite {when} {self.step}")
        return None

    def _validate(
        self, should_stop: Callable[[], bool], on_valid_tokens: Callable[[int], None] | None
    ) -> Iterator[ValidReport]:
        """Validate and report; do nothing if a stop interrupts the validation."""
        if self.valid is None:
            self.validated = self.step
            return
        with self._average_swapped_in():
            total = self.score_validation(should_stop, on_valid_tokens)
        if total is not None:
            yield self._on_validation(total)

    def _on_validation(self, total: Total) -> ValidReport:
        """Save the weights if they are the best so far, and update learning rate and average."""
        loss_nats = total.nats / total.tokens
        if not math.isfinite(loss_nats):
            raise TrainingError(
                f"the validation loss is not finite after step {self.step}, although the training loss is; resume from "
                f"{self.last_path} in another --precision, or start a new run with a lower train.lr"
            )
        self.validated = self.step
        is_best = loss_nats < self.best_nats
        self.plateau.on_validation(improved=is_best)
        averaged = self.average.active
        if is_best:
            self.best_nats = loss_nats
            if self._saver.step != self.step:  # nothing was saved before the validation
                self.world.send_command(Command.send_weights)
                self._take_snapshot(self.gather_weights())
            self._saver.write_weights(self.best_path, self.state())
        self.world.send_command(Command.on_validation, loss_nats)
        self.average.on_validation(loss_nats)
        return ValidReport(self.step, self.epoch, loss_nats, total.tokens, total.seconds, is_best, averaged)

    @contextlib.contextmanager
    def _average_swapped_in(self) -> Iterator[None]:
        """Give the model the average as its weights within this block, in all processes that have a part of it."""
        self.world.send_command(Command.swap_average)
        with self.average.swapped_in():
            yield
        self.world.send_command(Command.swap_average)

    def score_validation(
        self, should_stop: Callable[[], bool], on_tokens: Callable[[int], None] | None
    ) -> Total | None:
        """Score the validation split in all processes with the weights of this one; None if it was stopped."""
        averaged = self.average.active
        self.world.send_command(Command.validate, averaged)
        return self._score_validation(averaged=averaged, should_stop=should_stop, on_tokens=on_tokens)

    def _score_validation(
        self,
        *,
        averaged: bool,
        should_stop: Callable[[], bool] = lambda: False,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Total | None:
        """Score the lanes of this process; return the sum over all processes, None if it was stopped.

        Args:
            averaged: True if rank 0 has averaged weights for it.
            should_stop: called between segments.
            on_tokens: called with the number of tokens scored so far.
        """
        assert self.valid is not None
        with self.parallel.weights_of_rank_0(differ=averaged):
            return validate(self.parallel, self.valid, should_stop=should_stop, on_tokens=on_tokens)

    def _not_finite(self, what: str) -> TrainingError:
        return self._failed(what, "lower train.lr, or train with warm-up or norm = pre")

    def _failed(self, what: str, next_step: str) -> TrainingError:
        self._saver.settle()
        kept = f"; the last good checkpoint is {self.last_path}" if self.last_path.exists() else ""
        return TrainingError(f"{what}{kept}; {next_step}")

    @property
    def _save_is_due(self) -> bool:
        return self.clock() - self._saved_at > self.save_interval_s

    def _mark_saved(self) -> None:
        """Restart the timer of saves, and the interval of reports, whose speed must not include a save."""
        self._saved_at, self._saved_step = self.clock(), self.step
        self._interval = Interval(self.device, self.clock)

    def save_last(self, *, wait: bool = True) -> None:
        """Save everything that a resumed run needs.

        Args:
            wait: return when the file is written. Without, it is written in the background.

        Raises:
            RunError: the file, or one before it, cannot be written.
            TrainingError: the weights, the memory or the loss that they give are not finite; the older checkpoint is
                kept.
        """
        if self.parallel.weights_are_divided:
            self._saver.forget()  # rank 0 has no memory for two whole models
        self.world.send_command(Command.save)
        self._write_last(self.gather())
        if wait:
            self._saver.wait()

    def save_alone(self) -> str:
        """Save what this process has, at the last step boundary, since others are gone; return a phrase about it.

        On CUDA the queue of kernels has passed the boundary, so the last checkpoint counts.
        """
        self._saver.wait()
        if self._boundary is not None:
            self._boundary.restore(self)
        resume = f"resume from {self.last_path} with --resume"
        if self.step == self._saved_step and self.last_path.exists():
            return f"every step up to {self.step:,} was saved before; {resume}"
        if self.parallel.state_is_divided:
            lost = (
                f"steps since step {self._saved_step:,} are lost, because the other processes held a part of the state"
            )
            return f"{lost}; {resume if self.last_path.exists() else 'there is no checkpoint yet'}"
        if self.device.type != "cpu" or not self.step:
            return f"steps since step {self._saved_step:,} are lost; " + (
                resume if self.last_path.exists() else "there is no checkpoint yet"
            )
        lanes = self._parts[-1].stop
        groups = {
            "memory": checkpoint.memory_tensors(self.memories),
            "rng": checkpoint.generators(self.device),
            "optimizer": self.parallel.gather_optimizer(self.optimizer_step.optimizer),
            **self.gather_weights(),
        }
        self._write_last(groups, memory_lanes=lanes)
        self._saver.wait()
        return (
            f"saved step {self.step:,} with the memory of {lanes} of the {self.settings.batch_size} lanes; the others "
            f"begin with zeros, so losses will differ a little from those of an uninterrupted training; {resume}"
        )

    def _write_last(self, groups: dict[str, dict[str, Tensor]], *, memory_lanes: int | None = None) -> None:
        """Take a snapshot, and write the last checkpoint from it in the background.

        Args:
            groups: all tensors, by group and name.
            memory_lanes: number of lanes whose memory is there, if some are missing.
        """
        if not all(_is_finite(tensor) for group in ("model", "memory") for tensor in groups[group].values()):
            raise self._not_finite(f"the weights are not finite after step {self.step}")
        # All losses so far were computed before the last update, which may have made the weights useless.
        if not self._next_loss_is_finite():
            raise self._not_finite(f"the loss is not finite after step {self.step}")
        self._take_snapshot(groups)
        self._saver.write_all(
            self.last_path, self.state() | ({} if memory_lanes is None else {"memory_lanes": memory_lanes})
        )
        self._mark_saved()

    def _next_loss_is_finite(self) -> bool:
        """Return True if the weights give a finite loss in one lane of the next segment that is not skipped."""
        position, first = self.position, self._parts[0].start
        memory = [layer[:1] for layer in self.memories[0]]
        for _ in range(1 + self.settings.skip_nonfinite):
            if self._forward_backward.loss(*self._read(range(first, first + 1), position), memory).isfinite():
                return True
            position = self.segments.next_position(position)
        return False

    def _reserve_snapshot(self) -> None:
        """Allocate the memory of a snapshot in the background, as far as this process knows it without the others."""
        if self.parallel.weights_are_divided:
            return
        groups = self.gather_weights() | {"memory": checkpoint.memory_tensors(self.memories)}
        if not self.parallel.state_is_divided:
            groups["optimizer"] = self.parallel.gather_optimizer(self.optimizer_step.optimizer)
        self._saver.reserve(by_full_name(groups))

    def _take_snapshot(self, groups: dict[str, dict[str, Tensor]]) -> None:
        """Copy the tensors of a checkpoint; what was gathered from parts is a copy already."""
        self._saver.take(by_full_name(groups), step=self.step, copied=self.parallel.weights_are_divided)


def _is_finite(tensor: Tensor) -> bool:
    """Return True if all values are finite; their sum shows it ten times as fast, unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def new_model(settings: ModelSettings, vocab_size: int, *, seed: int, device: torch.device) -> LanguageModel:
    """Make a model with new weights; dropout continues from the same seed.

    Raises:
        MemoryError: the host has less free memory than the weights need.
    """
    weights = 4 * count_parameters(settings, vocab_size)  # bytes of float32
    check_free_memory(weights, torch.device("cpu"))
    torch.manual_seed(seed)
    return make_model(settings, vocab_size).to(device)
