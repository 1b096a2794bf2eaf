"""Reads vocabulary files of txl and of other systems."""

import base64
import binascii
from pathlib import Path
from typing import Any

from txlcli.data.vocabulary import MAX_IDS, Vocab
from txlcli.errors import UsageError, VocabularyError, reason_of
from txlcli.system.input_files import MAX_VOCABULARY, check_regular, read_bytes, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange import pickles

BOUNDARIES = ("<eos>", "<S>")
UNKNOWNS = ("<unk>", "<UNK>")
FILES = ("vocab.json", "vocab.bin", "vocab.pkl", "vocab.txt")
"""Names of vocabulary files; the last three are Hugging Face's."""
PICKLES = (".pkl", ".pickle", ".bin", ".pt", ".pth")
MODEL = ".model"
"""Ending of SentencePiece models."""
AS_TEXT = "give the words as a text file in UTF-8, one per line"
PIECES = {"\u2581": "SentencePiece", "##": "WordPiece", "\u0120": "byte-level BPE", "@@": "BPE"}
"""Kind of vocabulary by the mark with which many of its words begin or end: parts of words, which no text has."""
MIN_PIECES = 0.05
"""Share of such words that tells."""

MERGES = "#version"
"""Begins the first line of a list of merges of BPE, such as merges.txt."""

FAIRSEQ_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""Symbols 0 to 3 of fairseq, which its dict.txt leaves out."""


def find(directory: Path) -> Path | None:
    """Return the vocabulary file of a directory; None if there is none."""
    for name in FILES:
        path = directory / name
        if path.exists():
            return path
    return None


def read(path: Path) -> Vocab:
    """Read a vocabulary: txl's JSON, a SentencePiece model, a torch or plain pickle with idx2sym, or a word list."""
    if not check_regular(path).is_file():
        raise VocabularyError(f"no vocabulary file at {path}; give `vocab` a file")
    try:
        if MODEL in path.suffixes:  # also tokenizer.model.v3
            return Vocab.of_model(read_bytes(path, MAX_VOCABULARY))
        if path.suffix == ".json":
            return Vocab.from_json(read_text(path, MAX_VOCABULARY))
        return _read_words(path)
    except VocabularyError as error:
        next_step = AS_TEXT
        if MODEL in path.suffixes:
            next_step = (
                "give a model that restores every text, train one with `tokenizer` sentencepiece, or prepare its ids, "
                "with `ids`"
            )
        raise VocabularyError(f"{path}: {error}; {next_step}") from error
    except UsageError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise VocabularyError(f"{path}: not readable as a vocabulary ({reason_of(error)}); {AS_TEXT}") from error


def read_for_ids(path: Path) -> Vocab:
    """Read a vocabulary for token ids: any that `read` knows, or JSON with the names of ids, {name: id} or a list.

    In a list of words, each line is an id.
    """
    if not check_regular(path).is_file() or path.suffix in PICKLES or MODEL in path.suffixes:
        return read(path)
    if path.suffix != ".json":
        return _read_lines(path)
    try:
        content = parse_json(read_text(path, MAX_VOCABULARY))
        if isinstance(content, dict) and "kind" in content:  # a vocabulary of txl
            return read(path)
        if isinstance(content, list) and content and all(isinstance(item, dict) for item in content):
            raise VocabularyError(
                f"{path}: tokens of several ids are not supported; use a tokenizer with one id per token, such as "
                "MidiTok's REMI"
            )
        return Vocab("ids", _names(content))
    except (ValueError, AttributeError, TypeError) as error:
        raise VocabularyError(f"{path}: {error}; give names of ids as JSON, such as {{name: id}}") from error


def is_foreign(path: Path) -> bool:
    """Return True if a file is JSON of another system."""
    try:
        content = parse_json(read_text(path, MAX_VOCABULARY))
    except ValueError:
        return False
    return not (isinstance(content, dict) and "kind" in content)


def of_fairseq(vocab: Vocab, *, has_unused_id: bool) -> Vocab:
    """Return a vocabulary for ids of fairseq: its own symbols precede the words of a dict.txt, which lacks them.

    With `has_unused_id`, the ids in the files are larger by one, and no symbol has the id 0. A list that has these
    symbols at other ids is not changed.
    """
    words = list(vocab.symbols)
    if tuple(words[: len(FAIRSEQ_SYMBOLS)]) == FAIRSEQ_SYMBOLS:
        words = words[len(FAIRSEQ_SYMBOLS) :]
    if vocab.tokenizer == "sentencepiece":
        raise VocabularyError(
            "fairseq numbers the pieces of a SentencePiece model by its dict.txt; give that as `vocab`"
        )
    if vocab.tokenizer not in ("word", "ids") or not set(FAIRSEQ_SYMBOLS).isdisjoint(words):
        return vocab
    before = ["<unused>"] if has_unused_id else []
    symbols = [*before, *FAIRSEQ_SYMBOLS, *words]
    if vocab.tokenizer == "ids":  # pieces of words
        return Vocab("ids", symbols)
    return Vocab("word", symbols, boundary=symbols.index("</s>"), unknown=symbols.index("<unk>"))


