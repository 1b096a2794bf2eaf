"""Writes a token store as token files of another system."""

from dataclasses import dataclass
from pathlib import Path

from txlcli.corpora.corpus import SPLITS
from txlcli.data.token_store import TokenStore
from txlcli.exchange import token_files
from txlcli.exchange.token_files import BIN, IDX, VOCABULARY
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.options import ExportOptions
from txlcli.workflows.reporter import Reporter

NAMES = {"nanogpt": {"valid": "val"}, "llm.c": {"valid": "val"}, "megatron": {}}
"""Names of splits that a system calls otherwise, by format."""


@dataclass(frozen=True, kw_only=True)
class ExportedStore:
    """A token store that was written as files of another system."""

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
    format, size = options.format, store.vocab.size
    name_of = {split: NAMES[format].get(split, split) for split in SPLITS}
    endings = (BIN, IDX) if format == "megatron" else (BIN,)
    files = [VOCABULARY, *(name + ending for name in name_of.values() for ending in endings)]
    tokens = {split: info.tokens for split, info in store.splits.items()}

    def write(draft: Path) -> None:
        with reporter.progress(f"writing {directory}", sum(tokens.values()), "tokens") as step:
            for split in store.splits:
                path, ids = draft / f"{name_of[split]}{BIN}", store.ids(split)
                token_files.write(format, path, ids, size, store.sentence_starts(split))
                step.advance(len(ids))
        (draft / VOCABULARY).write_text(store.vocab.to_json(), encoding="utf-8")

    written = export_directory.fill(directory, files, write, force=options.force)
    dtype = token_files.dtype_of(format, size)
    is_wide = format == "nanogpt" and dtype == "uint32"
    return ExportedStore(
        store=str(store.path),
        folder=str(directory),
        format=format,
        files=written,
        dtype=dtype,
        tokens=tokens,
        sha256={split: info.sha256 for split, info in store.splits.items()},
        notes=(f"V = {size:,} needs uint32: change the dtype in nanoGPT's train.py",) * is_wide,
    )
