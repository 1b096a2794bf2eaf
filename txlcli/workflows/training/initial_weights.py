"""Weights of another run, or of an import, with which a new run begins (`begin_from`).

Rows of embedding and softmax belong to symbols. Between two vocabularies of words, or of characters, a symbol keeps its
row; symbols without one begin with new weights.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config import recipe
from txlcli.config.bands import Band, bands
from txlcli.config.model_settings import ModelSettings
from txlcli.core.architectures.registry import parameter_shapes
from txlcli.core.model.base import LanguageModel
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RecipeError, VocabularyError
from txlcli.runs import run_directory
from txlcli.runs.loading import check_checkpoint, read_vocabulary
from txlcli.runs.run_directory import Origin, Run
from txlcli.workflows.reporter import Reporter

OF_SYMBOLS = re.compile(r"((?:.+\.)?(?:tables|biases)\.)(\d+)")
"""Name of a parameter with a row for each symbol of a band."""
UNITS = {"word": "words", "char": "characters"}
"""Tokenizers whose vocabularies can differ."""


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Weights of a run, for a model that may have another vocabulary."""

    run: Run
    checkpoint: Checkpoint
    settings: ModelSettings
    """Of the new model."""
    old_ids: NDArray[np.int64]
    """Id in the vocabulary of the weights for each id of the new one, (V,); -1 for a symbol that it lacks."""

    @property
    def _bands(self) -> list[Band]:
        """Bands of the new vocabulary."""
        return bands(self.settings, len(self.old_ids))

    def _kept_rows(self, band: Band) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Yield rows of a band whose symbols have weights, the old band with these, and their rows in it.

        Bands of another width, which depends on how frequent a word is, have none.
        """
        old_ids = torch.from_numpy(self.old_ids[band.first : band.end])
        for number, old in enumerate(bands(self.settings, self.run.vocab_size)):
            if old.width == band.width:
                (rows,) = torch.where((old_ids >= old.first) & (old_ids < old.end))
                yield rows, number, old_ids[rows] - old.first

    @property
    def origin(self) -> Origin:
        """Where the new run begins, for its card."""
        n_kept = 0
        for band in self._bands:
            n_kept += sum(len(rows) for rows, _, _ in self._kept_rows(band))
        return Origin(
            run=str(self.run.directory),
            weights=self.run.best_or_last.name,
            step=self.checkpoint.state["step"],
            weights_sha256=self.checkpoint.weights_digest(),
            new_symbols=len(self.old_ids) - n_kept,
        )

    @torch.no_grad()
    def copy_into(self, model: LanguageModel) -> None:
        """Copy the weights into a new model; rows of new symbols keep their values."""
        saved = self.checkpoint.group(self.checkpoint.weights_to_evaluate)
        for name, parameter in model.named_parameters():
            match = OF_SYMBOLS.fullmatch(name)
            if match is None:
                parameter.copy_(saved[name])
                continue
            prefix, band = match.groups()
            for rows, old_band, old_rows in self._kept_rows(self._bands[int(band)]):
                parameter[rows] = saved[f"{prefix}{old_band}"][old_rows].to(parameter)


def read(run: Run, settings: ModelSettings, store: TokenStore, reporter: Reporter) -> InitialWeights:
    """Read the weights of a run for a model with these settings on the text of a store, and say what is new in it."""
    check_shapes(run, settings, reporter)
    path = run.best_or_last
    saved = checkpoint.load(path, to_evaluate=True)
    check_checkpoint(run, saved, path)
    vocab = read_vocabulary(run)
    old_ids = _old_ids(store, vocab, run)
    weights = InitialWeights(run=run, checkpoint=saved, settings=settings, old_ids=old_ids)
    begin = f"beginning from {path} (step {saved.state['step']:,})"
    if store.fingerprint != run.vocab_fingerprint:
        unit = UNITS[vocab.tokenizer]
        size = store.vocab.size
        new = weights.origin.new_symbols
        if new == size:
            raise VocabularyError(f"{store.path} has no {unit} in common with {run.directory}; {_same_vocabulary(run)}")
        begin += f": {size - new:,} of {size:,} {unit} keep their rows, {new:,} are new"
    reporter.say(begin)
    return weights


def check_shapes(run: Run, settings: ModelSettings, reporter: Reporter) -> None:
    """Reject a model that weights of a run do not fit, and say which settings change what they compute."""
    trained = run.settings.model
    functions = [{"model": recipe.function_keys(model)} for model in (trained, settings)]
    old_keys = recipe.to_keys(trained)
    new_keys = recipe.to_keys(settings)
    changes = []
    for name in recipe.differences(functions):
        key = name.removeprefix("model.")
        old = recipe.format_value(old_keys.get(key), off="none")
        new = recipe.format_value(new_keys.get(key), off="none")
        changes.append(f"{name} is {new}, there it is {old}")
    if parameter_shapes(settings) != parameter_shapes(trained):
        raise RecipeError(
            f"the weights of {run.directory} do not fit this model: {'; '.join(changes)}; leave out the recipe to keep "
            "the settings of that run, or change these settings"
        )
    for change in changes:
        reporter.say(f"{change}: the weights have not been trained with it")


def _old_ids(store: TokenStore, old: Vocab, run: Run) -> NDArray[np.int64]:
    """Return the id in the vocabulary of a run for each symbol of a store's, -1 for a symbol that it lacks."""
    vocab = store.vocab
    if store.fingerprint == run.vocab_fingerprint:
        return np.arange(vocab.size)
    if vocab.tokenizer != old.tokenizer or vocab.tokenizer not in UNITS:
        raise VocabularyError(f"{store.path} has another vocabulary than {run.directory}; {_same_vocabulary(run)}")
    ids = np.array([old.ids_of.get(symbol, -1) for symbol in vocab.symbols], dtype=np.int64)
    for new_id, old_id in ((vocab.boundary, old.boundary), (vocab.unknown, old.unknown)):
        if new_id is not None and old_id is not None:  # they may be spelled differently
            ids[new_id] = old_id
    return ids


def _same_vocabulary(run: Run) -> str:
    return f"prepare the text with its vocabulary, `vocab` {run.directory / run_directory.VOCAB}"
