"""Writes a token store from files of token ids, which are kept as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import SHARES, Slice
from txlcli.corpora.directory import cut
from txlcli.corpora.locate import list_names, missing_note, text_files
from txlcli.data.token_store import SplitInfo, TokenStore, writing
from txlcli.data.vocabulary import MAX_IDS, Vocab
from txlcli.errors import CorpusInputError
from txlcli.exchange.token_files import VOCABULARY, WITHOUT_HEADER, TokenFiles, other_type
from txlcli.workflows.preparation.planning import Plan
from txlcli.workflows.preparation.sources import digest
from txlcli.workflows.reporter import Reporter, Step

Splits = dict[str, tuple[Slice, ...]]


def write_store(plan: Plan, tokens: TokenFiles, work: Path, reporter: Reporter) -> TokenStore:
    """Write the store, after a first pass that finds the largest id."""
    splits, size = _splits(plan, tokens), tokens.dtype.itemsize
    counts = {split: sum(piece.size for piece in pieces) // size for split, pieces in splits.items()}
    total = sum(counts.values())
    with reporter.progress("counting ids", total, "tokens") as step:
        counted = {split: _count(pieces, plan, tokens, step) for split, pieces in splits.items()}
    vocab = plan.vocab or Vocab.of_ids(plan.options.vocab_size or max(largest for largest, _ in counted.values()) + 1)
    has_bytes = vocab.tokenizer == "byte" and not vocab.dropped
    used = {piece.path.stem for pieces in splits.values() for piece in pieces} | {VOCABULARY.removesuffix(".json")}
    skipped = sum(path.stem not in used for path in text_files(plan.source)) if plan.source else 0
    facts = plan.facts(
        changes={"files_skipped": skipped} if skipped else {},
        conventions={
            "ids": f"as in the token files ({tokens.format})",
            **({"documents": "as in the index"} if tokens.documents else {}),
        },
        notes=_notes(plan, tokens, vocab, splits),
        source_digest=digest(splits),
        every_byte_scored=has_bytes,
    )
    with writing(plan.store, facts, vocab, work=work) as writer, reporter.progress("writing", total, "tokens") as step:
        for split, count in counts.items():
            # Words, and bytes of other tokenizers, are not known.
            info = SplitInfo(tokens=count, words=0, bytes=count * has_bytes, unknown=counted[split][1])
            starts = np.array(tokens.documents.starts(splits[split])) // size if tokens.documents else None
            writer.add(split, info, _blocks(splits[split], tokens, step), starts)
    return TokenStore.open(plan.store)


def _splits(plan: Plan, tokens: TokenFiles) -> Splits:
    """Return the splits; files without splits are cut together, between documents or ids."""
    assert plan.source is not None
    if "" not in tokens.splits:
        return dict(tokens.splits)
    pieces = [*tokens.splits[""]]
    total = sum(piece.size for piece in pieces)
    starts = tokens.documents and tokens.documents.starts(pieces)
    boundaries, unit = (starts, "documents") if starts else (range(0, total, tokens.dtype.itemsize), "ids")
    return cut(pieces, plan.source, plan.options.split or SHARES, boundaries, unit)


def _blocks(pieces: tuple[Slice, ...], tokens: TokenFiles, step: Step) -> Iterator[NDArray[Any]]:
    for piece in pieces:
        for block in tokens.blocks(piece):
            yield block
            step.advance(len(block))


def _count(pieces: tuple[Slice, ...], plan: Plan, tokens: TokenFiles, step: Step) -> tuple[int, int]:
    """Return the largest id and the number of unknown ones."""
    limit = plan.vocab.size if plan.vocab else plan.options.vocab_size or MAX_IDS
    largest = unknown = 0
    for piece in pieces:
        for block in _blocks((piece,), tokens, step):
            if len(wrong := block[(block < 0) | (block >= limit)]):
                has_type = tokens.format != WITHOUT_HEADER
                other = None if has_type else other_type(piece.path, tokens.dtype)[0]
                way = f"`dtype` {other}" if other else "the `vocab` or `vocab_size` of this file, or write it again"
                raise CorpusInputError(
                    f"{piece.path}: has the id {int(wrong[0]):,}, but the vocabulary has {limit:,} ids; give {way}"
                )
            largest = max(largest, int(block.max()))
            unknown += int((block == (plan.vocab and plan.vocab.unknown)).sum())
    return largest, unknown


def _notes(plan: Plan, tokens: TokenFiles, vocab: Vocab, splits: Splits) -> tuple[str, ...]:
    """Return notes on the source, the first ones about the vocabulary."""
    paths = sorted({piece.path for pieces in splits.values() for piece in pieces})
    directory = plan.source if plan.source and plan.source.is_dir() else paths[0].parent
    notes = [f"{tokens.dtype.name} ids of {list_names(paths, directory)}"]
    if plan.options.dtype and (other := other_type(paths[0], tokens.dtype)[0]):
        notes.append(f"the ids are read as {plan.options.dtype}, but their bytes look like {other}; check `dtype`")
    if vocab.tokenizer == "ids":
        notes.append(
            "the text of the ids is not known: a model can be trained and evaluated, but reads and writes no text"
        )
        if paths[0].with_name("meta.pkl").exists():
            notes.append(
                "meta.pkl is not read: it is a pickle, which could run code; `vocab` FILE gives the ids a text"
            )
    elif plan.vocab_file is not None:
        notes.append(f"vocabulary of {plan.vocab_file}")
    return (*notes, *missing_note(splits))
