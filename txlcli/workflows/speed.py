"""Times a run or a recipe: Table 9, and the throughput of evaluation, generation and training."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import EvalSettings, Settings
from txlcli.config.train_settings import Precision, TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.compilation import check_compiler, compiler_problem, triton_problem
from txlcli.core.kernels.device import check_precision, describe, pick_device
from txlcli.core.measures.cost import evaluation_flops_per_token, step_flops_per_token, window_flops_per_prediction
from txlcli.core.measures.timing import (
    MIN_STEPS,
    Repetitions,
    Timing,
    best_windows,
    peak_flops_per_s,
    time_evaluation,
    time_single_tokens,
    time_training,
    time_vanilla,
)
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.optimizer import check_trainable
from txlcli.errors import UsageError
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.runs.run_directory import Run
from txlcli.system.memory import is_out_of_memory
from txlcli.system.plain_json import as_json
from txlcli.system.processors import ShareClock, is_trusted
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.result import Result
from txlcli.workflows.speed_options import SpeedOptions
from txlcli.workflows.workspace import Workspace, explain_attention

SINGLE_TOKENS = "one token at a time"
TRAINING_TOKENS_ON_CPU = 1024  # a full step of a recipe takes minutes, and its rate is nearly the same


@dataclass(frozen=True, kw_only=True)
class SlowdownRow:
    """Row of Table 9: vanilla against one lane with memory, at the same attention length."""

    attn_len: int
    seg_len: int
    xl_ms_per_token: float
    """Median of all repetitions, as of all times here."""
    xl_low_high_ms: tuple[float, float]
    xl_share_of_peak: float
    xl_single_ms_per_token: float
    """With memory, one token at a time (L = 1)."""
    xl_single_low_high_ms: tuple[float, float]
    vanilla_ms_per_token: float
    """Without memory, one window at a time."""
    vanilla_low_high_ms: tuple[float, float]
    windows: int
    """Number of windows that are fastest together."""
    vanilla_batched_ms_per_token: float
    vanilla_batched_low_high_ms: tuple[float, float]
    slowdown: float
    slowdown_batched: float
    slowdown_single: float
    paper_slowdown: int | None
    processor_share: float | None
    """Share of a processor that the process got; None on a GPU."""
    times_trusted: bool
    """False if other programs used the processors so much that times and slowdowns mean little."""


@dataclass(frozen=True, kw_only=True)
class ThroughputRow:
    """Speed of one kind of work."""

    work: str
    tokens_per_s: float
    ms_per_token: float
    low_high_ms: tuple[float, float]
    share_of_peak: float
    peak_memory_bytes: int | None
    """Of tensors on CUDA; None on other devices."""
    tokens_per_step: int
    processor_share: float | None
    """See `SlowdownRow`."""
    times_trusted: bool
    """See `SlowdownRow`."""
    path: str
    """How the work was computed, as "triton, compiled, captured"."""


@dataclass(frozen=True, kw_only=True)
class SpeedResult(Result):
    """Result of a timing."""

    model: str
    parameters: int
    device: str
    precision: Precision
    attention: str | None
    repeat: int
    peak_gflops_per_s: float
    slowdown: tuple[SlowdownRow, ...]
    throughput: tuple[ThroughputRow, ...]

    def table(self) -> list[dict[str, Any]]:
        """Return the rows of Table 9, then the throughput of each kind of work."""
        return [dict(as_json(row)) for row in (*self.slowdown, *self.throughput)]


def time_run(run: Run, options: SpeedOptions, workspace: Workspace) -> SpeedResult:
    """Time a run."""
    options.exclude("overrides", because="`overrides` changes a recipe, not a run")
    opened = workspace.open_run(run)
    return _time(f"run {opened.subject}", run.settings, opened.model, options, workspace)


def time_recipe(name: str, options: SpeedOptions, workspace: Workspace) -> SpeedResult:
    """Time a recipe with random weights; speed does not depend on them."""
    settings = recipe.load(name, list(options.overrides))
    vocab_size = settings.published.vocab_size
    if vocab_size is None:
        vocab_size = workspace.open_store(settings.corpus.store).vocab.size
    model = new_model(settings.model, vocab_size, seed=settings.train.seed, device=pick_device(workspace.device))
    explain_attention(settings, model.device, workspace.reporter)
    title = f"recipe {name} with random weights (V = {vocab_size:,})"
    return _time(title, settings, model, options, workspace)


def _time(
    title: str, settings: Settings, model: LanguageModel, options: SpeedOptions, workspace: Workspace
) -> SpeedResult:
    """Time a model in the precision of training."""
    reporter = workspace.reporter
    lengths = _attention_lengths(settings, options, title)
    has_attention = settings.model.has_attention
    if not has_attention:
        options.exclude("compile", because=f'{title} has no layers with attention (arch = "{settings.model.arch}")')
    settings = settings.with_train(
        precision=workspace.precision or settings.train.precision,
        compile=options.compile or settings.train.compile,
    )
    train = settings.train
    model = model.on(attention=train.attention, reading_compile=options.compile or "auto")
    check_precision(train.precision, model.device)
    machine = describe(model.device)
    reporter.say(f"timing {title} on {machine}, {train.precision}")
    if not lengths:
        reporter.say("Table 9 is left out: a model with a recurrent state has no attention length")
    bench = Bench(model, settings, reporter, repeat=options.repeat)
    return SpeedResult(
        model=title,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        device=machine,
        precision=train.precision,
        attention=train.attention if has_attention else None,
        repeat=options.repeat,
        peak_gflops_per_s=bench.peak / 1e9,
        slowdown=tuple(bench.slowdown(length) for length in lengths),
        throughput=tuple(bench.throughput()),
    )


def _attention_lengths(settings: Settings, options: SpeedOptions, title: str) -> tuple[int, ...]:
    """Return the lengths to compare at, by default those of Table 9 that the model allows, or its limit."""
    model = settings.model
    if model.recurrent_state:
        because = f"{title} has a recurrent state and no attention length (Table 9)"
        options.exclude("attn_len", "plot", because=because)
        return ()
    limit = min(model.longest_window or MAX_COUNT, model.attention_window or MAX_COUNT)
    if options.attn_len is None:
        allowed = tuple(length for length in SLOWDOWN_BY_ATTN_LEN if length <= limit)
        return allowed or (limit,)
    longest = max(options.attn_len)
    if longest > limit:
        raise UsageError(f"`attn_len` {longest}: {title} attends to {limit:,} tokens at most; use at most that")
    return options.attn_len


class Bench:
    """Times one model in the precision of training; every number is a median with its lowest and highest value.

    `peak` is the rate of a large product in this precision, in operations per second; None measures it."""

    def __init__(
        self, model: LanguageModel, settings: Settings, reporter: Reporter, *, repeat: int, peak: float | None = None
    ) -> None:
        precision = settings.train.precision
        self.model = model.on(precision=precision)
        self.settings = settings
        self.device = model.device
        self._reporter = reporter
        self._train = self._training_settings()  # may raise, so before anything is timed
        check_trainable(settings.model, model.vocab_size, self._train)
        self.peak = peak_flops_per_s(self.device, precision, repeat) if peak is None else peak
        min_steps = MIN_STEPS if self.device.type == "cuda" else 1
        self._times = Repetitions(repeat, min_steps)

    def _training_settings(self) -> TrainSettings:
        """Return the recipe's training settings, on a CPU with a smaller batch size."""
        train = self.settings.train
        compile_ = train.compile
        may_compile = self.device.type == "cuda" and self.settings.model.has_attention
        if compile_ == "auto" and may_compile and not triton_problem(self.device):  # as in a long run
            problem = compiler_problem(self.device)
            if problem is not None:
                self._reporter.say(f"layers are not compiled: {problem}")
            compile_ = "on" if problem is None else "off"
        elif compile_ == "on":
            check_compiler(self.device, 'time a recipe with train.compile = "off"')
        batch_size = train.batch_size
        accumulate = train.accumulate
        max_batch_size = max(1, TRAINING_TOKENS_ON_CPU // train.seg_len)
        if self.device.type == "cpu" and batch_size > max_batch_size:
            batch_size = max_batch_size
            accumulate = 1
        return self.settings.with_train(compile=compile_, batch_size=batch_size, accumulate=accumulate).train

    def slowdown(self, attn_len: int) -> SlowdownRow:
        """Return a row of Table 9: vanilla against one lane with memory, at the same attention length."""
        settings = self.settings.evaluation_settings(mem_len=attn_len, batch_size=1)
        window_settings = settings.with_windows(attn_len)
        clock = ShareClock()
        with self._reporter.progress(f"attention length {attn_len:,}", total=4) as bar:
            bar.reach(0, "segments with memory")
            segments = time_evaluation(self.model, settings, self._times)
            bar.reach(1, "one token at a time with memory")
            tokens = time_single_tokens(self.model, settings, self._times)
            bar.reach(2, "vanilla, one window at a time")
            vanilla = time_vanilla(self.model, window_settings, self._times)
            bar.reach(3, "vanilla, batched windows")
            windows, batched = best_windows(self.model, window_settings, vanilla, self._times)
        share = self._share(clock)
        return SlowdownRow(
            attn_len=attn_len,
            seg_len=settings.seg_len,
            xl_ms_per_token=segments.median,
            xl_low_high_ms=segments.low_high,
            xl_share_of_peak=self._evaluation_flops(settings) * 1e3 / segments.median / self.peak,
            xl_single_ms_per_token=tokens.median,
            xl_single_low_high_ms=tokens.low_high,
            vanilla_ms_per_token=vanilla.median,
            vanilla_low_high_ms=vanilla.low_high,
            windows=windows,
            vanilla_batched_ms_per_token=batched.median,
            vanilla_batched_low_high_ms=batched.low_high,
            slowdown=vanilla.median / segments.median,
            slowdown_batched=batched.median / segments.median,
            slowdown_single=vanilla.median / tokens.median,
            paper_slowdown=SLOWDOWN_BY_ATTN_LEN.get(attn_len),
            processor_share=share,
            times_trusted=is_trusted(share),
        )

    def _share(self, clock: ShareClock) -> float | None:
        """Return the share of a processor that the process got; None on a GPU."""
        return clock.share() if self.device.type == "cpu" else None

    def throughput(self) -> list[ThroughputRow]:
        """Time evaluation, one token at a time, and training: tokens/s, share of the peak rate, peak memory."""
        lane_counts = dict.fromkeys((1, self.settings.eval.batch_size))
        rows = [self.evaluation(lanes) for lanes in lane_counts]
        rows.append(self.single_tokens())
        try:
            rows.append(self.training())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._reporter.say(
                f"training is not timed: train.batch_size = {self._train.batch_size} runs out of memory on "
                f"{self.device}; lower it, or set train.accumulate or train.recompute"
            )
        return rows

    def evaluation(self, lanes: int) -> ThroughputRow:
        """Time segments of this many lanes with a full memory, with the other settings of the recipe's evaluation."""
        settings = self.settings.evaluation_settings(batch_size=lanes)
        work = f"evaluation, {_lanes(lanes)}, L {settings.seg_len}{self._memory(settings)}"
        return self._timed(work, partial(time_evaluation, self.model, settings), self._evaluation_flops(settings))

    def single_tokens(self) -> ThroughputRow:
        """Time one token at a time, with the memory of the recipe's evaluation."""
        settings = self.settings.evaluation_settings(batch_size=1)
        if settings.mem_len or self.settings.model.recurrent_state:
            work = f"{SINGLE_TOKENS}, L 1{self._memory(settings)}"
            by_token = self.settings.evaluation_settings(batch_size=1, seg_len=1)
            flops = self._evaluation_flops(by_token)
        else:
            work = f"{SINGLE_TOKENS}, a window of {settings.seg_len} each"
            flops = window_flops_per_prediction(self.settings.model, self.model.vocab_size, settings)
        return self._timed(work, partial(time_single_tokens, self.model, settings), flops)

    def training(self) -> ThroughputRow:
        """Time optimizer steps with a full memory; they change the weights."""
        train = self._train
        full = self.settings.train.batch_size
        flops = step_flops_per_token(self.settings.model, self.model.vocab_size, train)
        lanes = _lanes(full)
        if train.batch_size < full:
            lanes = f"{train.batch_size} of {lanes}"
        work = f"training, {lanes}, L {train.seg_len}{self._memory(train)}"
        return self._timed(work, partial(time_training, self.model, train), flops)

    def _evaluation_flops(self, settings: EvalSettings) -> float:
        """Return the operations per token of an evaluation with a full memory."""
        return evaluation_flops_per_token(self.settings.model, self.model.vocab_size, settings)

    def _memory(self, section: EvalSettings | TrainSettings) -> str:
        return "" if self.settings.model.recurrent_state else f", M {section.mem_len}"

    def _timed(self, work: str, timed: Callable[..., Timing], flops: float) -> ThroughputRow:
        """Time steps with `flops` operations per token."""
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        clock = ShareClock()
        with self._reporter.progress(work):
            timing = timed(self._times)
        share = self._share(clock)
        rate = 1e3 / timing.median
        peak_memory_bytes = None
        if on_cuda:
            peak_memory_bytes = torch.cuda.max_memory_allocated(self.device)
        return ThroughputRow(
            work=work,
            tokens_per_s=rate,
            ms_per_token=timing.median,
            low_high_ms=timing.low_high,
            share_of_peak=rate * flops / self.peak,
            peak_memory_bytes=peak_memory_bytes,
            tokens_per_step=timing.tokens,
            processor_share=share,
            times_trusted=is_trusted(share),
            path=timing.path,
        )


def _lanes(count: int) -> str:
    """Return a number of lanes in words."""
    return "1 lane" if count == 1 else f"{count} lanes"
