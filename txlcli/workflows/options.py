"""Options of each job, declared once: the Python interface takes these classes, and `commands` builds flags and help.

This module imports neither PyTorch nor Typer, so that `txl COMMAND --help` stays fast. Where a job reports an option,
it writes the name of the field in backticks, `mem_len`, and the command line prints the flag, --mem-len.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, dataclass_transform

from txlcli.config.ranges import (
    MAX_COUNT,
    AtLeastTwo,
    FieldType,
    NaturalInt,
    NotNegativeFloat,
    PositiveInt,
    PositiveShare,
    Range,
    as_plain,
    check_names,
)
from txlcli.config.settings import PLAIN_NAME, AttentionBackend, Compile, EvalSettings, Precision, Seed
from txlcli.errors import UnknownNameError, UsageError
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.system.atomic_files import check_output
from txlcli.system.input_files import MAX_TEXT, read_bytes, read_stdin

EXCLUSIONS: dict[str, list[dict[str, str]]] = tomllib.loads(
    (files("txlcli.workflows") / "exclusions.toml").read_text(encoding="utf-8")
)
"""Options that do not belong to others, by the class of the options."""
Split = Literal["train", "valid", "test"]
IdType = Literal["uint8", "uint16", "uint32", "int32", "int64", "uint16-be", "uint32-be", "int32-be", "int64-be"]
"""Types of the ids of a file without a header; -be is big-endian."""
FIGURE_FORMATS = (".png", ".svg", ".pdf")
LOSS_FORMATS = (".h5", ".hdf5")


@dataclass(frozen=True, kw_only=True)
class OptionTraits:
    """How the command line shows and reads a field of an options class."""

    help: str
    metavar: str | None = None
    variable: str | None = None
    """Environment variable with another default."""
    read: Callable[[str], Any] | None = None
    """Converts the text of the command line, or raises a ValueError; by default, the type of the field does."""
    example: str = ""
    """Texts that `read` accepts."""
    writes: tuple[str, ...] = ()
    """Extensions of a file that the job writes, and replaces with `force` only."""


def option(help_: str, *, default: Any = None, **traits: Any) -> Any:
    """Return the dataclass field of an option; `traits` are those of OptionTraits."""
    return field(default=default, metadata={"option": OptionTraits(help=help_, **traits)})


def parse(of: Field[Any], text: str) -> Any:
    """Return the value of an option from a text of the command line."""
    traits, type_ = of.metadata["option"], FieldType.of(of.type)
    try:
        return (traits.read or type_.parse)(text)
    except ValueError:
        raise UsageError(f"`{of.name}` {text}: write {traits.example or type_.example}") from None


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of a job: checks the names, types and ranges of all fields when it is made.

    Its subclasses are frozen dataclasses, too.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __new__(cls, *_: object, **named: object) -> Self:
        check_names(cls.__name__, named, [item.name for item in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for item in self.declared():
            value = as_plain(getattr(self, item.name))
            object.__setattr__(self, item.name, value)
            FieldType.of(item.type).check(f"`{item.name}`", value)
            if value == () != item.default:
                raise UsageError(f"`{item.name}` is empty; give at least one number, or leave it out")
            if value and (extensions := item.metadata["option"].writes):
                self._check_output(item.name, value, extensions)
            if item.name == "name" and value is not None and not re.fullmatch(PLAIN_NAME, value):
                raise UsageError(f'`name` "{value}" is not a plain name; use letters, digits, ".", "-" and "_"')
        self._check()
        for rule in EXCLUSIONS.get(type(self).__name__, []):
            if self._matches(rule):
                self.exclude(*rule["excludes"].split(), because=rule["because"])

    def _check_output(self, name: str, path: Path, extensions: Sequence[str]) -> None:
        """Reject a file that cannot be written, or that exists unless it is to be replaced."""
        if path.suffix.lower() not in extensions:
            raise UsageError(f"`{name}` {path}: use the extension {' or '.join(extensions)}")
        check_output(path, f"`{name}` {path}")
        if os.path.lexists(path) and "force" not in self.changed():
            raise UsageError(f"`{name}` {path} exists; name another file, or add `force` to replace it")

    def _check(self) -> None:
        """Reject other combinations of options; subclasses define it."""

    @classmethod
    def declared(cls) -> list[Field[Any]]:
        """Return the options, inherited ones last; other fields belong to the Python interface alone."""
        options = [item for item in fields(cls) if "option" in item.metadata]
        return sorted(options, key=lambda item: item.name not in cls.__annotations__)

    def changed(self) -> dict[str, Any]:
        """Return the values of the options that differ from their defaults, by field."""
        return {item.name: value for item in self.declared() if (value := getattr(self, item.name)) != item.default}

    def given(self, *names: str) -> list[str]:
        """Return those of the named fields that differ from their defaults, as backticked names for a message."""
        return [f"`{name}`" for name in names if name in self.changed()]

    def _matches(self, rule: Mapping[str, str]) -> bool:
        """Return True if the options are those for which an exclusion is meant."""
        (first, *others), lacks = rule["given"].split(), {*rule.get("lacks", "").split()}
        if not self.given(first, *others) or self.given(*rule.get("without", "").split()):
            return False
        return not lacks or lacks.isdisjoint(getattr(self, first))

    def exclude(self, *names: str, because: str) -> None:
        """Reject the named fields, which do not belong to the other options."""
        if given := self.given(*names):
            raise UsageError(f"{because}; leave out {given[0]}")


def quantity_option(help_: str, unit: str) -> Any:
    """Return the option of a number with a unit: `80GiB` -> 80 * 2**30. Case counts: some read Gb as bits."""
    pattern = re.compile(rf"(\d+(?:\.\d+)?) ?([KMGT]i|[kMGTP]|){unit}")

    def read(text: str) -> float:
        match = pattern.fullmatch(text.strip())
        if match is None or not float(match[1]):
            raise ValueError(text)
        base = 1024.0 if match[2].endswith("i") else 1000.0
        return float(match[1]) * base ** " KMGTP".index(match[2][:1].upper() or " ")

    example = f"a number above 0, a prefix such as G or Gi, and {unit}"
    return option(help_, metavar=f"N[k|M|G|..]{unit}", read=read, example=example)


attention_option = partial(option, "Attention backend; all compute the same function.")
compile_option = partial(option, "Fuse the operations of layers with torch.compile; auto does so on a GPU if it pays.")
flag_option = partial(option, default=False)
force_option = partial(flag_option, "Overwrite existing results.")
memory_option = partial(option, "Memory length M [default: the recipe's].")
overrides_option = partial(
    option, "Override a setting of the recipe; repeatable.", default=(), metavar="SECTION.KEY=VALUE"
)
seeds_option = partial(option, "Training runs per model, each with the next seed.", default=1)
seed_option = partial(option, "Random seed.", default=1111)


class PlotOptions(Options):
    """Options of each job that plots its result, and all of `txl runs plot` and `txl runs compare`."""

    plot: Path | None = option("Also plot the result to this .png, .svg or .pdf file.", writes=FIGURE_FORMATS)
    force: bool = force_option()


class SpeedOptions(PlotOptions):
    """Options of `txl speed`."""

    attn_len: tuple[AtLeastTwo, ...] | None = option(
        f"Attention lengths to compare at [default: {','.join(map(str, SLOWDOWN_BY_ATTN_LEN))}, or the longest that "
        "the model allows]."
    )
    repeat: PositiveInt = option("Repetitions; the table shows the median.", default=3)
    compile: Compile | None = compile_option()
    overrides: tuple[str, ...] = overrides_option()


AUTO: Literal["auto"] = "auto"
LENGTH_THRESHOLD = 0.001
"""Smallest relative gain of perplexity that counts in a search for a length."""
SLOWDOWN_WINDOWS = 3
"""Repetitions of the timing of an evaluation."""
PROTOCOLS = ("disjoint", "strided", "recurrence", "sliding")
"""Protocols of evaluation, in the order of the table: the one that takes the longest is last."""
Lengths = tuple[PositiveInt, ...] | Literal["auto"] | None
"""Lengths to evaluate, "auto" for the length that a search on the validation split selects, or None if not given."""


@dataclass(frozen=True)
class UserText:
    """Text that the user gives."""

    name: str
    """File, as given on the command line, or stdin."""
    data: bytes
    label: str
    """Name in error messages."""


def read_user_text(file: str, asked: str | None = None) -> UserText:
    """Read a text file, or stdin for "-"; errors begin with `asked`, by default the option and the file."""
    is_stdin, asked = file == "-", asked or f"`text` {file}"
    try:
        data = read_stdin(MAX_TEXT) if is_stdin else read_bytes(Path(file), MAX_TEXT)
    except OSError as error:
        raise UsageError(f"{asked}: cannot be read ({error.strerror}); check the path") from error
    return UserText("stdin" if is_stdin else file, data, label=asked)


class EvalOptions(PlotOptions):
    """Options of `txl eval`; None selects the setting of the recipe."""

    split: Split | None = option("Split to score [default: test].")
    mem_len: tuple[NaturalInt, ...] | Literal["auto"] | None = option(
        "Memory lengths to evaluate, or auto to search for one [default: the recipe's]."
    )
    attn_len: Lengths = option("Evaluate without memory, with windows of these lengths.")
    stride: PositiveInt | None = option(
        "Tokens predicted per window; only 1 is exact [default: 1, of strided windows half of N]."
    )
    protocols: tuple[str, ...] = option(
        f"Compare protocols of evaluation on the same tokens: {', '.join(PROTOCOLS)}.",
        default=(),
        metavar="NAME,...|all",
        read=lambda text: PROTOCOLS if text == "all" else tuple(dict.fromkeys(text.split(","))),
    )
    seg_len: PositiveInt | None = option("Segment length L; changes speed, and without memory the context.")
    max_distance: PositiveInt | Literal["none"] | None = option("Distances beyond it share one encoding.")
    same_length: bool | None = option("Every query sees M keys, or M + 1 to M + L.")
    temperature: Annotated[float, Range(above=0, most=100)] | Literal["auto"] | None = option(
        "Divide the logits by this number; auto selects it on valid [default: the recipe's]."
    )
    cache: PositiveInt | None = option("Add a continuous cache of N tokens (Grave et al.).")
    dynamic: bool = flag_option("Add dynamic evaluation: train on the text while scoring (Krause et al.).")
    reset_at_documents: bool = flag_option("Read each document from an empty memory; the store must keep them apart.")
    batch_size: PositiveInt | None = option("Lanes, or windows, evaluated side by side; 1 lane is the reference.")
    positions: PositiveInt | None = option("Score the first N tokens only.")
    text: UserText | None = option(
        "Score a text file instead of a split; - is stdin.",
        metavar="FILE",
        read=read_user_text,
    )
    losses: Path | None = option(
        "Write the loss of every token to this file.",
        metavar="FILE.h5",
        writes=LOSS_FORMATS,
    )
    html: Path | None = option(
        "Write a page with the text coloured by loss, and by what memory gained.",
        metavar="FILE.html",
        writes=(".html",),
    )
    attention: AttentionBackend | None = attention_option()
    compile: Compile | None = compile_option()
    timed: bool = True
    """True to time a vanilla model as well (slowdown)."""

    def _check(self) -> None:
        others = self.given("protocols", "cache", "dynamic", "reset_at_documents")
        if self.searched and others:
            raise UsageError(f"`{self.searched}` auto: {others[0]} does not search; give a length, such as 64")
        if self.adapts and len(self.mem_lens) > 1:
            raise UsageError("`cache` and `dynamic` take one `mem_len`; leave out the others")
        if self.losses is not None:
            from txlcli.data import loss_file

            loss_file.check_path(self.losses, f"`losses` {self.losses}")  # `force` replaces a file of losses only
        shortest = min(self.windows, default=MAX_COUNT)
        if (self.stride or 0) > shortest:
            raise UsageError(f"`stride` {self.stride} exceeds the window length {shortest}; give at most that")
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise UnknownNameError("protocol", name, PROTOCOLS)
        if self.protocols and 0 in self.mem_lens:
            raise UsageError("`mem_len` 0: `protocols` compare a memory with windows of its length; give 1 or more")
        object.__setattr__(self, "protocols", tuple(name for name in PROTOCOLS if name in self.protocols))

    @property
    def mem_lens(self) -> tuple[int, ...]:
        """Memory lengths given; empty for that of the recipe or a search."""
        return self.mem_len if isinstance(self.mem_len, tuple) else ()

    @property
    def windows(self) -> tuple[int, ...]:
        """Window lengths given; empty for an evaluation with memory or a search."""
        return self.attn_len if isinstance(self.attn_len, tuple) else ()

    @property
    def searched(self) -> Literal["mem_len", "attn_len"] | None:
        """Option whose length is searched for."""
        if self.mem_len == AUTO:
            return "mem_len"
        return "attn_len" if self.attn_len == AUTO else None

    @property
    def adapts(self) -> bool:
        """True if the model adapts to the text by more than its memory."""
        return self.cache is not None or self.dynamic

    def check_processes(self, processes: int) -> None:
        """Reject an evaluation that several processes cannot divide."""
        if processes > 1:
            names = ("cache", "dynamic", "html", "reset_at_documents")
            self.exclude(*names, because="several processes divide the lanes, or the windows, of the model alone")
            if self.text is not None and self.text.name == "stdin":
                raise UsageError(f"{self.text.label}: several processes cannot share stdin; give a file instead")

    def apply_to(self, settings: EvalSettings) -> EvalSettings:
        """Return a recipe's evaluation settings with these options applied."""
        same_length = settings.same_length
        if self.same_length is not None and self.same_length != (same_length != "off"):  # keep "m_plus_one"
            same_length = "m" if self.same_length else "off"
        limit = settings.max_distance if self.max_distance is None else self.max_distance
        return replace(
            settings,
            seg_len=self.seg_len or settings.seg_len,
            batch_size=self.batch_size or settings.batch_size,
            max_distance=None if limit == "none" else limit,
            same_length=same_length,
            temperature=self.temperature or settings.temperature,
        )


