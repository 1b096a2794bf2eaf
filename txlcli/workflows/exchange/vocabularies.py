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
    return next(filter(Path.exists, map(directory.joinpath, FILES)), None)


def read(path: Path) -> Vocab:
    """Read a vocabulary: txl's JSON, a torch or plain pickle with idx2sym, or a list of words."""
    if not check_regular(path).is_file():
        raise VocabularyError(f"no vocabulary file at {path}; give `vocab` a file")
    try:
        return Vocab.from_json(read_text(path, MAX_VOCABULARY)) if path.suffix == ".json" else _read_words(path)
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}; {AS_TEXT}") from error
    except UsageError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise VocabularyError(
            f"{path}: not readable as a vocabulary ({' '.join(str(error).split())[:160]}); {AS_TEXT}"
        ) from error


def _read_words(path: Path) -> Vocab:
    """Read the attributes of the released code's vocabulary object, or the first field of every line.

    Further fields are counts. The list of One Billion Word contains a word twice; as in the released code, once counts.
    """
    if path.suffix in PICKLES:
        fields = pickles.load(path)
        if not isinstance(fields, dict) or not isinstance(fields.get("idx2sym"), list):
            raise VocabularyError("has no list idx2sym")
    else:
        lines = map(str.split, read_text(path, MAX_VOCABULARY).split("\n"))
        fields = {"idx2sym": list(dict.fromkeys(line[0] for line in lines if line))}
    words = fields["idx2sym"]
    if not words or not all(isinstance(word, str) for word in words):
        raise VocabularyError("does not hold a list of words")
    boundary, unknown = (
        next((words.index(symbol) for symbol in known if symbol in words), None) for known in (BOUNDARIES, UNKNOWNS)
    )
    return Vocab("word", words, boundary=boundary, unknown=unknown, lower_case=bool(fields.get("lower_case")))
