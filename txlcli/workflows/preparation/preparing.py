"""Carries out a preparation: reads and counts the text, builds the vocabulary, writes the token store."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import CorpusError, Slice, Text
from txlcli.corpora.special_files import SpecialFileError
from txlcli.data.sentencepiece_model import BOUNDARY, UNKNOWN
from txlcli.data.sentencepiece_model import train as train_sentencepiece
from txlcli.data.token_store import SplitCounts, StoreFacts, StoreWriter, TokenStore, writing
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, StoreError, UsageError
from txlcli.paper.metrics import metric_of
from txlcli.system.input_files import MAX_VOCABULARY
from txlcli.system.locks import exclusive, remove_abandoned, temporary_directory
from txlcli.workflows.preparation import vocabulary_rules as rules
from txlcli.workflows.preparation.chunk_encoder import ChunkEncoder, EncodedChunk, Job, decode
from txlcli.workflows.preparation.chunks import CHUNK, align_to_characters, cut_into_chunks, read_chunk
from txlcli.workflows.preparation.planning import Plan, PrepareOptions, make_plan
from txlcli.workflows.preparation.sources import digest, locate_text
from txlcli.workflows.preparation.symbol_counts import SpooledIds, SpooledStarts, SymbolCounts
from txlcli.workflows.preparation.token_ids import write_store
from txlcli.workflows.preparation.workers import mapping
from txlcli.workflows.reporter import Reporter, SilentReporter, Step

WORK_DIRECTORY = ".preparing-"
"""Beginning of the name of a temporary directory in the data directory."""
CHUNKS_NUMBERED_TOGETHER = 4
"""Numbering the symbols of a chunk also reads all symbols of the chunks before; a group of chunks needs that once."""
UNITS = {"byte": "byte", "char": "char", "word": "word", "sentencepiece": "piece"}


@dataclass(frozen=True, kw_only=True)
class WorkSizes:
    """Sizes, in bytes, that bound the work; the store depends on the samples only."""

    parallel_from: int = 16 << 20
    """Smaller texts are read by one process: starting more takes longer than they save."""
    chunk: int = CHUNK
    word_chunk: int = 8 << 20
    """Chunk size for words. Each chunk lists its distinct words, and longer chunks repeat fewer of them."""
    unigram_sample: int = 24 << 20
    """Most text on which a unigram model of SentencePiece is trained: it takes 20 bytes of memory per byte."""
    bpe_sample: int = 64 << 20
    """Most text on which byte-pair encoding is trained: it takes 5 bytes of memory per byte."""
    vocabulary: int = MAX_VOCABULARY
    """Largest vocabulary, as JSON; a store of a larger one could not be read."""


def prepare(
    corpus_or_path: str,
    data_dir: Path,
    options: PrepareOptions | None = None,
    *,
    force: bool = False,
    reporter: Reporter | None = None,
    sizes: WorkSizes | None = None,
) -> TokenStore:
    """Prepare a corpus, given its name, or the user's own text, given its path, and store it in `data_dir`.

    Raises:
        UsageError: an option is wrong.
        CorpusInputError: the text cannot be downloaded or read.
        StoreError: the store exists already, or cannot be written.
    """
    plan = make_plan(corpus_or_path, data_dir, options or PrepareOptions(), force=force)
    return run_plan(plan, reporter or SilentReporter(), sizes or WorkSizes())


def clean(data_dir: Path) -> None:
    """Remove what killed preparations left; one that was killed at its end has left a store, and is not repeated."""
    remove_abandoned(data_dir, WORK_DIRECTORY)


def run_plan(plan: Plan, reporter: Reporter, sizes: WorkSizes | None = None) -> TokenStore:
    """Carry out a plan. After a failure only downloads are left, which the next attempt continues.

    Raises:
        CorpusInputError: the text cannot be downloaded or read.
        StoreError: the store cannot be written.
        UsageError: a file of the text is a pipe, a socket or a device.
    """
    directory = plan.store.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_process(plan), temporary_directory(directory, WORK_DIRECTORY) as work:
            if plan.tokens is not None:
                return write_store(plan, plan.tokens, work, reporter)
            return _Preparation(plan, work, reporter, sizes or WorkSizes()).run()
    except SpecialFileError as error:
        raise UsageError(str(error)) from error
    except CorpusError as error:
        hint = f'; or "txl prepare {plan.corpus.name} --source PATH" with the files' if plan.source is None else ""
        raise CorpusInputError(f"{error}{hint}") from error
    except OSError as error:
        where = Path(error.filename) if isinstance(error.filename, str) else directory
        in_data_dir = directory in (where, *where.parents)
        hint = ", or free some space or give another --data-dir" if in_data_dir else " and its permissions"
        raise StoreError(f"{where}: {error.strerror or error}; check the path{hint}") from error


@dataclass(frozen=True, kw_only=True)
class _EncodedSplit:
    """One split after reading."""

    ids: SpooledIds
    words: int
    bytes: int


@contextmanager
def _only_process(plan: Plan) -> Iterator[None]:
    """Hold the lock of the store while the block runs.

    Raises:
        BusyError: another process prepares the store.
        StoreError: another process has prepared it meanwhile.
    """
    lock = plan.store.with_name(f".{plan.store.name}.lock")
    with exclusive(lock, f"{plan.store} is being prepared by another process; wait for it, or give another --name"):
        try:
            plan.check_free()
            yield
        finally:
            lock.unlink(missing_ok=True)


class _Preparation:
    """One preparation in progress."""

    def __init__(self, plan: Plan, work: Path, reporter: Reporter, sizes: WorkSizes) -> None:
        self._plan, self._work, self._reporter, self._sizes = plan, work, reporter, sizes
        self._symbols = SymbolCounts()
        self._rule = rules.rule_of(plan)

    def run(self) -> TokenStore:
        """Prepare the store and open it."""
        plan = self._plan
        text, notes = locate_text(plan, self._work, self._reporter)
        splits = {split: self._slices(pieces) for split, pieces in text.splits.items()}
        _refuse_empty(splits)
        with ThreadPoolExecutor(1) as thread:  # hashing the source in parallel takes no extra time
            source = thread.submit(digest, splits)
            model = self._sentencepiece_model(splits)
            encoder = ChunkEncoder(plan.tokenizer, self._rule.boundary, self._rule.lower_case, model)
            encoded = self._read_all(splits, encoder)
            vocab = self._make_vocabulary(text, model)
            final = rules.final_ids(self._symbols, vocab)
            unknown = rules.unknown_symbols(self._symbols, vocab)
            counts = {split: self._counts(split, part, final, unknown) for split, part in encoded.items()}
            _refuse_without_tokens(counts)
            notes = (*text.notes, *notes, *rules.differences(plan, self._rule, text, vocab.size, counts))
            notes += self._note_of_sample(splits)
            facts = _facts(plan, text, vocab, notes, source.result())
        with writing(plan.store, facts, vocab, work=self._work) as writer:
            self._write_all(writer, encoded, counts, final, vocab)
        return TokenStore.open(plan.store)

    def _slices(self, pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        # Benchmarks are cut by bytes, which may be inside a character.
        return pieces if self._plan.tokenizer == "byte" else align_to_characters(pieces)

    def _sentencepiece_model(self, splits: dict[str, tuple[Slice, ...]]) -> bytes:
        """Return the given SentencePiece model or train one; empty for other tokenizers."""
        plan = self._plan
        if plan.vocab is not None:
            return plan.vocab.model
        if plan.tokenizer != "sentencepiece":
            return b""
        assert plan.vocab_size is not None
        if "train" not in splits:
            raise CorpusInputError(
                "SentencePiece is trained on the train split, and this source has none; add one, "
                "or choose another --tokenizer"
            )
        with self._reporter.progress("training SentencePiece"):
            lines = _training_lines(splits["train"], self._sample)
            return train_sentencepiece(lines, size=plan.vocab_size, bpe=plan.bpe)

    @property
    def _sample(self) -> int:
        """Most bytes of text on which SentencePiece is trained."""
        return self._sizes.bpe_sample if self._plan.bpe else self._sizes.unigram_sample

    def _note_of_sample(self, splits: dict[str, tuple[Slice, ...]]) -> tuple[str, ...]:
        """Return a note that SentencePiece was trained on a part of the text, if it was."""
        if self._plan.tokenizer != "sentencepiece" or self._plan.vocab is not None:
            return ()
        size = _size(splits["train"])
        if size <= self._sample:
            return ()
        return (
            f"SentencePiece was trained on {self._sample:,} of the {size:,} bytes of train, spread evenly, since its "
            "memory grows with the text",
        )

    def _read_all(self, splits: dict[str, tuple[Slice, ...]], encoder: ChunkEncoder) -> dict[str, _EncodedSplit]:
        total = sum(piece.size for pieces in splits.values() for piece in pieces)
        workers = self._plan.workers if total > self._sizes.parallel_from else 1
        with self._reporter.progress("reading", total, "B") as step, mapping(encoder, workers) as encode:
            return {
                split: self._read(split, encode(self._jobs(split, pieces)), step) for split, pieces in splits.items()
            }

    def _jobs(self, split: str, pieces: tuple[Slice, ...]) -> Iterator[Job]:
        size = self._sizes.word_chunk if self._plan.tokenizer == "word" else self._sizes.chunk
        for number, chunk in enumerate(cut_into_chunks(pieces, size)):
            yield Job(chunk, self._work / f"{split}-{number}.ids")

    def _read(self, split: str, chunks: Iterable[EncodedChunk], step: Step) -> _EncodedSplit:
        words = size = 0
        ids = SpooledIds()
        for group in _groups(chunks, step):
            for chunk, table in zip(group, self._symbols.add(split, group), strict=True):
                ids.add(chunk, table)
                words += chunk.words + (chunk.lines if self._plan.corpus.counts_line_ends else 0)
                size += chunk.bytes
        return _EncodedSplit(ids=ids, words=words, bytes=size)

    def _make_vocabulary(self, text: Text, model: bytes) -> Vocab:
        if self._plan.vocab is not None:
            rules.check_given(self._symbols, self._plan.vocab)
            return self._plan.vocab
        if self._plan.tokenizer == "sentencepiece":
            return Vocab("sentencepiece", boundary=BOUNDARY, unknown=UNKNOWN, model=model)
        vocab = rules.build(self._plan, self._rule, self._symbols, text.vocabulary_file)
        size, most = len(vocab.to_json()), self._sizes.vocabulary
        if size > most:
            raise CorpusInputError(
                f"{self._plan.source or self._plan.corpus.name}: its {vocab.size:,} {self._plan.tokenizer}s make a "
                f"vocabulary of {size:,} bytes, more than {most:,}; give --vocab-size or --min-count, or if the text "
                "has few blanks, choose another --tokenizer"
            )
        return vocab

    def _counts(
        self, split: str, encoded: _EncodedSplit, final: NDArray[np.int64], unknown: NDArray[np.bool_]
    ) -> SplitCounts:
        counted = self._symbols.counts(split, final.size)[: final.size]
        return SplitCounts(
            tokens=int(counted[final >= 0].sum()),
            words=encoded.words,
            bytes=encoded.bytes,
            unknown=int(counted[unknown].sum()),
            types=int(np.unique(final[(final >= 0) & (counted > 0)]).size),
        )

    def _write_all(
        self,
        writer: StoreWriter,
        encoded: dict[str, _EncodedSplit],
        counts: dict[str, SplitCounts],
        final: NDArray[np.int64],
        vocab: Vocab,
    ) -> None:
        boundary = vocab.boundary if self._plan.corpus.sentences else None
        with self._reporter.progress("writing", sum(count.tokens for count in counts.values()), "tokens") as step:
            for split, one in encoded.items():
                blocks = _with_progress(one.ids.blocks(final, writer.dtype), step)
                if boundary is None:
                    writer.add(split, counts[split], blocks)
                    continue
                starts = SpooledStarts(self._work / f"{split}.starts", counts[split].tokens)
                writer.add(split, counts[split], starts.collect(blocks, boundary))
                writer.add_sentence_starts(split, starts.count, starts.dtype, starts.blocks())


def _groups(chunks: Iterable[EncodedChunk], step: Step) -> Iterator[list[EncodedChunk]]:
    """Yield successive groups of chunks whose symbols are numbered together, and report progress chunk by chunk."""
    group: list[EncodedChunk] = []
    for chunk in chunks:
        step.advance(chunk.bytes)
        group.append(chunk)
        if len(group) == CHUNKS_NUMBERED_TOGETHER:
            yield group
            group = []
    if group:
        yield group


def _refuse_empty(splits: dict[str, tuple[Slice, ...]]) -> None:
    for split, pieces in splits.items():
        if not sum(piece.size for piece in pieces):
            where = ", ".join(str(piece.path) for piece in pieces) or "the source"
            raise CorpusInputError(f"{where}: the {split} split is empty; add text to it")


def _refuse_without_tokens(counts: dict[str, SplitCounts]) -> None:
    for split, count in counts.items():
        if not count.tokens:
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another --split")


def _size(slices: tuple[Slice, ...]) -> int:
    """Return the number of bytes."""
    return sum(piece.size for piece in slices)


def _training_lines(slices: tuple[Slice, ...], sample: int) -> Iterator[str]:
    """Yield the lines of the train split, or of the first part of each chunk if it has more bytes than `sample`."""
    share = min(1.0, sample / max(_size(slices), 1))
    for chunk in cut_into_chunks(slices):
        text = "".join(decode(part) for part in read_chunk(chunk))
        yield from text[: int(len(text) * share) + 1].split("\n")


def _with_progress(blocks: Iterable[NDArray[Any]], step: Step) -> Iterator[NDArray[Any]]:
    """Yield the blocks unchanged and report progress."""
    for block in blocks:
        yield block
        step.advance(block.size)


def _facts(plan: Plan, text: Text, vocab: Vocab, notes: tuple[str, ...], source: str) -> StoreFacts:
    return StoreFacts(
        name=plan.store.stem,
        corpus=plan.corpus.name,
        tokenizer=plan.tokenizer,
        unit=UNITS[plan.tokenizer],
        metric=metric_of(plan.tokenizer),
        conventions=rules.conventions_of(plan, text),
        notes=notes,
        source_digest=source,
        every_byte_scored=plan.tokenizer != "word" and not vocab.dropped,
    )
