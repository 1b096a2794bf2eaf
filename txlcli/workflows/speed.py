"""Times one model for `txl speed`: rows of Table 9, the throughput of everything."""

import dataclasses
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.system.memory import is_out_of_memory

if TYPE_CHECKING:
    from txlcli.config.settings import EvalSettings, Settings, TrainSettings
    from txlcli.core.measures.timing import Timing
    from txlcli.core.model.base import LanguageModel

SINGLE_TOKENS = "one token at a time"
TRAINING_TOKENS_ON_CPU = 1024  # a whole step of a published recipe takes minutes there; more lanes change little


class Bench:
    """Times one model; every number is a median with its spread."""

    def __init__(
        self, model: "LanguageModel", settings: "Settings", *, precision: Any, repeat: int, shown: bool
    ) -> None:
        from txlcli.core.measures.timing import peak_flops_per_s

        self.model, self.settings, self.precision, self.repeat, self.shown = model, settings, precision, repeat, shown
        self.device = model.device
        self._train = self._training_settings()  # which may refuse, so before anything is timed
        self.peak = peak_flops_per_s(self.device, precision)

    def slowdown(self, attn_len: int) -> dict[str, Any]:
        """One row of Table 9: vanilla against one lane with memory, at the same attention length."""
        from txlcli.core.measures.timing import (
            best_windows,
            peak_memory,
            time_evaluation,
            time_single_tokens,
            time_vanilla,
        )

        reading = self.settings.evaluation_settings(mem_len=attn_len, batch_size=1)
        flops = self._reading_flops(reading)
        with console.progress(f"attention length {attn_len:,}", total=4, shown=self.shown) as bar:
            bar.reach(0, "segments with memory")
            with peak_memory(self.device) as memory:
                segments = time_evaluation(self.model, reading, precision=self.precision, repeat=self.repeat)
            bar.reach(1, "one token at a time with memory")
            tokens = time_single_tokens(self.model, reading, precision=self.precision, repeat=self.repeat)
            bar.reach(2, "vanilla, one window at a time")
            alike: Any = {"max_distance": reading.max_distance, "precision": self.precision, "repeat": self.repeat}
            one = time_vanilla(self.model, attn_len, windows=1, **alike)
            bar.reach(3, "vanilla, batched windows")
            windows, batched = best_windows(self.model, attn_len, one, **alike)
        return {
            "attn_len": attn_len,
            "seg_len": reading.seg_len,
            "xl_ms_per_token": segments.median,
            "xl_low_high_ms": [segments.low, segments.high],
            "xl_tokens_per_s": 1e3 / segments.median,
            "xl_share_of_peak": flops * 1e3 / segments.median / self.peak,
            "xl_peak_memory_bytes": memory[0] if memory else None,
            "xl_single_ms_per_token": tokens.median,
            "xl_single_low_high_ms": [tokens.low, tokens.high],
            "xl_single_tokens_per_s": 1e3 / tokens.median,
            "vanilla_ms_per_token": one.median,
            "vanilla_low_high_ms": [one.low, one.high],
            "windows": windows,
            "vanilla_batched_ms_per_token": batched.median,
            "vanilla_batched_low_high_ms": [batched.low, batched.high],
            "slowdown": one.median / segments.median,
            "slowdown_batched": batched.median / segments.median,
            "slowdown_single": one.median / tokens.median,
            "paper_slowdown": SLOWDOWN_BY_ATTN_LEN.get(attn_len),
        }

    def throughput(self) -> list[dict[str, Any]]:
        """Evaluation, one token at a time, training: tokens/s, share of the matrix-product peak, peak memory."""
        lane_counts = dict.fromkeys((1, self.settings.eval.batch_size))
        rows = [*(self._evaluation(lanes) for lanes in lane_counts), self._single_tokens()]
        try:
            rows.append(self._training())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            console.say(
                f"training with {self._train.batch_size} lanes finds no room on {self.device} and is left out; lower "
                "train.batch_size, or set train.accumulate or train.recompute"
            )
        return rows

    def _evaluation(self, lanes: int) -> dict[str, Any]:
        from txlcli.core.measures.timing import peak_memory, time_evaluation

        how = self.settings.evaluation_settings(batch_size=lanes)
        work = f"evaluation, {lanes} lane{'s' if lanes > 1 else ''}"
        with console.progress(work, shown=self.shown), peak_memory(self.device) as memory:
            timing = time_evaluation(self.model, how, precision=self.precision, repeat=self.repeat)
        title = f"{work}, L {how.seg_len}{self._memory(how)}"
        return self._throughput_row(title, timing, self._reading_flops(how), memory)

    def _single_tokens(self) -> dict[str, Any]:
        from txlcli.core.measures.cost import window_flops_per_prediction
        from txlcli.core.measures.timing import peak_memory, time_single_tokens

        how = self.settings.evaluation_settings(batch_size=1)
        with console.progress(SINGLE_TOKENS, shown=self.shown), peak_memory(self.device) as memory:
            timing = time_single_tokens(self.model, how, precision=self.precision, repeat=self.repeat)
        if how.mem_len or self.settings.model.recurrent_state:
            title = f"{SINGLE_TOKENS}, L 1{self._memory(how)}"
            flops = self._reading_flops(dataclasses.replace(how, seg_len=1))
        else:
            title = f"{SINGLE_TOKENS}, a window of {how.seg_len} each"
            flops = window_flops_per_prediction(
                self.settings.model, self.model.vocab_size, window=how.seg_len, max_distance=how.max_distance
            )
        return self._throughput_row(title, timing, flops, memory)

    def _training(self) -> dict[str, Any]:
        from txlcli.core.measures.cost import training_flops_per_token
        from txlcli.core.measures.timing import peak_memory, time_training

        train = self._train
        with console.progress("training", shown=self.shown), peak_memory(self.device) as memory:
            timing = time_training(self.model, train, repeat=self.repeat)
        flops = training_flops_per_token(
            self.settings.model,
            self.model.vocab_size,
            seg_len=train.seg_len,
            mem_len=train.mem_len,
            batch_size=train.batch_size,
        )
        lanes, whole = f"{train.batch_size} lanes", self.settings.train.batch_size
        if train.batch_size < whole:
            lanes = f"{train.batch_size} of {whole} lanes"
            console.say(f"training was timed with {lanes}: on a CPU more would change little")
        title = f"training, {lanes}, L {train.seg_len}{self._memory(train)}"
        return self._throughput_row(title, timing, flops, memory)

    def _reading_flops(self, how: "EvalSettings") -> float:
        """Operations per token of a reading with a full memory."""
        from txlcli.core.measures.cost import decoding_flops_per_token
        from txlcli.core.reading.scoring import keys_seen

        return decoding_flops_per_token(
            self.settings.model, self.model.vocab_size, keys=keys_seen(how), max_distance=how.max_distance
        )

    def _memory(self, section: "EvalSettings | TrainSettings") -> str:
        return "" if self.settings.model.recurrent_state else f", M {section.mem_len}"

    def _training_settings(self) -> "TrainSettings":
        """The recipe's, in the precision that is timed; on a CPU with fewer lanes.

        Raises:
            UsageError: they do not go together, or the device lacks what they ask for.
        """
        from txlcli.core.kernels.compilation import check_compiler

        train = dataclasses.replace(self.settings.train, precision=self.precision)
        if train.compile:
            check_compiler(self.device, "training", "time a recipe with train.compile = false")
        most = max(1, TRAINING_TOKENS_ON_CPU // train.seg_len)
        if self.device.type == "cpu" and train.batch_size > most:
            train = dataclasses.replace(train, batch_size=most, accumulate=1)
        return train

    def _throughput_row(self, work: str, timing: "Timing", flops: float, memory: list[int]) -> dict[str, Any]:
        rate = 1e3 / timing.median
        return {
            "work": work,
            "tokens_per_s": rate,
            "ms_per_token": timing.median,
            "low_high_ms": [timing.low, timing.high],
            "share_of_peak": rate * flops / self.peak,
            "peak_memory_bytes": memory[0] if memory else None,
        }
