"""The words of a scored text with their bits: surprisal, for each memory length or window.

A word is what blanks divide, and a line end is a word of its own, as when words are counted for a perplexity per word.
Each scored token belongs to one word, so that the bits of all words add up to those of the text. A piece of several
words belongs to the last of them, but a line end after a word does not count as one.

The probability of a word is that of its letters and of its end, the blank after it. Bytes, characters and words have
the end where it belongs. A piece of SentencePiece begins with the blank before a word instead, so the probability that
a piece begins with a blank is moved from each word to the one before (Pimentel & Meister 2024): a word has the bits of
its pieces, plus those of the event that the next piece begins with a blank, less those of the same event before the
word. Nothing is moved across the beginning and the end of the text.

Axes: W words, T scored tokens, V vocabulary.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.core.kernels.device import float64_device
from txlcli.core.kernels.modes import autocast
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.documents import documents_of
from txlcli.core.reading.scoring import MAX_LOGITS, Stream, score
from txlcli.core.reading.windows import score_windows
from txlcli.data.vocabulary import Vocab
from txlcli.errors import VocabularyError
from txlcli.system.atomic_files import errors_of_writing, replacing
from txlcli.workflows.evaluation.rows import EvalRow
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.evaluation.words_file import BITS_OF_STATE, COLUMNS, DOCUMENT

LINE_END = r"\r\n|\r|\n"
SCRIPT_WITHOUT_BLANKS = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a scored text."""

    word: str
    start: int
    """Offset of its first character in the text."""
    end: int
    """Offset after its last character."""
    tokens: int
    """Number of its scored tokens."""
    unknown: bool
    """True if one of them is not in the vocabulary."""
    bits: float
    """Surprisal, -log2 of its probability."""
    document: str = ""
    """Name of its document; empty if the text is one document."""


@dataclass(frozen=True)
class Words:
    """The words of a text that have scored tokens, and which tokens these are."""

    texts: list[str]
    spans: NDArray[np.int64]
    """Offsets of the first character of each word and after the last one, (W, 2)."""
    firsts: NDArray[np.int64]
    """First token of each word, (W,)."""
    tokens: NDArray[np.int64]
    """Number of tokens of each word, (W,)."""
    unknown: NDArray[np.bool_]
    """True for words with a token that is not in the vocabulary, (W,)."""
    by_character: bool
    """True if each character is a word, in a text that is written without blanks."""
    document: str

    @classmethod
    def of(cls, vocab: Vocab, text: ScoredText, document: str) -> "Words":
        """Divide a user's text, and find the word of each scored token."""
        characters = decoded(text, vocab)
        by_character = vocab.tokenizer != "word" and _lacks_blanks(characters)
        spans = divide(characters, vocab, word=r"\S" if by_character else r"\S+")
        if not len(spans):
            raise VocabularyError(f"{text.title}: there is no word in the text, only blanks; leave it out, or `words`")
        owners = owners_of(vocab, text, characters, spans)  # (T,)
        numbers, firsts, tokens = np.unique(owners, return_index=True, return_counts=True)
        is_unknown = np.zeros(len(text.targets), dtype=bool)
        if vocab.unknown is not None:
            is_unknown = text.targets == vocab.unknown
        kept = spans[numbers]
        texts = [characters[start:end] for start, end in kept]
        unknown = np.logical_or.reduceat(is_unknown, firsts)
        return cls(texts, kept, firsts, tokens, unknown, by_character, document)

    def with_bits(self, losses_nats: NDArray[np.float32], blanks_nats: NDArray[np.float64]) -> list[Word]:
        """Return the words with their bits, given the loss of each token, and that of `blank_losses`, (T,)."""
        nats = np.add.reduceat(losses_nats.astype(np.float64), self.firsts)
        of_first_token = blanks_nats[self.firsts]
        of_first_token[0] = 0.0  # there is no word before the text
        of_next_word = np.append(of_first_token[1:], 0.0)
        bits = (nats - of_first_token + of_next_word) / math.log(2)
        words = []
        for number, text in enumerate(self.texts):
            start, end = self.spans[number].tolist()
            word = Word(
                word=text,
                start=start,
                end=end,
                tokens=int(self.tokens[number]),
                unknown=bool(self.unknown[number]),
                bits=float(bits[number]),
                document=self.document,
            )
            words.append(word)
        return words


