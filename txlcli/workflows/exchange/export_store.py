"""Writes a token store as token files of another system, or its text as Parquet files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from txlcli.corpora.corpus import SPLITS
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, VocabularyError
from txlcli.exchange import token_files
from txlcli.exchange.token_files import BIN, BLOCK, IDX, VOCABULARY
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.options import ExportOptions, PrepareOptions
from txlcli.workflows.preparation.planning import make_plan
from txlcli.workflows.preparation.preparing import run_plan
from txlcli.workflows.reporter import Reporter

PARQUET = ".parquet"
NAMES = {"nanogpt": {"valid": "val"}, "llm.c": {"valid": "val"}, "megatron": {}, "parquet": {"valid": "validation"}}
"""Names of splits that a system calls otherwise, by format."""
ENDINGS = {"megatron": (BIN, IDX), "parquet": (PARQUET,)}


@dataclass(frozen=True, kw_only=True)
class ExportedStore:
    """A token store that was written as files of another system."""

    store: str
    folder: str
    format: str
    files: tuple[str, ...]
    dtype: str | None
    """Type of the ids; None for text."""
    tokens: dict[str, int]
    """Number of ids by split."""
    sha256: dict[str, str]
    """Digest of the ids by split."""
    notes: tuple[str, ...]


def run(store: TokenStore, directory: Path, options: ExportOptions, reporter: Reporter) -> ExportedStore:
    """Write the splits and the vocabulary of a store."""
    format, force = options.format, options.force
    names = [NAMES[format].get(split, split) for split in SPLITS]
    files = [VOCABULARY, *(name + ending for name in names for ending in ENDINGS.get(format, (BIN,)))]
    tokens = {split: info.tokens for split, info in store.splits.items()}

    def write(draft: Path) -> None:
        with reporter.progress(f"writing {directory}", sum(tokens.values()), "tokens") as step:
            _write(store, draft, format, step.advance)
        if format == "parquet":
            _check_text(store, draft, reporter)

    written = export_directory.fill(directory, files, write, force=force)
    dtype = None if format == "parquet" else token_files.dtype_of(format, store.vocab.size)
    return ExportedStore(
        store=str(store.path),
        folder=str(directory),
        format=format,
        files=written,
        dtype=dtype,
        tokens=tokens,
        sha256={split: info.sha256 for split, info in store.splits.items()},
        notes=(f"V = {store.vocab.size:,} needs uint32: change the dtype in nanoGPT's train.py",)
        if format == "nanogpt" and dtype == "uint32"
        else (),
    )


def _write(store: TokenStore, draft: Path, format: str, advance: Callable[[int], None]) -> None:
    size = store.vocab.size
    for split in store.splits:
        path, ids = draft / f"{NAMES[format].get(split, split)}{BIN}", store.ids(split)
        if format == "parquet":
            _write_text(path.with_suffix(PARQUET), store.vocab, ids)
        else:
            token_files.write(format, path, ids, size, store.sentence_starts(split))
        advance(len(ids))
    (draft / VOCABULARY).write_text(store.vocab.to_json(), encoding="utf-8")


def _write_text(path: Path, vocab: Vocab, ids: NDArray[Any]) -> None:
    from txlcli.exchange import parquet_text

    def text() -> Iterator[bytes]:
        return vocab.decode_blocks(ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))

    parquet_text.write(path, text(), is_utf8=parquet_text.is_utf8(text()))


def _check_text(store: TokenStore, draft: Path, reporter: Reporter) -> None:
    """Prepare the text of an export again; it must give the same ids, which it does not if symbols are unknown."""
    reason = "other ids"
    with TemporaryDirectory(prefix=".check-", dir=draft) as directory:
        try:
            again = run_plan(make_plan(str(draft), PrepareOptions(name="again"), Path(directory)), reporter)
            if all(again.digest(split) == info.sha256 for split, info in store.splits.items()):
                return
        except (CorpusInputError, VocabularyError) as error:
            reason = str(error).replace(f"{draft}/", "")
    raise VocabularyError(
        f"{store.path}: its text would not be prepared to the same ids again ({reason}); export the ids, for example "
        "with `format` nanogpt"
    )
