"""Options of each job, declared once: the Python interface takes these classes, and `commands` builds flags and help.

This module imports neither PyTorch nor Typer, so that `txl COMMAND --help` stays fast. Where a job reports an option,
it writes the name of the field in backticks, `mem_len`, and the command line prints the flag, --mem-len.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import MAX_SEED, PLAIN_NAME, AttentionBackend, EvalSettings, Precision
from txlcli.corpora.corpus import SPLITS
from txlcli.errors import UnknownNameError, UsageError
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.system.atomic_files import check_output
from txlcli.system.input_files import MAX_TEXT, read_bytes, read_stdin

Axis = Literal["steps", "tokens", "hours"]
"""Quantity on the x axis of training curves."""
FIGURE_FORMATS = (".png", ".svg", ".pdf")
RECL_LOSSES = "recl.h5"
"""File of the losses of `txl recl`, in the directory of the runs."""


@dataclass(frozen=True, kw_only=True)
class OptionTraits:
    """How the command line shows a field of an options class, and which values it takes."""

    help: str
    minimum: float | None = None
    """Least value, of each number if the field has several."""
    maximum: float | None = None
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    """Names on the command line, if they are not the name of the field."""
    parse: Callable[[str, str], Any] | None = None
    """Converts the text of the command line, its first argument; an error begins with its second, `name` and text."""


def option(default: Any, help_: str, **traits: Any) -> Any:
    """Return the dataclass field of an option; `traits` are those of OptionTraits."""
    return dataclasses.field(default=default, metadata={"option": OptionTraits(help=help_, **traits)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of a job: checks the ranges of all fields when it is made."""

    def __post_init__(self) -> None:
        """Check the ranges; subclasses add the combinations that exclude each other."""
        for field in dataclasses.fields(self):
            if traits := field.metadata.get("option"):
                value = getattr(self, field.name)
                if isinstance(value, list):
                    value = tuple(value)
                    object.__setattr__(self, field.name, value)
                if value == () and traits.minimum is not None:
                    raise UsageError(f"`{field.name}` is empty; give at least one number, or leave it out")
                for number in value if isinstance(value, tuple) else (value,):
                    _check_range(field.name, number, traits)

    def given(self, *names: str) -> list[str]:
        """Return those of the named fields that differ from their defaults, as backticked names for a message."""
        return [f"`{name}`" for name in names if name in self.changed()]

    def changed(self) -> dict[str, Any]:
        """Return the values of the options that differ from their defaults, by field."""
        fields = [field for field in dataclasses.fields(self) if "option" in field.metadata]
        values = {field.name: getattr(self, field.name) for field in fields}
        return {field.name: values[field.name] for field in fields if values[field.name] != field.default}


def _check_range(name: str, number: object, traits: OptionTraits) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return
    if traits.minimum is not None and not number >= traits.minimum:
        raise UsageError(f"`{name}` {number}: must be at least {traits.minimum:g}")
    maximum = MAX_COUNT if traits.maximum is None and isinstance(number, int) else traits.maximum
    if maximum is not None and not number <= maximum:
        raise UsageError(f"`{name}` {number}: must be at most {maximum:.10g}")


def parse_lengths(text: str, asked: str) -> tuple[int, ...]:
    """Parse lengths without duplicates, in the given order: `0,160,640` -> (0, 160, 640)."""
    lengths = []
    for part in text.split(","):
        try:
            lengths.append(int(part))
        except ValueError:
            raise UsageError(f"{asked}: {part!r} is not a whole number; write lengths like 160,640") from None
        if lengths[-1] > MAX_COUNT:
            raise UsageError(f"{asked}: a length cannot be above {MAX_COUNT}")
    return tuple(dict.fromkeys(lengths))


def parse_figure(text: str, asked: str) -> Path:
    """Return the path of a figure that can be written."""
    path = Path(text)
    if path.suffix.lower() not in FIGURE_FORMATS:
        *others, last = FIGURE_FORMATS
        raise UsageError(f"{asked}: unknown figure format; use the extension {', '.join(others)} or {last}")
    check_output(path, asked)
    return path