DEFAULT_CONTEXT, DEFAULT_TOP_K = 512, 40


class GenerateOptions(Options):
    """Options of `txl generate`: context and sampling of the texts."""

    prompt: str | None = option("Text to continue; - is stdin.", metavar="TEXT")
    at: NaturalInt | None = option("Last token of the context in the test split [default: random, by --seed].")
    context: PositiveInt | None = option(f"Tokens of context, at most [default: {DEFAULT_CONTEXT}].")
    tokens: PositiveInt = option("Tokens to generate.", default=500)
    samples: PositiveInt = option("Number of texts to generate.", default=1)
    top_k: NaturalInt | None = option(
        f"Sample from the k likeliest tokens; 0 is all [default: {DEFAULT_TOP_K}, or all with --top-p]."
    )
    top_p: PositiveShare | None = option("Sample from the likeliest tokens that reach this probability.")
    temperature: Annotated[float, Range(least=1e-3, most=1e3)] | None = option(
        "Below 1 prefers likely tokens; --greedy selects the likeliest [default: 1]."
    )
    greedy: bool = flag_option("Always select the likeliest token.")
    reference: bool = flag_option("Also print the context and its actual continuation in the test split.")
    compile: Compile | None = compile_option()
    seed: Seed = seed_option()


DEFAULT_QUERIES = 5_000
MAX_HEADS = 24
"""Heads that one figure has room for."""