def _names(content: Any) -> list[str]:
    """Return the name of each id; an id without one has its number, in angle brackets if another is named like it."""
    if isinstance(content, list):
        pairs = list(enumerate(content))
    else:
        pairs = [(number, name) for name, number in content.items()]
    if not all(type(number) is int and 0 <= number < MAX_IDS for number, _ in pairs):
        raise ValueError(f"an id is not a number below {MAX_IDS:,}")
    by_id = dict(pairs)
    given = set(by_id.values())
    names = []
    for number in range(1 + max(by_id, default=-1)):
        own = f"<{number}>" if str(number) in given else str(number)
        names.append(by_id.get(number, own))
    "".join(names).encode()  # names are texts without unpaired surrogates
    if len(by_id) != len(pairs) or not 0 < len(names) == len(set(names)):
        raise ValueError("no names, or one of them or of their ids twice")
    return names


def _read_words(path: Path) -> Vocab:
    """Read the attributes of the released code's vocabulary object, or the first field of every line.

    Further fields are counts. The list of One Billion Word contains a word twice; as in the released code, once counts.
    """
    lower_case = False
    if path.suffix in PICKLES:
        fields = pickles.load(path)
        if not isinstance(fields, dict) or not isinstance(fields.get("idx2sym"), list):
            raise VocabularyError("has no list idx2sym")
        words = fields["idx2sym"]
        lower_case = bool(fields.get("lower_case"))
    else:
        text = read_text(path, MAX_VOCABULARY)
        if text.startswith(MERGES):
            raise VocabularyError("merges of BPE, not words")
        lines = [line.split() for line in text.split("\n")]
        words = list(dict.fromkeys(line[0] for line in lines if line))
    if not words or not all(isinstance(word, str) for word in words):
        raise VocabularyError("does not hold a list of words")
    _reject_pieces(words)
    return Vocab(
        "word",
        words,
        boundary=index_of(words, *BOUNDARIES),
        unknown=index_of(words, *UNKNOWNS),
        lower_case=lower_case,
    )


def _read_lines(path: Path) -> Vocab:
    """Read the words of ids, the first field of each line; further fields are counts, or the ids themselves."""
    words: dict[str, int] = {}
    seconds = []
    lines = read_text(path, MAX_VOCABULARY).rstrip("\r\n").split("\n")
    if lines[0].startswith(MERGES):
        raise VocabularyError(
            f"{path}: merges of BPE, not the words of ids; give the vocab.json next to it, with `ids`"
        )
    for number, line in enumerate(lines):
        word, _, second = line.rstrip("\r").replace("\t", " ").partition(" ")  # other blanks may be words
        if not word:
            raise VocabularyError(f"{path}: line {number + 1} is blank, but each line must be the word of an id")
        if word in words:
            raise VocabularyError(
                f"{path}: line {number + 1} repeats line {words[word] + 1}, but each line must be the word of an id"
            )
        words[word] = number
        seconds.append(second.strip())
    symbols = list(words)
    if any(seconds) and all(map(str.isdecimal, words)):  # such as counts before words
        raise VocabularyError(f"{path}: the first column is numbers; give the words, one per line")
    if _are_base64(symbols) and all(map(str.isdecimal, seconds)):
        raise VocabularyError(
            f"{path}: the pieces of tiktoken are bytes, not words; leave out `vocab`, and give `vocab_size`"
        )
    _check_ids(path, seconds)
    if _tokenizer_of_pieces(symbols):
        return Vocab("ids", symbols)
    return Vocab("word", symbols, boundary=index_of(symbols, *BOUNDARIES), unknown=index_of(symbols, *UNKNOWNS))


def _check_ids(path: Path, seconds: list[str]) -> None:
    """Reject a list whose second fields are ids, consecutive numbers, but not those of the lines: 0, 1, 2, ..."""
    if len(seconds) < 2 or not seconds[0] or not all(map(str.isdecimal, seconds[1:])):
        return
    if not seconds[0].isdecimal():
        raise VocabularyError(f"{path}: line 1 is a header, but each line must be the word of an id; leave it out")
    ids = list(map(int, seconds))
    first = min(ids)
    ordered = list(range(first, first + len(ids)))
    are_counts = sorted(ids) != ordered or (first > 0 and ids == ordered[::-1])
    if are_counts or ids == list(range(len(ids))):
        return
    if ids != ordered:
        raise VocabularyError(f"{path}: the lines are not in the order of their ids; sort them by the second column")
    raise VocabularyError(
        f"{path}: the ids in its second column begin with {first:,}, but the first line is the word of id 0; add a "
        "line for each id before it, or leave out that column"
    )


def _are_base64(words: list[str]) -> bool:
    """Return True for pieces as tiktoken writes them, of which some end with the padding of base64."""
    try:
        for word in words:
            base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        return False
    return any(word.endswith("=") for word in words)


def _reject_pieces(words: list[str]) -> None:
    """Reject a list of parts of words: without the model that divides words into them, all text is unknown."""
    tokenizer = _tokenizer_of_pieces(words)
    if tokenizer is not None:
        instead = "for token ids, add `ids`"
        if tokenizer == "SentencePiece":
            instead = f"for text, give its {MODEL} file; {instead}"
        raise VocabularyError(f"a list of pieces of {tokenizer}, not of words ({instead})")


def _tokenizer_of_pieces(words: list[str]) -> str | None:
    """Return the tokenizer that a list of parts of words belongs to; None for a list of words."""
    for mark, tokenizer in PIECES.items():
        marked = sum(1 for word in words if word.startswith(mark) or word.endswith(mark))
        if marked > MIN_PIECES * len(words):
            return tokenizer
    return None


def index_of(symbols: list[str], *marks: str | None) -> int | None:
    """Return the index of the first mark that is a symbol; None if none is."""
    for mark in marks:
        if mark in symbols:
            return symbols.index(mark)
    return None
