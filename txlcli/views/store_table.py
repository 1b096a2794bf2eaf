"""Shows token stores: one that was just prepared, or all in a directory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.data.token_store import TokenStore
from txlcli.system.command_lines import command_line

EXCERPT_TOKENS, EXCERPT_CHARACTERS = 120, 100
COLUMNS = ("split", "tokens", "types", "words", "bytes", "unknown")


def show_store(store: TokenStore) -> None:
    """Write a table of the splits, their beginnings, and the conventions of a store to stdout."""
    rows = []
    for split, info in store.splits.items():
        share = f"{100 * info.unknown / info.tokens:.2f} %" if info.tokens else "-"
        # A store of token ids without text has 0 words and bytes: their numbers are not known.
        counts = [f"{number:,}" if number or not info.tokens else "-" for number in (info.words, info.bytes)]
        rows.append([split, f"{info.tokens:,}", f"{info.types:,}", *counts, share])
    console.show_table(f"{store.path}: {store.corpus}, unit {store.unit}, V = {store.vocab.size:,}", COLUMNS, rows)
    for split in store.splits:
        console.show_line(f"{split} begins: {_excerpt(store, split)}")
    for key, value in store.conventions.items():
        console.show_line(f"{key}: {value}")
    for note in store.notes:
        console.show_line(f"note: {note}")
    console.show_line(f"next: {next_command(store)}")


def next_command(store: TokenStore) -> str:
    """Return the command that trains on a store: a recipe of its name, or a small one for its unit."""
    return command_line("train", store.name, data_dir=store.path.parent)


def store_as_json(store: TokenStore) -> dict[str, Any]:
    """Return all facts about a store for `--json`."""
    splits = {
        split: {
            **vars(info),
            "unknown_percent": 100 * info.unknown / info.tokens if info.tokens else 0.0,
            "begins": _excerpt(store, split),
        }
        for split, info in store.splits.items()
    }
    facts = {**vars(store.facts), "conventions": store.conventions, "notes": list(store.notes)}
    return {
        "store": str(store.path),
        **facts,
        "vocabulary_size": store.vocab.size,
        "fingerprint": store.fingerprint,
        "splits": splits,
        "next": next_command(store),
    }


def _excerpt(store: TokenStore, split: str) -> str:
    """Decode the beginning of a split as one line."""
    text = " ".join(store.vocab.decode(store.ids(split)[:EXCERPT_TOKENS]).split())
    return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 3] + "..."


def show_list(data_dir: Path, stores: Iterable[TokenStore], splits: Iterable[str]) -> None:
    """Write a table of stores, with the size of each split, and their conventions to stdout."""
    stores, splits = list(stores), list(splits)
    if not stores:
        console.show_line(f'no token stores in {data_dir}; make one with "txl prepare stdlib"')
        return
    rows = []
    for store in stores:
        tokens = [f"{store.splits[split].tokens:,}" if split in store.splits else "-" for split in splits]
        rows.append([store.name, store.corpus, store.tokenizer, f"{store.vocab.size:,}", *tokens])
    console.show_table(f"token stores in {data_dir}", ("store", "corpus", "tokenizer", "V", *splits), rows)
    for store in stores:
        conventions = "; ".join(f"{key}: {value}" for key, value in store.conventions.items())
        console.show_line(f"{store.name}: {conventions}")


def list_entry(store: TokenStore) -> dict[str, Any]:
    """Return the entry of a store in `--list --json`."""
    return {
        "name": store.name,
        "corpus": store.corpus,
        "tokenizer": store.tokenizer,
        "vocabulary_size": store.vocab.size,
        "tokens": {split: info.tokens for split, info in store.splits.items()},
        "conventions": store.conventions,
    }
