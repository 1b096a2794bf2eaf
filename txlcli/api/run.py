"""A trained run: score, predict and generate text, evaluate, and all that the commands measure or write.

Axes: T tokens, V vocabulary.
"""

import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.config.ranges import checked
from txlcli.config.settings import Settings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import depends_on_segments, make_reader
from txlcli.data.vocabulary import Vocab, to_bytes
from txlcli.errors import UnknownNameError, UsageError, listed
from txlcli.paper import metrics
from txlcli.report import figures, run_report
from txlcli.report.attention import measure_and_plot
from txlcli.report.run_report import ReportOptions, RunReport
from txlcli.runs import run_directory
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows import attention, probe, speed
from txlcli.workflows.attention import AttentionResult
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.evaluation import evaluate as evaluation
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.rows import EvalRow, EvalRows, score_with_memory
from txlcli.workflows.evaluation.scoring import Scoring, one_lane
from txlcli.workflows.evaluation.search import with_temperature
from txlcli.workflows.evaluation.texts import read_user_text
from txlcli.workflows.evaluation.words import Word, with_bits, words_of_parts
from txlcli.workflows.exchange import export_run
from txlcli.workflows.exchange.export_run import ExportedRun
from txlcli.workflows.exchange.options import RUN_FORMATS, ExportOptions
from txlcli.workflows.generate import Generation, check_ids, encode_prompt
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.options import Split
from txlcli.workflows.probe import ProbeResult
from txlcli.workflows.probe_options import ProbeOptions
from txlcli.workflows.result import Result
from txlcli.workflows.speed import SpeedResult
from txlcli.workflows.speed_options import SpeedOptions
from txlcli.workflows.user_text import UserText
from txlcli.workflows.workspace import Workspace

PathLike = str | os.PathLike[str]
Lengths = int | Iterable[int] | Literal["auto"] | None
"""One length, several, "auto" for the one that a search on the validation split selects, or None for the recipe's."""