Head = tuple[int, int]
"""(layer, head), both from 1."""


def read_heads(text: str) -> tuple[Head, ...]:
    """Read heads: `2.10,1.3` -> ((2, 10), (1, 3))."""
    pairs = (part.split(".") for part in text.split(","))
    return tuple(dict.fromkeys((int(layer), int(head)) for layer, head in pairs))


class AttentionOptions(Options):
    """Options of `txl attention`."""

    heads: tuple[Head, ...] | None = option(
        "Heads of Figure 6, counted from 1.1 [default: those with the widest attention].",
        metavar="LAYER.HEAD,...",
        read=read_heads,
        example="layer.head, both from 1, like 2.3,5.1",
    )
    at: NaturalInt | None = option("First token of Figure 6 [default: random, by --seed].")
    positions: PositiveInt | None = option(f"Tokens to average over [default: {DEFAULT_QUERIES:,} at most].")
    split: Split = option("Split to measure on.", default="valid")
    mem_len: NaturalInt | None = memory_option()
    seg_len: PositiveInt | None = option("Segment length L [default: the recipe's].")
    out: Path | None = option("Folder of the figures [default: RUN/figures].", metavar="FOLDER")
    format: Literal["png", "svg", "pdf"] = option("File format of the figures.", default="png")
    force: bool = force_option()
    seed: Seed = seed_option()

    def _check(self) -> None:
        if len(self.heads or ()) > MAX_HEADS:
            raise UsageError(f"Figure 6 has room for {MAX_HEADS} heads; select fewer with `heads`")


