"""Prepares a token store: reads and counts the text, builds the vocabulary, writes the ids."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from txlcli import corpora
from txlcli.config import recipe
from txlcli.config.bands import plain_softmax_overrides
from txlcli.corpora.corpus import CorpusError, Slices, Splits, Text, size_of
from txlcli.corpora.documents import Documents, note_on_undivided
from txlcli.data.sentencepiece_model import FIXED, train
from txlcli.data.token_store import BENCHMARKS, SplitCounts, TokenStore, corpus_name, writing
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, StoreError, UsageError
from txlcli.system import locks
from txlcli.system.command_lines import command_line
from txlcli.workflows.exchange.piece_files import PieceFiles
from txlcli.workflows.preparation import vocabulary_rules as rules
from txlcli.workflows.preparation.numbered_text import (
    NumberedChunk,
    NumberedText,
    align_to_characters,
    cut_into_chunks,
    join_files,
    map_in_order,
    number_chunk,
    read_chunk,
)
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.preparation.planning import CHUNK, DEFAULT_VOCAB_SIZE, PreparationPlan, make_plan
from txlcli.workflows.preparation.sources import digest, locate_text
from txlcli.workflows.preparation.token_ids import write_store
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.result import Result

WORK_DIRECTORY = ".preparing-"
"""Beginning of the name of a temporary directory in the data directory."""
PARALLEL_CHUNKS = 8
"""Number of chunks up to which one process reads them: starting more takes longer than they save."""
SAMPLED_CHUNKS = {"unigram": 12, "bpe": 32}
"""Most text on which SentencePiece is trained: a unigram model takes 20 bytes of memory per byte, a BPE model 5."""
EXCERPT_TOKENS = 120
EXCERPT_CHARACTERS = 100


class PreparedStore(TokenStore, Result):
    """A token store as `txlcli.prepare` returns it, with the methods of a result."""

    @property
    def next(self) -> str | None:
        """The command that trains on the store; None without a train split."""
        if "train" not in self.splits:
            return None
        corpus = corpus_name(self.name)
        name = self.name
        overrides: tuple[str, ...] = ()
        if self.name == f"{corpus}-released" and corpus in BENCHMARKS:
            name = corpus
            overrides = (f"corpus.store={self.name}",)
        if name in recipe.packaged_names():
            _, text = recipe.packaged(name)
            model = recipe.resolve_text(text, name).model
            if max(model.cutoffs, default=0) >= self.vocab.size:  # as that of a part of the corpus may be
                overrides += plain_softmax_overrides(model)
        return command_line("train", name, overrides=overrides, data_dir=self.path.parent)

    def excerpt(self, split: str) -> str:
        """Return the beginning of a split as one line."""
        ids = self.ids(split)[:EXCERPT_TOKENS]
        text = " ".join(self.vocab.decode(ids).split())
        if len(text) <= EXCERPT_CHARACTERS:
            return text
        return text[: EXCERPT_CHARACTERS - 3] + "..."

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl prepare --json` prints."""
        splits = {}
        for split, info in self.splits.items():
            facts = dict(vars(info))
            facts["words"] = info.words or None  # not known of token ids without text
            facts["bytes"] = info.bytes or None
            starts = self.sentence_starts(split)
            if starts is not None:
                facts["documents"] = len(starts)
            facts["unknown_percent"] = 100 * info.unknown / info.tokens
            facts["begins"] = self.excerpt(split)
            splits[split] = facts
        return {
            "store": str(self.path),
            **super().to_json(),
            "vocabulary_size": self.vocab.size,
            "fingerprint": self.fingerprint,
            "splits": splits,
            "next": self.next,
        }

    def table(self) -> list[dict[str, Any]]:
        """Return the splits."""
        return [{"split": split, **facts} for split, facts in self.to_json()["splits"].items()]


def run(
    corpus_or_path: str,
    options: PrepareOptions,
    data_dir: Path,
    *,
    reporter: Reporter | None = None,
    chunk: int = CHUNK,
) -> PreparedStore:
    """Prepare a corpus, given its name, or the user's own text, given its path, and store it in `data_dir`."""
    plan = make_plan(corpus_or_path, options, data_dir, reporter=reporter, chunk=chunk)
    if options.source is None and plan.corpus.name == corpus_or_path and Path(corpus_or_path).exists():
        plan.reporter.say(
            f"{corpus_or_path} is the benchmark; `source` {corpus_or_path} reads the files of that name here"
        )
    plan.reporter.say(f"preparing {plan.description}, into {plan.store}")
    return run_plan(plan)