@dataclass(frozen=True, kw_only=True)
class TextScore(Result):
    """Losses of a text."""

    tokens: NDArray[np.int64]
    """Ids of the scored tokens, (T,)."""
    loss_nats: NDArray[np.float32]
    """Cross entropy of each scored token in nats, (T,)."""
    bits_per_byte: float | None
    """Bits per byte of the text; None if not every byte is scored, as with words."""
    scoring: Scoring | None = field(repr=False)
    """The text, and how it was scored; None in a copy that was pickled, which has no model."""
    row: EvalRow = field(repr=False)
    """Result of the whole text."""

    @checked
    def words(self) -> list[Word]:
        """Return the words of the text with their surprisal, a list that pandas.DataFrame takes.

        A line end is a word. The probability of ending a word belongs to the word; for SentencePiece this takes another
        pass over the text. The bits of all words add up to those of the text.

        Raises:
            UsageError: this is a copy that was pickled.
            VocabularyError: the text is not UTF-8.
        """
        if self.scoring is None:
            raise UsageError("a pickled copy of a score has no model; call words() before it is pickled")
        return with_bits(self.scoring, words_of_parts(self.scoring), self.row)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process, without the model."""
        return {**vars(self), "scoring": None}

    @property
    def total_nats(self) -> float:
        """Sum of the losses in nats."""
        return float(self.loss_nats.sum(dtype=np.float64))

    @property
    def bpc(self) -> float:
        """Mean loss in bits per token (per character or byte for models of these)."""
        return metrics.bits(self.total_nats / len(self.loss_nats))

    @property
    def ppl(self) -> float:
        """Perplexity per token."""
        return metrics.perplexity(self.total_nats / len(self.loss_nats))

    def to_json(self) -> dict[str, Any]:
        """Return the sum and the means of the losses, and the tokens."""
        return {
            "total_nats": self.total_nats,
            "bpc": self.bpc,
            "ppl": self.ppl,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens.tolist(),
            "loss_nats": self.loss_nats.tolist(),
        }

    def table(self) -> list[dict[str, Any]]:
        """Return the id and the loss of each token."""
        pairs = zip(self.tokens.tolist(), self.loss_nats.tolist(), strict=True)
        return [{"token": token, "loss_nats": nats} for token, nats in pairs]


class Sampling(TypedDict, total=False):
    """Options of `LoadedRun.generate`, `LoadedRun.stream` and `LoadedRun.generate_ids`."""

    tokens: int
    """Number of tokens to generate, by default 500."""
    temperature: float
    """Divisor of the logits, by default 1; below 1 prefers likely tokens."""
    top_k: int
    """Sample from the k likeliest tokens; 0 is all; by default 40, or all with `top_p`."""
    top_p: float
    """Sample from the likeliest tokens that together reach this probability."""
    greedy: bool
    """Always select the likeliest token; not with `temperature`, `top_k` and `top_p`."""
    seed: int
    """Seed of the samples, by default 1111; a seed gives one text."""


class LoadedRun:
    """A trained run with its best weights on a device; made by `load`.

    Args:
        opened: the run.
        workspace: folders, and the reporter that receives messages and progress.
    """

    def __init__(self, opened: OpenRun, workspace: Workspace) -> None:
        self._opened = opened
        self._workspace = workspace

    def __repr__(self) -> str:
        model = self.settings.model
        size = f"{model.n_layers} layers, {self._opened.run.parameters:,} parameters"
        return f"<LoadedRun {self.folder}: {model.arch}, {size}>"

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._opened.run.directory

    @property
    def _run_on_disk(self) -> Run:
        """The run as it is now: it may have been resumed, or trained again."""
        return run_directory.find(str(self._opened.run.subject), self._workspace.runs_dir)

    @property
    def settings(self) -> Settings:
        """All settings the run was trained with."""
        return self._opened.run.settings

    @property
    def model(self) -> LanguageModel:
        """Model in evaluation mode, a `torch.nn.Module`."""
        return self._opened.model

    @property
    def vocab(self) -> Vocab:
        """Vocabulary, with `encode`, `decode` and `size`."""
        return self._opened.vocab

    @checked
    def reader(self, *, batch_size: int = 1, mem_len: int | None = None) -> Reader:
        """Return a reader: it reads tokens in order, remembers, and predicts.

        Without a memory (M = 0), each call begins without context: read the whole context again in one call.

        Args:
            batch_size: number of texts that are read side by side.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.

        Raises:
            UsageError: the model cannot use a memory.
        """
        settings = one_lane(self._opened.run, mem_len=mem_len)
        # Single tokens then see what they see in a segment.
        by_tokens = settings.mem_len > 0 and depends_on_segments(self.model)
        return make_reader(self.model, settings.with_batch_size(batch_size), by_tokens=by_tokens)

    @checked
    def score(
        self,
        text: str | bytes | os.PathLike[str],
        *,
        mem_len: int | None = None,
        column: str | None = None,
        encoding: str | None = None,
    ) -> TextScore:
        """Score a text in one pass, token by token, as `txl eval --text` with one batch lane.

        The run's evaluation settings hold, such as its temperature.

        A word model reads an implied <eos> first, so that every token is scored; otherwise the first token has no
        context and is not scored. Each file of a folder is read from an empty memory.

        Args:
            text: text, any bytes for a byte-level model, or the path of a file or folder, read as `txl prepare` does.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.
            column: column or key of rows with the text of a file, or its number in a CSV without a header; None is
                text, or the only one.
            encoding: encoding of the text of a file, such as utf-16 or cp1252; None is UTF-8.

        Raises:
            VocabularyError: the text has no token to predict, or a symbol without an id.
            UsageError: the model cannot use a memory, or `column` or `encoding` has no effect.
        """
        if isinstance(text, str) and os.path.isfile(text):  # no error if it is too long
            raise UsageError(
                f'`text` is the name of a file; give pathlib.Path("{text}") to score the file, or bytes to score its '
                "name"
            )
        if isinstance(text, os.PathLike):
            source = UserText(os.fspath(text), label=os.fspath(text))
        else:
            if column is not None or encoding is not None:
                raise UsageError("`column` and `encoding` apply to files; give the pathlib.Path of one")
            source = UserText("text", to_bytes(text), label="text")
        options = EvalOptions(text=(source,), column=column, encoding=encoding)
        encoded = read_user_text(self._opened, options, self._workspace.reporter)
        settings = one_lane(self._opened.run, mem_len=mem_len)
        scoring = Scoring(self._opened, encoded, settings, self._workspace, temperature=settings.fixed_temperature)
        read = partial(score_with_memory, mem_len=settings.mem_len)
        scoring = with_temperature(scoring, read)
        row = read(scoring)
        return TextScore(
            tokens=encoded.targets.astype(np.int64),
            loss_nats=row.losses_nats,
            bits_per_byte=row.measures.get("bits_per_byte"),
            scoring=scoring,
            row=row,
        )

    @checked
    def log_probs(self, text: str | bytes, *, mem_len: int | None = None) -> NDArray[np.float32]:
        """Return the log-probabilities in nats, (T, V), of the token that follows each of the T tokens of a text.

        They are those of the model itself, at temperature 1. For a large vocabulary and a long text, use `reader`: it
        predicts one segment at a time.

        Args:
            text: text, or any bytes for a byte-level model.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.

        Raises:
            VocabularyError: the text has a symbol without an id.
            UsageError: the text is empty, or the model cannot use a memory.
        """
        ids = self.vocab.encode(text)
        if self.vocab.boundary is not None:
            ids = np.concatenate([[self.vocab.boundary], ids])
        if not len(ids):
            raise UsageError("the text is empty; give at least one character")
        reader = self.reader(mem_len=mem_len)
        tokens = torch.from_numpy(ids)[None].to(reader.device)  # (1, T)
        parts = []
        for segment in tokens.split(reader.seg_len, dim=1):
            log_probs = reader.log_probs(reader.read(segment))  # (1, L, V)
            parts.append(log_probs[0].float().cpu())
        return torch.cat(parts).numpy()

    def generate(self, prompt: str, *, stop: str | Iterable[str] = (), **options: Unpack[Sampling]) -> str:
        """Return a text that continues the prompt; see `stream`."""
        return "".join(self.stream(prompt, stop=stop, **options))

    @checked
    def stream(self, prompt: str, *, stop: str | Iterable[str] = (), **options: Unpack[Sampling]) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, while it is sampled.

        Args:
            prompt: text to continue.
            stop: text before which the continuation ends, or several.
            options: see `Sampling`.

        Raises:
            UsageError: the prompt is empty, or an option is out of range.
            VocabularyError: the prompt has a symbol without an id.
        """
        _check_sampling(options)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        given = GenerateOptions(prompt=prompt, stop=stops, **options)
        context = encode_prompt(self._opened, prompt, self._workspace.reporter)
        generation = Generation(opened=self._opened, options=given, context=context)
        return generation.spell_sample(next(generation.samples()))

    @checked
    def generate_ids(self, prompt: Iterable[int], **options: Unpack[Sampling]) -> list[int]:
        """Return the token ids that continue a prompt, for a model of ids, such as music, or of text.

        Args:
            prompt: ids to continue, read as they are.
            options: see `Sampling`.

        Raises:
            UsageError: the prompt has no ids, or one that is not in the vocabulary, or an option is out of range.
        """
        _check_sampling(options)
        given = GenerateOptions(**options)
        generation = Generation(opened=self._opened, options=given, context=check_ids(self._opened, prompt))
        return list(next(generation.samples()))

    @checked
    def evaluate(
        self,
        *,
        mem_len: Lengths = None,
        attn_len: Lengths = None,
        split: Split = "test",
        positions: int | None = None,
        batch_size: int | None = None,
        seg_len: int | None = None,
        timed: bool = False,
    ) -> EvalRows:
        """Evaluate on a split of the run's token store, as `txl eval`, without recording the result.

        Args:
            mem_len: memory lengths M in tokens.
            attn_len: or window lengths of an evaluation without memory.
            split: train, valid or test.
            positions: score only this many tokens, from the start of the split.
            batch_size: number of batch lanes, or windows, that are evaluated side by side.
            seg_len: segment length L.
            timed: also time a model without memory, for the slowdown.

        Raises:
            UsageError: the options do not fit the run, or exclude each other.
            StoreError: the token store is missing or damaged, or lacks the split.
        """
        options = EvalOptions(
            split=split,
            positions=positions,
            mem_len=_lengths("mem_len", mem_len),
            attn_len=_lengths("attn_len", attn_len),
            batch_size=batch_size,
            seg_len=seg_len,
            timed=timed,
        )
        result = evaluation.evaluate(self._opened, options, self._workspace)
        result.raise_pending()
        return EvalRows(result.rows)

    @checked
    def speed(self, options: SpeedOptions | None = None) -> SpeedResult:
        """Time the run with and without memory, in training and in generation, as `txl speed`.

        Args:
            options: attention lengths, repetitions and so on.

        Raises:
            UsageError: the options do not fit the run.
        """
        given = options or SpeedOptions()
        # Opened again, since the steps that it times change the weights.
        result = speed.time_run(self._run_on_disk, given, self._workspace)
        if given.plot is not None:
            figures.plot_times(given.plot, result)
        return result

    @checked
    def attention(self, options: AttentionOptions | None = None) -> AttentionResult:
        """Measure where the attention heads look, as `txl attention`; `options.out` receives the figures.

        Args:
            options: heads, tokens and so on.

        Raises:
            UsageError: the run has no attention to single tokens, or the options do not fit it.
            RunError: a figure exists.
        """
        given = options or AttentionOptions()
        if given.out is None:
            given.exclude("format", "force", because="figures are written only to the folder `out`")
            return attention.measure_attention(self._run_on_disk, given, self._workspace)
        result, _ = measure_and_plot(self._run_on_disk, given.out, given, self._workspace)
        return result

    @checked
    def probe(self, options: ProbeOptions | None = None) -> ProbeResult:
        """Probe how far back the model finds what it has read, as `txl probe`.

        Args:
            options: distances, texts and so on.

        Raises:
            UsageError: the options do not fit the run.
        """
        given = options or ProbeOptions()
        result = probe.probe_run(self._run_on_disk, given, self._workspace)
        if given.plot is not None:
            figures.plot_probes(given.plot, result)
        return result

    @checked
    def export(self, directory: PathLike, options: ExportOptions | None = None) -> ExportedRun:
        """Write the run for Hugging Face Transformers, or as a program of PyTorch, as `txl export`.

        Args:
            directory: receives the files.
            options: the format, and if files may be replaced.

        Raises:
            UsageError: the format is one of token stores.
            RunError: the format cannot hold the model.
            ExportError: the directory is in use, or cannot be written.
        """
        given = options or ExportOptions()
        if given.format not in RUN_FORMATS:
            raise UsageError(f"`format` {given.format} is for a token store; a run has {listed(RUN_FORMATS)}")
        return export_run.run(self._run_on_disk, Path(directory), given)

    @checked
    def report(self, options: ReportOptions | None = None) -> RunReport:
        """Write everything about the run on one page, as `txl runs report`.

        Args:
            options: folder, number of samples and so on.

        Raises:
            RunError: the folder has files.
        """
        return run_report.make(self._run_on_disk, options or ReportOptions(), self._workspace)


def _check_sampling(options: Sampling) -> None:
    """Reject options that `Sampling` does not have, although the command has some of them."""
    for name in options:
        if name not in Sampling.__annotations__:
            raise UnknownNameError("option", name, Sampling.__annotations__)


def _lengths(name: str, lengths: Lengths) -> tuple[int, ...] | Literal["auto"] | None:
    """Return lengths as the options have them."""
    if lengths is None or isinstance(lengths, str):
        return lengths
    if isinstance(lengths, int):
        lengths = [lengths]
    try:
        return tuple(operator.index(length) for length in lengths)
    except TypeError as error:
        raise UsageError(f"`{name}`: give whole numbers ({error})") from error
