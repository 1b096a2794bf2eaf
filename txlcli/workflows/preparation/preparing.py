"""Prepares a token store: reads and counts the text, builds the vocabulary, writes the ids."""

import itertools
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
from txlcli.data.vocabulary import Vocab, smallest_dtype
from txlcli.errors import CorpusInputError, StoreError, UsageError
from txlcli.paper.metrics import metric_of
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import MAX_VOCABULARY
from txlcli.system.locks import exclusive, remove_abandoned, temporary_directory
from txlcli.workflows.options import PrepareOptions
from txlcli.workflows.preparation import vocabulary_rules as rules
from txlcli.workflows.preparation.chunks import (
    CHUNK,
    ChunkEncoder,
    EncodedChunk,
    Job,
    align_to_characters,
    cut_into_chunks,
    read_chunk,
)
from txlcli.workflows.preparation.planning import Plan, make_plan
from txlcli.workflows.preparation.sources import digest, locate_text
from txlcli.workflows.preparation.symbol_counts import EncodedSplit, SymbolCounts
from txlcli.workflows.preparation.token_ids import UNITS, write_store
from txlcli.workflows.preparation.workers import default_workers, mapping
from txlcli.workflows.reporter import CallbackReporter, Reporter, Step

WORK_DIRECTORY = ".preparing-"
"""Beginning of the name of a temporary directory in the data directory."""
CHUNKS_NUMBERED_TOGETHER = 4
"""Numbering the symbols of a chunk also reads all symbols of the chunks before; a group of chunks needs that once."""
EXCERPT_TOKENS, EXCERPT_CHARACTERS = 120, 100


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