class ProbeOptions(PlotOptions):
    """Options of `txl probe`."""

    distances: tuple[AtLeastTwo, ...] | None = option(
        "Distances in tokens [default: powers of two, up to the first beyond L + M]."
    )
    texts: PositiveInt = option("Generated texts for each distance.", default=32)
    positions: PositiveInt = option("Score the words of the first N tokens of the split.", default=50_000)
    split: Split = option("Split with the words, and the tokens of the generated texts.", default="valid")
    mem_len: NaturalInt | None = memory_option()
    seed: Seed = seed_option()


DEFAULT_RECL_STEPS = 9  # ten lengths, 100 to 1,000; Table 8 goes to 900
DEFAULT_RECL_POSITIONS = 2_000


class ReclOptions(PlotOptions):
    """Options of `txl recl`."""

    split: Literal["valid", "test"] = option("Split to score.", default="test")
    start: PositiveInt = option("Shortest context length, in tokens.", default=100)
    step: PositiveInt = option("Step to the next context length, in tokens.", default=100)
    longest: PositiveInt | None = option("Longest context length, in tokens [default: nine steps from --start].")
    top_r: tuple[PositiveShare, ...] = option(
        "Compare on these shares of the hardest positions [default: 0.1,0.5,1.0].", default=(0.1, 0.5, 1.0)
    )
    threshold: PositiveShare = option(
        "Smallest relative gain of perplexity that counts; 1 % in the paper.", default=0.01
    )
    positions: PositiveInt | None = option(
        f"Score N positions, sampled with --seed [default: {DEFAULT_RECL_POSITIONS:,} at most]."
    )
    batch_size: PositiveInt | None = option("Contexts evaluated at once; changes speed and memory.")
    plot_ppl: Path | None = option(
        "Also plot perplexity by context length to this file (Figure 4).",
        writes=FIGURE_FORMATS,
    )
    seed: Seed = seed_option()

    def _check(self) -> None:
        if self.longest is not None and self.longest < self.start + self.step:
            raise UsageError(f"`longest` {self.longest}: give at least `start` + `step`, {self.start + self.step}")

    @property
    def contexts(self) -> list[int]:
        """Context lengths to compare, in tokens."""
        last = self.longest if self.longest is not None else self.start + DEFAULT_RECL_STEPS * self.step
        return list(range(self.start, last + 1, self.step))


