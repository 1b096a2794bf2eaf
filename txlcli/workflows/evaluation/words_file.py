"""The file of words that `txl eval --words` writes, without PyTorch."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from txlcli.errors import UsageError
from txlcli.system.input_files import MAX_TEXT, check_regular, errors_of_reading

SUFFIX = ".tsv"

COLUMNS = ("word", "start", "end", "tokens", "unknown")
"""First columns; `start` and `end` are offsets in characters. Those of bits follow, one for each evaluation."""
DOCUMENT = "document"
"""Column before those of bits with the name of the document, if the text has several."""
BITS_OF_STATE = "bits_state"
"""Column of the bits with a recurrent state."""
RECURRENT_STATE = "recurrent state"
"""Name of its evaluation in a comparison."""
SIGNATURE = "\t".join(COLUMNS)
"""Beginning of a file of words."""


@dataclass(frozen=True, eq=False)
class WordLosses:
    """The words of a text with their losses."""

    words: list[str]
    places: list[tuple[str, int]]
    """Document of each word, and the offset of its first character."""
    ends: list[int]
    """Offset after the last character of each word."""
    unknown: NDArray[np.bool_]
    """True for words with a token that is not in the vocabulary, (W,)."""
    losses_nats: dict[str, NDArray[np.float64]]
    """Loss of each word, (W,), by evaluation: mem_len_M, attn_len_N or `RECURRENT_STATE`."""

    @property
    def has_state(self) -> bool:
        """True for a recurrent state, which has no memory length."""
        return RECURRENT_STATE in self.losses_nats

    @property
    def documents(self) -> set[str]:
        """Names of the documents."""
        return {document for document, _ in self.places}


def read(path: Path) -> WordLosses:
    """Read a file of words; raise a UsageError if it is none."""
    csv.field_size_limit(MAX_TEXT)  # a word may be as long as the text
    try:
        with errors_of_reading(path), check_regular(path).open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file, delimiter="\t", strict=True)
        table = dict(zip(header, zip(*rows, strict=True), strict=True))
        columns = {name: table.pop(name) for name in COLUMNS}
        documents = table.pop(DOCUMENT, ("",) * len(rows))
        losses_nats = {}
        for name, values in table.items():
            bits = np.array(values, dtype=np.float64)
            losses_nats[_evaluation(name)] = bits * math.log(2)
        return WordLosses(
            words=list(columns["word"]),
            places=list(zip(documents, map(int, columns["start"]), strict=True)),
            ends=list(map(int, columns["end"])),
            unknown=np.array(columns["unknown"], dtype=np.int64) == 1,
            losses_nats=losses_nats,
        )
    except (ValueError, KeyError, csv.Error) as error:
        raise UsageError(f"{path}: not a file of words ({error}); write one with txl eval --words") from error


def _evaluation(column: str) -> str:
    """Return the evaluation of a column, as in a file of losses: bits_M64 is mem_len_64."""
    if column == BITS_OF_STATE:
        return RECURRENT_STATE
    label = column.removeprefix("bits_")
    length = int(label[1:])
    if label.startswith("N"):
        return f"attn_len_{length}"
    return f"mem_len_{length}"
