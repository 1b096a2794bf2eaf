"""Writes a token store from files of token ids, which are kept as they are."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from txlcli.corpora.corpus import SHARES, Slices, Splits, size_of
from txlcli.corpora.directory import cut, format_shares
from txlcli.corpora.locate import list_names, missing_note, text_files
from txlcli.data.token_store import SplitCounts, writing
from txlcli.data.vocabulary import MAX_IDS, Ids, Vocab
from txlcli.errors import CorpusInputError, shortened
from txlcli.workflows.exchange.token_files import IDX, VOCABULARY, WITHOUT_HEADER, TokenFiles
from txlcli.workflows.exchange.token_types import advice, other_type
from txlcli.workflows.preparation.planning import PreparationPlan
from txlcli.workflows.preparation.sources import digest
from txlcli.workflows.reporter import Progress


def write_store(plan: PreparationPlan, tokens: TokenFiles, work: Path) -> None:
    """Write the store, after a first pass that finds the largest id if the size of the vocabulary is not known.

    `work` is a temporary directory.
    """
    source = plan.source
    assert source is not None  # own files
    splits, split_convention = _splits(plan, tokens, source)
    size = tokens.dtype.itemsize
    counts = {split: size_of(pieces) // size for split, pieces in splits.items()}
    total = sum(counts.values())
    vocab = plan.vocab
    if vocab is None:
        vocab = Vocab.of_ids(plan.options.vocab_size or _count_ids(plan, tokens, splits, total))
    has_bytes = vocab.tokenizer == "byte" and not vocab.dropped
    conventions = {"split": split_convention, "ids": f"as in the token files ({tokens.format})"}
    if tokens.documents:
        conventions["documents"] = "pieces, in the order of their files" if tokens.joined else "as in the index"
    paths = tokens.joined or [piece.path for piece in itertools.chain(*splits.values())]
    paths = sorted(set(paths))
    facts = plan.facts(
        changes={"files_skipped": _count_skipped(source, paths)},
        conventions=conventions,
        notes=(*_notes(plan, tokens, vocab, paths, source), *missing_note(splits)),
        source_digest=digest(splits),
        every_byte_scored=has_bytes,
    )
    with (
        writing(plan.store, facts, vocab, work=work) as writer,
        plan.reporter.progress("writing", total, "tokens") as progress,
    ):
        for split, count in counts.items():
            n_bytes = count if has_bytes else 0  # 0: not known, like the words
            starts = None
            if tokens.documents:
                starts = np.array(tokens.documents.starts(splits[split])) // size
            counts_of_split = SplitCounts(tokens=count, words=0, bytes=n_bytes)
            writer.add(split, counts_of_split, _ids(splits[split], tokens, vocab, progress), starts)


def _count_ids(plan: PreparationPlan, tokens: TokenFiles, splits: Splits, total: int) -> int:
    """Return the size of the smallest vocabulary with all ids."""
    largest = 0
    with plan.reporter.progress("counting ids", total, "tokens") as progress:
        for pieces in splits.values():
            for block in _blocks(pieces, tokens, progress):
                largest = max(largest, int(block.max()))
    return 1 + largest


def _count_skipped(source: Path, paths: Sequence[Path]) -> int:
    """Count the files of the source that are neither read, nor an index of these, nor the vocabulary."""
    used = {*paths, source / VOCABULARY}
    for path in paths:
        used.update((path.with_suffix(IDX), path.with_suffix(IDX.upper())))
    return sum(1 for path in text_files(source) if path not in used)


def _splits(plan: PreparationPlan, tokens: TokenFiles, source: Path) -> tuple[Splits, str]:
    """Return the splits and their convention; files without splits are cut together, between documents or ids."""
    if "" not in tokens.splits:
        return tokens.splits, "the folder's own files"
    pieces = tokens.splits[""]
    shares = plan.options.split or SHARES
    by_position = f"{format_shares(shares)} by position"
    if tokens.documents:
        starts = tokens.documents.starts(pieces)
        if starts:
            return cut(pieces, source, shares, starts, "documents"), f"{by_position}, cut between documents"
    ids = range(0, size_of(pieces), tokens.dtype.itemsize)
    return cut(pieces, source, shares, ids, "ids"), by_position


def _ids(pieces: Slices, tokens: TokenFiles, vocab: Vocab, progress: Progress) -> Iterator[Ids]:
    """Yield the ids of pieces in blocks, all of them in the vocabulary, and -1 for unknown symbols."""
    for block in _blocks(pieces, tokens, progress, vocab.size):
        if vocab.unknown is None:
            yield block
        else:
            yield np.where(block == vocab.unknown, np.int64(-1), block)


def _blocks(pieces: Slices, tokens: TokenFiles, progress: Progress, vocab_size: int | None = None) -> Iterator[Ids]:
    """Yield the ids of pieces in blocks, all of them in the vocabulary, if its size is known, and below MAX_IDS."""
    limit = vocab_size or MAX_IDS
    for piece in pieces:
        for block in tokens.blocks(piece):
            wrong = block[(block < 0) | (block >= limit)]
            if len(wrong):
                way = "give the `vocab` or `vocab_size` of this file, or write it again"
                guess = other_type(piece.path, tokens.dtype)
                if tokens.format == WITHOUT_HEADER and guess is not None:
                    way = advice(piece.path, guess, vocab_size)
                raise CorpusInputError(
                    f"{piece.path}: has the id {int(wrong[0]):,}, but the vocabulary has {limit:,} ids; {way}"
                )
            yield block
            progress.advance(len(block))


def _notes(
    plan: PreparationPlan, tokens: TokenFiles, vocab: Vocab, paths: Sequence[Path], source: Path
) -> Iterator[str]:
    """Yield notes on the files whose ids are read, and on the vocabulary."""
    dtype_in_words = "" if tokens.joined else f"{tokens.dtype.name} "
    yield f"{dtype_in_words}ids of {list_names(paths, source)}"
    if tokens.left_out:
        yield f"not read next to the ids: {shortened(', '.join(tokens.left_out))}; ids that a mask hides are read, too"
    dtype = plan.options.dtype
    if dtype:
        guess = other_type(paths[0], tokens.dtype)
        if guess is not None:
            way = advice(paths[0], guess, plan.id_type.vocab_size)
            yield f"the ids are read as {dtype}, but their bytes do not look like it; {way}, or keep this one"
    if vocab.tokenizer == "ids":
        yield (
            "the text of the ids is not known: a model can be trained and evaluated, and continues ids, but reads and "
            "writes no text"
        )
        if paths[0].with_name("meta.pkl").exists():
            yield "meta.pkl is not read: it is a pickle, which could run code; `vocab` FILE gives the ids a text"
        directory = source if source.is_dir() else source.parent
        if plan.vocab is None and not plan.options.vocab_size and (directory / VOCABULARY).exists():
            yield f"{VOCABULARY} is not read: it is not a vocabulary of txl; `ids` reads names of ids"
    elif plan.vocab_file is not None:
        yield f"vocabulary of {plan.vocab_file}"
