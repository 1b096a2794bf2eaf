"""Options of `txl eval`, without PyTorch."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from txlcli.config.ranges import MAX_COUNT, NaturalInt, PositiveInt, Range
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import AttentionBackend, Compile
from txlcli.errors import UnknownNameError, UsageError
from txlcli.workflows.evaluation import words_file
from txlcli.workflows.options import (
    LOSS_FORMATS,
    PlotOptions,
    Split,
    attention_option,
    check_documents,
    check_encoding,
    column_option,
    compile_option,
    encoding_option,
    flag_option,
    option,
)
from txlcli.workflows.user_text import STDIN, UserText

LengthOption = Literal["mem_len", "attn_len"]
"""Option whose lengths are swept or searched."""
LENGTH_THRESHOLD = 0.001
"""Smallest relative gain of perplexity that counts in a search for a length."""
SLOWDOWN_REPETITIONS = 3
"""Repetitions of each time of which the slowdown is made; a repetition of the vanilla model is one window."""
PROTOCOLS = ("disjoint", "strided", "recurrence", "sliding")
"""Protocols of evaluation, in the order of the table: the one that takes the longest is last."""


def read_protocols(text: str) -> tuple[str, ...]:
    """Read names of protocols, or all of them."""
    return PROTOCOLS if text == "all" else tuple(text.split(","))


class EvalOptions(PlotOptions):
    """Options of `txl eval`; None selects the setting of the recipe."""

    split: Split | None = option("Split to score [default: test].")
    mem_len: tuple[NaturalInt, ...] | Literal["auto"] | None = option(
        "Memory lengths to evaluate, or auto to search for one [default: the recipe's]."
    )
    attn_len: tuple[PositiveInt, ...] | Literal["auto"] | None = option(
        "Evaluate without memory, with windows of these lengths."
    )
    stride: PositiveInt | None = option(
        "Tokens predicted per window; only 1 is exact [default: 1, of strided windows half of N]."
    )
    protocols: tuple[str, ...] = option(
        f"Compare protocols of evaluation on the same tokens: {', '.join(PROTOCOLS)}.",
        default=(),
        metavar="NAME,...|all",
        read=read_protocols,
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
    text: tuple[UserText, ...] = option(
        "Score a text instead of a split: a file that prepare reads, a folder, or - for stdin. Several texts, and the "
        "files of a folder, are documents, each read from an empty memory.",
        default=(),
        metavar="FILE|FOLDER",
        read_each=UserText.of_option,
    )
    documents: str | None = option(
        "Read each document of `text` from an empty memory: files, records, texts between blank lines, or up to marks.",
        metavar="files|records|blank-lines|MARK",
    )
    column: str | None = column_option()
    encoding: str | None = encoding_option()
    store: str | None = option("Token store whose split is scored, as text, by a model that is not a run.")
    trust_remote_code: bool = flag_option("Run the Python code in the folder of a model of Transformers.")
    losses: Path | None = option(
        "Write the loss of every token to this file.",
        metavar="FILE.h5",
        writes=LOSS_FORMATS,
    )
    words: Path | None = option(
        "Write the bits of every word of `text` to this file.",
        metavar="FILE.tsv",
        writes=(words_file.SUFFIX,),
        signature=words_file.SIGNATURE,
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
        self._check_lengths()
        if self.losses is not None:
            from txlcli.data import loss_file

            loss_file.check_path(self.losses, f"`losses` {self.losses}")  # `force` replaces a file of losses only
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise UnknownNameError("protocol", name, PROTOCOLS)
        if self.protocols and 0 in self.mem_lens:
            raise UsageError("`mem_len` 0: `protocols` compare a memory with windows of its length; give 1 or more")
        self._check_text()
        self._check_methods()
        if self.protocols:
            self._check_protocols()
        elif self.attn_len is None:
            self.exclude("stride", because="`stride` is the number of tokens predicted per window of `attn_len`")
        else:
            self.exclude("mem_len", "seg_len", "same_length", because="`attn_len` evaluates windows without memory")

    def _check_lengths(self) -> None:
        """Reject a search where a length must be given, and lengths that do not fit each other."""
        others = self.given("protocols", "cache", "dynamic", "reset_at_documents")
        if self.searched and others:
            raise UsageError(f"`{self.searched}` auto: {others[0]} does not search; give a length, such as 64")
        if self.adapts and len(self.mem_lens) > 1:
            raise UsageError("`cache` and `dynamic` take one `mem_len`; leave out the others")
        self.check_stride(self.windows)

    def check_stride(self, lengths: tuple[int, ...]) -> None:
        """Reject a stride that exceeds a window length."""
        shortest = min(lengths, default=MAX_COUNT)
        if self.stride is not None and self.stride > shortest:
            raise UsageError(f"`stride` {self.stride} exceeds the window length {shortest}; use at most that")

    def _check_text(self) -> None:
        """Reject options that do not apply to the text."""
        if self.reset_at_documents:
            because = "`reset_at_documents` reads the documents of a split with a memory"
            self.exclude("text", "attn_len", because=because)
        if self.text:
            self.exclude("split", because="`text` is scored instead of a split")
        else:
            self.exclude("column", "encoding", "documents", because="without `text`, a split is scored")
        if [source.name for source in self.text].count(STDIN) > 1:
            raise UsageError("`text` - is given twice, and stdin has one text; leave out one of them")
        check_encoding(self.encoding)
        check_documents(self.documents)
        if self.reads_documents or self.reset_at_documents:
            because = "each document is read from an empty memory"
            self.exclude("protocols", "cache", "dynamic", "plot", "html", because=because)

    def _check_methods(self) -> None:
        """Reject options that do not apply to the method or the file that others ask for."""
        if self.adapts:
            self.exclude("attn_len", "plot", because="`cache` and `dynamic` take one memory length")
        for file in self.given("losses", "words", "html"):
            self.exclude("cache", "dynamic", "protocols", because=f"{file} has the model alone, by one protocol")
        if self.words is not None and not self.text and self.store is None:
            raise UsageError("`words` needs the `text` that it divides; give a file, or - for stdin")
        if self.html is not None:
            self.exclude("attn_len", because="`html` shows the model and its memory")
        if self.dynamic or self.reset_at_documents:
            self.exclude("compile", because="`dynamic` and `reset_at_documents` compile nothing")

    def _check_protocols(self) -> None:
        """Reject options that apply to none of the selected protocols."""
        self.exclude("cache", "dynamic", "plot", because="`protocols` compares the model at given lengths")
        if "strided" not in self.protocols:
            self.exclude("stride", because="strided is not among the `protocols`")
        if "recurrence" not in self.protocols:
            self.exclude("mem_len", "seg_len", "same_length", because="recurrence is not among the `protocols`")
        if set(self.protocols) == {"recurrence"}:
            self.exclude("attn_len", because="recurrence has no windows")

    @property
    def mem_lens(self) -> tuple[int, ...]:
        """Memory lengths given; empty for that of the recipe or a search."""
        return self.mem_len if isinstance(self.mem_len, tuple) else ()

    @property
    def windows(self) -> tuple[int, ...]:
        """Window lengths given; empty for an evaluation with memory or a search."""
        return self.attn_len if isinstance(self.attn_len, tuple) else ()

    @property
    def searched(self) -> LengthOption | None:
        """Option whose length is searched for."""
        if self.mem_len == "auto":
            return "mem_len"
        return "attn_len" if self.attn_len == "auto" else None

    @property
    def reads_documents(self) -> bool:
        """True if `text` has documents that are read from an empty memory each."""
        return self.documents is not None or len(self.text) > 1 or any(source.is_folder for source in self.text)

    @property
    def adapts(self) -> bool:
        """True if the model adapts to the text by more than its memory."""
        return self.cache is not None or self.dynamic

    def check_run(self, processes: int, default_batch_size: int) -> None:
        """Reject options that only a model of Transformers has, and an evaluation that processes cannot divide.

        The lanes of a user's text depend on its length: these are checked when it is read.
        """
        self.exclude("store", because="a run has a token store of its own")
        self.exclude("trust_remote_code", because="a run has no code")
        if processes == 1:
            return
        because = "several processes divide the lanes, or the windows, of the model alone"
        self.exclude("cache", "dynamic", "html", "words", "reset_at_documents", because=because)
        if self.reads_documents:
            raise UsageError(f"{because}, not documents; leave out `processes`")
        for source in self.text:
            if source.name == STDIN:
                raise UsageError(f"{source.label}: several processes cannot share stdin; give a file instead")
        batch_size = self.batch_size or default_batch_size
        reads_lanes = not self.text and self.attn_len is None and not self.protocols
        if reads_lanes and processes > batch_size:
            raise UsageError(
                f"{processes} processes divide the lanes of the batch, of which there are {batch_size}; give "
                f"`batch_size` {processes} or more, or use fewer processes"
            )

    def check_external(self, processes: int) -> None:
        """Reject options that only a run has, for a model of Transformers."""
        because = "a model of Transformers has no train and valid split, and none of the kernels of txl"
        runs_only = ("cache", "dynamic", "reset_at_documents", "max_distance", "same_length", "attention", "compile")
        self.exclude(*runs_only, because=because)
        if self.searched or self.temperature == "auto":
            raise UsageError(f"auto chooses on valid, and {because}; give a number")
        if not self.text and self.store is None:
            raise UsageError(f"{because}: give `text` with a file, or `store` with the name of a token store")
        if self.text:
            self.exclude("store", because="`text` is scored instead of a split")
        if processes > 1:
            raise UsageError("a model of Transformers is evaluated in one process; leave out `processes`")

    def apply_to(self, settings: EvalSettings) -> EvalSettings:
        """Return a recipe's evaluation settings with these options applied."""
        changes: dict[str, Any] = {}
        if self.seg_len is not None:
            changes["seg_len"] = self.seg_len
        if self.batch_size is not None:
            changes["batch_size"] = self.batch_size
        if self.max_distance is not None:
            changes["max_distance"] = None if self.max_distance == "none" else self.max_distance
        if self.same_length is False:
            changes["same_length"] = "off"
        elif self.same_length and settings.same_length == "off":  # otherwise keep "m_plus_one"
            changes["same_length"] = "m"
        if self.temperature is not None:
            changes["temperature"] = self.temperature
        return replace(settings, **changes)
