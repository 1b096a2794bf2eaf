"""Writes a token store as token files of nanoGPT."""

from dataclasses import dataclass
from pathlib import Path

from txlcli.data.token_store import TokenStore
from txlcli.exchange import token_files
from txlcli.exchange.token_files import VOCABULARY
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.options import ExportOptions
from txlcli.workflows.reporter import Reporter

FILES = {"train": "train.bin", "valid": "val.bin", "test": "test.bin"}
"""File of each split."""


@dataclass(frozen=True, kw_only=True)
class ExportedStore:
    """A token store that was written as token files."""

    store: str
    folder: str
    format: str
    files: tuple[str, ...]
    dtype: str
    """Type of the ids."""
    tokens: dict[str, int]
    """Number of ids by split."""
    sha256: dict[str, str]
    """Digest of the ids by split."""
    notes: tuple[str, ...]


def run(store: TokenStore, directory: Path, options: ExportOptions, reporter: Reporter) -> ExportedStore:
    """Write the splits and the vocabulary of a store."""
    size = store.vocab.size
    tokens = {split: info.tokens for split, info in store.splits.items()}

    def write(draft: Path) -> None:
        with reporter.progress(f"writing {directory}", sum(tokens.values()), "tokens") as step:
            for split in store.splits:
                ids = store.ids(split)
                token_files.write(draft / FILES[split], ids, size)
                step.advance(len(ids))
        (draft / VOCABULARY).write_text(store.vocab.to_json(), encoding="utf-8")

    written = export_directory.fill(directory, [VOCABULARY, *FILES.values()], write, force=options.force)
    dtype = token_files.dtype_of(size)
    return ExportedStore(
        store=str(store.path),
        folder=str(directory),
        format=options.format,
        files=written,
        dtype=dtype,
        tokens=tokens,
        sha256={split: info.sha256 for split, info in store.splits.items()},
        notes=(f"V = {size:,} needs uint32: change the dtype in nanoGPT's train.py",) * (dtype == "uint32"),
    )
