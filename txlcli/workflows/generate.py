"""Generates text with a run, after a prompt or a passage of the test split (Appendix E)."""

import itertools
import json
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from txlcli import corpora
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.sampling import Sampling, continue_text, generate, reader_of_one_text
from txlcli.corpora.corpus import unchanged
from txlcli.errors import StoreError, UsageError, VocabularyError
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import write_text
from txlcli.system.input_files import check_regular
from txlcli.system.written_files import MARK
from txlcli.workflows.evaluation.texts import warn_if_trained_on
from txlcli.workflows.exchange.piece_files import read_pieces
from txlcli.workflows.generate_options import DEFAULT_CONTEXT, DEFAULT_TOP_K, GenerateOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace, compile_reading


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One generated text."""

    text: str
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """Texts that a run has generated after one context."""

    run: str
    context: str
    samples: tuple[Sample, ...]
    position: int | None
    """Token of the test split after which the texts begin; None for a prompt."""
    reference: str | None
    """Continuation of the test split, if requested."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl generate --json` prints."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Texts that a run generates after one context, while they are sampled."""

    opened: OpenRun
    options: GenerateOptions
    context: list[int]
    """Tokens before the generated texts."""
    title: str = "the prompt"
    """Name of the context."""
    continuation: list[int] = field(default_factory=list)
    """Tokens that follow in the test split; empty for a prompt."""
    detokenize: Callable[[str], str] = unchanged
    """Restores ordinary spelling."""
    position: int | None = None
    """Token of the test split after which the texts begin; None for a prompt."""

    @property
    def token_before(self) -> int | None:
        """Token that each text continues; None after a passage or ids, which are not shown before it."""
        return None if self.options.prompt is None else self.context[-1]

    def samples(self) -> Iterator[Iterator[int]]:
        """Yield the tokens of each text while they are sampled; each text must be consumed before the next."""
        reader = _reader(self.opened)
        context = torch.tensor(self.context)
        for number in range(self.options.samples):
            seed = self.options.seed + number
            tokens = generate(reader, context, _sampling(self.options), seed=seed)
            yield itertools.islice(tokens, self.options.tokens)

    def spell(self, tokens: Iterable[int], *, after: int | None = None) -> Iterator[str]:
        """Yield the text of tokens as they arrive: by characters, or by lines if it must be detokenized."""
        pieces = self.opened.vocab.spell(tokens, after=after)
        if self.detokenize is unchanged:
            return pieces
        return detokenize_lines(pieces, self.detokenize)

    def spell_sample(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of sampled tokens as they arrive, up to a text that ends it."""
        return until_stop(self.spell(tokens, after=self.token_before), self.options.stop)

    def result(self) -> GenerateResult:
        """Generate all texts."""
        context = self._text(self.context)
        reference = None
        if self.options.reference:
            reference = self._text(self.continuation)
        samples = []
        for sampled in self.samples():
            tokens: list[int] = []
            text = "".join(self.spell_sample(_recorded(sampled, tokens)))
            while len(self._text(tokens, after=self.token_before)) > len(text):  # tokens of the text that ended it
                tokens.pop()
            samples.append(Sample(text=text, tokens=tokens))
        return GenerateResult(
            run=str(self.opened.run.directory),
            context=context,
            samples=tuple(samples),
            position=self.position,
            reference=reference,
        )

    def _text(self, tokens: list[int], *, after: int | None = None) -> str:
        return "".join(self.spell(tokens, after=after))


class Conversation:
    """Prompts and their continuations in turn; the model remembers all of them, as far as its memory reaches."""

    def __init__(self, opened: OpenRun, options: GenerateOptions, reporter: Reporter) -> None:
        self._opened = compile_reading(opened, options, options.compile)
        self._options = options
        self._reporter = reporter
        self._reader = _reader(self._opened)
        self._generator = torch.Generator(device=self._reader.device).manual_seed(options.seed)
        self.reset()

    def reset(self) -> None:
        """Forget all prompts and continuations."""
        self._reader.reset()
        self._started = False

    def reply(self, prompt: str) -> Iterator[str]:
        """Yield the continuation of a prompt while it is sampled; it may be abandoned at any time."""
        vocab = self._opened.vocab
        context = encode_prompt(self._opened, prompt, self._reporter)
        if self._started and vocab.boundary is not None:
            context = context[1:] or context  # the boundary only begins a text
        self._started = True
        tokens = continue_text(self._reader, torch.tensor(context), _sampling(self._options), self._generator)
        first_tokens = itertools.islice(tokens, self._options.tokens)
        return until_stop(vocab.spell(first_tokens, after=context[-1]), self._options.stop)


def _sampling(options: GenerateOptions) -> Sampling:
    """Return how tokens are selected."""
    top_k = options.top_k
    if top_k is None and options.top_p is None:
        top_k = DEFAULT_TOP_K
    temperature = 1.0 if options.temperature is None else options.temperature
    return Sampling(temperature=temperature, top_k=top_k or None, top_p=options.top_p, greedy=options.greedy)


def _reader(opened: OpenRun) -> Reader:
    """Return the reader of a run, for one text."""
    return reader_of_one_text(opened.model, opened.run.settings.evaluation_settings())


