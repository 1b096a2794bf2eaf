"""Lossless compression: arithmetic coding with a model's predictions.

The text is cut into lanes, as for evaluation, and all lanes advance token by token: the model predicts, the token is
coded with these probabilities, and the model reads it. The decoder repeats the encoder's computation, so that it gets
the same probabilities. A symbol that the vocabulary lacks is coded by an escape, as likely as it was so far, and its
number; the model reads the likeliest token instead.

Axes: B batch (lanes), T tokens, V vocabulary, S symbols of one distribution.
"""

import hashlib
import math
from collections.abc import Callable

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
FIRST_ESCAPES = 0.02
"""Escapes that are counted before the first symbol: an escape begins with this probability."""
_CATEGORICAL = constriction.stream.model.Categorical(perfect=False)


class Predictor:
    """Probabilities of the next token of every lane, token by token, in float32.

    They are those of the function that `scoring.score` computes, with weights that do not change.
    """

    def __init__(self, model: LanguageModel, settings: EvalSettings, lanes: Lanes) -> None:
        self.lanes = lanes
        self.vocab_size = model.vocab_size
        settings = settings.with_batch_size(lanes.n_lanes)
        self._reader = make_reader(model, settings, by_tokens=True, length=lanes.length)

    def read(self, tokens: Ids) -> Probabilities:
        """Read one token of each lane, (B,), and return the probabilities of the next, (B, V)."""
        hidden = self._reader.read(torch.from_numpy(tokens)[:, None])
        log_probs = self._reader.log_probs(hidden)[:, 0]
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
        digest = hashlib.blake2b(digest_size=8)
        lanes = np.arange(self.lanes.n_lanes, dtype=np.int64)
        for step in range(PROBED_STEPS):
            digest.update(self.read((lanes + step) % self.vocab_size).tobytes())
        self._reader.reset()
        return digest.hexdigest()


class SymbolEncoder:
    """Writes symbols as the words of a range coder."""

    def __init__(self) -> None:
        self._coder = constriction.stream.queue.RangeEncoder()
        self.bits = 0.0
        """Information content of the symbols so far, by the given probabilities."""

    def code(self, symbols: Ids, probabilities: Probabilities) -> Ids:
        """Encode symbols (n,) with probabilities (n, S), and return them."""
        self._coder.encode(symbols.astype(np.int32), _CATEGORICAL, probabilities)
        chosen = probabilities[np.arange(len(symbols)), symbols] / probabilities.sum(axis=1)  # (n,)
        positive = np.maximum(chosen, np.finfo(np.float64).tiny)
        self.bits -= float(np.log2(positive).sum())
        return symbols

    def code_uniformly(self, number: int, size: int) -> int:
        """Encode one of the numbers below `size`, which are equally likely, and return it."""
        self._coder.encode(number, constriction.stream.model.Uniform(size))
        self.bits += math.log2(size)
        return number

    def words(self) -> Words:
        """Return everything that was encoded."""
        return np.asarray(self._coder.get_compressed(), dtype=np.uint32)


class SymbolDecoder:
    """Reads symbols from the words of a range coder; the values that are given do not matter."""

    def __init__(self, words: Words) -> None:
        self._coder = constriction.stream.queue.RangeDecoder(words)

    def code(self, symbols: Ids, probabilities: Probabilities) -> Ids:
        """Decode as many symbols as these, (n,), with probabilities (n, S)."""
        try:
            return np.asarray(self._coder.decode(_CATEGORICAL, probabilities), dtype=np.int64)
        except AssertionError as error:
            raise ValueError("no encoder wrote these words") from error

    def code_uniformly(self, number: int, size: int) -> int:
        """Decode one of the numbers below `size`, which are equally likely."""
        return int(self._coder.decode(constriction.stream.model.Uniform(size)))


SymbolCoder = SymbolEncoder | SymbolDecoder


def _code_number(coder: SymbolCoder, number: int, count: int) -> int:
    """Code one of the numbers below `count`, small ones by fewer bits: its length in bits, then its lower bits."""
    length = coder.code_uniformly(number.bit_length(), (count - 1).bit_length() + 1)
    if length < 2:
        return length
    first = 1 << length - 1
    return first + coder.code_uniformly(number - first, first)


def code_text(
    predictor: Predictor,
    coder: SymbolCoder,
    ids: Ids,
    *,
    boundary: int | None,
    alphabet: int,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> None:
    """Encode a text (T,), or fill in the tokens of one that is decoded.

    The boundary is read before every lane; None codes the first token of a lane without a prediction. An id V + n is
    symbol n of an alphabet of so many symbols, which the vocabulary lacks; it has all of an alphabet of V symbols.
    """
    lanes = predictor.lanes
    vocab_size = predictor.vocab_size
    if boundary is None:
        probabilities = np.full((lanes.n_lanes, vocab_size), 1.0 / vocab_size)
    else:
        probabilities = predictor.read(np.full(lanes.n_lanes, boundary))
    done = 0
    escapes = FIRST_ESCAPES
    for step in range(lanes.length):
        active = lanes.n_lanes
        if step >= lanes.length - lanes.missing:  # the last lane has ended
            active -= 1
        positions = np.arange(active) * lanes.length + step
        table = probabilities[:active]  # (B, V), or (B, V + 1) with an escape
        if alphabet > vocab_size:
            share = escapes / (1.0 + done)
            table = np.pad(table * (1.0 - share), ((0, 0), (0, 1)), constant_values=share)
        tokens = coder.code(np.minimum(ids[positions], vocab_size), table)
        known = tokens < vocab_size
        ids[positions[known]] = tokens[known]
        escaped = np.flatnonzero(tokens == vocab_size)
        for lane in escaped:
            position = positions[lane]
            number = _code_number(coder, int(ids[position]) - vocab_size, alphabet)
            ids[position] = vocab_size + number
            tokens[lane] = probabilities[lane].argmax()
        done += active
        escapes += len(escaped)
        on_tokens(done)
        if step + 1 < lanes.length:
            read = np.zeros(lanes.n_lanes, dtype=np.int64)
            read[:active] = tokens
            probabilities = predictor.read(read)
