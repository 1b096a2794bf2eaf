"""Files of token ids that hold one piece of music or one document each: NumPy arrays, and lists in JSON.

.npy    one piece of shape (T,), or a piece in each row of (n, T)
.npz    an array of these shapes called "ids", "input_ids" or "tokens"; without one, all arrays in the order of saving
.json   one list of ids or a list of lists; or an object with such a list under one of these names, as MidiTok saves it
"""

import itertools
import re
import zipfile
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.corpora.directory import files_by_split
from txlcli.corpora.documents import documents_at
from txlcli.corpora.locate import splits_in, text_files
from txlcli.corpora.signatures import head_of
from txlcli.data.vocabulary import MAX_IDS
from txlcli.errors import CorpusInputError, reason_of, shortened
from txlcli.system.input_files import MAX_TEXT, check_size, read_bytes
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange.pickles import check_zip
from txlcli.workflows.exchange.token_files import VOCABULARY, TokenFiles

ENDINGS = (".npy", ".npz", ".json")
TOKENIZER = "tokenizer.json"
"""File with the settings of MidiTok's tokenizer, which `save_pretrained` writes next to the pieces."""
NAMES = ("ids", "input_ids", "tokens")
"""Names of the ids next to other content, such as an attention mask; the first one counts."""
NOT_PIECES = {"offset", "offsets", "indptr", "seqlens", "length", "lengths", "starts", "ends", "mask", "labels"}
"""Words in the names of arrays that describe ids, but are none."""
NUMPY = b"\x93NUMPY"
FORMAT = "one file a piece"
DTYPE = np.dtype("<u4")
Piece = NDArray[np.integer]


@dataclass(frozen=True)
class PieceContent:
    """Pieces of one file, and the names of its other content."""

    pieces: list[Piece]
    left_out: list[str]
    """Such as an attention mask."""


@dataclass(frozen=True)
class PieceFiles:
    """Files of pieces, before they are read."""

    splits: Mapping[str, Sequence[Path]]
    """Files of each split; those without splits are under "" until they are cut."""
    format = FORMAT

    def joined(self, directory: Path, vocab_size: int | None) -> TokenFiles:
        """Write the pieces of each split into one file of a directory, in order; each of several is a document.

        All ids must be below the size of the vocabulary, if it is known.
        """
        splits = {}
        offsets = {}
        left_out = set[str]()
        for split, paths in self.splits.items():
            joined = directory / f"{split or 'all'}.bin"
            starts = array("q")
            with joined.open("wb") as file:
                for path in paths:
                    content = read_content(path, vocab_size or MAX_IDS)
                    left_out.update(content.left_out)
                    for piece in content.pieces:
                        starts.append(file.tell())
                        file.write(piece.astype(DTYPE).tobytes())
            splits[split] = (Slice(joined, 0, joined.stat().st_size),)
            offsets[joined] = starts
        used = tuple(itertools.chain.from_iterable(self.splits.values()))
        documents = documents_at(offsets, splits)
        return TokenFiles(FORMAT, DTYPE, splits, documents, joined=used, left_out=tuple(sorted(left_out)))


def find(source: Path) -> PieceFiles | None:
    """Return the files of pieces at a path; None if there are none."""
    paths = []
    for path in text_files(source):
        is_vocabulary = path.name in (VOCABULARY, TOKENIZER)
        if path.suffix.lower() in ENDINGS and not is_vocabulary:
            paths.append(path)
    if not paths:
        return None
    if not source.is_dir():
        return PieceFiles({"": paths})
    return PieceFiles(files_by_split(paths, source))


def read_pieces(path: Path) -> list[Piece]:
    """Return the pieces of a file that have ids."""
    return read_content(path, MAX_IDS).pieces


