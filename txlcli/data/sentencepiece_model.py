"""Lossless SentencePiece: training on a stream of text, encoding, decoding."""

import io
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

import sentencepiece

from txlcli.errors import CorpusInputError, UsageError

BOUNDARY, UNKNOWN = 0, 1
SPACE = "\u2581"  # SentencePiece writes a blank so inside its pieces
LONGEST_LINE = 4000  # bytes of one training sentence
# The sums of a training step depend on how the text is shared out over threads, so their number must not vary.
TRAINING_THREADS = 4


class SentencePieceModel:
    """A trained model. Every text has exactly one encoding, which decodes to that text."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = int(self._processor.vocab_size())

    @cached_property
    def _bytes_of(self) -> list[bytes]:
        return [self._piece_bytes(number) for number in range(self.size)]

    def _piece_bytes(self, number: int) -> bytes:
        piece: str = self._processor.id_to_piece(number)
        if self._processor.is_byte(number):
            return bytes([int(piece[3:5], 16)])
        return b"\n" if number == BOUNDARY else piece.replace(SPACE, " ").encode()

    @cached_property
    def _byte_ids(self) -> list[int]:
        return [int(self._processor.piece_to_id(f"<0x{value:02X}>")) for value in range(256)]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; every line end is the boundary piece."""
        ids: list[int] = []
        lines = text.split("\n")
        for number, encoded in enumerate(self._encode_lines(lines)):
            ids += encoded
            if number < len(lines) - 1:
                ids.append(BOUNDARY)
        return ids

    def _encode_lines(self, lines: list[str]) -> Iterator[list[int]]:
        plain = [line for line in lines if not _needs_bytes(line)]
        encoded = iter(self._processor.encode(plain, out_type=int, num_threads=1))
        for line in lines:
            yield self._encode_odd(line) if _needs_bytes(line) else next(encoded)

    def _encode_odd(self, line: str) -> list[int]:
        """A line with characters that the library would change: those go through byte pieces."""
        ids: list[int] = []
        start = 0
        for place, character in enumerate(line):
            if _needs_bytes(character):
                ids += self._processor.encode(line[start:place], out_type=int)
                ids += [self._byte_ids[value] for value in character.encode()]
                start = place + 1
        return ids + list(self._processor.encode(line[start:], out_type=int))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become the replacement character."""
        return b"".join(self._bytes_of[number] for number in ids).decode("utf-8", errors="replace")

    def bytes_of(self, number: int) -> bytes:
        """The bytes that one piece stands for; they may be part of a character."""
        return self._bytes_of[number]

    def symbol(self, number: int) -> str:
        """A printable name of one piece."""
        return str(self._processor.id_to_piece(number))


def _needs_bytes(text: str) -> bool:
    return SPACE in text or "\0" in text


def train(lines: Iterable[str], *, size: int, bpe: bool) -> bytes:
    """Train a model of `size` pieces: identity normalisation, every blank kept, unseen characters as bytes.

    Raises:
        UsageError: the text cannot give that many pieces, or needs more.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_short(lines),
            model_writer=model,
            vocab_size=size,
            model_type="bpe" if bpe else "unigram",
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            eos_id=BOUNDARY,
            eos_piece="<eos>",
            unk_id=UNKNOWN,
            bos_id=-1,
            pad_id=-1,
            num_threads=TRAINING_THREADS,
            max_sentence_length=2 * LONGEST_LINE,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rsplit("] ", 1)[-1].strip().rstrip(".")
        if not reason:
            raise CorpusInputError(
                "the train split holds nothing that SentencePiece can learn from; give more text, or choose another "
                "--tokenizer"
            ) from error
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", reason):
            raise UsageError(
                f"{size} pieces are too few for this text: its characters, and the 256 bytes that stand for others, "
                f"take {needed[1]}; give --vocab-size {needed[1]} or more"
            ) from error
        reason = reason.partition("Increase")[0].rstrip(" .,") or reason  # what follows names options of the library
        raise UsageError(
            f"{size} pieces do not fit this text ({reason}); choose another --vocab-size, or give more text"
        ) from error
    return model.getvalue()


def _short(lines: Iterable[str]) -> Iterator[str]:
    """Lines cut so that none is skipped for its length; what training cannot hold is left out of it."""
    for line in lines:
        # A blank at the end of most lines would leave the unigram trainer with fewer pieces than were asked for.
        text = line.replace(SPACE, "").replace("\0", "").rstrip(" ")
        for start in range(0, len(text), LONGEST_LINE // 4):
            yield text[start : start + LONGEST_LINE // 4]
