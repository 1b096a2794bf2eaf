"""Options of each job, declared once: the Python interface takes these classes, and `commands` builds flags and help.

This module imports neither PyTorch nor Typer, so that `txl COMMAND --help` stays fast. Where a job reports an option,
it writes the name of the field in backticks, `mem_len`, and the command line prints the flag, --mem-len.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import MAX_SEED, AttentionBackend
from txlcli.corpora.corpus import SPLITS
from txlcli.errors import UnknownNameError, UsageError
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.system.atomic_files import check_output

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
                for number in value if isinstance(value, tuple) else (value,):
                    _check_range(field.name, number, traits)

    def given(self, *names: str) -> list[str]:
        """Return those of the named fields that differ from their defaults, as backticked names for a message."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [f"`{name}`" for name in names if getattr(self, name) != defaults[name]]


def _check_range(name: str, number: object, traits: OptionTraits) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return
    if traits.minimum is not None and not number >= traits.minimum:
        raise UsageError(f"`{name}` {number}: must be at least {traits.minimum:g}")
    if traits.maximum is not None and not number <= traits.maximum:
        raise UsageError(f"`{name}` {number}: must be at most {traits.maximum:g}")


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


def attention_option() -> Any:
    """Return the option that selects the attention backend of a run."""
    return option(None, "Attention backend; all compute the same function.")


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


def seed_option() -> Any:
    """Return the option that seeds random numbers."""
    return option(1111, "Random seed.", minimum=0, maximum=MAX_SEED)


def memory_option() -> Any:
    """Return the option that changes the memory length of an evaluation."""
    return option(None, "Memory length M [default: the recipe's].", minimum=0)


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
    unfinished: bool = option(False, "Also accept a run whose training is not finished.")
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
