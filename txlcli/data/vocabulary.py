"""Vocabularies: the mapping between text and ids of bytes, characters, words or SentencePiece models.

A vocabulary of ids alone belongs to token files of other systems, which have no text.
"""

import base64
import codecs
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from txlcli.errors import VocabularyError
from txlcli.system.plain_json import parse_json

if TYPE_CHECKING:
    from txlcli.data.sentencepiece_model import SentencePieceModel

TokenizerName = Literal["byte", "char", "word", "sentencepiece", "ids", "external"]
UNITS = {"sentencepiece": "piece", "ids": "id", "external": "piece"}
"""Unit of a token where it is not called like the tokenizer."""
Ids = NDArray[np.integer]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BLOCK = 1 << 16  # tokens that are decoded together
MAX_IDS = 1 << 20
"""Largest vocabulary of ids alone; more would be another type of ids, or a damaged file."""


@dataclass(eq=False)
class Vocab:
    """A vocabulary: the symbols in the order of their ids, and the rules that split text into symbols.

    `boundary` is the id that ends a line (<eos>, <S>), `unknown` the id of all symbols without an id of their own; None
    if there is no such symbol. `dropped` are bytes that are removed from the text before it is encoded.
    """

    tokenizer: TokenizerName
    symbols: Sequence[str] = ()
    _: KW_ONLY
    boundary: int | None = None
    unknown: int | None = None
    lower_case: bool = False
    dropped: bytes = b""
    model: bytes = b""
    added_bytes: int = 0
    """Bytes that the first token of a text has before it: a blank that a tokenizer of others adds."""

    @classmethod
    def of_bytes(cls, values: Iterable[int], dropped: bytes = b"") -> "Vocab":
        """Create a vocabulary of bytes, given in the order of their ids."""
        return cls("byte", [chr(value) for value in values], dropped=dropped)

    @classmethod
    def of_ids(cls, size: int) -> "Vocab":
        """Create a vocabulary of ids without text and names; each is written as its number."""
        return cls("ids", [str(number) for number in range(size)])

    @classmethod
    def of_model(cls, model: bytes) -> "Vocab":
        """Create a vocabulary of a SentencePiece model that restores every text."""
        if not model:
            raise VocabularyError("the SentencePiece model is empty")
        return cls("sentencepiece", model=model)

    def __post_init__(self) -> None:
        if self.model:
            self.symbols = self.sentencepiece.symbols
            self.boundary = self.sentencepiece.boundary
            self.unknown = self.sentencepiece.unknown
            self.model = self.sentencepiece.model

    @property
    def size(self) -> int:
        """Number of ids, V."""
        return len(self.symbols)

    @property
    def unit(self) -> str:
        """Unit of a token: "byte", "char", "word", "piece" or "id"."""
        return unit_of(self.tokenizer)

    @property
    def keeps_line_ends(self) -> bool:
        """True if a token stands for each line end of a text; otherwise they are dropped."""
        if self.tokenizer == "word":
            return self.boundary is not None
        return b"\n" not in self.dropped

    @cached_property
    def sentencepiece(self) -> "SentencePieceModel":
        """Loaded SentencePiece model."""
        from txlcli.data.sentencepiece_model import SentencePieceModel

        return SentencePieceModel(self.model)

    @cached_property
    def ids_of(self) -> dict[str, int]:
        """Id of each symbol that a text can have; a byte is represented by the character of the same number."""
        other_than_symbols = self.unknown if self.model else None
        return {symbol: number for number, symbol in enumerate(self.symbols) if number != other_than_symbols}

    def encode(self, text: str | bytes) -> NDArray[np.int64]:
        """Encode a text, or its UTF-8; a word vocabulary ends each complete line with the boundary."""
        self.check_has_text()
        symbols, numbers, _ = self.number([text])
        ids = self.table(symbols)[numbers]
        if self.unknown is None:
            return ids
        return np.where(ids < 0, self.unknown, ids)

    def table(self, symbols: Iterable[str]) -> NDArray[np.int64]:
        """Return the id of each symbol; -1 for one that is unknown."""
        ids = np.array([self.ids_of.get(symbol, -1) for symbol in symbols], dtype=np.int64)
        if self.unknown is None and ids.size and ids.min() < 0:
            symbol = list(symbols)[int(np.argmin(ids))]
            if self.tokenizer == "byte":
                name = f"byte 0x{ord(symbol):02x}"
            else:
                name = json.dumps(symbol, ensure_ascii=False)
            raise VocabularyError(
                f"the vocabulary ({self.tokenizer}, {self.size:,} symbols) lacks {name}; leave it out of the text, or "
                "use a vocabulary of this text"
            )
        return ids

    def number(self, texts: Iterable[str | bytes]) -> tuple[list[str], Ids, list[int]]:
        """Split texts into bytes, characters, pieces or words, as the benchmarks do, with the boundary after each line.

        Returns the distinct symbols in first-seen order, all texts as their numbers, and the number of symbols of each
        text.
        """
        import pyarrow as arrow

        parts = [self._split(text) for text in texts]
        encoded = arrow.concat_arrays(parts).dictionary_encode()
        symbols = encoded.dictionary.to_pylist()
        if self.model:
            symbols = [self.symbols[code] for code in symbols]
        elif self.tokenizer != "word":
            symbols = list(map(chr, symbols))
        return symbols, encoded.indices.to_numpy(), [len(part) for part in parts]

    def _split(self, text: str | bytes) -> Any:
        """Return the symbols of a text as an Arrow array: of bytes, code points, ids of pieces, or words.

        A boundary that the text itself has at the end of a line is the same boundary as that of the line end.
        """
        import pyarrow as arrow

        data = to_bytes(text)
        if self.tokenizer == "byte":
            kept = data.translate(None, self.dropped)
            return arrow.array(np.frombuffer(kept, dtype=np.uint8))
        decoded = to_characters(data)
        if self.tokenizer == "char":
            return arrow.array(np.frombuffer(decoded.encode("utf-32-le"), dtype=np.uint32))
        if self.tokenizer == "sentencepiece":
            return arrow.array(self.sentencepiece.encode(decoded), arrow.int32())
        return self._split_words(decoded)

    def _split_words(self, text: str) -> Any:
        """Return the words of a text, and the boundary for each of its line ends, as an Arrow array."""
        import pyarrow as arrow
        from pyarrow import compute

        boundary = "" if self.boundary is None else self.symbols[self.boundary]
        if self.lower_case:
            text = text.lower()
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if boundary and boundary in text:
            text = re.sub(rf"(?<!\S){re.escape(boundary)}[^\S\n]*\n", "\n", text)
        words = text.replace("\n", f" {boundary} ").strip()
        # Arrow finds an empty word before a blank at the beginning, and in an empty text.
        return compute.utf8_split_whitespace(arrow.array([words or None], arrow.large_string())).flatten()

    def check_has_text(self) -> None:
        """Raise an error if this vocabulary is that of a token file, whose text is not known."""
        if self.tokenizer == "ids":
            raise VocabularyError(
                f"the vocabulary is {self.size:,} ids of a token file, whose text is not known; prepare the file with "
                "`vocab` FILE to give it one"
            )

    @cached_property
    def pieces(self) -> list[bytes]:
        """Bytes of each token, which may be part of a character: of words without the blank between two of them."""
        if self.tokenizer == "sentencepiece":
            return self.sentencepiece.pieces
        if self.tokenizer == "byte":
            return [symbol.encode("latin-1") for symbol in self.symbols]
        texts = list(self.symbols)
        if self.boundary is not None:
            texts[self.boundary] = "\n"
        if self.unknown is not None and self.tokenizer == "char":
            texts[self.unknown] = REPLACEMENT
        return [text.encode() for text in texts]

    def _bytes(self, ids: Iterable[int], after: int | None) -> Iterator[bytes]:
        """Yield the bytes of each token, with a blank between two words; `after` is the id before them."""
        has_blanks = self.tokenizer in ("word", "ids")
        for number in ids:
            piece = self.pieces[number]
            if has_blanks and after is not None and self.boundary not in (after, number):
                piece = b" " + piece
            yield piece
            after = number

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids: exactly for bytes (if they are UTF-8), characters and SentencePiece.

        Words are joined by blanks, and a boundary becomes a line end. Ids without text are written as names or numbers.
        """
        return "".join(self.spell(ids))

    def decode_blocks(self, blocks: Iterable[Ids]) -> Iterator[bytes]:
        """Decode consecutive blocks of ids to UTF-8, or to the bytes of a byte vocabulary."""
        self.check_has_text()
        ids = itertools.chain.from_iterable(block.tolist() for block in blocks)
        spelled = self._bytes(ids, None)
        while data := b"".join(itertools.islice(spelled, BLOCK)):
            yield data

    def spell(self, ids: Iterable[int], *, after: int | None = None) -> Iterator[str]:
        """Decode ids one at a time; bytes are held back until they form a complete character.

        `after` is the id before them, which determines if a word begins with a blank; None at the beginning of a text.
        """
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        yield from map(characters.decode, self._bytes(ids, after))
        yield characters.decode(b"", final=True)

    def symbol(self, number: int) -> str:
        """Return one token in printable form."""
        if self.tokenizer == "byte":
            return repr(self.pieces[number])[2:-1]
        symbol = self.symbols[number]
        if symbol.isprintable():
            return symbol
        return repr(symbol)[1:-1]

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the canonical JSON; equal if and only if two vocabularies are equal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the vocabulary as canonical JSON on one line, its only representation on disk."""
        facts: dict[str, Any] = {"kind": self.tokenizer, "boundary": self.boundary, "unknown": self.unknown}
        if self.tokenizer == "byte":
            facts["bytes"] = [ord(symbol) for symbol in self.symbols]
            facts["dropped"] = list(self.dropped)
        elif self.tokenizer == "sentencepiece":
            facts["model"] = base64.b64encode(self.model).decode()
        elif self.tokenizer == "ids":
            facts["size"] = self.size
            if self.symbols != self.of_ids(self.size).symbols:
                facts["names"] = self.symbols
        else:
            facts["symbols"] = self.symbols
            facts["lower_case"] = self.lower_case
        return json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Vocab":
        """Read a vocabulary that `to_json` wrote."""
        try:
            facts = parse_json(text)
            if not isinstance(facts, dict):
                raise ValueError("it is not a JSON object")
            return cls._from_facts(facts)
        except KeyError as error:
            raise VocabularyError(f"this is not a vocabulary of txl (it has no {error})") from error
        except (ValueError, TypeError) as error:
            raise VocabularyError(f"this is not a vocabulary of txl ({error})") from error

    @classmethod
    def _from_facts(cls, facts: dict[str, Any]) -> "Vocab":
        """Return a vocabulary after checking its facts, which may come from another program."""
        kind = facts["kind"]
        named = {"boundary": facts["boundary"], "unknown": facts["unknown"]}
        if kind == "byte":
            dropped = bytes(list(facts["dropped"]))
            vocab = cls.of_bytes(bytes(list(facts["bytes"])), dropped)
        elif kind == "sentencepiece":
            vocab = cls.of_model(base64.b64decode(facts["model"], validate=True))
        elif kind == "ids":
            vocab = cls._from_ids(facts["size"], facts.get("names"))
        elif kind not in ("char", "word"):
            raise ValueError(f"its kind is {kind!r}; a newer txl may have written it")
        else:
            symbols = facts["symbols"]
            if not isinstance(symbols, list):
                raise ValueError("its symbols are not a list")
            "".join(symbols).encode()  # symbols are texts without unpaired surrogates
            vocab = cls(kind, symbols, lower_case=bool(facts["lower_case"]), **named)
        if not 0 < vocab.size == len(set(vocab.symbols)):
            raise ValueError("it has no symbols, or one of them twice")
        for name, number in named.items():
            if number is not None and not (type(number) is int and 0 <= number < vocab.size):
                raise ValueError(f"{name} is {number!r}, not an id")
        return vocab

    @classmethod
    def _from_ids(cls, size: Any, names: Any) -> "Vocab":
        """Return a vocabulary of ids after checking its size, and their names if there are any."""
        if type(size) is not int or not 0 < size <= MAX_IDS:
            raise ValueError(f"its size is {size!r}, not a number up to {MAX_IDS:,}")
        if names is None:
            return cls.of_ids(size)
        "".join(names).encode()
        if len(names) != size:
            raise ValueError(f"it has {len(names):,} names for {size:,} ids")
        return cls("ids", list(names))


