"""Lossless compression: arithmetic coding with a model's predictions.

The text is cut into lanes, as for evaluation, and all lanes advance token by token: the model predicts, the token is
coded with these probabilities, and the model reads it. The decoder repeats the encoder's computation, so that it gets
the same probabilities. Symbols that the vocabulary lacks are coded by an escape and their bytes.

Axes: B batch (lanes), T tokens, V vocabulary, S symbols of one distribution.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import constriction
import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Lanes
from txlcli.errors import RunError

Ids = NDArray[np.int64]
Probabilities = NDArray[np.float64]
Words = NDArray[np.uint32]
PROBED_STEPS = 32
"""Steps of `Predictor.probe`."""
MAX_BYTES_OF_A_SYMBOL = 4
"""Bytes of the longest symbol, a character in UTF-8."""
FIRST_ESCAPES = 0.02
"""Escapes that are counted before the first symbol: an escape begins with this probability."""
_CATEGORICAL = constriction.stream.model.Categorical(perfect=False)


class Predictor:
    """Probabilities of the next token of every lane, token by token, in float32.

    They are those of the function that `scoring.score` computes, with weights that do not change.
    """

    def __init__(self, model: LanguageModel, settings: EvalSettings, lanes: Lanes) -> None:
        self.lanes, self.vocab_size = lanes, model.vocab_size
        self._reader = make_reader(
            model, dataclasses.replace(settings, batch_size=lanes.number), by_tokens=True, length=lanes.length
        )

    def read(self, tokens: Ids) -> Probabilities:
        """Read one token of each lane, (B,), and return the probabilities of the next, (B, V)."""
        log_probs = self._reader.log_probs(self._reader.read(torch.from_numpy(tokens)[:, None]))[:, 0]
        probabilities: Probabilities = log_probs.double().exp().numpy()
        if not np.isfinite(probabilities).all():
            raise RunError(
                "the model's probabilities are not numbers: its weights have diverged; use an earlier checkpoint"
            )
        return probabilities

    def probe(self) -> str:
        """Return a digest of the probabilities after fixed tokens: equal if and only if all of them are equal.

        Machines that round differently give different digests. Nothing has been read before and after.
        """
        digest, lanes = hashlib.blake2b(digest_size=8), np.arange(self.lanes.number, dtype=np.int64)
        for step in range(PROBED_STEPS):
            digest.update(self.read((lanes + step) % self.vocab_size).tobytes())
        self._reader.reset()
        return digest.hexdigest()


class Encoder:
    """Writes symbols as the words of a range coder."""

    def __init__(self) -> None:
        self._coder = constriction.stream.queue.RangeEncoder()
        self.bits = 0.0
        """Information content of the symbols so far, by the given probabilities."""

    def code(self, probabilities: Probabilities, symbols: Ids) -> Ids:
        """Encode symbols (n,) with probabilities (n, S), and return them."""
        self._coder.encode(symbols.astype(np.int32), _CATEGORICAL, probabilities)
        chosen = probabilities[np.arange(len(symbols)), symbols] / probabilities.sum(axis=1)
        self.bits -= float(np.log2(np.maximum(chosen, np.finfo(np.float64).tiny)).sum())
        return symbols

    def words(self) -> Words:
        """Return everything that was encoded."""
        return np.asarray(self._coder.get_compressed(), dtype=np.uint32)


class Decoder:
    """Reads symbols from the words of a range coder, as `Encoder.words` returns them."""

    def __init__(self, words: Words) -> None:
        self._coder = constriction.stream.queue.RangeDecoder(words)

    def code(self, probabilities: Probabilities, symbols: Ids) -> Ids:
        """Decode as many symbols as `symbols` has, (n,), with probabilities (n, S); its values do not matter."""
        try:
            return np.asarray(self._coder.decode(_CATEGORICAL, probabilities), dtype=np.int64)
        except AssertionError as error:
            raise ValueError("no encoder wrote these words") from error


SymbolCoder = Encoder | Decoder


@dataclass
class CodedText:
    """A text as ids, where V stands for a symbol that the vocabulary lacks."""

    ids: Ids
    """(T,)."""
    others: dict[int, bytes] = field(default_factory=dict)
    """Bytes of the symbols that the vocabulary lacks, by position."""


class _Escapes:
    """Codes symbols that the vocabulary lacks: an escape, as likely as it was so far, the length, and the bytes."""

    def __init__(self) -> None:
        self._symbols, self._escapes = 1.0, FIRST_ESCAPES

    def extend(self, probabilities: Probabilities) -> Probabilities:
        """Append the probability of an escape: (n, V) -> (n, V + 1)."""
        share = self._escapes / self._symbols
        return np.pad(probabilities * (1.0 - share), ((0, 0), (0, 1)), constant_values=share)

    def code_all(
        self, coder: SymbolCoder, text: CodedText, places: Ids, read: Ids, probabilities: Probabilities
    ) -> None:
        """Code the symbols at places (n,) that the vocabulary lacks; the model reads the likeliest token instead."""
        rows = np.flatnonzero(read == probabilities.shape[1])
        for row in rows:
            place = int(places[row])
            symbol = np.frombuffer(text.others.get(place, b"0"), dtype=np.uint8).astype(np.int64)
            (last,) = coder.code(_uniform(1, MAX_BYTES_OF_A_SYMBOL), np.array([len(symbol) - 1]))
            symbol = np.resize(symbol, last + 1)  # unchanged if it is encoded
            text.others[place] = coder.code(_uniform(len(symbol), 256), symbol).astype(np.uint8).tobytes()
            read[row] = int(probabilities[row].argmax())
        self._symbols += len(places)
        self._escapes += len(rows)


def _uniform(count: int, symbols: int) -> Probabilities:
    return np.full((count, symbols), 1.0 / symbols)


def code_text(
    predictor: Predictor,
    coder: SymbolCoder,
    text: CodedText,
    *,
    boundary: int | None,
    escapes: bool,
    on_tokens: Callable[[int], None] | None = None,
) -> None:
    """Encode a text, or fill in one that is decoded: a decoder overwrites all of its T tokens.

    The boundary is read before every lane; None codes the first token of a lane without a prediction. `escapes` is True
    if the text may have symbols that the vocabulary lacks.
    """
    lanes, vocab_size = predictor.lanes, predictor.vocab_size
    adaptive = _Escapes() if escapes else None
    if boundary is None:
        probabilities = np.full((lanes.number, vocab_size), 1.0 / vocab_size)
    else:
        probabilities = predictor.read(np.full(lanes.number, boundary))
    done = 0
    for step in range(lanes.length):
        active = lanes.number - (step >= lanes.length - lanes.missing)
        places = np.arange(active) * lanes.length + step
        table = adaptive.extend(probabilities[:active]) if adaptive else probabilities[:active]
        text.ids[places] = coder.code(table, text.ids[places])
        read = np.zeros(lanes.number, dtype=np.int64)
        read[:active] = text.ids[places]
        if adaptive:
            adaptive.code_all(coder, text, places, read, probabilities)
        done += active
        if on_tokens:
            on_tokens(done)
        if step + 1 < lanes.length:
            probabilities = predictor.read(read)
