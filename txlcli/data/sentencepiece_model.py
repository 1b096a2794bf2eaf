"""Lossless SentencePiece models, of txl and of other programs: training on a stream of text, encoding and decoding."""

import ctypes
import io
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece

from txlcli.errors import CorpusInputError, UsageError, VocabularyError, reason_of

BOUNDARY = 0
"""Id of the line end in models that txl trains."""
SPACE = "\u2581"  # stands for a blank inside pieces
AS_BYTES = f"{SPACE}\0"
"""Characters that are always encoded as bytes."""
BYTES = [f"<0x{value:02X}>" for value in range(256)]
"""Pieces that stand for one byte."""
FIXED = ["<eos>", "<unk>", *BYTES]
"""First pieces of the models that txl trains; <eos> is the line end."""
NO_BLANK_BEFORE_TEXT = b"\x1a\x02\x18\x00"
"""The protocol buffer `normalizer_spec { add_dummy_prefix: false }`.

Appended to a serialized model, it overrides the model's own value.
"""
FAILED = 3
"""Exit code of the training process if the library gave a reason to end."""
PR_SET_PDEATHSIG = 1  # Linux: a signal for when the parent dies
LONGEST_LINE = 1000  # characters of one training sentence; max_sentence_length is in bytes
SAMPLE = "a  b \ufb01 a\u0301 \U0001f98a "
"""Text that models change which add or remove blanks, or normalize characters."""


class SentencePieceModel:
    """A trained model. Each text has exactly one encoding, which decodes to that text.

    Many models of other programs put a blank before a text; it is left out here, so that each text is restored.

    Args:
        model: serialized.

    Raises:
        VocabularyError: the model cannot be loaded, or loses a part of some texts.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        """`model`, with NO_BLANK_BEFORE_TEXT appended if it puts a blank before a text."""
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            if self._processor.normalize("a") == f"{SPACE}a":
                self.model += NO_BLANK_BEFORE_TEXT
                self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:
            raise VocabularyError(f"not a SentencePiece model that can be used: {reason_of(error)}") from error
        size = self._processor.vocab_size()
        self.symbols: list[str] = [self._processor.id_to_piece(number) for number in range(size)]
        self._is_own = self.symbols[: len(FIXED)] == FIXED
        self._check_restores_text()
        self.unknown: int = self._processor.unk_id()
        self.boundary: int = BOUNDARY if self._is_own else self._processor.encode("\n")[0]
        """Id of the line end."""

    def _check_restores_text(self) -> None:
        """Raise an error if the model changes text, or has no pieces for a part of it."""
        texts = [SAMPLE]
        if not self._is_own:  # rules of its own may change any character
            code_points = np.concatenate([np.arange(0xD800), np.arange(0xE000, sys.maxunicode + 1)])  # no surrogates
            texts.append(code_points.astype("<u4").tobytes().decode("utf-32-le"))
        for text in texts:
            if self._processor.normalize(text).replace(SPACE, " ") != text.replace(SPACE, " "):
                raise VocabularyError("the SentencePiece model adds or removes blanks, or changes characters")
        if not all(self._processor.is_byte(self._processor.piece_to_id(name)) for name in BYTES):
            raise VocabularyError("the SentencePiece model lacks pieces for the 256 bytes, so it loses rare characters")
        ids = self._processor.encode(SAMPLE)
        if b"".join(self._piece(number, self.symbols[number]) for number in ids) != SAMPLE.encode():
            raise VocabularyError("the SentencePiece model lacks pieces for blanks")

    @cached_property
    def pieces(self) -> list[bytes]:
        """Bytes of each piece, which may be part of a character."""
        return [self._piece(number, symbol) for number, symbol in enumerate(self.symbols)]

    def _piece(self, number: int, symbol: str) -> bytes:
        if self._processor.is_byte(number):
            return bytes([int(symbol[3:5], 16)])  # of <0x1F>
        if self._is_own and number == BOUNDARY:
            return b"\n"
        return symbol.replace(SPACE, " ").encode()

    def encode(self, text: str) -> list[int]:
        """Encode a text; line ends are apart from the text between them."""
        parts = re.split(f"(\n+|[{AS_BYTES}])", text)  # text, mark, text, mark, ..., text
        marks = parts[1::2]
        ids_of_marks = {mark: self._encode_mark(mark) for mark in set(marks)}
        first, *others = self._processor.encode(parts[::2], num_threads=1)
        ids: list[int] = first
        for mark, encoded in zip(marks, others, strict=True):
            ids += ids_of_marks[mark]
            ids += encoded
        return ids

    def _encode_mark(self, mark: str) -> list[int]:
        """Return the ids of consecutive line ends, or of a character that the library would change."""
        if mark in AS_BYTES:
            return [int(self._processor.piece_to_id(f"<0x{value:02X}>")) for value in mark.encode()]
        if self._is_own:
            return [BOUNDARY] * len(mark)
        encoded: list[int] = self._processor.encode(mark)
        return encoded


def train(lines: Iterable[str], *, size: int, model_type: str) -> bytes:
    """Train a model with `size` pieces that keeps all blanks, normalizes nothing and falls back to bytes.

    The library cannot be interrupted, so it runs in a process of its own, which ends with this one.
    """
    command = [sys.executable, "-m", __name__, str(size), model_type]
    short = _short_lines(lines)
    text = "".join(f"{line}\n" for line in short).encode()
    process = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=False)
    if process.returncode == FAILED:
        raise _explain(process.stdout.decode(), size)
    if process.returncode:
        raise CorpusInputError(
            f"the training of SentencePiece ended with code {process.returncode}, possibly because memory ran out; "
            "free some, or choose another `tokenizer`"
        )
    return process.stdout


def _train_on_stdin(size: int, model_type: str) -> None:
    """Train on the lines of stdin, and write the model to stdout, or the reason why there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    model = io.BytesIO()
    options = tomllib.loads(Path(__file__).with_name("sentencepiece.toml").read_text(encoding="utf-8"))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line[:-1].decode() for line in sys.stdin.buffer),
            model_writer=model,
            vocab_size=size,
            model_type=model_type,
            **options,
        )
    except RuntimeError as error:
        sys.stdout.write(str(error))
        sys.exit(FAILED)
    sys.stdout.buffer.write(model.getvalue())


def _explain(error: str, size: int) -> UsageError | CorpusInputError:
    """Turn an error of the library into one that suggests what to do."""
    reason = error.rsplit("] ", 1)[-1].strip().rstrip(".")
    if not reason:
        return CorpusInputError(
            "the train split has no text that SentencePiece can be trained on; give more text, or choose another "
            "`tokenizer`"
        )
    limit = re.search(r"(?:required_chars\. \d+ vs|too high.*<=) (\d+)", reason)
    if limit:
        return UsageError(f"`vocab_size` {size} does not fit this text; the nearest possible is {limit[1]}")
    return UsageError(f"`vocab_size` {size} does not fit this text; choose another, or give more text ({reason})")


def _short_lines(lines: Iterable[str]) -> Iterator[str]:
    """Cut long lines, which training would skip, and remove characters that are always byte pieces."""
    for line in lines:
        # With a blank at the end of most lines, the unigram trainer would produce fewer pieces than requested.
        text = re.sub(f"[{AS_BYTES}]", "", line).rstrip(" ")
        for start in range(0, len(text), LONGEST_LINE):
            yield text[start : start + LONGEST_LINE]


if __name__ == "__main__":
    _train_on_stdin(int(sys.argv[1]), sys.argv[2])