def parse_split(text: str, asked: str) -> tuple[float, ...]:
    """Parse shares in percent: `90,5,5` -> (90.0, 5.0, 5.0)."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{asked}: not three shares of train, valid and test; try 90,5,5") from None


PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SIZES = {
    "B": 1.0,
    **{f"{prefix}B": factor for prefix, factor in PREFIXES.items()},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
}
RATES = {f"{unit}/s": factor for unit, factor in SIZES.items()}
RATES |= {f"{prefix}bit/s": factor / 8 for prefix, factor in PREFIXES.items()}
FLOP_RATES = {
    f"{prefix}{unit}": factor for prefix, factor in {"": 1.0, **PREFIXES}.items() for unit in ("FLOP/s", "FLOPS")
}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d+)?) ?(\D*)")


def parse_quantity(text: str, asked: str, *, units: Mapping[str, float], example: str) -> float:
    """Parse a number with one of these units: `80GiB` -> 80 * 2**30. Case counts: some read Gb as bits."""
    match = QUANTITY.fullmatch(text.strip())
    amount = float(match[1]) * units.get(match[2], 0.0) if match else 0.0
    if not 0.0 < amount < math.inf:
        known = ", ".join(units)
        raise UsageError(f"{asked}: write a number above 0 and a unit, such as {example}; units: {known}")
    return amount


def check_plain_name(name: str | None) -> None:
    """Reject the name of a run or a store that is not a plain file name; None is allowed."""
    if name is not None and not re.fullmatch(PLAIN_NAME, name):
        raise UsageError(f'`name` "{name}" is not a plain name; use letters, digits, ".", "-" and "_"')


def attention_option() -> Any:
    """Return the option that selects the attention backend of a run."""
    return option(None, "Attention backend; all compute the same function.")


def force_option() -> Any:
    """Return the option that allows overwriting."""
    return option(False, "Overwrite existing results.")


def overrides_option() -> Any:
    """Return the option that changes settings of a recipe."""
    return option((), "Override a setting of the recipe; repeatable.", flags=("--set",), metavar="SECTION.KEY=VALUE")


def plot_option() -> Any:
    """Return the option that plots the result; the command line does it."""
    return option(None, "Also plot the result to this .png, .svg or .pdf file.", metavar="PATH", parse=parse_figure)


@dataclass(frozen=True, kw_only=True)
class SpeedOptions(Options):
    """Options of `txl speed`."""

    attn_len: tuple[int, ...] | None = option(
        None,
        f"Attention lengths to compare at [default: {','.join(map(str, SLOWDOWN_BY_ATTN_LEN))}, or the longest that "
        "the model allows].",
        metavar="N,N,...",
        minimum=2,
        parse=parse_lengths,
    )
    repeat: int = option(3, "Repetitions; the table shows the median.", minimum=1)
    overrides: tuple[str, ...] = overrides_option()
    attention: AttentionBackend | None = attention_option()
    plot: Path | None = plot_option()


AUTO: Literal["auto"] = "auto"
PROTOCOLS = ("disjoint", "strided", "recurrence", "sliding")
"""Protocols of evaluation, in the order of the table: the one that takes the longest is last."""
OF_MEMORY = ("mem_len", "seg_len", "same_length")
"""Options of an evaluation that windows without memory have no use for."""
Lengths = tuple[int, ...] | Literal["auto"] | None
"""Lengths to evaluate, "auto" for the length that a search on the validation split selects, or None if not given."""


@dataclass(frozen=True)
class UserText:
    """Text that the user gives."""

    name: str
    """File, as given on the command line, or stdin."""
    data: bytes
    label: str
    """Name in error messages."""


@dataclass(frozen=True, kw_only=True)
class AdaptationSearch:
    """Size and candidates of the search for the parameters of cache and dynamic evaluation, on the validation split."""

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


def read_user_text(file: str, asked: str) -> UserText:
    """Read a text file, or stdin for "-"."""
    is_stdin = file == "-"
    try:
        data = read_stdin(MAX_TEXT) if is_stdin else read_bytes(Path(file), MAX_TEXT)
    except OSError as error:
        raise UsageError(f"{asked}: cannot be read ({error.strerror}); check the path") from error
    return UserText("stdin" if is_stdin else file, data, label=asked)


def parse_lengths_or_auto(text: str, asked: str) -> Lengths:
    """Parse lengths, or "auto" for a search."""
    if text == AUTO:
        return AUTO
    if AUTO in text.split(","):
        raise UsageError(f'{asked}: give "{AUTO}" alone, which searches for one length, or lengths like 160,640')
    return parse_lengths(text, asked)


def parse_protocols(text: str, asked: str) -> tuple[str, ...]:
    """Return the names of protocols; the options reject unknown ones."""
    return PROTOCOLS if text == "all" else tuple(text.split(","))


def parse_distance(text: str, asked: str) -> int | Literal["none"]:
    """Parse a limit of distances, or "none"."""
    if text.lower() in ("none", "off"):
        return "none"
    if not text.isdecimal() or not 1 <= int(text) <= MAX_COUNT:
        raise UsageError(f'{asked}: give a whole number from 1 to {MAX_COUNT}, or "none"')
    return int(text)


def parse_losses_path(text: str, asked: str) -> Path:
    """Return the path of a loss file that can be written."""
    from txlcli.data import loss_file

    loss_file.check_path(Path(text), asked)
    return Path(text)


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Options):
    """Options of `txl eval`; None selects the setting of the recipe."""

    split: str | None = option(None, "train, valid or test [default: test].")
    mem_len: Lengths = option(
        None,
        "Memory lengths to evaluate, or auto to search for one [default: the recipe's].",
        metavar="M,M,...|auto",
        minimum=0,
        parse=parse_lengths_or_auto,
    )
    attn_len: Lengths = option(
        None,
        "Evaluate without memory, with windows of these lengths.",
        metavar="N,N,...|auto",
        minimum=1,
        parse=parse_lengths_or_auto,
    )
    stride: int | None = option(
        None,
        "Tokens predicted per window; only 1 is exact [default: 1, of strided windows half of N].",
        minimum=1,
    )
    protocols: tuple[str, ...] = option(
        (),
        f"Compare protocols of evaluation on the same tokens: {', '.join(PROTOCOLS)}.",
        metavar="NAME,...|all",
        parse=parse_protocols,
    )
    seg_len: int | None = option(None, "Segment length L; changes speed, and without memory the context.", minimum=1)
    max_distance: int | Literal["none"] | None = option(
        None, "Distances beyond it share one encoding.", metavar="N|none", parse=parse_distance
    )
    same_length: bool | None = option(
        None, "Every query sees M keys, or M + 1 to M + L.", flags=("--same-length/--no-same-length",)
    )
    cache: int | None = option(None, "Add a continuous cache of N tokens (Grave et al.).", metavar="N", minimum=1)
    dynamic: bool = option(False, "Add dynamic evaluation: train on the text while scoring (Krause et al.).")
    batch_size: int | None = option(
        None, "Lanes, or windows, evaluated side by side; 1 lane is the reference.", minimum=1
    )
    positions: int | None = option(None, "Score the first N tokens only.", minimum=1)
    text: UserText | None = option(
        None, "Score a text file instead of a split; - is stdin.", metavar="FILE", parse=read_user_text
    )
    losses: Path | None = option(
        None, "Write the loss of every token to this file.", metavar="FILE.h5", parse=parse_losses_path
    )
    attention: AttentionBackend | None = attention_option()
    plot: Path | None = plot_option()
    timed: bool = True
    """True to time a vanilla model as well (slowdown)."""
    search: AdaptationSearch = AdaptationSearch()
    """Search for the parameters of `cache` and `dynamic`."""

    def __post_init__(self) -> None:
        """Check the ranges, and that no two options exclude each other."""
        super().__post_init__()
        if self.text is not None and self.split is not None:
            raise UsageError("`text` is scored instead of a split; leave out `text` or `split`")
        if self.split is not None:
            check_split(self.split, SPLITS)
        if self.losses is not None and (unfit := self.given("cache", "dynamic", "protocols")):
            raise UsageError(f"`losses` writes the losses of the model alone, by one protocol; leave out {unfit[0]}")
        self._check_windows()
        if self.adapts and (self.attn_len is not None or self.searched or len(self.mem_lens) > 1):
            raise UsageError("`cache` and `dynamic` take one `mem_len` and no `attn_len`")
        if self.adapts and self.plot is not None:
            raise UsageError("`cache` and `dynamic` take one length, and `plot` needs several; leave out `plot`")
        if self.protocols:
            self._check_protocols()
            in_order = tuple(name for name in PROTOCOLS if name in self.protocols)
            object.__setattr__(self, "protocols", in_order)

    def _check_windows(self) -> None:
        of_memory, shortest = self.given(*OF_MEMORY), min(self.windows, default=MAX_COUNT)
        if self.stride is not None and self.attn_len is None and not self.protocols:
            raise UsageError("`stride` is the number of tokens predicted per window; add `attn_len`, or leave it out")
        if self.stride is not None and self.stride > shortest:
            raise UsageError(f"`stride` {self.stride} exceeds the window length {shortest}; give at most that")
        if self.attn_len is not None and not self.protocols and of_memory:
            raise UsageError(
                f"`attn_len` evaluates windows without memory; {of_memory[0]} has no effect there, leave it out"
            )

    def _check_protocols(self) -> None:
        """Reject options that have no effect, or no meaning, in a comparison of protocols."""
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise UnknownNameError("protocol", name, PROTOCOLS)
        if unfit := [f"`{self.searched}` {AUTO}"] if self.searched else self.given("cache", "dynamic", "plot"):
            raise UsageError(
                f"`protocols` compares evaluations of the model alone at given lengths; leave out {unfit[0]}"
            )
        if self.stride is not None and "strided" not in self.protocols:
            raise UsageError("`stride` is the step of strided windows; add strided to `protocols`, or leave it out")
        if 0 in self.mem_lens:
            raise UsageError("`mem_len` 0 is not a recurrence; `protocols` disjoint evaluates without memory")
        if "recurrence" not in self.protocols and (of_memory := self.given(*OF_MEMORY)):
            raise UsageError(
                f"{of_memory[0]} is a setting of recurrence; add recurrence to `protocols`, or leave it out"
            )
        if self.protocols == ("recurrence",) and self.attn_len is not None:
            raise UsageError("`attn_len` is the length of windows; add disjoint to `protocols`, or leave it out")

    @property
    def mem_lens(self) -> tuple[int, ...]:
        """Memory lengths given; empty for that of the recipe or a search."""
        return () if self.mem_len is None or self.mem_len == AUTO else self.mem_len

    @property
    def windows(self) -> tuple[int, ...]:
        """Window lengths given; empty for an evaluation with memory or a search."""
        return () if self.attn_len is None or self.attn_len == AUTO else self.attn_len

    @property
    def searched(self) -> Literal["mem_len", "attn_len"] | None:
        """Option whose length is searched for."""
        if self.mem_len == AUTO:
            return "mem_len"
        return "attn_len" if self.attn_len == AUTO else None

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
        """Reject an evaluation that several processes cannot divide."""
        if processes == 1:
            return
        if self.adapts:
            name = "`dynamic`" if self.dynamic else "`cache`"
            raise UsageError(
                f"{name} runs in one process, and {processes} were requested; leave out {name}, or use one process"
            )
        if self.text is not None and self.text.name == "stdin":
            raise UsageError(
                f"{self.text.label}: several processes cannot share stdin; give a file, or use one process"
            )

    def with_length(self, length: int) -> "EvalOptions":
        """Replace "auto" by the length that a search has selected."""
        if self.mem_len == AUTO:
            return dataclasses.replace(self, mem_len=(length,))
        return dataclasses.replace(self, attn_len=(length,))

    def apply_to(self, settings: EvalSettings) -> EvalSettings:
        """Return a recipe's evaluation settings with these options applied."""
        same_length = settings.same_length
        if self.same_length is not None and self.same_length != (same_length != "off"):  # keep "m_plus_one"
            same_length = "m" if self.same_length else "off"
        limit = settings.max_distance if self.max_distance is None else self.max_distance
        return dataclasses.replace(
            settings,
            seg_len=self.seg_len or settings.seg_len,
            batch_size=self.batch_size or settings.batch_size,
            max_distance=None if limit == "none" else limit,
            same_length=same_length,
        )