def words_of_parts(scoring: Scoring) -> list[Words]:
    """Return the words of each document of a user's text, or of the text if it has none."""
    text = scoring.text
    return [Words.of(scoring.opened.vocab, part, part.title if text.documents else "") for part in text.parts]


def decoded(text: ScoredText, vocab: Vocab) -> str:
    """Return the characters of a text, as the vocabulary reads them."""
    data = text.data
    if vocab.tokenizer == "byte":
        data = data.translate(None, vocab.dropped)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise VocabularyError(
            f"{text.title}: the text is not UTF-8 at byte {error.start}, so it has no words; convert it"
        ) from error


def _lacks_blanks(characters: str) -> bool:
    """Return True if most letters are of scripts that are written without blanks between words."""
    letters = sum(character.isalpha() for character in characters)
    return 2 * len(re.findall(SCRIPT_WITHOUT_BLANKS, characters)) > letters


def divide(characters: str, vocab: Vocab, word: str) -> NDArray[np.int64]:
    """Return the offsets (W, 2) of the matches of the pattern `word`, and of line ends that the vocabulary keeps."""
    if vocab.tokenizer == "word" and vocab.boundary is not None:
        written = re.escape(vocab.symbols[vocab.boundary])  # at the end of a line it is the same line end
        word = rf"(?:(?<!\S){written}[^\S\r\n]*)?(?:{LINE_END})|{word}"
    elif vocab.keeps_line_ends:
        word = f"{LINE_END}|{word}"
    spans = [found.span() for found in re.finditer(word, characters)]
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def owners_of(vocab: Vocab, text: ScoredText, characters: str, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the word that each scored token belongs to, (T,), rising."""
    skipped = 1 if vocab.boundary is None else 0  # nothing predicts a first token then
    numbers = np.arange(len(text.targets)) + skipped
    if vocab.tokenizer == "word":
        return numbers
    if vocab.tokenizer == "char":
        firsts = numbers
        lasts = numbers
    else:
        firsts, lasts = _characters_of_tokens(vocab, text, characters, skipped)
    if vocab.unit == "piece":  # blanks belong to the word after them, those after a word in its piece to the word
        places = _last_nonblanks(characters, firsts, lasts)
        owners = np.searchsorted(spans[:, 1], places, side="right")
    else:  # to the word before
        owners = np.searchsorted(spans[:, 0], firsts, side="right") - 1
    return owners.clip(0, len(spans) - 1)


def _characters_of_tokens(
    vocab: Vocab, text: ScoredText, characters: str, skipped: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of the first and of the last character of each scored token, (T,), from the bytes of tokens.

    The first `skipped` tokens of the text are not scored.
    """
    symbol_bytes = np.array([len(piece) for piece in vocab.pieces])
    token_bytes = symbol_bytes[text.targets]
    skipped_bytes = symbol_bytes[text.inputs[:skipped]].sum()
    end_byte = skipped_bytes + np.cumsum(token_bytes) - text.added_bytes
    first_byte = (end_byte - token_bytes).clip(0)
    last_byte = (end_byte - 1).clip(0)
    character_bytes = [len(character.encode()) for character in characters]
    character_of_byte = np.repeat(np.arange(len(characters)), character_bytes)
    return character_of_byte[first_byte], character_of_byte[last_byte]


def _last_nonblanks(characters: str, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of the last character of each token that is not a blank, or of its first one, (T,)."""
    blanks = np.array([character.isspace() for character in characters])
    last_nonblank = np.maximum.accumulate(np.where(blanks, -1, np.arange(len(characters))))  # up to each character
    return np.maximum(last_nonblank[lasts], firsts)


def blank_losses(scoring: Scoring, row: EvalRow) -> NDArray[np.float64]:
    """Return the loss, in nats, of the event that a token begins with a blank, 0 where it does not, (T,).

    It takes another pass over the text if the vocabulary has pieces that begin with a blank, else all are 0.
    """
    vocab = scoring.opened.vocab
    if vocab.unit != "piece":
        return np.zeros(len(scoring.text.targets))
    is_blank = np.array([piece[:1].isspace() for piece in vocab.pieces])
    scoring = replace(scoring, settings=row.settings, temperature=row.temperature)
    if not row.in_windows:
        if scoring.text.documents:
            scoring = scoring.changed(batch_size=1)
        read = partial(_blank_losses_with_memory, is_blank=is_blank)
        title = f"ends of words, M = {row.mem_len}"
    else:
        read = partial(_blank_losses_in_windows, is_blank=is_blank, stride=row.stride or 1)
        title = f"ends of words, N = {row.attn_len}"

    def read_parts(stream: Stream) -> NDArray[np.float64]:
        return np.concatenate([read(part) for part in documents_of(stream, scoring.text.spans)])

    losses = scoring.score(read_parts, title)
    losses[~is_blank[scoring.text.targets]] = 0.0
    return losses


def _blank_losses_with_memory(stream: Stream, is_blank: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the loss of a blank at each token of a stream that is read with a memory, (T,)."""
    segments: list[Tensor] = []

    def keep(hidden: Tensor, _targets: Tensor, _losses: Tensor) -> None:
        segments.append(_blank_losses_after(stream.model, hidden, is_blank))

    with torch.inference_mode():
        score(stream, on_segment=keep)
        losses: NDArray[np.float64] = stream.lanes().join(torch.cat(segments, dim=1)).numpy()
    return losses


def _blank_losses_in_windows(stream: Stream, is_blank: NDArray[np.bool_], stride: int) -> NDArray[np.float64]:
    """Return the loss of a blank at each token of a stream that is read in windows, (T,)."""
    losses = np.zeros(len(stream.targets))

    def keep(positions: NDArray[np.int64], hidden: Tensor) -> None:
        losses[positions] = _blank_losses_after(stream.model, hidden, is_blank).numpy()

    with torch.inference_mode():
        score_windows(stream, stride=stride, on_hidden=keep)
    return losses


def _blank_losses_after(model: LanguageModel, hidden: Tensor, is_blank: NDArray[np.bool_]) -> Tensor:
    """Return the loss of all tokens that begin with a blank together, (B, l), after hidden states (B, l, d)."""
    blanks = torch.from_numpy(np.flatnonzero(is_blank)).to(hidden.device)
    rows = max(1, MAX_LOGITS // model.vocab_size)
    parts = []
    with autocast(model.device, model.backend.precision):
        for part in hidden.flatten(0, 1).split(rows):
            log_probs = model.log_probs(part[None])[0]  # (rows, V)
            blank_log_probs = log_probs[:, blanks].to(float64_device(hidden.device)).double()
            parts.append(-blank_log_probs.logsumexp(-1))
    return torch.cat(parts).unflatten(0, hidden.shape[:2]).cpu()


def with_bits(scoring: Scoring, parts: Sequence[Words], row: EvalRow) -> list[Word]:
    """Return the words of all parts of a text with their bits in a row of the result."""
    blanks_nats = blank_losses(scoring, row)
    words = []
    for part, (first, end) in zip(parts, scoring.text.spans, strict=True):
        words += part.with_bits(row.losses_nats[first:end], blanks_nats[first:end])
    return words


def write(path: Path, scoring: Scoring, rows: Sequence[EvalRow]) -> None:
    """Write the words of a user's text with their bits in each row.

    The file is tab-separated, with a quoted cell where a word has a quote or is a line end.
    """
    parts = words_of_parts(scoring)
    words_by_row = [with_bits(scoring, parts, row) for row in rows]
    headings = list(COLUMNS)
    if scoring.text.documents:
        headings.append(DOCUMENT)
    headings += map(_heading, rows)
    with errors_of_writing(path), replacing(path) as draft, Path(draft).open("w", encoding="utf-8", newline="") as file:
        file.write("\t".join(headings) + "\n")
        for same_word in zip(*words_by_row, strict=True):
            word = same_word[0]
            cells = [_quoted(word.word), str(word.start), str(word.end), str(word.tokens), str(int(word.unknown))]
            if scoring.text.documents:
                cells.append(_quoted(word.document))
            cells += [f"{in_row.bits:.6f}" for in_row in same_word]
            file.write("\t".join(cells) + "\n")
    scoring.reporter.say(f"the bits of {len(words_by_row[0]):,} words written to {path}")
    if any(part.by_character for part in parts):
        scoring.reporter.say("the text is written without blanks between words: the rows are characters")


def _heading(row: EvalRow) -> str:
    """Return the heading of the bits in a row."""
    if row.in_windows:
        return f"bits_N{row.attn_len}"
    if row.has_state:
        return BITS_OF_STATE
    return f"bits_M{row.mem_len}"


def _quoted(text: str) -> str:
    """Return a cell, in quotes if it needs them; the csv module of Python 3.11 leaves carriage returns without."""
    if re.search('["\t\r\n]', text):
        return '"' + text.replace('"', '""') + '"'
    return text
