"""`txl prepare`: turn a corpus or your own text into a token store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.commands.progress import TerminalReporter
from txlcli.errors import TxlError, UsageError
from txlcli.system.command_lines import with_flags
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.workspace import StoresDir

if TYPE_CHECKING:
    from txlcli.data.token_store import TokenStore
    from txlcli.workflows.preparation.preparing import PreparedStore

COLUMNS = ("split", "tokens", "types", "words", "bytes", "unknown")


def prepare(
    options: PrepareOptions,
    what: Annotated[
        str | None,
        argument("NAME|PATH", "A corpus, or a text file or folder.", "corpora"),
    ] = None,
    listed: Annotated[bool, Option("--list", help="List the existing stores.")] = False,
    *,
    where: StoresDir,
    json: Json = False,
) -> None:
    """Turn a corpus, or your own text, into a token store.

    Corpora: enwik8, text8, wt103, wt2, lm1b, ptb (downloaded, or read from --source), stdlib (part of every Python).
    Own text may be plain, compressed, or a column of Parquet, Arrow, JSON lines, CSV or TSV. Token ids of nanoGPT,
    llm.c, LitGPT, Megatron and fairseq (.bin, .idx) are kept as they are; --ids reads them from .npy, .npz and JSON.

    Example: txl prepare stdlib
    """
    if listed:
        if what is not None or options != PrepareOptions():
            raise UsageError("--list shows the existing stores; combine it with --data-dir and --json only")
        _show_list(where.data_dir, json)
        return
    if what is None:
        raise UsageError('prepare what? Name a corpus or a path, e.g. "txl prepare stdlib"')
    from txlcli.workflows.preparation import preparing

    result = preparing.run(what, options, where.data_dir, reporter=TerminalReporter())
    console.show_result(result, show, json=json)


def show(result: "PreparedStore") -> None:
    """Write a table of the splits, their beginnings, and the conventions of a store to stdout."""
    splits = result.to_json()["splits"]
    rows = []
    for split, info in splits.items():
        words = console.cell(info["words"], ",")
        size = console.cell(info["bytes"], ",")
        unknown = f"{info['unknown_percent']:.2f} %"
        rows.append([split, f"{info['tokens']:,}", f"{info['types']:,}", words, size, unknown])
    console.show_table(f"{result.path}: {result.corpus}, unit {result.unit}, V = {result.vocab.size:,}", COLUMNS, rows)
    for split, info in splits.items():
        console.show_line(f"{split} begins: {info['begins']}")
    for key, value in result.conventions.items():
        console.show_line(f"{key}: {value}")
    if result.changes:
        changes = [f"{name.replace('_', ' ')}: {count:,}" for name, count in result.changes.items()]
        console.show_line(f"skipped or changed: {', '.join(changes)}")
    for note in result.notes:
        console.show_line(f"note: {with_flags(note)}")
    if result.next:
        console.show_line(f"next: {result.next}")


def _entry(store: "TokenStore") -> dict[str, Any]:
    """Return the JSON object of a store in the list."""
    return {
        "name": store.name,
        "corpus": store.corpus,
        "tokenizer": store.tokenizer,
        "vocabulary_size": store.vocab.size,
        "tokens": {split: info.tokens for split, info in store.splits.items()},
        "conventions": store.conventions,
    }


def _show_list(data_dir: Path, json: bool) -> None:
    """Write the stores, with the size of each split, and their conventions to stdout; complain about damaged ones."""
    from txlcli.corpora.corpus import SPLITS
    from txlcli.data.token_store import TokenStore, stores_in

    stores: list[TokenStore] = []
    for path in stores_in(data_dir):
        try:
            store = TokenStore.open(path)
            _ = store.vocab  # a damaged vocabulary is reported here
            stores.append(store)
        except TxlError as error:
            console.complain(str(error))
    if json:
        console.show_json({"stores": list(map(_entry, stores))})
        return
    if not stores:
        console.show_line(f'no token stores in {data_dir}; make one with "txl prepare stdlib"')
        return
    rows = []
    for store in stores:
        tokens = {split: f"{info.tokens:,}" for split, info in store.splits.items()}
        sizes = [tokens.get(split, "-") for split in SPLITS]
        rows.append([store.name, store.corpus, store.tokenizer, f"{store.vocab.size:,}", *sizes])
    console.show_table(f"token stores in {data_dir}", ("store", "corpus", "tokenizer", "V", *SPLITS), rows)
    for store in stores:
        conventions = "; ".join(f"{key}: {value}" for key, value in store.conventions.items())
        console.show_line(f"{store.name}: {conventions}")