def seed_option() -> Any:
    """Return the option that seeds random numbers."""
    return option(1111, "Random seed.", minimum=0, maximum=MAX_SEED)


def memory_option() -> Any:
    """Return the option that changes the memory length of an evaluation."""
    return option(None, "Memory length M [default: the recipe's].", minimum=0)


def unfinished_option() -> Any:
    """Return the option that accepts runs whose training is not finished."""
    return option(False, "Also accept a run whose training is not finished.")


def check_split(split: str, splits: tuple[str, ...]) -> None:
    """Reject a split that a job does not read."""
    if split not in splits:
        raise UnknownNameError("split", split, splits)


DEFAULT_CONTEXT, DEFAULT_TOP_K = 512, 40


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Options):
    """Options of `txl generate`: context and sampling of the texts."""

    prompt: str | None = option(None, "Text to continue; - is stdin.", metavar="TEXT")
    at: int | None = option(
        None, "Last token of the context in the test split [default: random, by --seed].", minimum=0
    )
    context: int | None = option(None, f"Tokens of context, at most [default: {DEFAULT_CONTEXT}].", minimum=1)
    tokens: int = option(500, "Tokens to generate.", minimum=1, maximum=MAX_COUNT)
    samples: int = option(1, "Number of texts to generate.", minimum=1)
    top_k: int | None = option(
        None,
        f"Sample from the k likeliest tokens; 0 is all [default: {DEFAULT_TOP_K}, or all with --top-p].",
        minimum=0,
    )
    top_p: float | None = option(None, "Sample from the likeliest tokens that reach this probability.")
    temperature: float | None = option(
        None,
        "Below 1 prefers likely tokens; --greedy selects the likeliest [default: 1].",
        minimum=1e-3,
        maximum=1e3,
    )
    greedy: bool = option(False, "Always select the likeliest token.")
    reference: bool = option(False, "Also print the context and its actual continuation in the test split.")
    seed: int = seed_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and self.given("at", "context", "reference"):
            raise UsageError("`prompt` is the whole context; leave out `at`, `context` and `reference`")
        if self.greedy and self.given("top_k", "top_p", "temperature", "samples"):
            raise UsageError("`greedy` does not sample: leave out `top_k`, `top_p`, `temperature` and `samples`")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"`top_p` {self.top_p}: must be greater than 0 and at most 1")