@dataclass(frozen=True)
class PreparedStore:
    """A token store that was just prepared."""

    store: TokenStore

    @property
    def next(self) -> str:
        """The command that trains on the store: a recipe of its name, or a small one for its unit."""
        return command_line("train", self.store.name, data_dir=self.store.path.parent)

    def excerpt(self, split: str) -> str:
        """Return the beginning of a split as one line."""
        text = " ".join(self.store.vocab.decode(self.store.ids(split)[:EXCERPT_TOKENS]).split())
        return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 3] + "..."

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl prepare --json` prints."""
        store = self.store
        splits = {
            split: {
                **vars(info),
                "unknown_percent": 100 * info.unknown / info.tokens if info.tokens else 0.0,
                "begins": self.excerpt(split),
            }
            for split, info in store.splits.items()
        }
        return {
            "store": str(store.path),
            **vars(store.facts),
            "notes": list(store.notes),
            "vocabulary_size": store.vocab.size,
            "fingerprint": store.fingerprint,
            "splits": splits,
            "next": self.next,
        }


def run(
    corpus_or_path: str,
    options: PrepareOptions,
    data_dir: Path,
    *,
    reporter: Reporter | None = None,
    sizes: WorkSizes | None = None,
) -> PreparedStore:
    """Prepare a corpus, given its name, or the user's own text, given its path, and store it in `data_dir`."""
    reporter = reporter or CallbackReporter()
    plan = make_plan(corpus_or_path, options, data_dir)
    origin = f"from {plan.source}" if plan.source else f"downloaded to {plan.downloads} and kept there"
    title = f"token ids of {plan.tokens.format}" if plan.tokens else f"{plan.corpus.title} ({plan.tokenizer})"
    reporter.say(f"preparing {title}, {origin}, into {plan.store}")
    return PreparedStore(run_plan(plan, reporter, sizes))


def clean(data_dir: Path) -> None:
    """Remove what killed preparations left; one that was killed at its end has left a store, and is not repeated."""
    remove_abandoned(data_dir, WORK_DIRECTORY)


def run_plan(plan: Plan, reporter: Reporter, sizes: WorkSizes | None = None) -> TokenStore:
    """Carry out a plan. After a failure only downloads are left, which the next attempt continues."""
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
        hint = ", or free some space or give another `data_dir`" if in_data_dir else " and its permissions"
        raise StoreError(f"{where}: {error.strerror or error}; check the path{hint}") from error


@contextmanager
def _only_process(plan: Plan) -> Iterator[None]:
    """Hold the lock of the store while the block runs."""
    lock = plan.store.with_name(f".{plan.store.name}.lock")
    with exclusive(lock, f"{plan.store} is being prepared by another process; wait for it, or give another `name`"):
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
        splits = {split: self._slices(split, pieces) for split, pieces in text.splits.items()}
        with ThreadPoolExecutor(1) as thread:  # hashing the source in parallel takes no extra time
            source = thread.submit(digest, splits)
            model, note_of_sample = self._sentencepiece_model(splits)
            encoded = self._read_all(
                splits, ChunkEncoder(plan.tokenizer, self._rule.boundary, self._rule.lower_case, model)
            )
            vocab = self._make_vocabulary(text, model)
            final, unknown = rules.final_ids(self._symbols, vocab)
            counts = {split: self._counts(split, part, final, unknown) for split, part in encoded.items()}
            facts = StoreFacts(
                name=plan.store.stem,
                corpus=plan.corpus.name,
                tokenizer=plan.tokenizer,
                unit=UNITS.get(plan.tokenizer, plan.tokenizer),
                metric=metric_of(plan.tokenizer),
                conventions=rules.conventions_of(plan, text),
                notes=(
                    *text.notes,
                    *notes,
                    *rules.differences(plan, self._rule, text, vocab.size, counts),
                    *note_of_sample,
                ),
                source_digest=source.result(),
                every_byte_scored=plan.tokenizer != "word" and not vocab.dropped,
            )
        with writing(plan.store, facts, vocab, work=self._work) as writer:
            self._write_all(writer, encoded, counts, final, vocab)
        return TokenStore.open(plan.store)

    def _slices(self, split: str, pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        """Return the slices of a split that end between characters; benchmarks are cut by bytes."""
        if not _size(pieces):
            where = ", ".join(str(piece.path) for piece in pieces) or "the source"
            raise CorpusInputError(f"{where}: the {split} split is empty; add text to it")
        return pieces if self._plan.tokenizer == "byte" else align_to_characters(pieces)

    def _sentencepiece_model(self, splits: dict[str, tuple[Slice, ...]]) -> tuple[bytes, tuple[str, ...]]:
        """Return the given SentencePiece model, or train one and note if on a part; empty for other tokenizers."""
        plan = self._plan
        if plan.vocab is not None or plan.tokenizer != "sentencepiece":
            return (plan.vocab.model if plan.vocab else b""), ()
        assert plan.vocab_size is not None
        if "train" not in splits:
            raise CorpusInputError(
                "SentencePiece is trained on the train split, and this source has none; add one, "
                "or choose another `tokenizer`"
            )
        size, sample = _size(splits["train"]), self._sizes.bpe_sample if plan.bpe else self._sizes.unigram_sample
        with self._reporter.progress("training SentencePiece"):
            model = train_sentencepiece(_training_lines(splits["train"], sample), size=plan.vocab_size, bpe=plan.bpe)
        note = (
            f"SentencePiece was trained on {sample:,} of the {size:,} bytes of train, spread evenly, since its memory "
            "grows with the text"
        )
        return model, (note,) if size > sample else ()

    def _read_all(self, splits: dict[str, tuple[Slice, ...]], encoder: ChunkEncoder) -> dict[str, EncodedSplit]:
        total = sum(map(_size, splits.values()))
        workers = (self._plan.options.workers or default_workers()) if total > self._sizes.parallel_from else 1
        with self._reporter.progress("reading", total, "B") as step, mapping(encoder, workers) as encode:
            return {
                split: self._read(split, encode(self._jobs(split, pieces)), step) for split, pieces in splits.items()
            }

    def _jobs(self, split: str, pieces: tuple[Slice, ...]) -> Iterator[Job]:
        size = self._sizes.word_chunk if self._plan.tokenizer == "word" else self._sizes.chunk
        for number, chunk in enumerate(cut_into_chunks(pieces, size)):
            yield chunk, self._work / f"{split}-{number}.ids"

    def _read(self, split: str, chunks: Iterator[EncodedChunk], step: Step) -> EncodedSplit:
        encoded = EncodedSplit()
        while group := list(itertools.islice(chunks, CHUNKS_NUMBERED_TOGETHER)):
            for chunk, table in zip(group, self._symbols.add(split, group), strict=True):
                encoded.add(chunk, table, count_line_ends=self._plan.corpus.counts_line_ends)
                step.advance(chunk.bytes)
        return encoded

    def _make_vocabulary(self, text: Text, model: bytes) -> Vocab:
        plan = self._plan
        if plan.vocab is not None:
            rules.check_given(self._symbols, plan.vocab)
            return plan.vocab
        if plan.tokenizer == "sentencepiece":
            return Vocab("sentencepiece", boundary=BOUNDARY, unknown=UNKNOWN, model=model)
        vocab = rules.build(plan, self._rule, self._symbols, text.vocabulary_file)
        size, most = len(vocab.to_json()), self._sizes.vocabulary
        if size > most:
            raise CorpusInputError(
                f"{plan.source or plan.corpus.name}: its {vocab.size:,} {plan.tokenizer}s make a vocabulary of "
                f"{size:,} bytes, more than {most:,}; give `vocab_size` or `min_count`, or if the text has few blanks, "
                "choose another `tokenizer`"
            )
        return vocab

    def _counts(
        self, split: str, encoded: EncodedSplit, final: NDArray[np.int64], unknown: NDArray[np.bool_]
    ) -> SplitCounts:
        counted = self._symbols.counts(split, final.size)[: final.size]
        tokens = int(counted[final >= 0].sum())
        if not tokens:
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        return SplitCounts(
            tokens=tokens,
            words=encoded.words,
            bytes=encoded.bytes,
            unknown=int(counted[unknown].sum()),
            types=int(np.unique(final[(final >= 0) & (counted > 0)]).size),
        )

    def _write_all(
        self,
        writer: StoreWriter,
        encoded: dict[str, EncodedSplit],
        counts: dict[str, SplitCounts],
        final: NDArray[np.int64],
        vocab: Vocab,
    ) -> None:
        boundary = vocab.boundary if self._plan.corpus.sentences else None
        with self._reporter.progress("writing", sum(count.tokens for count in counts.values()), "tokens") as step:
            for split, part in encoded.items():
                tokens = counts[split].tokens
                blocks = part.blocks(final, writer.dtype, step)
                if boundary is None:
                    writer.add(split, counts[split], blocks)
                    continue
                starts: list[NDArray[Any]] = []
                writer.add(split, counts[split], collect_starts(blocks, boundary, tokens, starts))
                writer.add_sentence_starts(split, sum(map(len, starts)), smallest_dtype(tokens), starts)


def collect_starts(
    blocks: Iterable[NDArray[Any]], boundary: int, tokens: int, starts: list[NDArray[Any]]
) -> Iterator[NDArray[Any]]:
    """Yield the blocks of a split of `tokens` ids, and append where its sentences start: after each boundary."""
    dtype, done = smallest_dtype(tokens), 0
    starts.append(np.zeros(1, dtype))
    for block in blocks:
        after = np.flatnonzero(block == boundary) + done + 1
        starts.append(after[after < tokens].astype(dtype))
        done += block.size
        yield block


def _size(slices: tuple[Slice, ...]) -> int:
    """Return the number of bytes."""
    return sum(piece.size for piece in slices)


def _training_lines(slices: tuple[Slice, ...], sample: int) -> Iterator[str]:
    """Yield the lines of the train split, or of the first part of each chunk if it has more bytes than `sample`."""
    share = min(1.0, sample / max(_size(slices), 1))
    for chunk in cut_into_chunks(slices):
        text = "".join(part.text for part in read_chunk(chunk))
        yield from text[: int(len(text) * share) + 1].split("\n")