def read_content(path: Path, limit: int) -> PieceContent:
    """Return the pieces of a file that have ids, all of them below a limit, and the names of what is not read."""
    try:
        content = _read_json(path) if path.suffix.lower() == ".json" else _read_arrays(path)
        pieces = [piece for piece in content.pieces if piece.size]
        for piece in pieces:
            _check(piece, limit)
    except (ValueError, OverflowError, EOFError, zipfile.BadZipFile) as error:
        shape = ""
        if path.suffix.lower() == ".json":
            shape = "one list, or one list of lists, of "
        raise CorpusInputError(
            f"{path}: {reason_of(error)}; give {shape}token ids, whole numbers below {limit:,}"
        ) from error
    return PieceContent(pieces, content.left_out)


def _read_json(path: Path) -> PieceContent:
    """Read one list of ids or several; raise a ValueError for anything else."""
    content = parse_json(read_bytes(path, MAX_TEXT))
    left_out = []
    if isinstance(content, dict):
        name_of_ids = _name_of_ids(content)
        left_out = [name for name in content if name != name_of_ids]
        content = content.get(name_of_ids)
    if not isinstance(content, list):
        raise ValueError('neither a list nor an object with a list "ids"')
    if not any(isinstance(item, list) for item in content):
        content = [content]  # one piece
    return PieceContent([np.array(piece) for piece in content], left_out)


def _read_arrays(path: Path) -> PieceContent:
    """Read a .npy or .npz; arrays of Python's objects, which could run code, are rejected by NumPy."""
    check_size(path.stat().st_size, MAX_TEXT, str(path))
    if path.suffix.lower() == ".npy":
        if not head_of(path).startswith(NUMPY):
            raise CorpusInputError(
                f"{path}: not a NumPy array; if it holds ids without a header, rename it to {path.stem}.bin and give "
                "their `dtype`"
            )
        return PieceContent(list(_rows(_array(path))), [])
    if not zipfile.is_zipfile(path):
        raise ValueError("damaged, or not an .npz, which is a zip file of arrays")
    check_zip(path)
    pieces = list[Piece]()
    left_out = []
    with np.load(path) as archive:
        name_of_ids = _name_of_ids(archive.files)
        splits = set[str]().union(*(splits_in(Path(name)) for name in archive.files))
        if name_of_ids is None and len(splits) > 1:
            names = ", ".join(f"{name}.npy" for name in archive.files)
            raise CorpusInputError(f"{path}: its arrays are splits; save each to a file of its own: {shortened(names)}")
        for name in archive.files:
            if name_of_ids is None and not NOT_PIECES.isdisjoint(re.split(r"[^a-z]+", name.lower())):
                raise CorpusInputError(
                    f'{path}: its array "{shortened(name)}" does not look like ids; save the ids under the name "ids"'
                )
            if name_of_ids not in (None, name):
                left_out.append(name)
                continue
            stored = archive[name]
            if isinstance(stored, bytes):
                raise ValueError(f"{name} in it is not a NumPy array")
            pieces.extend(_rows(stored))
    return PieceContent(pieces, left_out)


def _array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy, which must be all that the file has."""
    try:
        stored = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise CorpusInputError(
            f"{path}: not a readable array of numbers ({reason_of(error)}); write it again; lists of several lengths "
            "are read from .json"
        ) from error
    size = path.stat().st_size
    end = stored.offset + stored.nbytes
    if end < size and stored.size:
        raise CorpusInputError(
            f"{path}: {size - end:,} bytes follow its array, such as another array; save each array to a file of its "
            "own"
        )
    return stored


def _rows(stored: NDArray[Any]) -> NDArray[Any]:
    """Return the pieces of an array, which are its rows (n, T)."""
    if stored.ndim not in (1, 2):
        raise ValueError(f"an array of shape {stored.shape}")
    return np.atleast_2d(stored)


def _name_of_ids(names: Collection[str]) -> str | None:
    """Return the name under which an archive or an object has its ids; None if it does not say."""
    return next((name for name in NAMES if name in names), None)


def _check(ids: NDArray[Any], limit: int) -> None:
    """Raise a ValueError unless ids are whole numbers below a limit."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"not ids, but {ids.dtype} of shape {ids.shape}")
    wrong = ids[(ids < 0) | (ids >= limit)]
    if len(wrong):
        raise ValueError(f"has the id {int(wrong[0]):,}")