def prepare(run: Run, options: GenerateOptions, workspace: Workspace) -> Generation:
    """Open a run and encode its context; nothing is generated until the samples are consumed."""
    opened = workspace.open_run(run)
    if options.stop:
        opened.vocab.check_has_text()
    opened = compile_reading(opened, options, options.compile)
    if options.prompt_ids is not None:
        context = check_ids(opened, read_ids(options.prompt_ids))
        generation = Generation(opened=opened, options=options, context=context)
    elif options.prompt is None:
        generation = _after_passage(opened, options, workspace)
    elif opened.vocab.tokenizer == "ids":
        raise VocabularyError(f"{run.directory} predicts ids whose text is not known; give `prompt_ids`, not `prompt`")
    else:
        context = encode_prompt(opened, options.prompt, workspace.reporter)
        generation = Generation(opened=opened, options=options, context=context)
    workspace.reporter.say(f"generating with {run.subject}, after {generation.title}")
    return generation


def generate_texts(run: Run, options: GenerateOptions, workspace: Workspace) -> GenerateResult:
    """Generate texts with a run, and write their ids to the file of the options."""
    generation = prepare(run, options, workspace)
    result = generation.result()
    if options.out is not None:
        write_ids(options.out, generation.context, result.samples)
    return result


def write_ids(path: Path, context: list[int], samples: Sequence[Sample]) -> None:
    """Write the ids of each text, which begins with the context, to a file of JSON."""
    ids: list[Any] = [[*context, *sample.tokens] for sample in samples]
    if len(ids) == 1:
        (ids,) = ids
    content = {"ids": ids, "context_tokens": len(context), "software": MARK}
    write_text(path, json.dumps(content) + "\n")


def encode_prompt(opened: OpenRun, prompt: str, reporter: Reporter) -> list[int]:
    """Encode a prompt, after the boundary that every text follows in training."""
    vocab = opened.vocab
    ids: list[int] = vocab.encode(prompt).tolist()
    unknown = sum(token == vocab.unknown for token in ids)
    if unknown:
        reporter.say(f"{unknown} of {len(ids)} tokens of the prompt are not in the vocabulary and are read as <unk>")
    if vocab.boundary is not None:
        ids.insert(0, vocab.boundary)
    if not ids:
        raise UsageError("the prompt is empty; give at least one character")
    return ids


def read_ids(path: Path) -> list[int]:
    """Read the one piece of a file of token ids."""
    if not check_regular(path).is_file():
        raise UsageError(f"`prompt_ids`: no file at {path}; give a .json or .npy with token ids")
    pieces = read_pieces(path)
    if len(pieces) != 1:
        raise UsageError(f"`prompt_ids` {path}: has {len(pieces)} pieces with ids; give a file with one")
    return pieces[0].tolist()


def check_ids(opened: OpenRun, ids: Iterable[int]) -> list[int]:
    """Return ids that a text may begin with, all of them in the vocabulary."""
    try:
        context = [operator.index(number) for number in ids]
    except TypeError as error:
        raise UsageError(f"the ids of a prompt are whole numbers ({error}); give a list of them") from error
    size = opened.vocab.size
    beyond = [number for number in context if not 0 <= number < size]
    if beyond:
        raise UsageError(f"the prompt has the id {beyond[0]:,}, and the vocabulary has 0 to {size - 1:,}; remove it")
    if not context:
        raise UsageError("the prompt has no ids; give at least one")
    return context


def _after_passage(opened: OpenRun, options: GenerateOptions, workspace: Workspace) -> Generation:
    """Continue a passage of the test split, at `options.at` or a random token."""
    store = opened.store(workspace.data_dir)
    if "test" not in store.splits:
        start = "`prompt_ids`" if opened.vocab.tokenizer == "ids" else "`prompt`"
        raise StoreError(f"{store.path} has no test split, which a text continues by default; give a {start}")
    warn_if_trained_on(opened, "test", workspace)
    ids = store.ids("test")
    length = options.context or DEFAULT_CONTEXT
    latest = len(ids)
    if options.reference:
        latest -= options.tokens
    at = options.at
    if at is None:
        earliest = min(length, max(latest, 1))
        at = random.Random(options.seed).randint(earliest, max(latest, earliest))
    if not 0 < at <= latest:
        remark = f" that {options.tokens:,} more follow" if options.reference else ""
        count = f"{max(latest, 0):,} tokens{remark}"
        if options.at is None:
            raise UsageError(f"`tokens` {options.tokens}: the test split of {store.path} has {count}; give fewer")
        raise UsageError(f"`at` {at}: the test split of {store.path} has {count}; change `at` or `tokens`")
    return Generation(
        opened=opened,
        options=options,
        context=ids[max(0, at - length) : at].tolist(),
        continuation=ids[at : at + options.tokens].tolist(),
        title=f"{store.name} test, token {at:,}",
        detokenize=corpora.detokenizer(store.corpus),
        position=at,
    )


def detokenize_lines(pieces: Iterable[str], detokenize: Callable[[str], str]) -> Iterator[str]:
    """Yield the detokenized lines of a text that arrives in pieces, each as soon as it is complete."""
    line = ""
    for piece in pieces:
        *complete, line = (line + piece).split("\n")
        for part in complete:
            yield detokenize(part + "\n")
    yield detokenize(line)


def until_stop(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield a text that arrives in pieces up to the stop text that is complete first; pieces may divide it."""
    longest = max(map(len, stops), default=1)
    text = ""
    for piece in pieces:
        text += piece
        stops_in_text = [stop for stop in stops if stop in text]
        if stops_in_text:
            first = min(stops_in_text, key=lambda stop: text.index(stop) + len(stop))
            yield text[: text.index(first)]
            return
        sure = max(0, len(text) - longest + 1)  # a stop text may begin with the rest
        yield text[:sure]
        text = text[sure:]
    yield text


def _recorded(tokens: Iterable[int], record: list[int]) -> Iterator[int]:
    """Yield tokens, and append each to a record."""
    for token in tokens:
        record.append(token)
        yield token