def unit_of(tokenizer: TokenizerName) -> str:
    """Return the unit of the tokens of a tokenizer."""
    return UNITS.get(tokenizer, tokenizer)


def to_bytes(text: str | bytes) -> bytes:
    """Return a text as UTF-8; bytes that were not UTF-8, which Python reads as escapes, are restored."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        surrogate = ascii(text[error.start])
        raise VocabularyError(
            f"the text has an unpaired surrogate, {surrogate}, at {error.start}; leave it out"
        ) from error


def to_characters(data: bytes) -> str:
    """Return the characters of a text that must be UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise VocabularyError(f"the text is not UTF-8 at byte {error.start}; convert it first") from error


def count_words(data: bytes, tokens: int, tokenizer: TokenizerName, *, has_boundary: bool) -> tuple[int, int]:
    """Return the number of words of a text and of its line ends (LF, CR LF or CR), given the number of its tokens.

    Words are those of str.split, where bytes that are not UTF-8 belong to words. Of a tokenizer of words, all tokens
    but the line ends are words.
    """
    lines = data.count(b"\n")
    if b"\r" in data:
        lines += data.count(b"\r") - data.count(b"\r\n")
    if tokenizer == "word":
        words = tokens - lines if has_boundary else tokens
        return words, lines
    return len(data.decode(errors="replace").split()), lines


def smallest_dtype(size: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that can hold ids below `size`."""
    return np.dtype(np.min_scalar_type(max(size - 1, 0)))
