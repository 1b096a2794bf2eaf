"""Carries out a preparation: from the text of a corpus to a token store."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corpora.corpus import CorpusError, Slice, Text
from txlcli.data.sentencepiece_model import BOUNDARY, UNKNOWN
from txlcli.data.sentencepiece_model import train as train_pieces
from txlcli.data.token_store import SplitCounts, StoreFacts, StoreWriter, TokenStore, writing
from txlcli.data.vocabulary import Vocab, smallest_dtype
from txlcli.errors import CorpusInputError, StoreError
from txlcli.paper.metrics import metric_of
from txlcli.system.locks import temporary_folder
from txlcli.workflows.preparation.chunks import CHUNK, between_characters, chunks_of, read
from txlcli.workflows.preparation.inventory import Inventory, Spool
from txlcli.workflows.preparation.planning import Plan, PrepareOptions, make_plan
from txlcli.workflows.preparation.sources import Progress, Step, digest, locate
from txlcli.workflows.preparation.tally import Job, Tally, Tokenizer, decode
from txlcli.workflows.preparation.vocabulary_rules import (
    build,
    check_given,
    conventions_of,
    final_ids,
    remarks,
    rule_of,
    strangers,
)
from txlcli.workflows.preparation.workers import mapping

SMALL = 16 << 20  # bytes; below it worker processes take longer to start than they save
WORD_CHUNK = 8 << 20  # bytes; each chunk tells its types anew, which are fewer in longer ones
TRAINING_TEXT = 64 << 20  # bytes of train that SentencePiece learns from, spread evenly
UNITS = {"byte": "byte", "char": "char", "word": "word", "sentencepiece": "piece"}


class _Silent:
    def advance(self, amount: float, detail: str = "") -> None:
        """Say nothing."""

    def reach(self, done: float, detail: str = "") -> None:
        """Say nothing."""


@contextmanager
def silent(description: str, total: float | None = None, unit: str = "") -> Iterator[Step]:
    """Show no progress."""
    yield _Silent()


def prepare(
    what: str, data_dir: Path, wishes: PrepareOptions | None = None, *, force: bool = False, progress: Progress = silent
) -> TokenStore:
    """Prepare a corpus by name, or own text by path, into `data_dir`.

    Raises:
        UsageError: a wish is wrong.
        CorpusInputError: the text cannot be had or read.
        StoreError: the store exists already, or cannot be written.
    """
    return carry_out(make_plan(what, data_dir, wishes or PrepareOptions(), force=force), progress)


def carry_out(plan: Plan, progress: Progress = silent) -> TokenStore:
    """Prepare what a plan says; on failure nothing is left behind but downloads, which go on where they stopped.

    Raises:
        CorpusInputError: the text cannot be had or read.
        StoreError: the store cannot be written.
    """
    folder = plan.store.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder, ".preparing-") as work:
            return _Preparation(plan, work, progress).run()
    except CorpusError as error:
        hint = f'; or "txl prepare {plan.corpus.name} --source PATH" with the files' if plan.source is None else ""
        raise CorpusInputError(f"{error}{hint}") from error
    except OSError as error:
        where = Path(error.filename) if isinstance(error.filename, str) else folder
        ours = folder in (where, *where.parents)
        hint = ", or free some space or give another --data-dir" if ours else " and its permissions"
        raise StoreError(f"{where}: {error.strerror or error}; check the path{hint}") from error


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What reading one split gave."""

    spool: Spool
    words: int
    bytes: int


