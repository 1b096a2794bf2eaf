"""Settings of an evaluation: checks the options against the run, and lists a setting for each row of the result."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import EvalSettings, Settings
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenModel
from txlcli.workflows.evaluation.options import PROTOCOLS, EvalOptions
from txlcli.workflows.evaluation.texts import ScoredText

SHORT_LANE = 10
"""A lane shorter than this many memory lengths is short: the missing context at its start changes the result."""


@dataclass(frozen=True, kw_only=True)
class RowSetting:
    """How one row of the result reads the text: with a memory, or in windows without one."""

    mem_len: int = 0
    """Memory length M in tokens; 0 in windows."""
    attn_len: int | None = None
    """Window length N; None with memory."""
    stride: int = 1
    """Tokens predicted per window."""
    protocol: str | None = None
    """Name in a comparison of protocols."""

    def at(self, length: int) -> "RowSetting":
        """Return the same setting with another memory length, or window length."""
        if self.attn_len is None:
            return replace(self, mem_len=length)
        return replace(self, attn_len=length)


def check_options(opened: OpenModel, options: EvalOptions) -> None:
    """Reject options that do not fit the model or its precision."""
    settings = opened.settings
    subject = opened.subject
    model = settings.model
    arch = f'(arch = "{model.arch}")'
    if not model.has_attention:
        options.exclude("max_distance", "same_length", "attention", because=f"{subject} has no attention {arch}")
    if model.recurrent_state:
        because = f"{subject} has a recurrent state {arch}"
        options.exclude("mem_len", "plot", because=because)
        if not options.protocols:  # these read a recurrent state in windows, too
            options.exclude("attn_len", because=because)
    if options.same_length and not model.keys_are_tokens:
        raise UsageError(f"{subject} sees all of its memory {arch}; leave out `same_length`")
    if not model.limits_distance:
        options.exclude("max_distance", because=f"{subject}: its encoding of positions has no such limit")
    longest = max(options.mem_lens, default=0)
    settings.check_memory(longest, run=subject, instead="give `attn_len` instead of `mem_len`")
    if model.longest_window is not None:
        _check_positions(options, model.longest_window, subject)
    if set(options.protocols) != set(PROTOCOLS):  # of all, it may lack one
        reason = lacks_recurrence(opened, options)
        if reason:
            raise UsageError(f"`protocols` recurrence: {reason}; or leave recurrence out")
    if options.dynamic and opened.precision == "fp16":
        raise UsageError("`dynamic` trains the model, which fp16 is too coarse for; add `precision` bf16 or fp32")


def _check_positions(options: EvalOptions, n_positions: int, subject: Path) -> None:
    """Reject segments and windows that are longer than the positions that the model has learned."""
    lengths = {"attn_len": max(options.windows, default=0), "seg_len": options.seg_len or 0}
    for name, length in lengths.items():
        if length > n_positions:
            raise UsageError(
                f"`{name}` {length}: {subject} has {n_positions:,} positions, so that no segment or window is longer; "
                "use at most that"
            )


def lacks_recurrence(opened: OpenModel, options: EvalOptions) -> str | None:
    """Return the reason why the model lacks the protocol "recurrence", if it is requested."""
    settings = opened.settings
    reads_memory = settings.model.recurrent_state or options.mem_lens or settings.eval.mem_len
    if "recurrence" not in options.protocols or reads_memory:
        return None
    if settings.supports_memory:
        return f"{opened.subject} was trained without memory; give a memory length to evaluate it with one"
    return f"{opened.subject} {settings.model.memory_obstacle}"


def eval_settings(run_settings: Settings, text: ScoredText, options: EvalOptions) -> EvalSettings:
    """Return the settings of the recipe with those of the options.

    A user's text is cut into as many lanes as are not short.
    """
    settings = options.apply_to(run_settings.evaluation_settings())
    if not options.text or options.reads_documents or options.batch_size is not None:
        return settings
    mem_lens = options.mem_lens or (settings.mem_len,)
    longest = max(settings.seg_len, *mem_lens)
    lanes = min(settings.batch_size, len(text.targets) // (SHORT_LANE * longest))
    return settings.with_batch_size(max(1, lanes))


def row_settings(run_settings: Settings, options: EvalOptions) -> list[RowSetting]:
    """Return the setting of each row: the memory length M, the window length N, or the protocol is swept."""
    if options.protocols:
        return list(_protocol_settings(run_settings, options))
    if options.windows:
        return [RowSetting(attn_len=length, stride=options.stride or 1) for length in options.windows]
    default = run_settings.eval.mem_len
    mem_lens = options.mem_lens or (default,)
    if options.html and default and not options.mem_lens:
        mem_lens = (0, default)  # to show what the memory gains
    return [RowSetting(mem_len=mem_len) for mem_len in mem_lens]


def searched_setting(options: EvalOptions) -> RowSetting:
    """Return the setting whose length is searched for, with a length of 0."""
    if options.searched == "attn_len":
        return RowSetting(attn_len=0, stride=options.stride or 1)
    return RowSetting()


def _protocol_settings(run_settings: Settings, options: EvalOptions) -> Iterator[RowSetting]:
    """Yield the setting of each protocol and length.

    The lengths are those given, or else the recipe's memory length, or the trained segment length.
    """
    model = run_settings.model
    mem_lens = options.mem_lens
    if not mem_lens and run_settings.eval.mem_len:
        mem_lens = (run_settings.eval.mem_len,)
    lengths = mem_lens or (run_settings.train.seg_len,)
    if model.recurrent_state:
        mem_lens = (0,)
    windows = options.windows
    if not windows:
        longest = model.longest_window or MAX_COUNT
        windows = tuple(dict.fromkeys(min(length, longest) for length in lengths))
    options.check_stride(windows)
    for protocol in PROTOCOLS:
        if protocol not in options.protocols:
            continue
        if protocol == "recurrence":
            for mem_len in mem_lens:
                yield RowSetting(mem_len=mem_len, protocol=protocol)
            continue
        for length in windows:
            strides = {"disjoint": length, "strided": options.stride or max(1, length // 2), "sliding": 1}
            yield RowSetting(attn_len=length, stride=strides[protocol], protocol=protocol)
