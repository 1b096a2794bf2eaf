"""Reads vocabulary files of txl and of other systems."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txlcli.data.vocabulary import Vocab
from txlcli.errors import UsageError, VocabularyError
from txlcli.exchange import pickles
from txlcli.exchange.pickles import UnsafePickleError
from txlcli.system.input_files import MAX_VOCABULARY, check_regular, read_text

BOUNDARIES = ("<eos>", "<S>")
UNKNOWNS = ("<unk>", "<UNK>")
FILES = ("vocab.json", "vocab.bin", "vocab.pkl", "vocab.txt")
"""Names of vocabulary files; the last three are Hugging Face's."""
PICKLES = (".pkl", ".pickle", ".bin", ".pt", ".pth")
AS_TEXT = "give the words as a text file, one per line"


def find(directory: Path) -> Path | None:
    """Return the vocabulary file of a directory; None if there is none."""
    return next((directory / name for name in FILES if (directory / name).exists()), None)


def read(path: Path) -> Vocab:
    """Read a vocabulary: txl's JSON, a torch or plain pickle with idx2sym, or a list of words."""
    if not check_regular(path).is_file():
        raise VocabularyError(f"no vocabulary file at {path}; give `vocab` a file")
    if path.suffix == ".json":
        try:
            return Vocab.from_json(read_text(path, MAX_VOCABULARY))
        except (VocabularyError, OSError, UnicodeDecodeError) as error:
            raise VocabularyError(f"{path}: {error}; {AS_TEXT}") from error
    if path.suffix not in PICKLES:
        return _from_words(path, read_lines(path))
    fields = _unpickled(path)
    if not isinstance(fields, Mapping) or not isinstance(fields.get("idx2sym"), list):
        raise VocabularyError(f"{path}: has no list idx2sym; {AS_TEXT}")
    return _from_words(path, fields["idx2sym"], lower_case=bool(fields.get("lower_case")))


def _unpickled(path: Path) -> Any:
    """Return the attributes of the released code's vocabulary object, or anything else that the file holds."""
    try:
        return pickles.load(path)
    except UnsafePickleError as error:
        raise VocabularyError(
            f"{path}: the pickle refers to {error}, which a vocabulary does not need; rejected, nothing of it was run; "
            f"{AS_TEXT}"
        ) from error
    except UsageError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split())[:160]
        raise VocabularyError(f"{path}: not readable as a pickle ({reason}); {AS_TEXT}") from error


def read_lines(path: Path) -> list[str]:
    """Return the first field of every line without duplicates, as the released code does.

    Further fields are counts. The list of One Billion Word contains a word twice.
    """
    try:
        lines = read_text(path, MAX_VOCABULARY).split("\n")
        return list(dict.fromkeys(fields[0] for line in lines if (fields := line.split())))
    except (OSError, UnicodeDecodeError) as error:
        raise VocabularyError(f"{path}: cannot be read as a list of words ({error}); save it as UTF-8 text") from error


def _from_words(path: Path, words: list[Any], *, lower_case: bool = False) -> Vocab:
    if not words or not all(isinstance(word, str) for word in words):
        raise VocabularyError(f"{path}: does not hold a list of words; {AS_TEXT}")
    boundary, unknown = (
        next((words.index(symbol) for symbol in known if symbol in words), None) for known in (BOUNDARIES, UNKNOWNS)
    )
    return Vocab("word", words, boundary=boundary, unknown=unknown, lower_case=lower_case)


def write_words(vocab: Vocab, path: Path) -> None:
    """Write one word per line, in the order of the ids."""
    path.write_text("".join(f"{symbol}\n" for symbol in vocab.symbols), encoding="utf-8")
