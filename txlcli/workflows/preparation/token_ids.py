"""Writes a token store from files of token ids, which are kept as they are."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import SHARES, SPLITS
from txlcli.corpora.locate import list_names, missing_note, text_files
from txlcli.data.token_store import SplitInfo, TokenStore, writing
from txlcli.data.vocabulary import MAX_IDS, Vocab
from txlcli.errors import CorpusInputError
from txlcli.exchange.token_files import VOCABULARY, TokenPart, Tokens, format_of, other_type
from txlcli.workflows.preparation.planning import Plan
from txlcli.workflows.reporter import Reporter, Step


def write_store(plan: Plan, work: Path, reporter: Reporter) -> TokenStore:
    """Write the store, after a first pass that finds the largest id."""
    splits = _cut(plan.tokens, plan.options.split or SHARES)
    total = sum(part.count for parts in splits.values() for part in parts)
    with reporter.progress("counting ids", total, "tokens") as step:
        counted = {split: _count(parts, plan, step) for split, parts in splits.items()}
    vocab = plan.vocab or Vocab.of_ids(plan.options.vocab_size or max(len(counts) for counts, _ in counted.values()))
    has_bytes = vocab.tokenizer == "byte" and not vocab.dropped
    used = {part.path.stem for parts in splits.values() for part in parts} | {VOCABULARY.removesuffix(".json")}
    skipped = sum(path.stem not in used for path in text_files(plan.source)) if plan.source else 0
    starts = {split: _starts(parts) for split, parts in splits.items()}
    has_documents = any(len(firsts) > 1 for firsts in starts.values())
    facts = plan.facts(
        changes={"files_skipped": skipped} if skipped else {},
        conventions={
            "ids": f"as in the token files ({format_of(plan.tokens)})",
            **({"documents": "as in the index"} if has_documents else {}),
        },
        notes=_notes(plan, vocab, splits),
        source_digest=hashlib.sha256(b"".join(digest for _, digest in counted.values())).hexdigest(),
        every_byte_scored=has_bytes,
    )
    with writing(plan.store, facts, vocab, work=work) as writer, reporter.progress("writing", total, "tokens") as step:
        for split, (counts, _) in counted.items():
            tokens = int(counts.sum())
            info = SplitInfo(
                tokens=tokens,
                words=0,  # not known
                bytes=tokens if has_bytes else 0,
                unknown=0 if vocab.unknown is None else int(counts[vocab.unknown :][:1].sum()),
            )
            writer.add(split, info, _blocks(splits[split], step), starts[split] if has_documents else None)
    return TokenStore.open(plan.store)


def _starts(parts: tuple[TokenPart, ...]) -> NDArray[np.int64]:
    """Return the places, in files that are read one after the other, at which documents begin; always 0."""
    places = np.cumsum([0, *(part.count for part in parts[:-1])])
    known = (part.starts + place for part, place in zip(parts, places, strict=True) if part.starts is not None)
    return np.unique(np.concatenate([[0], *known]))


def _blocks(parts: tuple[TokenPart, ...], step: Step) -> Iterator[NDArray[Any]]:
    for part in parts:
        for block in part.blocks():
            yield block
            step.advance(len(block))


def _count(parts: tuple[TokenPart, ...], plan: Plan, step: Step) -> tuple[NDArray[np.int64], bytes]:
    """Return how often each id occurs, and the digest of the ids as uint32, whatever their type in the file."""
    limit = plan.vocab.size if plan.vocab else plan.options.vocab_size or MAX_IDS
    total = np.zeros(1, dtype=np.int64)
    sha256 = hashlib.sha256()
    for part in parts:
        for block in part.blocks():
            if len(wrong := block[(block < 0) | (block >= limit)]):
                other, _ = other_type(part)
                way = f"`dtype` {other}" if other else "the `vocab` or `vocab_size` of this file, or write it again"
                raise CorpusInputError(
                    f"{part.path}: has the id {int(wrong[0]):,}, but the vocabulary has {limit:,} ids; give {way}"
                )
            counts = np.bincount(block.astype(np.int64), minlength=len(total))
            counts[: len(total)] += total
            total = counts
            sha256.update(block.astype("<u4").tobytes())
            step.advance(len(block))
    return total, sha256.digest()


def _cut(tokens: Tokens, shares: tuple[float, ...]) -> Tokens:
    """Return the splits; files without splits are cut together by shares of their ids."""
    if "" not in tokens:
        return tokens
    parts = tokens[""]
    total = sum(part.count for part in parts)
    ends = [*(round(end) for end in np.cumsum((0.0, *shares[:-1])) * total / 100), total]
    if len(starts := _starts(parts)) > 1:
        bounds = [*starts, total]
        ends = [min(bounds, key=lambda bound: abs(bound - end)) for end in ends]
    splits = {
        split: tuple(_between(parts, start, stop))
        for split, share, (start, stop) in zip(SPLITS, shares, pairwise(ends), strict=True)
        if share
    }
    if not all(splits.values()):
        fault = f"{total:,} ids" if len(starts) == 1 else f"{len(starts):,} documents"
        raise CorpusInputError(f"{parts[0].path}: {fault} are too few to split; give more, or another `split`")
    return splits


def _between(parts: Iterable[TokenPart], start: int, stop: int) -> Iterator[TokenPart]:
    """Yield the ids between two places in files that are read one after the other."""
    for part in parts:
        low, high = max(start, 0), min(stop, part.count)
        if low < high:
            yield part.between(low, high)
        start, stop = start - part.count, stop - part.count


def _notes(plan: Plan, vocab: Vocab, splits: Tokens) -> tuple[str, ...]:
    """Return notes on the source, the first ones about the vocabulary."""
    paths = sorted({part.path for parts in splits.values() for part in parts})
    first = next(iter(splits.values()))[0]
    directory = plan.source if plan.source and plan.source.is_dir() else paths[0].parent
    notes = [f"{first.dtype.name} ids of {list_names(paths, directory)}"]
    if plan.options.dtype and (other := other_type(first)[0]):
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
