"""Says what a training run will do: its sizes, its text, its device, and if its layers are compiled."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from txlcli.config.bands import bands
from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.compilation import compiler_problem, triton_problem
from txlcli.core.kernels.device import describe, describe_precision
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.forecast import StepBytes, step_bytes
from txlcli.core.measures.gpus import ExpectedStep, data_sheet_flops_per_s, expected_step
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import World, of_one_process
from txlcli.core.training.schedule import scheduled_lr
from txlcli.core.training.segments import TrainingSegments, band_shares
from txlcli.data.token_store import TokenStore
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter

MIN_SECONDS = 60.0
"""Shortest time of a run with compiled layers that pays for compiling them."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run before it begins."""

    run: Run
    store: TokenStore | None = None
    """None if it is missing and the recipe declares the vocabulary size of its benchmark."""
    segments: TrainingSegments | None = None
    """None without a store."""
    until_step: int | None = None
    device: torch.device
    processes: int = 1

    @property
    def steps(self) -> int:
        """Steps up to the one that was asked for, or to the recipe's end."""
        max_steps = self.run.settings.train.max_steps
        return min(self.until_step or max_steps, max_steps)

    @property
    def devices(self) -> str:
        """Devices in a few words."""
        device = describe(self.device)
        if self.processes == 1:
            return device
        return f"{self.processes} processes, {device} each"

    @property
    def epochs(self) -> float | None:
        """Epochs that the steps read; None without a store."""
        if self.segments is None:
            return None
        return self.steps / self.segments.segments_in(0)

    @cached_property
    def flops_per_token(self) -> float:
        """Operations per predicted token of a step; without a store, the bands have shares by Zipf's law."""
        model = self.run.settings.model
        vocab_size = self.run.vocab_size
        shares = None
        if self.store is not None:
            shares = band_shares(bands(model, vocab_size), self.store.ids("train"))
        return step_flops_per_token(model, vocab_size, self.run.settings.train, shares)

    @property
    def peak_tokens_per_s(self) -> float | None:
        """Tokens per second at the peak rate of all GPUs; None on a CPU, and without a known data sheet."""
        peak = data_sheet_flops_per_s(describe(self.device), self.run.settings.train.precision)
        if peak is None:
            return None
        return self.processes * peak / self.flops_per_token

    def step_flops(self, train: TrainSettings) -> float:
        """Return the operations of a step of one process (`of_one_process`)."""
        return train.batch_size * train.seg_len * self.flops_per_token

    def expected_step(self, train: TrainSettings) -> ExpectedStep:
        """Return the time that a step of one process is expected to take."""
        step = expected_step(self.run.settings.model, self.flops_per_token, self.device.type, train.accumulate)
        if train.recompute == "layers":
            # The forward pass of recomputed layers is one part of four, and no part of the operations that are needed.
            return ExpectedStep(step.layers_s / 0.75, step.share * 0.75, step.source)
        return step

    def step_bytes(self, train: TrainSettings) -> StepBytes:
        """Return the bytes that a step of one of the processes needs with these settings."""
        run = self.run
        return step_bytes(run.settings.model, run.vocab_size, train, device=self.device, processes=self.processes)

    @property
    def notes(self) -> list[str]:
        """Remarks on settings that do not have the effect that they seem to have."""
        train = self.run.settings.train
        end = train.schedule_steps
        if train.warmup_steps <= end:
            return []
        highest = scheduled_lr(train, end)
        return [
            f"train.warmup_steps {train.warmup_steps:,} is longer than the schedule of {end:,} steps: the learning "
            f"rate rises to {highest:.3g} and never reaches train.lr {train.lr:g}"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the beginning of the object that `txl train --dry-run --json` prints."""
        run = self.run
        train = run.settings.train
        store = None
        train_tokens = None
        if self.store is not None:
            store = str(self.store.path)
            train_tokens = self.store.info("train").tokens
        mem_len = None
        if not run.settings.model.recurrent_state:
            mem_len = train.mem_len
        return {
            "recipe": run.recipe_name,
            "parameters": run.parameters,
            "vocab_size": run.vocab_size,
            "store": store,
            "train_tokens": train_tokens,
            "lanes": train.batch_size,
            "seg_len": train.seg_len,
            "mem_len": mem_len,
            "reread_len": train.reread_len,
            "steps": self.steps,
            "max_steps": train.max_steps,
            "epochs": self.epochs,
            "precision": train.precision,
            "processes": self.processes,
            "device": self.devices,
            "folder": str(run.directory),
            "notes": self.notes,
        }

    def __str__(self) -> str:
        run = self.run
        train = run.settings.train
        corpus = "a corpus that is not prepared"
        if self.store is not None:
            corpus = f"{self.store.path} ({self.store.info('train').tokens:,} tokens)"
        memory = "recurrent state" if run.settings.model.recurrent_state else f"memory {train.mem_len}"
        if train.reread_len:
            memory += f", {train.reread_len} tokens read again"
        precision = describe_precision(train.precision, self.device)
        steps = f"{self.steps:,} "
        if self.steps < train.max_steps:
            steps += f"of {train.max_steps:,} "
        steps += "steps"
        if self.epochs is not None:
            steps += f" ({self.epochs:.3g} epochs)"
        return (
            f"{run.recipe_name}: {run.parameters:,} parameters (V = {run.vocab_size:,}) on {corpus}, batches of "
            f"{train.batch_size} x {train.seg_len} tokens, {memory}, {steps}, {precision}, {self.devices}, into "
            f"{run.directory}"
        )


def decide_compile(plan: Plan, saved: Checkpoint | None, world: World, reporter: Reporter) -> TrainSettings:
    """Return the settings with train.compile = "auto" decided; a resumed run continues as before: it stays exact."""
    train = plan.run.settings.train
    if train.compile != "auto" or plan.device.type != "cuda" or not plan.run.settings.model.has_attention:
        return train
    compiles = None
    if saved is not None:
        compiles = saved.state.get("compiled")
    if compiles is None:
        reason = _reason_against(plan)
        if reason is not None:
            reporter.say(f"layers are not compiled: {reason}")
        compiles = not world.any_of(reason is not None)
    return plan.run.settings.with_train(compile="on" if compiles else "off").train


def _reason_against(plan: Plan) -> str | None:
    """Return why the layers should not be compiled; None if they should."""
    train = of_one_process(plan.run.settings.train, plan.processes)
    if train.parallel == "fsdp":
        return 'train.parallel = "fsdp" divides their weights'
    problem = triton_problem(plan.device)
    if problem:
        return f"kernels of the compiler do not run; {problem}"
    rate = peak_flops_per_s(plan.device, train.precision)
    seconds = plan.steps * plan.expected_step(train).seconds(plan.step_flops(train), rate)
    if seconds < MIN_SECONDS:
        return f"the run takes about {seconds:.0f} s, and compiling up to half a minute; `compile` on compiles"
    return compiler_problem(plan.device)
