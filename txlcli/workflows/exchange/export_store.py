"""Writes a token store as token files of another system, or its text as Parquet files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from numpy.typing import NDArray

from txlcli.corpora.corpus import SPLITS
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, VocabularyError
from txlcli.exchange import token_files
from txlcli.exchange.token_files import BIN, BLOCK, IDX, VOCABULARY
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.preparation.planning import PARQUET, PrepareOptions
from txlcli.workflows.preparation.preparing import prepare
from txlcli.workflows.reporter import Reporter, SilentReporter

Format = Literal["nanogpt", "llm.c", "megatron", "parquet"]
NAMES: dict[Format, dict[str, str]] = {
    "nanogpt": {"valid": "val"},
    "llm.c": {"valid": "val"},
    "megatron": {},
    "parquet": {"valid": "validation"},
}
"""Names of splits that a system calls otherwise."""


def export_store(
    store: TokenStore, directory: Path, format: Format, *, force: bool, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Write the splits and the vocabulary of a store, and return what was written.

    Raises:
        StoreError: the store is damaged.
        ExportError: the directory is in use or cannot be written, or the format cannot hold so many ids.
        BusyError: another process writes the directory.
        VocabularyError: the ids have no text, or their text would not give the same ids again.
    """
    files = _possible_files(format)
    export_directory.check_free(directory, files, force=force)
    reporter = reporter or SilentReporter()
    total = sum(info.tokens for info in store.splits.values())

    def write(draft: Path) -> None:
        with reporter.progress(f"writing {directory}", total, "tokens") as step:
            _write(store, draft, format, step.advance)
        if format == "parquet":
            _check_text(store, draft, reporter)

    written = export_directory.fill(directory, files, write, force=force)
    return {
        "store": str(store.path),
        "folder": str(directory),
        "format": format,
        "files": written,
        "dtype": None if format == "parquet" else token_files.dtype_of(format, store.vocab.size),
        "tokens": {split: info.tokens for split, info in store.splits.items()},
        "sha256": {split: info.sha256 for split, info in store.splits.items()},
        "notes": _notes(store, format),
    }


def _possible_files(format: Format) -> list[str]:
    names = [NAMES[format].get(split, split) for split in SPLITS]
    endings = {"megatron": (BIN, IDX), "parquet": (PARQUET,)}.get(format, (BIN,))
    return [VOCABULARY, *(name + ending for name in names for ending in endings)]


def _write(store: TokenStore, draft: Path, format: Format, advance: Callable[[int], None]) -> None:
    size = store.vocab.size
    for split in store.splits:
        path, ids = draft / f"{NAMES[format].get(split, split)}{BIN}", store.ids(split)
        if format == "parquet":
            _write_text(path.with_suffix(PARQUET), store.vocab, ids)
        elif format == "nanogpt":
            token_files.write_nanogpt(path, ids, size)
        elif format == "llm.c":
            token_files.write_llm_c(path, ids, size)
        else:
            token_files.write_megatron(path, ids, size, store.sentence_starts(split))
        advance(len(ids))
    (draft / VOCABULARY).write_text(store.vocab.to_json(), encoding="utf-8")


def _write_text(path: Path, vocab: Vocab, ids: NDArray[Any]) -> None:
    from txlcli.exchange import parquet_text

    def text() -> Iterator[bytes]:
        return vocab.decode_blocks(ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))

    parquet_text.write(path, text(), is_utf8=parquet_text.is_utf8(text()))


def _check_text(store: TokenStore, draft: Path, reporter: Reporter) -> None:
    """Prepare the text of an export again, which must give the same ids.

    Raises:
        VocabularyError: it does not, for example if unknown characters are written.
    """
    reason = "other ids"
    with TemporaryDirectory(prefix=".check-", dir=draft) as directory:
        try:
            again = prepare(str(draft), Path(directory), PrepareOptions(name="again"), reporter=reporter)
            if all(again.digest(split) == info.sha256 for split, info in store.splits.items()):
                return
        except (CorpusInputError, VocabularyError) as error:
            reason = str(error).replace(f"{draft}/", "")
    raise VocabularyError(
        f"{store.path}: its text would not be prepared to the same ids again ({reason}); export the ids, for example "
        "with --format nanogpt"
    )


def _notes(store: TokenStore, format: Format) -> list[str]:
    size = store.vocab.size
    notes = []
    if format == "nanogpt" and token_files.dtype_of(format, size) == "uint32":
        notes.append(
            f"V = {size:,} needs uint32: nanoGPT reads uint16 until its train.py is changed; txl reads the files with "
            "--dtype uint32"
        )
    if format == "llm.c" and token_files.dtype_of(format, size) == "uint32":
        notes.append(f"V = {size:,} needs uint32: the files have the header of llm.c for Llama 3")
    return notes