class _Preparation:
    """One preparation under way: read and count everything, settle the vocabulary, then write."""

    def __init__(self, plan: Plan, work: Path, progress: Progress) -> None:
        self._plan, self._work, self._progress = plan, work, progress
        self._inventory = Inventory()
        self._rule = rule_of(plan)

    def run(self) -> TokenStore:
        """Prepare the store and open it."""
        plan = self._plan
        text, notes = locate(plan, self._work, self._progress)
        splits = {split: self._slices(pieces) for split, pieces in text.splits.items()}
        _refuse_empty(splits)
        with ThreadPoolExecutor(1) as aside:  # the digest of the source costs nothing beside the reading
            source = aside.submit(digest, splits)
            model = self._piece_model(splits)
            done = self._read_all(splits, Tokenizer(plan.kind, self._rule.boundary, self._rule.lower_case, model))
            vocab = self._settle(text, model)
            final = final_ids(self._inventory, vocab)
            counts = {split: self._counts(split, one, final, vocab) for split, one in done.items()}
            _refuse_without_tokens(counts)
            notes = (*text.notes, *notes, *remarks(plan, self._rule, text, vocab.size, counts))
            facts = _facts(plan, text, vocab, notes, source.result())
        with writing(plan.store, facts, vocab, work=self._work) as writer:
            self._write_all(writer, done, counts, final, vocab)
        return TokenStore.open(plan.store)

    def _slices(self, pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        # A benchmark is cut by bytes; whoever wants characters must not get half of one.
        return pieces if self._plan.kind == "byte" else between_characters(pieces)

    def _piece_model(self, splits: dict[str, tuple[Slice, ...]]) -> bytes:
        if self._plan.vocab is not None:
            return self._plan.vocab.model
        return self._train(splits) if self._plan.kind == "sentencepiece" else b""

    def _train(self, splits: dict[str, tuple[Slice, ...]]) -> bytes:
        assert self._plan.vocab_size is not None
        if "train" not in splits:
            raise CorpusInputError(
                "SentencePiece learns from the train split, and this source has none; add one, "
                "or choose another --tokenizer"
            )
        with self._progress("training SentencePiece", None, ""):
            lines = _training_lines(splits["train"])
            return train_pieces(lines, size=self._plan.vocab_size, bpe=self._plan.bpe)

    def _read_all(self, splits: dict[str, tuple[Slice, ...]], tokenizer: Tokenizer) -> dict[str, _Read]:
        total = sum(piece.size for pieces in splits.values() for piece in pieces)
        workers = self._plan.workers if total > SMALL else 1
        with self._progress("reading", total, "B") as step, mapping(tokenizer, workers) as tallies:
            return {
                split: self._read(split, tallies(self._jobs(split, pieces)), step) for split, pieces in splits.items()
            }

    def _jobs(self, split: str, pieces: tuple[Slice, ...]) -> Iterator[Job]:
        size = WORD_CHUNK if self._plan.kind == "word" else CHUNK
        for number, chunk in enumerate(chunks_of(pieces, size)):
            yield Job(chunk, self._work / f"{split}-{number}.ids")

    def _read(self, split: str, tallies: Iterable[Tally], step: Step) -> _Read:
        words = size = 0
        spool = Spool()
        for tally in tallies:
            spool.add(tally, self._inventory.add(split, tally))
            words += tally.words + (tally.lines if self._plan.corpus.counts_line_ends else 0)
            size += tally.bytes
            step.advance(tally.bytes)
        return _Read(spool=spool, words=words, bytes=size)

    def _settle(self, text: Text, model: bytes) -> Vocab:
        if self._plan.vocab is not None:
            check_given(self._inventory, self._plan.vocab)
            return self._plan.vocab
        if self._plan.kind == "sentencepiece":
            return Vocab("sentencepiece", boundary=BOUNDARY, unknown=UNKNOWN, model=model)
        return build(self._plan, self._rule, self._inventory, text.vocabulary_file)

    def _counts(self, split: str, one: _Read, final: NDArray[np.int64], vocab: Vocab) -> SplitCounts:
        counted = self._inventory.counts(split, final.size)[: final.size]
        return SplitCounts(
            tokens=int(counted[final >= 0].sum()),
            words=one.words,
            bytes=one.bytes,
            unknown=int(counted[strangers(self._inventory, vocab)].sum()),
            types=int(np.unique(final[(final >= 0) & (counted > 0)]).size),
        )

    def _write_all(
        self,
        writer: StoreWriter,
        done: dict[str, _Read],
        counts: dict[str, SplitCounts],
        final: NDArray[np.int64],
        vocab: Vocab,
    ) -> None:
        boundary = vocab.boundary if self._plan.corpus.sentences else None
        with self._progress("writing", sum(one.tokens for one in counts.values()), "tokens") as step:
            for split, one in done.items():
                ends: list[NDArray[np.int64]] = []
                blocks = one.spool.blocks(final, writer.kind)
                writer.add(split, counts[split], _watched(blocks, step, boundary, ends))
                if boundary is not None:
                    writer.add_sentence_starts(split, _starts(ends, counts[split].tokens))


def _refuse_empty(splits: dict[str, tuple[Slice, ...]]) -> None:
    for split, pieces in splits.items():
        if not sum(piece.size for piece in pieces):
            where = ", ".join(str(piece.path) for piece in pieces) or "the source"
            raise CorpusInputError(f"{where}: the {split} split is empty; give text that is not")


def _refuse_without_tokens(counts: dict[str, SplitCounts]) -> None:
    for split, one in counts.items():
        if not one.tokens:
            raise CorpusInputError(
                f"the {split} split holds nothing but blanks; give text that has more, or another --split"
            )


def _training_lines(slices: tuple[Slice, ...]) -> Iterator[str]:
    """Lines of the train split: all of them, or the first part of every chunk where that is too much."""
    share = min(1.0, TRAINING_TEXT / max(sum(piece.size for piece in slices), 1))
    for chunk in chunks_of(slices):
        text = "".join(decode(part) for part in read(chunk))
        yield from text[: int(len(text) * share) + 1].split("\n")


def _watched(
    blocks: Iterable[NDArray[Any]], step: Step, boundary: int | None, ends: list[NDArray[np.int64]]
) -> Iterator[NDArray[Any]]:
    """The blocks as they are; reports them, and collects where sentences end."""
    done = 0
    for block in blocks:
        if boundary is not None:
            ends.append(np.flatnonzero(block == boundary) + done)
        done += block.size
        yield block
        step.advance(block.size)


def _starts(ends: list[NDArray[np.int64]], tokens: int) -> NDArray[Any]:
    """The first place of each sentence, from the places of the closing boundaries."""
    after = np.concatenate([np.zeros(1, dtype=np.int64), *(block + 1 for block in ends)])
    return after[after < tokens].astype(smallest_dtype(tokens))


def _facts(plan: Plan, text: Text, vocab: Vocab, notes: tuple[str, ...], source: str) -> StoreFacts:
    return StoreFacts(
        name=plan.store.stem,
        corpus=plan.corpus.name,
        tokenizer=plan.kind,
        unit=UNITS[plan.kind],
        metric=metric_of(plan.kind),
        conventions=conventions_of(plan, text),
        notes=notes,
        source_digest=source,
        every_byte_scored=plan.kind != "word" and not vocab.dropped,
    )
