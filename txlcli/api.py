"""The Python interface: prepare a corpus, train, load a run, score and generate text, evaluate, make a model.

Names in this module are stable: they change only with a new minor version, and the changelog says so.
Axes: T tokens, V vocabulary.
"""

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.config import recipe as recipes
from txlcli.config.ranges import PositiveInt, checked
from txlcli.config.settings import Precision, Settings
from txlcli.core.architectures import registry
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.data.token_store import SUFFIX, TokenStore
from txlcli.data.vocabulary import Vocab, to_bytes
from txlcli.errors import RecipeError, UsageError
from txlcli.paper import metrics
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import evaluate as evaluation
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.rows import EvalRow, with_memory
from txlcli.workflows.evaluation.scoring import Scoring, one_lane
from txlcli.workflows.evaluation.texts import encode_text
from txlcli.workflows.generate import Generation, encode_prompt
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.options import Split
from txlcli.workflows.preparation import preparing
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.reporter import OnProgress, Reporter
from txlcli.workflows.training.log import OnReport
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import TrainingResult, train_recipe
from txlcli.workflows.user_text import UserText
from txlcli.workflows.workspace import Device, Workspace

PathLike = str | os.PathLike[str]
Lengths = int | Iterable[int] | Literal["auto"] | None
"""One length, several, "auto" for the one that a search on the validation split selects, or None for the recipe's."""


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """Losses of a text."""

    tokens: NDArray[np.int64]
    """Ids of the scored tokens, (T,)."""
    loss_nats: NDArray[np.float32]
    """Cross entropy of each scored token in nats, (T,)."""
    bits_per_byte: float | None
    """Bits per byte of the text; None if not every byte is scored, as with words."""

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


class Sampling(TypedDict, total=False):
    """Options of `LoadedRun.generate` and `LoadedRun.stream`."""

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

        Args:
            batch_size: number of texts that are read side by side.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.

        Raises:
            UsageError: the model cannot use a memory.
        """
        settings = one_lane(self._opened.run, mem_len=mem_len)
        return make_reader(self.model, replace(settings, batch_size=batch_size))

    @checked
    def score(self, text: str | bytes, *, mem_len: int | None = None) -> TextScore:
        """Score a text in one pass, token by token, as `txl eval --text` with one batch lane.

        A word model reads an implied <eos> first, so that every token is scored; otherwise the first token has no
        context and is not scored.

        Args:
            text: text, or any bytes for a byte-level model.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.

        Raises:
            VocabularyError: the text has no token to predict, or a symbol without an id.
            UsageError: the model cannot use a memory.
        """
        data = to_bytes(text) if isinstance(text, str) else text
        source = UserText("text", data, label="text")
        encoded = encode_text(self._opened, source, None, self._workspace.reporter)
        settings = one_lane(self._opened.run, mem_len=mem_len)
        scoring = Scoring(self._opened, encoded, settings, self._workspace)
        row = with_memory(scoring, settings.mem_len)
        return TextScore(
            tokens=encoded.targets.astype(np.int64),
            loss_nats=row.losses_nats,
            bits_per_byte=row.measures.get("bits_per_byte"),
        )

    @checked
    def log_probs(self, text: str | bytes, *, mem_len: int | None = None) -> NDArray[np.float32]:
        """Return the log-probabilities in nats, (T, V), of the token that follows each of the T tokens of a text.

        For a large vocabulary and a long text, use `reader`: it predicts one segment at a time.

        Args:
            text: text, or any bytes for a byte-level model.
            mem_len: memory length M in tokens; None is that of the recipe's evaluation.

        Raises:
            VocabularyError: the text is empty, or has a symbol without an id.
            UsageError: the model cannot use a memory.
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
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        given = GenerateOptions(prompt=prompt, stop=stops, **options)
        given.exclude("samples", because="a call generates one text")
        context = encode_prompt(self._opened, prompt, self._workspace.reporter)
        generation = Generation(opened=self._opened, options=given, context=context)
        return generation.spell_sample(next(generation.samples()), after=context[-1])

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
    ) -> list[EvalRow]:
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
        return list(result.rows)


