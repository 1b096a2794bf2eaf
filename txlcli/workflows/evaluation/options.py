"""Options of an evaluation, checked for range and for options that exclude each other."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import AttentionBackend, EvalSettings
from txlcli.corpora.corpus import SPLITS
from txlcli.errors import UnknownNameError, UsageError

AUTO: Literal["auto"] = "auto"
PROTOCOLS = ("disjoint", "strided", "recurrence", "sliding")
"""Protocols of `--protocols`, in the order of the table: the one that takes the longest is last."""
Lengths = tuple[int, ...] | Literal["auto"] | None
"""Lengths to evaluate, "auto" for the length that a search on the validation split selects, or None if not given."""


@dataclasses.dataclass(frozen=True)
class UserText:
    """Text of the user's."""

    name: str
    """File, as given on the command line, or stdin."""
    data: bytes
    label: str
    """Name in error messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptationSearch:
    """Size and candidates of the search for the parameters of `--cache` and `--dynamic`, on the validation split."""

    cache_tokens: int = 50_000
    """Fewest tokens for the cache; more change the parameters little."""
    cache_fills: int = 2
    """Number of times that the tokens of one lane fill the cache, at least."""
    dynamic_tokens: int = 10_000
    """Fewest tokens for dynamic evaluation."""
    dynamic_steps: int = 50
    """Fewest steps of dynamic evaluation; with fewer, the decay has no effect."""
    learning_rates: tuple[float, ...] | None = None
    """Candidates; None selects those of `core.measures.adaptation`."""
    larger_learning_rates: tuple[float, ...] | None = None
    """Candidates tried one by one for as long as each improves on the last; None as above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Text to score and settings of the evaluation; None selects the setting of the recipe.

    Raises:
        UsageError: a value is out of range, or two options exclude each other.
        UnknownNameError: unknown split or protocol.
    """

    split: str | None = None
    """One of the corpora's SPLITS; test by default, unless `text` is given."""
    text: UserText | None = None
    """Text to score instead of a split."""
    positions: int | None = None
    """Score the first N tokens only; None scores all."""
    mem_len: Lengths = None
    """Memory lengths M."""
    attn_len: Lengths = None
    """Window lengths of an evaluation without memory."""
    stride: int | None = None
    """Tokens predicted per window; None is 1, which is exact, or half of the window for the strided protocol."""
    protocols: tuple[str, ...] = ()
    """Protocols to compare, some of PROTOCOLS; empty for an evaluation by one."""
    seg_len: int | None = None
    """Segment length L."""
    max_distance: int | Literal["none"] | None = None
    """Distances beyond it share one encoding; "none" removes the limit."""
    same_length: bool | None = None
    """True if every query sees the same number of keys."""
    batch_size: int | None = None
    """Number of lanes, or of windows, evaluated side by side."""
    cache: int | None = None
    """Size of the continuous cache in tokens."""
    dynamic: bool = False
    """True for dynamic evaluation."""
    attention: AttentionBackend | None = None
    """Attention backend."""
    plotted: bool = False
    """True if the results are to be plotted over the length."""
    timed: bool = True
    """True to time a vanilla model as well (slowdown)."""
    search: AdaptationSearch = AdaptationSearch()
    """Search for the parameters of `cache` and `dynamic`."""

    def __post_init__(self) -> None:
        """Check the ranges, and that no two options exclude each other."""
        if self.text is not None and self.split is not None:
            raise UsageError("--text is scored instead of a split; leave out --text or --split")
        if self.split is not None and self.split not in SPLITS:
            raise UnknownNameError("split", self.split, SPLITS)
        for name, count in (("seg-len", self.seg_len), ("batch-size", self.batch_size), ("stride", self.stride)):
            if count is not None and count > MAX_COUNT:
                raise UsageError(f"--{name} {count}: give at most {MAX_COUNT}")
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise UnknownNameError("protocol", name, PROTOCOLS)
        if self.stride is not None and self.attn_len is None and not self.protocols:
            raise UsageError("--stride is the number of tokens predicted per window; add --attn-len, or leave it out")
        if self.stride is not None and self.windows and self.stride > min(self.windows):
            raise UsageError(f"--stride {self.stride} exceeds the window length {min(self.windows)}; give at most that")
        if self.adapts and (self.attn_len is not None or self.searched or len(self.mem_lens) > 1):
            raise UsageError("--cache and --dynamic take one --mem-len and no --attn-len")
        if self.adapts and self.plotted:
            raise UsageError(
                "--plot plots a curve over lengths, but --cache and --dynamic take one length; leave it out"
            )
        if self.protocols:
            self._check_protocols()
        elif self.attn_len is not None and (option := first_option(self._of_memory)):
            raise UsageError(f"--attn-len evaluates windows without memory; {option} has no effect there, leave it out")

    def _check_protocols(self) -> None:
        """Refuse options that have no effect, or no meaning, in a comparison of protocols."""
        if self.adapts or self.searched or self.plotted:
            method = "--cache" if self.cache else "--dynamic" if self.dynamic else "--plot"
            unfit = f"{self.searched} {AUTO}" if self.searched else method
            raise UsageError(f"--protocols compares evaluations of the model alone at given lengths; leave out {unfit}")
        if self.stride is not None and "strided" not in self.protocols:
            raise UsageError("--stride is that of strided windows; add strided to --protocols, or leave it out")
        if 0 in self.mem_lens:
            raise UsageError("--mem-len 0 is no recurrence; --protocols disjoint evaluates without memory")
        if "recurrence" not in self.protocols and (option := first_option(self._of_memory)):
            raise UsageError(f"{option} is a setting of recurrence; add recurrence to --protocols, or leave it out")
        if self.protocols == ("recurrence",) and self.attn_len is not None:
            raise UsageError("--attn-len is the length of windows; add disjoint to --protocols, or leave it out")

    @property
    def _of_memory(self) -> dict[str, object]:
        """Values of the options that windows without memory have no use for."""
        return {"--mem-len": self.mem_len, "--seg-len": self.seg_len, self.same_length_option: self.same_length}

    @property
    def mem_lens(self) -> tuple[int, ...]:
        """Memory lengths given; empty for that of the recipe or a search."""
        return () if self.mem_len is None or self.mem_len == AUTO else self.mem_len

    @property
    def windows(self) -> tuple[int, ...]:
        """Window lengths given; empty for an evaluation with memory or a search."""
        return () if self.attn_len is None or self.attn_len == AUTO else self.attn_len

    @property
    def searched(self) -> str | None:
        """Option whose length is searched for."""
        if self.mem_len == AUTO:
            return "--mem-len"
        return "--attn-len" if self.attn_len == AUTO else None

    @property
    def same_length_option(self) -> str:
        """`--same-length` or `--no-same-length`, as given."""
        return "--no-same-length" if self.same_length is False else "--same-length"

    @property
    def reads_lanes(self) -> bool:
        """True if lanes of the text are read with memory, which several processes divide."""
        if self.protocols:
            return "recurrence" in self.protocols
        return not self.adapts and self.attn_len is None

    @property
    def adapts(self) -> bool:
        """True if the model adapts to the text by more than its memory."""
        return self.cache is not None or self.dynamic

    def check_processes(self, processes: int) -> None:
        """Refuse an evaluation that several processes cannot divide.

        Raises:
            UsageError: the model adapts to the text in its order.
        """
        if processes > 1 and self.adapts:
            option = "--dynamic" if self.dynamic else "--cache"
            raise UsageError(
                f"{option} runs in one process, and {processes} were asked for; leave out {option}, or use one process"
            )

    def with_length(self, length: int) -> "EvalOptions":
        """Replace "auto" by the length that a search has selected."""
        if self.searched == "--mem-len":
            return dataclasses.replace(self, mem_len=(length,))
        return dataclasses.replace(self, attn_len=(length,))

    def apply_to(self, settings: EvalSettings) -> EvalSettings:
        """Return a recipe's evaluation settings with these options applied."""
        given = {"seg_len": self.seg_len, "batch_size": self.batch_size}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.max_distance is not None:
            changes["max_distance"] = None if self.max_distance == "none" else self.max_distance
        if self.same_length is not None and self.same_length != (settings.same_length != "off"):  # keep "m_plus_one"
            changes["same_length"] = "m" if self.same_length else "off"
        return dataclasses.replace(settings, **changes)


def first_option(options: Mapping[str, object]) -> str | None:
    """Return the name of the first option that has a value."""
    return next((option for option, value in options.items() if value is not None), None)