class DecompressOptions(Options):
    """Options of `txl decompress`."""

    force: bool = force_option()


class CompressOptions(DecompressOptions):
    """Options of `txl compress`."""

    mem_len: NaturalInt | None = memory_option()
    lanes: Annotated[int, Range(least=1, most=4096)] | None = option(
        "Parts coded side by side; more are faster and larger [default: one per 8 KiB, at most 64]."
    )


class PrepareOptions(Options):
    """Options of `txl prepare`; None means that the corpus decides."""

    source: Path | None = option("Read the corpus from this archive, folder or file instead of downloading it.")
    name: str | None = option("Name of the store [default: from corpus and tokenizer].")
    tokenizer: Literal["byte", "char", "word", "sentencepiece"] | None = option(
        "How text is split into tokens [default: the corpus's own]."
    )
    vocab_size: AtLeastTwo | None = option(
        "Largest number of words, or size of the SentencePiece model [default: 8000]."
    )
    min_count: PositiveInt | None = option("Treat words or characters that are rarer in train as unknown.")
    sp_type: Literal["unigram", "bpe"] | None = option("Type of the SentencePiece model [default: unigram].")
    split: tuple[NotNegativeFloat, ...] | None = option(
        "Shares of train, valid and test in percent [default: 90,5,5].",
        read=lambda text: tuple(map(float, text.split(","))),
        example="three shares like 90,5,5",
    )
    released_convention: bool = flag_option("Treat enwik8 and lm1b like the released code of the paper.")
    vocab: Path | None = option("Encode with this vocabulary, such as the vocab.json of a run.", metavar="FILE")
    workers: PositiveInt | None = option("Processes that read the text [default: one per processor, at most 6].")
    dtype: IdType | None = option(
        "Type of the ids of a .bin without a header: uint8, uint16, uint32, int32, int64; big-endian: uint16-be "
        "[default: uint16].",
        metavar="TYPE",
    )
    column: str | None = option("Column or key of rows with the text [default: text, or the only one].")
    documents: Literal["files", "records", "blank-lines"] | None = option(
        "Store where documents begin, and cut splits between them: files, records, or texts between blank lines."
    )
    encoding: str | None = option("Encoding of the text, such as utf-16 or cp1252 [default: UTF-8].")
    force: bool = force_option()

    def _check(self) -> None:
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            raise UsageError(f'`encoding` "{self.encoding}" is not known; give one of Python, such as cp1252') from None
        shares = self.split
        if shares and not (len(shares) == 3 and shares[0] > 0 and abs(sum(shares) - 100) < 1e-6):
            raise UsageError("`split`: give three shares of train, valid and test that sum to 100, like 90,5,5")