@checked
def prepare(
    source: PathLike,
    options: PrepareOptions | None = None,
    *,
    data_dir: PathLike = "data",
    on_progress: OnProgress | None = None,
) -> TokenStore:
    """Prepare a corpus, or a text of your own, as `txl prepare`.

    Args:
        source: name of a corpus, or path of a text file or a folder.
        options: tokenizer, vocabulary and so on.
        data_dir: folder that receives the store.
        on_progress: receives messages and progress; None drops them.

    Raises:
        UsageError: the options exclude each other, or a store of that name exists.
        CorpusInputError: the text cannot be downloaded, read or split.
    """
    given = options or PrepareOptions()
    result = preparing.run(os.fspath(source), given, Path(data_dir), reporter=Reporter(on_progress))
    return result.store


@checked
def train(
    recipe: PathLike | None = None,
    options: TrainOptions | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
) -> TrainingResult:
    """Train a recipe, or resume a run, as `txl train` in one process.

    Args:
        recipe: a recipe file, the name of a packaged recipe, or of a token store; None with `options.resume`, or for
            the settings of the run that `options.begin_from` names.
        options: name of the run, limits, changes of settings and so on.
        runs_dir: folder of the runs.
        data_dir: folder of the token stores.
        device: auto uses CUDA if available.
        on_report: receives every line of metrics.jsonl, as a dictionary.
        on_progress: receives messages and progress; None drops them.

    Raises:
        UsageError, RecipeError: the options, the recipe or a change is not valid.
        StoreError: the token store is missing or damaged.
        TrainingError: training cannot continue, such as after a loss that is not finite.
        Interrupted: Ctrl-C; the message says what was saved.
    """
    workspace = Workspace(
        data_dir=Path(data_dir), runs_dir=Path(runs_dir), device=device, reporter=Reporter(on_progress)
    )
    source = None if recipe is None else os.fspath(recipe)
    return train_recipe(source, options or TrainOptions(), workspace, on_report=on_report)


@checked
def load(
    run: PathLike | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    precision: Precision | None = None,
    on_progress: OnProgress | None = None,
) -> LoadedRun:
    """Load a trained run with its best weights.

    Args:
        run: name or folder of the run; None is the most recent one.
        runs_dir: folder of the runs.
        data_dir: folder of the token stores; only `LoadedRun.evaluate` reads one.
        device: auto uses CUDA if available.
        precision: of matrix products; None is that of training.
        on_progress: receives messages and progress, see `txlcli.workflows.reporter.OnProgress`; None drops them.

    Raises:
        RunError, UnknownNameError: the run does not exist or cannot be opened.
        UsageError: the device or the precision is not available.
    """
    workspace = Workspace(
        data_dir=Path(data_dir),
        runs_dir=Path(runs_dir),
        device=device,
        precision=precision,
        reporter=Reporter(on_progress),
    )
    run_name = None if run is None else os.fspath(run)
    return LoadedRun(workspace.open_run(run_name), workspace)


@checked
def open_store(store: PathLike, *, data_dir: PathLike = "data") -> TokenStore:
    """Open a token store that `txl prepare` wrote.

    Args:
        store: its name, or the path of the .h5 file.
        data_dir: folder of the token stores, for a name.

    Raises:
        StoreError: it is missing, damaged, or not a token store.
    """
    path = Path(store)
    if path.suffix != SUFFIX:
        path = Path(data_dir) / f"{store}{SUFFIX}"
    return TokenStore.open(path)


@checked
def make_model(
    recipe: PathLike, *, vocab_size: PositiveInt | None = None, changes: Mapping[str, object] = MappingProxyType({})
) -> LanguageModel:
    """Make the model of a recipe with fresh weights.

    Args:
        recipe: name of a packaged recipe, or a recipe file.
        vocab_size: number of tokens V; None is the published V of the recipe's corpus.
        changes: settings to change, such as {"model.n_layers": 6}.

    Raises:
        RecipeError: the recipe or a change is not valid, or it has no published vocabulary and none is given.
        UsageError: the vocabulary size is out of range.
    """
    overrides = []
    for key, value in changes.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        overrides.append(f"{key}={text}")
    settings = recipes.load(os.fspath(recipe), overrides)
    size = vocab_size or settings.published.vocab_size
    if size is None:
        raise RecipeError(f"{os.fspath(recipe)} has no published vocabulary; give vocab_size, as in store.vocab.size")
    return registry.make_model(settings.model, size)


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