FIGURES = (5, 6, 7)
DEFAULT_WIDEST, DEFAULT_QUERIES = 3, 5_000
MAX_HEADS = 24
"""Heads that one figure has room for."""

Head = tuple[int, int]
"""(layer, head), both from 1."""


def parse_attention_figures(text: str, asked: str) -> tuple[int, ...]:
    """Parse figures of Appendix D: `7,5` -> (5, 7), and `all` -> ()."""
    if text == "all":
        return ()
    parts = text.split(",")
    if not all(part in map(str, FIGURES) for part in parts):
        raise UsageError(f'{asked}: write 5, 6 or 7, several like 5,6, or "all"')
    return tuple(sorted(set(map(int, parts))))


def parse_heads(text: str, asked: str) -> tuple[Head, ...]:
    """Parse heads without duplicates, in the given order: `2.3,5.10` -> (2, 3), (5, 10)."""
    heads = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)\.(\d+)", part)
        if match is None:
            raise UsageError(f"{asked}: {part!r} is not a head; write layer.head, both from 1, like 2.3,5.1")
        heads.append((int(match[1]), int(match[2])))
    return tuple(dict.fromkeys(heads))


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(Options):
    """Options of `txl attention`."""

    figure: tuple[int, ...] = option(
        (),
        "Figures of the paper [default: all that the encoding allows].",
        metavar="5,6,7|all",
        parse=parse_attention_figures,
    )
    """Figures to make; () for all that the encoding allows."""
    heads: tuple[Head, ...] | None = option(
        None, "Heads of Figure 6, counted from 1.1.", metavar="LAYER.HEAD,...", parse=parse_heads
    )
    auto: int | None = option(
        None,
        f"Or select the N heads with the widest attention [default: {DEFAULT_WIDEST}].",
        metavar="N",
        minimum=1,
    )
    at: int | None = option(None, "First token of Figure 6 [default: random, by --seed].", minimum=0)
    positions: int | None = option(
        None, f"Tokens to average over [default: {DEFAULT_QUERIES:,} at most].", metavar="N", minimum=1
    )
    split: str = option("valid", "train, valid or test.")
    mem_len: int | None = memory_option()
    seg_len: int | None = option(None, "Segment length L [default: the recipe's].", minimum=1)
    unfinished: bool = unfinished_option()
    seed: int = seed_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split, SPLITS)
        if self.heads is not None and self.auto is not None:
            raise UsageError("`heads` and `auto` both select heads; leave out one of them")
        if self.figure and 6 not in self.figure and (given := self.given("heads", "auto", "at")):
            figures = ",".join(map(str, self.figure))
            raise UsageError(f"{given[0]} applies to Figure 6 only; leave it out, or add 6 to `figure` {figures}")
        if max(len(self.heads or ()), self.auto or 0) > MAX_HEADS:
            raise UsageError(f"Figure 6 has room for {MAX_HEADS} heads; select fewer with `heads` or `auto`")


