"""`txl prepare`: turn a corpus or your own text into a token store."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, DataDir, Force, Json
from txlcli.config.ranges import MAX_COUNT
from txlcli.errors import TxlError, UsageError


def prepare(
    what: Annotated[
        str | None,
        Argument(metavar="NAME|PATH", help="A corpus, or a text file or folder.", autocompletion=completion.benchmarks),
    ] = None,
    source: Annotated[
        Path | None, Option(help="Read the corpus from this archive, folder or file instead of downloading it.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the store [default: from corpus and tokenizer].")] = None,
    tokenizer: Annotated[
        Literal["byte", "char", "word", "sentencepiece"] | None,
        Option(help="How text is split into tokens [default: the corpus's own]."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        Option(max=MAX_COUNT, help="Largest number of words, or size of the SentencePiece model [default: 8000]."),
    ] = None,
    min_count: Annotated[
        int | None, Option(help="Treat words or characters that are rarer in train as unknown.")
    ] = None,
    sp_type: Annotated[
        Literal["unigram", "bpe"] | None, Option(help="Type of the SentencePiece model [default: unigram].")
    ] = None,
    split: Annotated[str | None, Option(help="Shares of train, valid and test in percent [default: 90,5,5].")] = None,
    released_convention: Annotated[
        bool, Option("--released-convention", help="Treat enwik8 and lm1b like the released code of the paper.")
    ] = False,
    vocab: Annotated[
        Path | None, Option(metavar="FILE", help="Encode with this vocabulary, such as the vocab.json of a run.")
    ] = None,
    workers: Annotated[
        int | None, Option(help="Processes that read the text [default: one per processor, at most 6].")
    ] = None,
    dtype: Annotated[
        Literal["uint16", "uint32"] | None,
        Option(help="Type of the ids of a .bin file without a header [default: uint16]."),
    ] = None,
    column: Annotated[
        str | None, Option(help="Column of Parquet files with the text [default: text, or the only one].")
    ] = None,
    force: Force = False,
    listed: Annotated[bool, Option("--list", help="List the existing stores.")] = False,
    verify: Annotated[bool, Option("--verify", help="Compare an existing store with its checksums.")] = False,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Turn a corpus, or your own text, into a token store.

    Corpora: enwik8, text8, wt103, lm1b, ptb (downloaded, or read from --source), stdlib (part of every Python).
    Token ids of nanoGPT, llm.c and Megatron (.bin, .idx) are kept as they are; of Parquet files, a column is read.

    Example: txl prepare stdlib
    """
    from txlcli.views import store_table
    from txlcli.workflows.preparation.planning import PrepareOptions, make_plan
    from txlcli.workflows.preparation.preparing import run_plan

    options = PrepareOptions(
        source=source,
        name=name,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        min_count=min_count,
        sp_type=sp_type,
        split=split,
        released_convention=released_convention,
        vocab=vocab,
        workers=workers,
        dtype=dtype,
        column=column,
    )
    if verify:
        if what is None or listed or options != PrepareOptions() or force:
            raise UsageError("--verify checks one existing store: txl prepare --verify STORE")
        _verify(what, data_dir, json=json)
        return
    if listed:
        if what is not None or options != PrepareOptions() or force:
            raise UsageError("--list shows the existing stores; combine it with --data-dir and --json only")
        _show_list(data_dir, json)
        return
    if what is None:
        raise UsageError('prepare what? Name a corpus or a path, e.g. "txl prepare stdlib"')
    plan = make_plan(what, data_dir, options, force=force)
    origin = f"from {plan.source}" if plan.source else f"downloaded to {plan.downloads} and kept there"
    title = f"token ids of {plan.tokens.format}" if plan.tokens else f"{plan.corpus.title} ({plan.tokenizer})"
    console.say(f"preparing {title}, {origin}, into {plan.store}")
    store = run_plan(plan, console.TerminalReporter())
    if json:
        console.show_json(store_table.store_as_json(store))
    else:
        store_table.show_store(store)


def _verify(name: str, data_dir: Path, *, json: bool) -> None:
    from txlcli.views import verification as view
    from txlcli.workflows.verification import verify_store

    path = Path(name) if name.endswith(".h5") else data_dir / f"{name}.h5"
    view.show([verify_store(path)], json=json)


def _show_list(data_dir: Path, json: bool) -> None:
    from txlcli.corpora.corpus import SPLITS
    from txlcli.data.token_store import TokenStore, stores_in
    from txlcli.views import store_table

    stores = []
    for path in stores_in(data_dir):
        try:
            store = TokenStore.open(path)
            _ = store.vocab  # a damaged vocabulary is reported here
            stores.append(store)
        except TxlError as error:
            console.complain(str(error))
    if json:
        console.show_json({"stores": [store_table.list_entry(store) for store in stores]})
    else:
        store_table.show_list(data_dir, stores, SPLITS)
