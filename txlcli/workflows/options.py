"""Options of each job, declared once: the Python interface takes these classes, and `commands` builds flags and help.

This module imports neither PyTorch nor Typer, so that `txl COMMAND --help` stays fast. Where a job reports an option,
it writes the name of the field in backticks, `mem_len`, and the command line prints the flag, --mem-len.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import AttentionBackend
from txlcli.errors import UsageError
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.system.atomic_files import check_output

FIGURE_FORMATS = (".png", ".svg", ".pdf")


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
