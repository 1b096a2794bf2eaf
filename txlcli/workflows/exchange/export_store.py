"""Writes a token store as token files of another system, or its text as Parquet files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, VocabularyError
from txlcli.workflows.exchange import export_directory, parquet_text, token_files
from txlcli.workflows.exchange.options import ExportOptions
from txlcli.workflows.exchange.token_files import BLOCK
from txlcli.workflows.reporter import Reporter

ENDINGS = {"nanogpt": (".bin",), "llm.c": (".bin",), "megatron": (".bin", ".idx"), "parquet": (".parquet",)}
"""Endings of the files of each split, by format."""
VALID = {"nanogpt": "val", "llm.c": "val", "megatron": "valid", "parquet": "validation"}
"""Name of the validation split, by format."""


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


Prepare = Callable[[Path, Path, Reporter], TokenStore]
"""Prepares the text of an exported directory, and stores it in another one."""


def run(
    store: TokenStore, directory: Path, options: ExportOptions, reporter: Reporter, prepare: Prepare
) -> ExportedStore:
    """Write the splits and the vocabulary of a store; `prepare` checks that text gives the same ids again."""
    format = options.format
    endings = ENDINGS[format]
    is_text = format == "parquet"
    names = {"train": "train", "valid": VALID[format], "test": "test"}
    tokens = {split: info.tokens for split, info in store.splits.items()}
    dtype = None if is_text else token_files.dtype_of(format, store.vocab.size)

    def write(draft: Path) -> None:
        with reporter.progress(f"writing {directory}", sum(tokens.values()), "tokens") as step:
            for split, count in tokens.items():
                path = draft / (names[split] + endings[0])
                ids = store.ids(split)
                if is_text:
                    _write_text(path, store.vocab, ids)
                else:
                    token_files.write(format, path, ids, store.vocab.size, store.sentence_starts(split))
                step.advance(count)
        if is_text:
            _check_text(store, draft, prepare, reporter)

    files: list[str] = []
    for name in names.values():
        files += [name + ending for ending in endings]
    notes: tuple[str, ...] = ()
    if format == "nanogpt" and dtype == "uint32":
        notes = (f"V = {store.vocab.size:,} needs uint32: change the dtype in nanoGPT's train.py",)
    return ExportedStore(
        store=str(store.path),
        folder=str(directory),
        format=format,
        files=export_directory.fill(directory, files, write, store.vocab, force=options.force),
        dtype=dtype,
        tokens=tokens,
        sha256={split: info.sha256 for split, info in store.splits.items()},
        notes=notes,
    )


def _write_text(path: Path, vocab: Vocab, ids: NDArray[Any]) -> None:
    starts = range(0, len(ids), BLOCK)
    parquet_text.write(path, lambda: vocab.decode_blocks(ids[start : start + BLOCK] for start in starts))


def _check_text(store: TokenStore, draft: Path, prepare: Prepare, reporter: Reporter) -> None:
    """Prepare the text of an export again; it must give the same ids, which it does not if symbols are unknown."""
    reason = "other ids"
    with TemporaryDirectory(prefix=".check-", dir=draft) as directory:
        try:
            again = prepare(draft, Path(directory), reporter)
            if all(again.digest(split) == info.sha256 for split, info in store.splits.items()):
                return
        except (CorpusInputError, VocabularyError) as error:
            reason = str(error).replace(f"{draft}/", "")
    raise VocabularyError(
        f"{store.path}: its text would not be prepared to the same ids again ({reason}); export the ids, for example "
        "with `format` nanogpt"
    )
