"""Reads the vocabulary files of other systems, and txl's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txlcli.data.vocabulary import Vocab
from txlcli.errors import VocabularyError
from txlcli.exchange import pickles
from txlcli.exchange.pickles import DamagedPickleError, UnsafePickleError

BOUNDARIES = ("<eos>", "<S>")
UNKNOWNS = ("<unk>", "<UNK>")
FILES = ("vocab.json", "vocab.bin", "vocab.pkl", "vocab.txt")
"""What a folder's vocabulary may be called; Hugging Face wrote the last three."""
PLAIN_PICKLES, TORCH_PICKLES = (".pkl", ".pickle"), (".bin", ".pt", ".pth")
AS_TEXT = "give the words as a text file, one per line"


def find(folder: Path) -> Path | None:
    """The vocabulary file of a folder, None where it has none."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def read(path: Path) -> Vocab:
    """The vocabulary in a file: txl's JSON, a torch or plain pickle of a dict with idx2sym, or a list of words.

    Raises:
        VocabularyError: missing, damaged, or something that could run code.
    """
    if not path.is_file():
        raise VocabularyError(f"no vocabulary file at {path}; give --vocab a file")
    if path.suffix == ".json":
        try:
            return Vocab.from_json(path.read_text(encoding="utf-8"))
        except (VocabularyError, OSError, UnicodeDecodeError) as error:
            raise VocabularyError(f"{path}: {error}; {AS_TEXT}") from error
    if path.suffix in (*PLAIN_PICKLES, *TORCH_PICKLES):
        return _from_fields(path, _unpickled(path))
    return _from_words(path, _read_lines(path), lower_case=False)


def _unpickled(path: Path) -> Any:
    try:
        return pickles.load(path) if path.suffix in PLAIN_PICKLES else pickles.load_torch(path)
    except UnsafePickleError as error:
        raise VocabularyError(
            f"{path}: the pickle wants {error}, which a vocabulary has no need of; refused, nothing of it was run; "
            f"{AS_TEXT}"
        ) from error
    except DamagedPickleError as error:
        raise VocabularyError(f"{path}: no readable pickle ({error}); {AS_TEXT}") from error


def _from_fields(path: Path, fields: Any) -> Vocab:
    """The vocabulary of a dict of attributes, as the released code's vocabulary object had them."""
    if not isinstance(fields, Mapping) or not isinstance(fields.get("idx2sym"), list):
        raise VocabularyError(f"{path}: no list idx2sym in it; {AS_TEXT}")
    return _from_words(path, fields["idx2sym"], lower_case=bool(fields.get("lower_case", False)))


def _read_lines(path: Path) -> list[str]:
    """The first field of every line, since word lists may carry counts, each once: so the released code reads them.

    The list of One Billion Word has a word twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        return list(dict.fromkeys(fields[0] for line in lines if (fields := line.split())))
    except (OSError, UnicodeDecodeError) as error:
        raise VocabularyError(f"{path}: cannot be read as a list of words ({error}); save it as UTF-8 text") from error


def _from_words(path: Path, words: list[Any], *, lower_case: bool) -> Vocab:
    if not words or not all(isinstance(word, str) for word in words):
        raise VocabularyError(f"{path}: holds no list of words; {AS_TEXT}")
    ids = {word: number for number, word in enumerate(words)}
    if len(ids) < len(words):
        twice = next(word for number, word in enumerate(words) if ids[word] != number)
        raise VocabularyError(
            f"{path}: the word {twice!r} stands there twice, so ids would not be words; give a list with each word once"
        )
    boundary, unknown = (
        next((ids[symbol] for symbol in known if symbol in ids), None) for known in (BOUNDARIES, UNKNOWNS)
    )
    return Vocab("word", words, boundary=boundary, unknown=unknown, lower_case=lower_case)


def write_words(vocab: Vocab, path: Path) -> None:
    """One word per line, in the order of the ids."""
    path.write_text("".join(f"{symbol}\n" for symbol in vocab.symbols), encoding="utf-8")