def prepare_again(directory: Path, data_dir: Path, reporter: Reporter) -> TokenStore:
    """Prepare the text that an export wrote into a directory, and store it in `data_dir`."""
    plan = make_plan(str(directory), PrepareOptions(name="again"), data_dir, reporter=reporter)
    return run_plan(plan)


def prepare_if_missing(name: str, data_dir: Path, reporter: Reporter) -> None:
    """Prepare a corpus that every machine has unless its store exists, and clean up."""
    corpus = corpora.CORPORA.get(name)
    store = data_dir / f"{name}.h5"
    if corpus is not None and corpus.home is not None and not store.exists():
        reporter.say(f"no token store at {store} yet; preparing it")
        run(name, PrepareOptions(), data_dir, reporter=reporter)
    clean(data_dir)


def clean(data_dir: Path) -> None:
    """Remove what killed preparations left; one that was killed at its end has left a store, and is not repeated."""
    locks.remove_abandoned(data_dir, WORK_DIRECTORY)


def run_plan(plan: PreparationPlan) -> PreparedStore:
    """Carry out a plan. After a failure only downloads are left, which the next attempt continues."""
    directory = plan.store.parent
    busy = f"{plan.store} is being prepared by another process; wait for it, or give another `name`"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locks.writing(plan.store, busy), locks.temporary_directory(directory, WORK_DIRECTORY) as work:
            plan.check_free()
            tokens = plan.tokens
            if isinstance(tokens, PieceFiles):
                tokens = tokens.joined(work, plan.id_type.vocab_size)
            if tokens:
                write_store(plan, tokens, work)
            else:
                _prepare_text(plan, work)
            return PreparedStore.open(plan.store)
    except CorpusError as error:
        message = str(error)
        if plan.source is None:
            message += f'; or "txl prepare {plan.corpus.name} --source PATH" with the files'
        raise CorpusInputError(message) from error
    except OSError as error:
        raise StoreError(
            f"{error.filename or directory}: {error.strerror or error}; check its permissions and the free space"
        ) from error


def _prepare_text(plan: PreparationPlan, work: Path) -> None:
    """Prepare a store from text: source -> chunks -> numbers of symbols -> vocabulary -> ids -> store.

    `work` is a temporary directory.
    """
    text, documents = locate_text(plan, work)
    rule = rules.rule_of(plan)
    closes_lines = plan.tokenizer == "word" and (plan.vocab or rule).boundary is not None
    splits = {split: _joined(plan, split, pieces, closes_lines) for split, pieces in text.splits.items()}
    vocab = plan.vocab
    notes = list(text.notes)
    if vocab is None and plan.tokenizer == "sentencepiece":
        with plan.reporter.progress("training SentencePiece"):
            vocab, sampling_notes = _train_sentencepiece(plan, splits)
        notes += sampling_notes
    marks = [mark for mark in (rule.boundary, rule.unknown) if mark is not None]
    splitter = vocab or rules.vocabulary(plan, rule, marks)
    numbered = _number(plan, splits, documents, splitter, work)
    if documents is not None:
        found = sum(map(len, documents.offsets.values()))
        note = note_on_undivided(documents.unit, files=len(documents.offsets), documents=found)
        if note is not None:
            notes.append(note)
    vocab = vocab or rules.build(plan, rule, text.vocabulary_file, numbered)
    count_line_ends = plan.corpus.counts_line_ends and vocab.keeps_line_ends
    counts = {split: numbered.counts(split, count_line_ends=count_line_ends) for split in splits}
    notes += rules.notes_on(plan, rule, text, numbered, vocab, counts)
    facts = plan.facts(
        conventions=rules.conventions_of(plan, text),
        notes=tuple(notes),
        changes=_changes(text, splits, vocab, numbered, counts),
        source_digest=digest(splits),
        every_byte_scored=plan.tokenizer != "word" and not vocab.dropped,
    )
    tokens = sum(of_split.tokens for of_split in counts.values())
    with (
        writing(plan.store, facts, vocab, work=work) as writer,
        plan.reporter.progress("writing", tokens, "tokens") as progress,
    ):
        for split, of_split in counts.items():
            writer.add(split, of_split, numbered.ids(split, vocab, progress), numbered.starts(split))