DEFAULT_RECL_STEPS = 9  # ten lengths, 100 to 1,000; Table 8 goes to 900
DEFAULT_RECL_POSITIONS = 2_000


def parse_shares(text: str, asked: str) -> tuple[float, ...]:
    """Parse shares without duplicates, in the given order: `0.1,0.5` -> (0.1, 0.5)."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"{asked}: write numbers like 0.1,0.5,1.0") from None


@dataclass(frozen=True, kw_only=True)
class ReclOptions(Options):
    """Options of `txl recl`."""

    split: str = option("test", "valid or test.")
    start: int = option(100, "Shortest context length, in tokens.", minimum=1)
    step: int = option(100, "Step to the next context length, in tokens.", minimum=1)
    longest: int | None = option(
        None, "Longest context length, in tokens [default: nine steps from --start].", minimum=1
    )
    top_r: tuple[float, ...] = option(
        (0.1, 0.5, 1.0),
        "Compare on these shares of the hardest positions [default: 0.1,0.5,1.0].",
        metavar="R,R,...",
        parse=parse_shares,
    )
    threshold: float = option(0.01, "Smallest relative gain of perplexity that counts; 1 % in the paper.")
    positions: int | None = option(
        None, f"Score N positions, sampled with --seed [default: {DEFAULT_RECL_POSITIONS:,} at most].", minimum=1
    )
    batch_size: int | None = option(None, "Contexts evaluated at once; changes speed and memory.", minimum=1)
    losses: Path | None = option(None, f"File of all losses [default: {RECL_LOSSES} in --runs-dir].", metavar="FILE.h5")
    plot: Path | None = plot_option()
    plot_ppl: Path | None = option(
        None,
        "Also plot perplexity by context length to this file (Figure 4).",
        metavar="PATH",
        parse=parse_figure,
    )
    unfinished: bool = unfinished_option()
    seed: int = seed_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split, ("valid", "test"))
        if not self.top_r or not all(0 < share <= 1 for share in self.top_r):
            shares = ",".join(f"{share:g}" for share in self.top_r)
            raise UsageError(f"`top_r` {shares}: r is a share of the positions; give numbers above 0, at most 1")
        if not 0 < self.threshold < 1:
            raise UsageError(
                f"`threshold` {self.threshold:g}: a share of the perplexity, such as 0.01 for 1 %; "
                "give a number between 0 and 1"
            )
        if self.longest is not None and self.longest < self.start + self.step:
            raise UsageError(
                f"`longest` {self.longest} is less than one `step` {self.step} above `start` {self.start}; "
                f"give at least {self.start + self.step}"
            )

    @property
    def contexts(self) -> list[int]:
        """Context lengths to compare, in tokens."""
        last = self.longest if self.longest is not None else self.start + DEFAULT_RECL_STEPS * self.step
        return list(range(self.start, last + 1, self.step))


@dataclass(frozen=True, kw_only=True)
class CompressOptions(Options):
    """Options of `txl compress`."""

    mem_len: int | None = memory_option()
    lanes: int | None = option(
        None,
        "Parts coded side by side; more are faster and larger [default: one per 8 KiB, at most 64].",
        minimum=1,
        maximum=4096,
    )
    dynamic: bool = option(False, "Train on the text while coding (dynamic evaluation); slower and smaller.")
    lane_cost: bool = option(False, "Also measure how many bits the lanes cost beyond a single one.")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """Options of `txl prepare`; None means that the corpus decides."""

    source: Path | None = option(None, "Read the corpus from this archive, folder or file instead of downloading it.")
    name: str | None = option(None, "Name of the store [default: from corpus and tokenizer].")
    tokenizer: Literal["byte", "char", "word", "sentencepiece"] | None = option(
        None, "How text is split into tokens [default: the corpus's own]."
    )
    vocab_size: int | None = option(
        None,
        "Largest number of words, or size of the SentencePiece model [default: 8000].",
        minimum=2,
        maximum=MAX_COUNT,
    )
    min_count: int | None = option(None, "Treat words or characters that are rarer in train as unknown.", minimum=1)
    sp_type: Literal["unigram", "bpe"] | None = option(None, "Type of the SentencePiece model [default: unigram].")
    split: tuple[float, ...] | None = option(
        None,
        "Shares of train, valid and test in percent [default: 90,5,5].",
        parse=parse_split,
    )
    released_convention: bool = option(False, "Treat enwik8 and lm1b like the released code of the paper.")
    vocab: Path | None = option(None, "Encode with this vocabulary, such as the vocab.json of a run.", metavar="FILE")
    workers: int | None = option(
        None, "Processes that read the text [default: one per processor, at most 6].", minimum=1
    )
    dtype: Literal["uint16", "uint32"] | None = option(
        None, "Type of the ids of a .bin file without a header [default: uint16]."
    )
    column: str | None = option(None, "Column of Parquet files with the text [default: text, or the only one].")
    force: bool = force_option()

    def __post_init__(self) -> None:
        """Check the name, the shares, and that a given vocabulary is not described as well."""
        super().__post_init__()
        check_plain_name(self.name)
        shares = self.split
        if shares and not (len(shares) == 3 and shares[0] > 0 and min(shares) >= 0 and abs(sum(shares) - 100) < 1e-6):
            given = ",".join(f"{share:g}" for share in shares)
            raise UsageError(f"`split` {given}: not three shares of train, valid and test that sum to 100; try 90,5,5")
        described = self.given("tokenizer", "vocab_size", "min_count", "sp_type", "released_convention")
        if self.vocab is not None and described:
            raise UsageError(f"{described[0]} has no effect with `vocab`, whose file includes it; leave it out")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Options of `txl import`."""

    recipe: str | None = option(None, "Recipe with the settings of a file of weights.", metavar="RECIPE")
    vocab: Path | None = option(None, "File with the vocabulary of the weights.", metavar="FILE")
    store: str | None = option(None, "Token store with that vocabulary [default: the only store that has it].")
    name: str | None = option(None, "Name of the run [default: name of the source].")
    overrides: tuple[str, ...] = overrides_option()
    force: bool = force_option()

    def __post_init__(self) -> None:
        """Check the name, and that the store is not a changed setting."""
        super().__post_init__()
        check_plain_name(self.name)
        if any(change.partition("=")[0].strip() == "corpus.store" for change in self.overrides):
            raise UsageError(
                "`overrides` corpus.store: name the store with `store`, or leave it out to find it by vocabulary"
            )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Options of `txl export`."""

    format: Literal["huggingface", "nanogpt", "llm.c", "megatron", "parquet"] = option(
        "huggingface",
        "huggingface for a run; nanogpt, llm.c (.bin), megatron (.bin and .idx) or parquet (text) for a store.",
    )
    force: bool = force_option()


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Options of `txl runs compare`."""

    plot: Path | None = plot_option()
    x: Axis = option("steps", "Quantity on the x axis of --plot.")

    def __post_init__(self) -> None:
        """Reject an axis without a plot."""
        super().__post_init__()
        if self.plot is None and self.x != "steps":
            raise UsageError(f"`x` {self.x} is the x axis of `plot`; add `plot` FILE, or leave it out")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Options of `txl train`; None keeps the setting of the recipe, or of the run that is resumed."""

    name: str | None = option(None, "Name of the run [default: name of the recipe].")
    resume: str | None = option(None, "Resume this run.", metavar="RUN")
    max_steps: int | None = option(None, "Stop and save after this step, without changing the schedule.", minimum=1)
    max_minutes: float | None = option(None, "Stop and save after this time.", minimum=0.0)
    log_every: int | None = option(None, "Steps between two reports.", minimum=1)
    overrides: tuple[str, ...] = overrides_option()
    precision: Precision | None = option(None, "Precision of matrix products [default: as in the recipe].")
    attention: AttentionBackend | None = attention_option()
    compile: bool = option(False, "Compile the layers with torch.compile; intended for CUDA.")
    seed: int | None = option(None, "Random seed.", minimum=0, maximum=MAX_SEED)
    skip_nonfinite: int | None = option(
        None, "Skip up to N steps in a row whose loss or gradient is not finite.", metavar="N", minimum=0
    )
    force: bool = force_option()
    caller_continues: bool = False
    """True if the caller has more to do, so that a signal during the last step has to stop the caller, too."""
    resume_hint: str | None = None
    """Advice on resuming after a stop; None for `txl train --resume`."""

    def __post_init__(self) -> None:
        """Check the ranges, the name, and that a resumed run is not described as a new one."""
        super().__post_init__()
        check_plain_name(self.name)
        if self.resume is not None and self.given("name", "force"):
            raise UsageError("`resume` continues a run; leave out `name` and `force`")
        if self.resume is not None and self.seed is not None:
            raise UsageError(f"`seed` {self.seed}: a resumed run keeps its train.seed; start a new run instead")

    @property
    def changes(self) -> list[str]:
        """Changes of settings, as `overrides` has them."""
        settings = {
            "train.precision": self.precision,
            "train.attention": self.attention,
            "train.compile": "true" if self.compile else None,
            "train.seed": self.seed,
            "train.skip_nonfinite": self.skip_nonfinite,
            "log.every": self.log_every,
        }
        return [*self.overrides, *(f"{key}={value}" for key, value in settings.items() if value is not None)]

    def check_steps(self, schedule_steps: int) -> None:
        """Reject a last step beyond the schedule."""
        if self.max_steps is not None and self.max_steps > schedule_steps:
            raise UsageError(
                f"`max_steps` {self.max_steps}: the schedule ends at step {schedule_steps:,}, and this option can only "
                f"stop earlier; for a longer schedule give `overrides` train.max_steps={self.max_steps}"
            )


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    """Processes that divide the work of `txl train`."""

    processes: int = option(1, "Divide each batch among this many processes, one per GPU.", minimum=1)
    restarts: int = option(
        0,
        "Start the processes again, up to N times, if one is lost; they resume the run.",
        metavar="N",
        minimum=0,
    )


@dataclass(frozen=True, kw_only=True)
class HardwareOptions(Options):
    """One of several equal GPUs, for a forecast; None is unknown."""

    device_memory: float | None = option(
        None,
        "Memory of each GPU, such as 80GiB; says whether a step fits.",
        metavar="SIZE",
        parse=partial(parse_quantity, units=SIZES, example="80GiB"),
    )
    """In bytes."""
    bandwidth: float | None = option(
        None,
        "Bytes that each GPU sends per second while it receives as many, such as 300GB/s.",
        metavar="RATE",
        parse=partial(parse_quantity, units=RATES, example="300GB/s"),
    )
    """In bytes per second."""
    device_flops: float | None = option(
        None,
        "Peak rate of matrix products of each GPU in the precision of training, such as 989TFLOP/s; gives tokens/s and "
        "time.",
        metavar="RATE",
        parse=partial(parse_quantity, units=FLOP_RATES, example="989TFLOP/s"),
    )
    """In operations per second."""


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(HardwareOptions):
    """Options of `txl recipes scale`."""

    overrides: tuple[str, ...] = overrides_option()


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(HardwareOptions):
    """Options of `txl train --dry-run`."""

    dry_run: bool = option(False, "Print the plan, its memory and its time; do not train.")
    verbose: bool = option(
        False, "With --dry-run: compare the attention backends, too; takes seconds more.", flags=("--verbose", "-v")
    )
    devices: int | None = option(
        None,
        "With --dry-run: forecast a training run on N other GPUs.",
        metavar="N",
        minimum=1,
        maximum=MAX_COUNT,
    )

    def __post_init__(self) -> None:
        """Reject options of a forecast without one, and a description of GPUs without their number."""
        super().__post_init__()
        described = self.given("device_memory", "bandwidth", "device_flops")
        if not self.dry_run and (unfit := [*self.given("devices", "verbose"), *described]):
            raise UsageError(f"{unfit[0]} is an option of a forecast; add `dry_run`, or leave it out")
        if described and self.devices is None:
            raise UsageError(f"{described[0]} describes the GPUs of a forecast; add their number with `devices`")
        if self.devices is not None and self.verbose:
            raise UsageError("`verbose` compares the attention backends of this machine; leave it out with `devices`")


PAPER_ITEMS = (*(f"table{n}" for n in range(1, 11)), *(f"figure{n}" for n in range(3, 8)), "appendix-e")
REPRODUCIBLE = (*PAPER_ITEMS, "frontier")
"""Tables and figures of the paper, and the frontier beyond it."""
ALL_ITEMS = "all"
"""All of the paper."""


def select_items(names: Sequence[str]) -> list[str]:
    """Return the selected tables and figures in the paper's order."""
    for name in names:
        if name not in (*REPRODUCIBLE, ALL_ITEMS):
            known, listing = (*REPRODUCIBLE, ALL_ITEMS), '"txl reproduce --list" lists all'
            raise UnknownNameError("table or figure", name, known, listing=listing)
    return [name for name in REPRODUCIBLE if name in names or (ALL_ITEMS in names and name in PAPER_ITEMS)]


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options):
    """Options of `txl reproduce`."""

    scale: Literal["tiny", "small", "paper"] = option(
        "tiny", "tiny: minutes on two cores; small: one GPU; paper: as published."
    )
    seeds: int = option(1, "Training runs per model, whose results are averaged.", minimum=1)
    out: Path | None = option(None, "Folder of the report [default: reproduction-SCALE].")
    list: bool = option(False, "List the items with the cost of missing training runs, and stop.")

    @property
    def directory(self) -> Path:
        """Directory of the report."""
        return self.out or Path(f"reproduction-{self.scale}")
