"""The tokenizer of a model of Hugging Face Transformers as a vocabulary: text to ids, and the bytes of each token.

A text is read only if the bytes of its tokens are the bytes of the text. Words, bits per byte and pages rest on them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.data.vocabulary import Vocab, to_bytes, to_characters
from txlcli.errors import VocabularyError

BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a blank in a token."""
PROBE = "the cat sat on the mat"
"""Text that shows how a tokenizer writes blanks."""
SHOWN = 12
"""Bytes of a text that an error shows."""


def _alphabet() -> dict[str, int]:
    """Return the byte of each character of tokens of bytes, as GPT-2 writes them: printable ones stand for themselves.

    The others follow each other from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_ = {chr(byte): byte for byte in printable}
    return bytes_ | {chr(256 + number): byte for number, byte in enumerate(others)}


def _of_bytes(tokens: list[str]) -> list[bytes]:
    """Return the bytes of tokens whose characters stand for bytes."""
    alphabet = _alphabet()
    pieces = []
    for token in tokens:
        known = all(character in alphabet for character in token)
        pieces.append(bytes(alphabet[character] for character in token) if known else token.encode())
    return pieces


def _of_sentencepiece(tokens: list[str]) -> list[bytes]:
    """Return the bytes of tokens of SentencePiece, some of which stand for one byte, such as <0x0A>."""
    bytes_ = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    return [bytes_.get(token, token.replace(BLANK, " ").encode()) for token in tokens]


def _of_characters(tokens: list[str]) -> list[bytes]:
    """Return the bytes of tokens that are written as they are."""
    return [token.encode() for token in tokens]


def _of_single_bytes(tokens: list[str]) -> list[bytes]:
    """Return the bytes of tokens of one character each, whose number is the byte, as ByT5 writes them."""
    byte_of = {chr(number): bytes([number]) for number in range(256)}
    return [byte_of.get(token, token.encode()) for token in tokens]


Kind = Callable[[list[str]], list[bytes]]
KINDS: tuple[Kind, ...] = (_of_bytes, _of_sentencepiece, _of_characters, _of_single_bytes)
"""How tokenizers write tokens; a text shows which it is."""


def _joined(pieces: list[bytes], ids: list[int]) -> bytes:
    """Return the bytes of a text, given those of each token."""
    return b"".join(pieces[number] for number in ids)


def _same_bytes(first: bytes, second: bytes) -> int:
    """Return the number of bytes with which both begin."""
    length = min(len(first), len(second))
    differ = np.frombuffer(first[:length], np.uint8) != np.frombuffer(second[:length], np.uint8)
    return int(differ.argmax()) if differ.any() else length


class ExternalVocab(Vocab):
    """The vocabulary of a tokenizer of Transformers.

    A text is read after the token that begins texts, or else the one that ends them, so that all tokens are scored.
    Without either, the first token is only read.

    Args:
        tokenizer: of Transformers.
        n_outputs: number of ids that the model predicts.
        title: name in messages.
    """

    def __init__(self, tokenizer: Any, n_outputs: int, title: str) -> None:
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        missing = max(0, n_outputs - len(names))
        names += [None] * missing  # of outputs that the tokenizer has no token for
        symbols = [name or f"<{number}>" for number, name in enumerate(names)]
        boundary = tokenizer.bos_token_id
        if boundary is None:
            boundary = tokenizer.eos_token_id
        super().__init__("external", symbols, boundary=boundary)
        self._tokenizer = tokenizer
        self._n_outputs = n_outputs
        self._title = title
        candidates = [kind(symbols) for kind in KINDS]
        # With blanks in the text, one of them fits, unless blanks are tokens of their own.
        probe = PROBE.encode()
        ids = tokenizer(PROBE, add_special_tokens=False, verbose=False)["input_ids"]
        fitting = [pieces for pieces in candidates if _joined(pieces, ids) in (probe, b" " + probe)]
        self._candidates = fitting or candidates
        self.pieces = self._candidates[0]

    def encode(self, text: str | bytes) -> NDArray[np.int64]:
        """Encode a text; its bytes must be those of its tokens, but for a blank that the tokenizer adds before it.

        Raises:
            VocabularyError: it is not UTF-8, the tokenizer loses a part of it, or the model lacks an id.
        """
        data = to_bytes(text)
        encoded = self._tokenizer(to_characters(data), add_special_tokens=False, verbose=False)
        ids = np.array(encoded["input_ids"], dtype=np.int64)
        if ids.size and ids.max() >= self._n_outputs:
            raise VocabularyError(
                f"the tokenizer of {self._title} gives id {ids.max()}, but the model predicts ids below "
                f"{self._n_outputs:,}; give a folder whose tokenizer and model belong together"
            )
        self._set_pieces(ids, data)
        return ids

    def _set_pieces(self, ids: NDArray[np.int64], data: bytes) -> None:
        """Find out which bytes the tokens have, given the ids of a text."""
        texts = []
        for pieces in self._candidates:
            text = _joined(pieces, ids.tolist())
            if text in (data, b" " + data):
                self.pieces = pieces
                self.added_bytes = len(text) - len(data)
                return
            texts += [text, text.removeprefix(b" ")]  # the second without a blank that the tokenizer adds
        same, restored = max((_same_bytes(text, data), text) for text in texts)
        raise VocabularyError(
            f"the tokenizer of {self._title} loses text at byte {same:,}: {data[same : same + SHOWN]!r} becomes "
            f"{restored[same : same + SHOWN]!r}, so that its bits are those of another text; leave this out of the text"
        )
