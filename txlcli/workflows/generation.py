"""Generates text with a run, after a prompt or a passage of the test split (Appendix E)."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from txlcli import corpora
from txlcli.core.reading import sampling
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.sampling import Sampling
from txlcli.corpora.corpus import unchanged
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation.out_of_memory import Reading, explained
from txlcli.workflows.evaluation.texts import warn_if_trained_on
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace

SPLIT = "test"
TOP_K, CONTEXT = 40, 512
LEAST_TEMPERATURE = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Context and sampling of generated texts.

    Raises:
        UsageError: a value is out of range, or two options exclude each other.
    """

    prompt: str | None = None
    """Context; None is a passage of the test split."""
    at: int | None = None
    """Token of the test split after which the text begins; None selects a random one."""
    context: int | None = None
    """Largest number of tokens of context; None is CONTEXT."""
    tokens: int = 500
    """Length of each text."""
    samples: int = 1
    """Number of texts."""
    top_k: int | None = None
    """Sample from the k likeliest tokens; 0 is all; None is TOP_K, or all if `top_p` is given."""
    top_p: float | None = None
    """Sample from the likeliest tokens that reach this probability."""
    temperature: float | None = None
    """Divisor of the logits; None is 1."""
    greedy: bool = False
    """True to select the likeliest token always."""
    reference: bool = False
    """True if the continuation of the test split is needed."""
    seed: int = 1111

    def __post_init__(self) -> None:
        """Check the ranges, and that no two options exclude each other."""
        if self.prompt is not None and (self.at is not None or self.reference or self.context is not None):
            raise UsageError("--prompt is the whole context; leave out --at, --context and --reference")
        sampled = self.top_k is not None or self.top_p is not None or self.temperature is not None or self.samples > 1
        if self.greedy and sampled:
            raise UsageError("--greedy does not sample: leave out --top-k, --top-p, --temperature and --samples")
        if self.temperature is not None and not LEAST_TEMPERATURE <= self.temperature <= 1 / LEAST_TEMPERATURE:
            raise UsageError(
                f"--temperature {self.temperature}: must be between {LEAST_TEMPERATURE} and "
                f"{1 / LEAST_TEMPERATURE:g}; for the likeliest token use --greedy"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: must be greater than 0 and at most 1")

    def sampling(self) -> Sampling:
        """Return the sampling settings."""
        top_k = TOP_K if self.top_k is None and self.top_p is None else self.top_k
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(temperature=temperature, top_k=top_k or None, top_p=self.top_p, greedy=self.greedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """Tokens before the generated text."""

    tokens: list[int]
    title: str
    continuation: list[int] = dataclasses.field(default_factory=list)
    """Tokens that follow in the test split; empty for a prompt."""
    detokenize: Callable[[str], str] | None = None
    """Restores ordinary spelling; None if the decoded text has it already."""
    position: int | None = None
    """Token of the test split after which the text begins; None for a prompt."""
    prompt: str = ""


@dataclasses.dataclass(frozen=True)
class Generation:
    """Texts that a run generates after one context."""

    opened: OpenRun
    context: Context
    options: GenerationOptions

    def samples(self) -> Iterator[Iterator[int]]:
        """Yield the tokens of each text while they are sampled; each text must be consumed before the next."""
        reader = _reader(self.opened)
        context = torch.tensor(self.context.tokens, dtype=torch.int64, device=reader.device)
        for number in range(self.options.samples):
            seed = self.options.seed + number
            tokens = sampling.generate(reader, context, self.options.sampling(), seed=seed)
            yield _explained(self.opened, itertools.islice(tokens, self.options.tokens))

    def spell(self, tokens: Iterable[int], *, after: int | None = None) -> Iterator[str]:
        """Yield the text of tokens as they arrive: by characters, or by lines if it must be detokenized."""
        pieces = self.opened.vocab.spell(tokens, after=after)
        return pieces if self.context.detokenize is None else detokenize_lines(pieces, self.context.detokenize)

    def result(self) -> dict[str, Any]:
        """Generate all texts; return the object that --json prints."""
        samples = []
        for tokens in self.samples():
            ids = list(tokens)
            samples.append({"text": "".join(self.spell(ids)), "tokens": ids})
        result: dict[str, Any] = {
            "run": str(self.opened.run.directory),
            "context": "".join(self.spell(self.context.tokens)),
            "samples": samples,
        }
        if self.context.position is not None:
            result["position"] = self.context.position
        if self.options.reference:
            result["reference"] = "".join(self.spell(self.context.continuation))
        return result


class Conversation:
    """Prompts and their continuations in turn; the model remembers all of them, as far as its memory reaches.

    Args:
        opened: the run.
        options: sampling and length; its seed starts the random numbers.
        reporter: receives messages.
    """

    def __init__(self, opened: OpenRun, options: GenerationOptions, reporter: Reporter) -> None:
        self.opened, self._options, self._reporter = opened, options, reporter
        self._reader = _reader(opened)
        self._generator = torch.Generator(device=self._reader.device).manual_seed(options.seed)
        self._unread: list[int] = []
        self._started = False

    def reset(self) -> None:
        """Forget all prompts and continuations."""
        self._reader.reset()
        self._unread, self._started = [], False

    def reply(self, prompt: str) -> Iterator[str]:
        """Yield the continuation of a prompt while it is sampled; it may be abandoned at any time.

        Raises:
            UsageError, VocabularyError: see `encode_prompt`; nothing is read then.
        """
        context = encode_prompt(self.opened, prompt, self._reporter).tokens
        if self._started and self.opened.vocab.boundary is not None:
            context = context[1:] or context  # the boundary only begins a text
        return self.opened.vocab.spell(self._sample(context), after=context[-1])

    def _sample(self, context: list[int]) -> Iterator[int]:
        tokens = torch.tensor([*self._unread, *context], dtype=torch.int64)
        self._unread, self._started = [], True
        sampled = sampling.continue_text(self._reader, tokens, self._options.sampling(), self._generator)
        for token in _explained(self.opened, itertools.islice(sampled, self._options.tokens)):
            self._unread = [token]  # the reader has read all before it
            yield token


def _reader(opened: OpenRun) -> Reader:
    """Return the reader of a run, for one text.

    Raises:
        TxlError: memory ran out.
    """
    with explained(_reading(opened)):
        settings = opened.run.settings.evaluation_settings()
        return sampling.reader_of_one_text(opened.model, settings, precision=opened.precision)


def _explained(opened: OpenRun, tokens: Iterator[int]) -> Iterator[int]:
    """Yield tokens while they are sampled.

    Raises:
        TxlError: memory ran out.
    """
    with explained(_reading(opened)):
        yield from tokens


def _reading(opened: OpenRun) -> Reading:
    settings = dataclasses.replace(opened.run.settings.evaluation_settings(), batch_size=1)
    by_windows = not opened.model.has_recurrent_state and settings.mem_len == 0
    attn_len = settings.seg_len if by_windows else None
    return Reading(opened=opened, settings=settings, attn_len=attn_len, can_change=("--precision",))


def prepare_generation(run_name: str | None, options: GenerationOptions, workspace: Workspace) -> Generation:
    """Open a run and encode its context; nothing is generated until the samples are consumed.

    Raises:
        UsageError: the prompt is empty, or the test split lacks the requested tokens.
        VocabularyError: the prompt contains symbols that are not in the vocabulary.
    """
    opened = workspace.open_run(run_name)
    opened.vocab.check_has_text()
    if options.prompt is not None:
        context = encode_prompt(opened, options.prompt, workspace.reporter)
    else:
        context = _split_context(opened, options, workspace)
    workspace.reporter.say(f"generating with {opened.run.directory}, after {context.title}")
    return Generation(opened, context, options)


def encode_prompt(opened: OpenRun, prompt: str, reporter: Reporter) -> Context:
    """Encode a prompt, after the boundary that every text follows in training.

    Raises:
        UsageError: it is empty.
        VocabularyError: it contains symbols that are not in the vocabulary.
    """
    ids = [int(token) for token in opened.vocab.encode(prompt)]
    unknown = ids.count(opened.vocab.unknown) if opened.vocab.unknown is not None else 0
    if unknown:
        reporter.say(f"{unknown} of {len(ids)} tokens of the prompt are not in the vocabulary and are read as <unk>")
    if opened.vocab.boundary is not None:
        ids = [opened.vocab.boundary, *ids]  # every text in training follows a boundary
    if not ids:
        raise UsageError("the prompt is empty; give at least one character, or leave it out to use the test split")
    return Context(tokens=ids, title="the prompt", prompt=prompt)


def _split_context(opened: OpenRun, options: GenerationOptions, workspace: Workspace) -> Context:
    """Return a passage of the test split, at `options.at` or a random token."""
    store = opened.store(workspace.data_dir)
    warn_if_trained_on(opened, SPLIT, workspace)
    ids, at, length = store.ids(SPLIT), options.at, options.context or CONTEXT
    latest = len(ids) - (options.tokens if options.reference else 0)
    if at is None:
        earliest = min(length, max(latest, 1))
        at = random.Random(options.seed).randint(earliest, max(latest, earliest))
    if not 0 < at <= len(ids):
        raise UsageError(f"--at {at}: the test split of {store.path} has tokens 1 to {len(ids):,}; give one of these")
    if options.reference and at + options.tokens > len(ids):
        raise UsageError(
            f"--reference: only {len(ids) - at:,} tokens follow token {at:,} of the test split; lower --tokens or --at"
        )
    detokenize = corpora.detokenizer(store.corpus)
    return Context(
        tokens=[int(token) for token in ids[max(0, at - length) : at]],
        continuation=[int(token) for token in ids[at : at + options.tokens]],
        title=f"{store.name} test, token {at:,}",
        detokenize=None if detokenize is unchanged else detokenize,
        position=at,
    )


def detokenize_lines(pieces: Iterable[str], detokenize: Callable[[str], str]) -> Iterator[str]:
    """Yield the detokenized lines of a text that arrives in pieces, each as soon as it is complete."""
    line: list[str] = []
    for piece in pieces:
        *complete, last = piece.split("\n")
        for part in complete:
            yield detokenize("".join([*line, part, "\n"]))
            line = []
        line.append(last)
    yield detokenize("".join(line))