class ImportOptions(Options):
    """Options of `txl import`."""

    recipe: str | None = option("Recipe with the settings of a file of weights.", metavar="RECIPE")
    vocab: Path | None = option("File with the vocabulary of the weights.", metavar="FILE")
    store: str | None = option("Token store with that vocabulary [default: the recipe's, or of the folder's name].")
    name: str | None = option("Name of the run [default: name of the source].")
    overrides: tuple[str, ...] = overrides_option()
    force: bool = force_option()

    def _check(self) -> None:
        if any(change.partition("=")[0].strip() == "corpus.store" for change in self.overrides):
            raise UsageError("`overrides` corpus.store: select the store with `store` instead")


class ExportOptions(Options):
    """Options of `txl export`."""

    format: Literal["huggingface", "pt2", "nanogpt", "llm.c", "megatron", "parquet"] = option(
        "huggingface, or pt2 (a program of PyTorch) for a run; nanogpt, llm.c (.bin), megatron (.bin and .idx) or "
        "parquet (text) for a store.",
        default="huggingface",
    )
    force: bool = force_option()


class ReportOptions(Options):
    """Options of `txl runs report`."""

    out: Path | None = option("Folder of the report [default: RUN/report].", metavar="FOLDER")
    samples: NaturalInt = option("Number of texts to generate.", default=2)
    seed: Seed = seed_option()
    force: bool = force_option()


class TrainOptions(Options):
    """Options of `txl train`; None keeps the setting of the recipe, or of the run that is resumed."""

    name: str | None = option("Name of the run [default: name of the recipe].")
    resume: str | None = option("Resume this run.", metavar="RUN")
    begin_from: str | None = option(
        "Begin a new run with the weights of this one, and its settings unless a recipe is given.", metavar="RUN"
    )
    max_steps: PositiveInt | None = option("Stop and save after this step, without changing the schedule.")
    max_minutes: NotNegativeFloat | None = option("Stop and save after this time.")
    log_every: PositiveInt | None = option("Steps between two reports.")
    overrides: tuple[str, ...] = overrides_option()
    precision: Precision | None = option("Precision of matrix products [default: as in the recipe].")
    attention: AttentionBackend | None = attention_option()
    compile: Compile | None = compile_option()
    seed: Seed | None = option("Random seed.")
    profile: PositiveInt | None = option(
        "Record the kernels of N steps after the warm-up: a table, and a trace in the run folder."
    )
    force: bool = force_option()
    resume_hint: str | None = None
    """Advice on resuming after a stop; None for `txl train --resume`."""

    @property
    def changes(self) -> list[str]:
        """Changes of settings, as `overrides` has them."""
        settings = {
            "train.precision": self.precision,
            "train.attention": self.attention,
            "train.compile": self.compile,
            "train.seed": self.seed,
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


class LaunchOptions(Options):
    """Processes that divide the work of `txl train`, and runs that repeat it; a forecast of them."""

    processes: PositiveInt = option("Divide each batch among this many processes, one per GPU.", default=1)
    restarts: NaturalInt = option(
        "Start the processes again, up to N times, if one is lost; they resume the run.",
        default=0,
    )
    seeds: PositiveInt = seeds_option()
    dry_run: bool = flag_option("Print the plan, its memory and its time; do not train.")


class ScaleOptions(Options):
    """Options of `txl recipes scale`: one of several equal GPUs; None is unknown."""

    overrides: tuple[str, ...] = overrides_option()
    device_memory: float | None = quantity_option("Memory of each GPU, such as 80GiB; says whether a step fits.", "B")
    """In bytes."""
    bandwidth: float | None = quantity_option(
        "Bytes that each GPU sends per second while it receives as many, such as 300GB/s.", "B/s"
    )
    """In bytes per second."""
    device_flops: float | None = quantity_option(
        "Peak rate of matrix products of each GPU in the precision of training, such as 989TFLOP/s; gives tokens/s and "
        "time.",
        "FLOP/s",
    )
    """In operations per second."""


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


class ReproduceOptions(Options):
    """Options of `txl reproduce`."""

    scale: Literal["tiny", "small", "paper"] = option(
        "tiny: minutes on two cores; small: one GPU; paper: as published.", default="tiny"
    )
    seeds: PositiveInt = seeds_option()
    out: Path | None = option("Folder of the report [default: reproduction-SCALE].")
    list: bool = flag_option("List the items with their missing training runs, and stop.")

    @property
    def directory(self) -> Path:
        """Directory of the report."""
        return self.out or Path(f"reproduction-{self.scale}")
