"""Writes a token store as token files of another system."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from txlcli.corpora.corpus import SPLITS
from txlcli.data.token_store import TokenStore
from txlcli.exchange import token_files
from txlcli.exchange.token_files import BIN, IDX, VOCABULARY
from txlcli.workflows.exchange import export_folder
from txlcli.workflows.reporter import Reporter, SilentReporter

Format = Literal["nanogpt", "llm.c", "megatron"]
NAMES = {"nanogpt": {"valid": "val"}, "llm.c": {"valid": "val"}, "megatron": {}}
"""Names of splits that a system calls otherwise."""


def export_store(
    store: TokenStore, folder: Path, format: Format, *, force: bool, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Write the splits and the vocabulary of a store, and return what was written.

    Raises:
        StoreError: the store is damaged.
        ExportError: the folder is in use or cannot be written, or the format cannot hold so many ids.
    """
    files = _possible_files(format)
    export_folder.check_free(folder, files, force=force)
    total = sum(info.tokens for info in store.splits.values())
    with (reporter or SilentReporter()).progress(f"writing {folder}", total, "tokens") as step:
        written = export_folder.fill(folder, files, lambda draft: _write(store, draft, format, step.advance))
    return {
        "store": str(store.path),
        "folder": str(folder),
        "format": format,
        "files": written,
        "dtype": token_files.dtype_of(format, store.vocab.size),
        "tokens": {split: info.tokens for split, info in store.splits.items()},
        "sha256": {split: info.sha256 for split, info in store.splits.items()},
        "notes": _notes(store, format),
    }


def _possible_files(format: Format) -> list[str]:
    names = [NAMES[format].get(split, split) for split in SPLITS]
    endings = (BIN, IDX) if format == "megatron" else (BIN,)
    return [VOCABULARY, *(name + ending for name in names for ending in endings)]


def _write(store: TokenStore, draft: Path, format: Format, advance: Callable[[int], None]) -> None:
    size = store.vocab.size
    for split in store.splits:
        path, ids = draft / f"{NAMES[format].get(split, split)}{BIN}", store.ids(split)
        if format == "nanogpt":
            token_files.write_nanogpt(path, ids, size)
        elif format == "llm.c":
            token_files.write_llm_c(path, ids, size)
        else:
            token_files.write_megatron(path, ids, size, store.sentence_starts(split))
        advance(len(ids))
    (draft / VOCABULARY).write_text(store.vocab.to_json(), encoding="utf-8")


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
