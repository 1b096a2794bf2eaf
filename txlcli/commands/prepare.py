"""`txl prepare`: turn a corpus or your own text into a token store."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.config.ranges import MOST_COUNT
from txlcli.errors import TxlError, UsageError
from txlcli.options import DATA_DIR, DataDir, Force, Json

if TYPE_CHECKING:
    from txlcli.data.token_store import TokenStore
    from txlcli.workflows.preparation.planning import Plan

SNIPPET_TOKENS, SNIPPET_CHARACTERS = 120, 100
COLUMNS = ("split", "tokens", "types", "words", "bytes", "unknown")


class TokenizerName(StrEnum):
    """How text becomes tokens."""

    byte = "byte"
    char = "char"
    word = "word"
    sentencepiece = "sentencepiece"


class PieceType(StrEnum):
    """How SentencePiece finds its pieces."""

    unigram = "unigram"
    bpe = "bpe"


def prepare(
    what: Annotated[str | None, typer.Argument(metavar="NAME|PATH", help="A corpus, or a text file or folder.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", help="Take the corpus from this archive, folder or file; no download."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the store.")] = None,
    tokenizer: Annotated[
        TokenizerName | None, typer.Option("--tokenizer", help="The corpus's own by default; byte for own text.")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size", max=MOST_COUNT, help="Most words to keep, or the number of pieces (8000 by default)."
        ),
    ] = None,
    min_count: Annotated[
        int | None, typer.Option("--min-count", help="Words or characters seen less often in train are unknown.")
    ] = None,
    sp_type: Annotated[PieceType | None, typer.Option("--sp-type", help="unigram by default.")] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Shares of train, valid and test in percent; 90,5,5 by default.")
    ] = None,
    released_convention: Annotated[
        bool, typer.Option("--released-convention", help="Cut enwik8 and lm1b as the paper's released code does.")
    ] = False,
    vocab: Annotated[
        Path | None,
        typer.Option("--vocab", metavar="FILE", help="Encode with this vocabulary, e.g. a run's vocab.json."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that read text; one per processor by default, at most 8.")
    ] = None,
    force: Force = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the stores that are there.")] = False,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Turn a corpus or own text into a token store.

    Corpora: enwik8, text8, wt103, lm1b, ptb (downloaded, or from --source), stdlib (on every machine).

    Example: txl prepare stdlib
    """
    from txlcli.workflows.preparation.planning import PrepareOptions, make_plan

    wishes = PrepareOptions(
        source=source,
        name=name,
        tokenizer=tokenizer.value if tokenizer else None,
        vocab_size=vocab_size,
        min_count=min_count,
        sp_type=sp_type.value if sp_type else None,
        split=split,
        released_convention=released_convention,
        vocab=vocab,
        workers=workers,
    )
    if listed:
        if what is not None or wishes != PrepareOptions() or force:
            raise UsageError("--list shows what is there and goes with --data-dir and --json only")
        _show_list(data_dir, json)
        return
    if what is None:
        raise UsageError('prepare what? Name a corpus or a path, e.g. "txl prepare stdlib"')
    plan = make_plan(what, data_dir, wishes, force=force)
    from txlcli.workflows.preparation.preparing import carry_out

    console.say(_announcement(plan))
    store = carry_out(plan, console.progress)
    if json:
        console.show_json(_as_json(store))
    else:
        _show(store)


def _announcement(plan: "Plan") -> str:
    origin = f"from {plan.source}" if plan.source else f"downloaded to {plan.downloads} and kept there"
    return f"preparing {plan.corpus.title} ({plan.kind}), {origin}, into {plan.store}"


def _show(store: "TokenStore") -> None:
    rows = []
    for split, info in store.splits.items():
        share = f"{100 * info.unknown / info.tokens:.2f} %" if info.tokens else "-"
        rows.append([split, *(f"{number:,}" for number in (info.tokens, info.types, info.words, info.bytes)), share])
    console.show_table(f"{store.path}: {store.corpus}, unit {store.unit}, V = {store.vocab.size:,}", COLUMNS, rows)
    for split in store.splits:
        console.show_text(f"{split} begins: {_snippet(store, split)}")
    for key, value in store.conventions.items():
        console.show_text(f"{key}: {value}")
    for note in store.notes:
        console.show_text(f"note: {note}")


def _snippet(store: "TokenStore", split: str) -> str:
    """The beginning of a split, decoded, on one line."""
    text = " ".join(store.vocab.decode(store.ids(split)[:SNIPPET_TOKENS]).split())
    return text if len(text) <= SNIPPET_CHARACTERS else text[: SNIPPET_CHARACTERS - 3] + "..."


def _as_json(store: "TokenStore") -> dict[str, Any]:
    splits = {
        split: {
            **vars(info),
            "unknown_percent": 100 * info.unknown / info.tokens if info.tokens else 0.0,
            "begins": _snippet(store, split),
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
    }


def _show_list(data_dir: Path, json: bool) -> None:
    from corpora.corpus import SPLITS
    from txlcli.data.token_store import TokenStore, stores_in

    stores = []
    for path in stores_in(data_dir):
        try:
            store = TokenStore.open(path)
            stores.append((store, store.vocab.size))
        except TxlError as error:
            console.complain(str(error))
    if json:
        console.show_json({"stores": [_list_entry(store) for store, _ in stores]})
        return
    if not stores:
        console.show_text(f'no token stores in {data_dir}; make one with "txl prepare stdlib"')
        return
    rows = []
    for store, size in stores:
        tokens = [f"{store.splits[split].tokens:,}" if split in store.splits else "-" for split in SPLITS]
        rows.append([store.name, store.corpus, store.tokenizer, f"{size:,}", *tokens])
    console.show_table(f"token stores in {data_dir}", ("store", "corpus", "tokenizer", "V", *SPLITS), rows)
    for store, _ in stores:
        said = "; ".join(f"{key}: {value}" for key, value in store.conventions.items())
        console.show_text(f"{store.name}: {said}")


def _list_entry(store: "TokenStore") -> dict[str, Any]:
    return {
        "name": store.name,
        "corpus": store.corpus,
        "tokenizer": store.tokenizer,
        "vocabulary_size": store.vocab.size,
        "tokens": {split: info.tokens for split, info in store.splits.items()},
        "conventions": store.conventions,
    }