def _changes(
    text: Text, splits: Splits, vocab: Vocab, numbered: NumberedText, counts: Mapping[str, SplitCounts]
) -> dict[str, int]:
    """Count what was added to the text and left out of it."""
    changes = dict(text.changes)
    changes["line_ends_added"] = sum(1 for piece in chain(*splits.values()) if piece.tail)
    changes["nul_bytes_kept"] = numbered.total("nuls")
    if vocab.dropped:
        changes["bytes_dropped"] = sum(of_split.bytes - of_split.tokens for of_split in counts.values())
    elif not vocab.keeps_line_ends:
        changes["line_ends_dropped"] = numbered.total("lines")
    return changes


def _joined(plan: PreparationPlan, split: str, pieces: Slices, close_last: bool) -> Slices:
    """Return the slices of a split, with ends of lines between them; benchmarks may be cut inside characters."""
    if not size_of(pieces):
        where = ", ".join(str(piece.path) for piece in pieces) or "the source"
        raise CorpusInputError(f"{where}: the {split} split is empty; add text to it")
    if plan.tokenizer != "byte":
        pieces = align_to_characters(pieces)
    return join_files(pieces, close_last=close_last)


def _train_sentencepiece(plan: PreparationPlan, splits: Splits) -> tuple[Vocab, list[str]]:
    """Train a SentencePiece model, on the first part of each chunk if the text is long; return a note if it is."""
    if "train" not in splits:
        raise CorpusInputError(
            "SentencePiece is trained on the train split, and this source has none; add one, "
            "or choose another `tokenizer`"
        )
    size = size_of(splits["train"])
    sp_type = plan.options.sp_type or "unigram"
    sample = SAMPLED_CHUNKS[sp_type] * plan.chunk
    vocab_size = plan.options.vocab_size or DEFAULT_VOCAB_SIZE
    largest = min(size, sample) + len(FIXED)
    if vocab_size > largest:  # each piece but the fixed ones is a part of the text
        raise UsageError(
            f"`vocab_size` {vocab_size} is too large for a text of {size:,} bytes; give a much smaller one"
        )

    def lines() -> Iterator[str]:
        for chunk in cut_into_chunks(splits["train"]):
            text = read_chunk(chunk, is_utf8=True).decode()
            end = int(len(text) * min(1.0, sample / size)) + 1
            yield from text[:end].split("\n")

    model = train(lines(), size=vocab_size, model_type=sp_type)
    notes = []
    if size > sample:
        notes.append(
            f"SentencePiece was trained on {sample:,} of the {size:,} bytes of train, spread evenly, to save memory"
        )
    return Vocab.of_model(model), notes


def _number(
    plan: PreparationPlan, splits: Splits, documents: Documents | None, splitter: Vocab, work: Path
) -> NumberedText:
    """Number the symbols of each chunk, in worker processes if there are many chunks."""
    chunks: list[tuple[str, Slices]] = []  # with their splits
    for split, pieces in splits.items():
        for chunk in cut_into_chunks(pieces, plan.chunk):
            chunks.append((split, chunk))
    workers = plan.options.workers if len(chunks) > PARALLEL_CHUNKS else 1
    jobs = ((chunk, documents.starts(chunk) if documents else []) for _, chunk in chunks)
    number = partial(number_chunk, splitter, work, sentences=plan.corpus.sentences and not documents)
    numbered: dict[str, list[NumberedChunk]] = {split: [] for split in splits}
    total = sum(map(size_of, splits.values()))
    with plan.reporter.progress("reading", total, "B") as progress:
        for (split, _), numbered_chunk in zip(chunks, map_in_order(number, jobs, workers), strict=True):
            numbered[split].append(numbered_chunk)
            progress.advance(numbered_chunk.bytes)
    return NumberedText(numbered)
