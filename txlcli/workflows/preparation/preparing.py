"""Prepares a token store: reads and counts the text, builds the vocabulary, writes the ids."""

import itertools
from collections.abc import Iterator
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
from txlcli.data.token_store import SplitInfo, TokenStore, writing
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, StoreError, UsageError
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import MAX_VOCABULARY
from txlcli.system.locks import exclusive, remove_abandoned, temporary_directory
from txlcli.workflows.options import PrepareOptions
from txlcli.workflows.preparation import vocabulary_rules as rules
from txlcli.workflows.preparation.chunks import CHUNK, ChunkEncoder, align_to_characters, cut_into_chunks, read_chunk
from txlcli.workflows.preparation.planning import Plan, make_plan
from txlcli.workflows.preparation.sources import digest, locate_text
from txlcli.workflows.preparation.symbol_counts import EncodedSplit, SymbolCounts
from txlcli.workflows.preparation.token_ids import write_store
from txlcli.workflows.preparation.workers import default_workers, mapping
from txlcli.workflows.reporter import CallbackReporter, Reporter

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
    """One preparation of a text in progress: source -> chunks -> vocabulary -> ids -> store."""

    def __init__(self, plan: Plan, work: Path, reporter: Reporter, sizes: WorkSizes) -> None:
        self._plan, self._work, self._reporter, self._sizes = plan, work, reporter, sizes
        self._rule = rules.rule_of(plan)

    def run(self) -> TokenStore:
        """Prepare the store and open it."""
        plan, rule = self._plan, self._rule
        text, notes = locate_text(plan, self._work, self._reporter)
        splits = {split: self._checked(split, pieces) for split, pieces in text.splits.items()}
        with ThreadPoolExecutor(1) as thread:  # hashing the source in parallel takes no extra time
            source = thread.submit(digest, splits)
            model, note_of_sample = self._sentencepiece_model(splits)
            symbols, encoded = self._encode(splits, model)
            vocab = self._vocabulary(text, symbols, model)
            final, unknown = rules.final_ids(symbols, vocab)
            infos = {
                split: self._info(split, part, symbols.counts(split), final, unknown) for split, part in encoded.items()
            }
            facts = plan.facts(
                conventions=rules.conventions_of(plan, text),
                notes=(*text.notes, *notes, *rules.differences(plan, rule, text, vocab.size, infos), *note_of_sample),
                source_digest=source.result(),
                every_byte_scored=plan.tokenizer != "word" and not vocab.dropped,
            )
        boundary = vocab.boundary if plan.corpus.sentences else None
        total = sum(info.tokens for info in infos.values())
        with (
            writing(plan.store, facts, vocab, work=self._work) as writer,
            self._reporter.progress("writing", total, "tokens") as step,
        ):
            for split, part in encoded.items():
                writer.add(split, infos[split], part.blocks(final, step), boundary=boundary)
        return TokenStore.open(plan.store)

    def _checked(self, split: str, pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
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
        if "train" not in splits:
            raise CorpusInputError(
                "SentencePiece is trained on the train split, and this source has none; add one, "
                "or choose another `tokenizer`"
            )
        size, sample = _size(splits["train"]), self._sizes.bpe_sample if plan.bpe else self._sizes.unigram_sample
        lines = _training_lines(splits["train"], min(1.0, sample / size))
        with self._reporter.progress("training SentencePiece"):
            model = train_sentencepiece(lines, size=plan.vocab_size or 0, bpe=plan.bpe)
        note = (
            f"SentencePiece was trained on {sample:,} of the {size:,} bytes of train, spread evenly, since its memory "
            "grows with the text"
        )
        return model, (note,) if size > sample else ()

    def _encode(
        self, splits: dict[str, tuple[Slice, ...]], model: bytes
    ) -> tuple[SymbolCounts, dict[str, EncodedSplit]]:
        """Encode all chunks, in worker processes if there are many, and count their symbols."""
        plan, sizes = self._plan, self._sizes
        encoder = ChunkEncoder(plan.tokenizer, self._rule.boundary, self._rule.lower_case, model)
        total = sum(map(_size, splits.values()))
        workers = (plan.options.workers or default_workers()) if total > sizes.parallel_from else 1
        chunk_size = sizes.word_chunk if plan.tokenizer == "word" else sizes.chunk
        symbols, encoded = SymbolCounts(), {split: EncodedSplit() for split in splits}
        with self._reporter.progress("reading", total, "B") as step, mapping(encoder, workers) as encode:
            for split, pieces in splits.items():
                jobs = enumerate(cut_into_chunks(pieces, chunk_size))
                chunks = encode((chunk, self._work / f"{split}-{number}.ids") for number, chunk in jobs)
                while group := list(itertools.islice(chunks, CHUNKS_NUMBERED_TOGETHER)):
                    for chunk, table in zip(group, symbols.add(split, group), strict=True):
                        encoded[split].add(chunk, table)
                        step.advance(chunk.bytes)
        return symbols, encoded

    def _vocabulary(self, text: Text, symbols: SymbolCounts, model: bytes) -> Vocab:
        plan = self._plan
        if plan.vocab is not None:
            rules.check_given(symbols, plan.vocab)
            return plan.vocab
        if plan.tokenizer == "sentencepiece":
            return Vocab("sentencepiece", boundary=BOUNDARY, unknown=UNKNOWN, model=model)
        vocab = rules.build(plan, self._rule, symbols, text.vocabulary_file)
        size, most = len(vocab.to_json()), self._sizes.vocabulary
        if size > most:
            raise CorpusInputError(
                f"{plan.source or plan.corpus.name}: its {vocab.size:,} {plan.tokenizer}s make a vocabulary of "
                f"{size:,} bytes, more than {most:,}; give `vocab_size` or `min_count`, or if the text has few blanks, "
                "choose another `tokenizer`"
            )
        return vocab

    def _info(
        self,
        split: str,
        encoded: EncodedSplit,
        counts: NDArray[np.int64],
        final: NDArray[np.int64],
        unknown: NDArray[np.bool_],
    ) -> SplitInfo:
        """Return the counts of a split whose symbols get the ids `final`; negative ones are dropped."""
        kept = (final >= 0) & (counts > 0)
        if not kept.any():
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        return SplitInfo(
            tokens=int(counts[kept].sum()),
            words=encoded.words + (encoded.lines if self._plan.corpus.counts_line_ends else 0),
            bytes=encoded.bytes,
            unknown=int(counts[unknown].sum()),
            types=np.unique(final[kept]).size,
        )


def _size(slices: tuple[Slice, ...]) -> int:
    """Return the number of bytes."""
    return sum(piece.size for piece in slices)


def _training_lines(slices: tuple[Slice, ...], share: float) -> Iterator[str]:
    """Yield the lines of the first part, of that share, of each chunk."""
    for chunk in cut_into_chunks(slices):
        text = "".join(part.text for part in read_chunk(chunk))
        yield from text[: int(len(text) * share) + 1].split("\n")
