"""Reads vocabulary files of txl and of other systems."""

from pathlib import Path

from txlcli.data.vocabulary import Vocab
from txlcli.errors import UsageError, VocabularyError
from txlcli.system.input_files import MAX_VOCABULARY, check_regular, read_text
from txlcli.workflows.exchange import pickles

BOUNDARIES = ("<eos>", "<S>")
UNKNOWNS = ("<unk>", "<UNK>")
FILES = ("vocab.json", "vocab.bin", "vocab.pkl", "vocab.txt")
"""Names of vocabulary files; the last three are Hugging Face's."""
PICKLES = (".pkl", ".pickle", ".bin", ".pt", ".pth")
AS_TEXT = "give the words as a text file in UTF-8, one per line"


def find(directory: Path) -> Path | None:
    """Return the vocabulary file of a directory; None if there is none."""
    for name in FILES:
        path = directory / name
        if path.exists():
            return path
    return None


def read(path: Path) -> Vocab:
    """Read a vocabulary: txl's JSON, a torch or plain pickle with idx2sym, or a list of words."""
    if not check_regular(path).is_file():
        raise VocabularyError(f"no vocabulary file at {path}; give `vocab` a file")
    try:
        if path.suffix == ".json":
            return Vocab.from_json(read_text(path, MAX_VOCABULARY))
        return _read_words(path)
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}; {AS_TEXT}") from error
    except UsageError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split())[:160]
        raise VocabularyError(f"{path}: not readable as a vocabulary ({reason}); {AS_TEXT}") from error


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
        lines = [line.split() for line in read_text(path, MAX_VOCABULARY).split("\n")]
        words = list(dict.fromkeys(line[0] for line in lines if line))
    if not words or not all(isinstance(word, str) for word in words):
        raise VocabularyError("does not hold a list of words")
    return Vocab(
        "word",
        words,
        boundary=_first_index(words, BOUNDARIES),
        unknown=_first_index(words, UNKNOWNS),
        lower_case=lower_case,
    )


def _first_index(words: list[str], symbols: tuple[str, ...]) -> int | None:
    """Return the place of the first of the symbols that is a word; None if none is."""
    for symbol in symbols:
        if symbol in words:
            return words.index(symbol)
    return None
