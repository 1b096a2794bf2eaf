"""`txl generate`: text drawn from a trained model, with memory (Appendix E)."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import UsageError, VocabularyError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    DeviceOption,
    Json,
    PrecisionOption,
    RunsDir,
    Seed,
    read_stdin,
)
from txlcli.workflows.evaluation.texts import tell_learned

if TYPE_CHECKING:
    from txlcli.core.reading.reader import Reader
    from txlcli.core.reading.sampling import Sampling
    from txlcli.runs.loading import OpenRun

SPLIT = "test"
TOP_K, CONTEXT = 40, 512
LEAST_TEMPERATURE = 1e-3


def generate(
    run_name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; the newest by default.")] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Text to go on with; - is stdin.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", min=0, help="Token of the test split where the context ends; random by --seed."),
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Most tokens of context; 512.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens to draw.")] = 500,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Texts to draw, one after the other.")] = 1,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=0, help="Draw from the k likeliest tokens; 0 is all; without --top-p 40."),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest tokens that reach this probability.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Below 1 keeps to likely tokens; 1 by default.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Also print the context and how the test split really goes on.")
    ] = False,
    seed: Seed = 1111,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Draw text from a run.

    It goes on from a prompt, or from a piece of the test split.

    Example: txl generate --prompt "def main(" --tokens 300
    """
    from txlcli.core.reading.sampling import Sampling
    from txlcli.runs import loading

    if prompt is not None and (at is not None or reference or context is not None):
        raise UsageError("--prompt is the whole context; leave out --at, --context and --reference")
    if greedy and (top_k is not None or top_p is not None or temperature is not None or samples > 1):
        raise UsageError("--greedy draws nothing: leave out --top-k, --top-p, --temperature and --samples")
    if temperature is not None and not LEAST_TEMPERATURE <= temperature <= 1 / LEAST_TEMPERATURE:
        raise UsageError(
            f"--temperature {temperature}: must lie between {LEAST_TEMPERATURE} and {1 / LEAST_TEMPERATURE:g}; for the "
            "likeliest token use --greedy"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"--top-p {top_p}: must be greater than 0 and at most 1")
    opened = loading.open_run(run_name, runs_dir, device=device.value, precision=precision.value if precision else None)
    if top_k is None and top_p is None:
        top_k = TOP_K
    how = Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_k=top_k or None,
        top_p=top_p,
        greedy=greedy,
    )
    if prompt is not None:
        start = _prompt(opened, prompt)
    else:
        start = _from_split(
            opened,
            data_dir,
            at=at,
            context=context or CONTEXT,
            tokens=tokens,
            seed=seed,
            needs_reference=reference,
        )
    console.say(f"generating with {opened.run.folder}, after {start.title}")
    texts, reader = _Texts(opened, start, reference=reference, json=json), _reader(opened)
    for number in range(samples):
        texts.add(number, samples, _draw(reader, start, how, count=tokens, seed=seed + number))
    texts.end()
    if json:
        console.show_json(texts.as_result())


def draw_beside_reference(
    run_name: str, *, tokens: int, context: int, seed: int, device: Device, data_dir: Path, runs_dir: Path
) -> dict[str, Any]:
    """One text from a random place of the test split, as `txl generate --reference --json` prints it."""
    from txlcli.core.reading.sampling import Sampling
    from txlcli.runs import loading

    opened = loading.open_run(run_name, runs_dir, device=device.value, precision=None)
    start = _from_split(opened, data_dir, at=None, context=context, tokens=tokens, seed=seed, needs_reference=True)
    console.say(f"generating with {opened.run.folder}, after {start.title}")
    texts = _Texts(opened, start, reference=True, json=True)
    texts.add(0, 1, _draw(_reader(opened), start, Sampling(temperature=1.0, top_k=TOP_K), count=tokens, seed=seed))
    return texts.as_result()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Start:
    """What is read before the first token is drawn."""

    context: list[int]
    continuation: list[int]
    """What the test split really goes on with; empty for a prompt."""
    title: str
    detokenize: Callable[[str], str] | None = None
    """What makes ordinary spelling of the decoded text; None leaves it as it is."""
    position: int | None = None
    """Where in the test split the context ends; None for a prompt."""
    prompt: str = ""


def _prompt(opened: "OpenRun", prompt: str) -> _Start:
    if prompt == "-":
        try:
            prompt = read_stdin().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise VocabularyError(f"the prompt on stdin is no UTF-8 at byte {error.start}; convert it first") from error
    elif not _is_unicode(prompt):
        raise VocabularyError("--prompt is no UTF-8; convert it first")
    ids = [int(token) for token in opened.vocab.encode(prompt)]
    lost = ids.count(opened.vocab.unknown) if opened.vocab.unknown is not None else 0
    if lost:
        console.say(f"{lost} of {len(ids)} tokens of the prompt are unknown to the vocabulary and read as <unk>")
    if opened.vocab.boundary is not None:
        ids = [opened.vocab.boundary, *ids]  # a text begins after the end of another
    if not ids:
        raise UsageError("--prompt is empty; give at least one character, or leave it out to start in the test split")
    return _Start(context=ids, continuation=[], title="the prompt", prompt=prompt)


def _is_unicode(text: str) -> bool:
    """Whether no byte of the command line was left undecoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _from_split(
    opened: "OpenRun",
    data_dir: Path,
    *,
    at: int | None,
    context: int,
    tokens: int,
    seed: int,
    needs_reference: bool,
) -> _Start:
    """A piece of the test split up to token `at`, a random one where None, and the `tokens` that follow it."""
    import corpora
    from corpora.corpus import as_it_is

    store = opened.store(data_dir)
    tell_learned(opened, store, SPLIT)
    ids = store.ids(SPLIT)
    latest = len(ids) - (tokens if needs_reference else 0)
    if at is None:
        earliest = min(context, max(latest, 1))
        at = random.Random(seed).randint(earliest, max(latest, earliest))
    if not 0 < at <= len(ids):
        raise UsageError(f"--at {at}: the test split of {store.path} has tokens 1 to {len(ids):,}; give one of these")
    if needs_reference and at + tokens > len(ids):
        raise UsageError(
            f"--reference: only {len(ids) - at:,} tokens follow token {at:,} of the test split; lower --tokens or --at"
        )
    spelling = corpora.detokenizer(store.corpus)
    return _Start(
        context=[int(token) for token in ids[max(0, at - context) : at]],
        continuation=[int(token) for token in ids[at : at + tokens]],
        title=f"{store.name} test, token {at:,}",
        detokenize=None if spelling is as_it_is else spelling,
        position=at,
    )


def _reader(opened: "OpenRun") -> "Reader":
    from txlcli.core.reading.sampling import reader_of_one_text

    return reader_of_one_text(opened.model, opened.run.settings.evaluation_settings(), precision=opened.precision)


def _draw(reader: "Reader", start: _Start, how: "Sampling", *, count: int, seed: int) -> Iterable[int]:
    import itertools

    import torch

    from txlcli.core.reading.sampling import generate as draw_tokens

    context = torch.tensor(start.context, dtype=torch.int64, device=reader.device)
    return itertools.islice(draw_tokens(reader, context, how, seed=seed), count)


class _Texts:
    """Shows texts as they are drawn, or collects them for --json."""

    def __init__(self, opened: "OpenRun", start: _Start, *, reference: bool, json: bool) -> None:
        self._vocab, self._start, self._reference, self._json = opened.vocab, start, reference, json
        self._run = str(opened.run.folder)
        self._drawn: list[dict[str, Any]] = []

    def add(self, number: int, count: int, tokens: Iterable[int]) -> None:
        """Show one text."""
        if self._json:
            ids = list(tokens)
            self._drawn.append({"text": self._spelled(ids), "tokens": ids})
            return
        if number == 0 and self._reference:
            _headline(f"context ({self._start.title})")
            console.show_text(self._spelled(self._start.context))
        if self._reference or count > 1:
            _headline("generation" if count == 1 else f"generation {number + 1} of {count}")
        console.show_text(self._start.prompt, end="")
        try:
            for text in self._pieces(tokens, after=self._start.context[-1] if self._start.prompt else None):
                console.show_text(text, end="")
        finally:  # an error, or Ctrl-C, begins a line of its own
            console.show_text("")

    def end(self) -> None:
        """Show what comes after the last text."""
        if self._reference and not self._json:
            _headline("reference")
            console.show_text(self._spelled(self._start.continuation))

    def as_result(self) -> dict[str, Any]:
        """The object that --json prints, of the texts that were collected for it."""
        result: dict[str, Any] = {
            "run": self._run,
            "context": self._spelled(self._start.context),
            "samples": self._drawn,
        }
        if self._start.position is not None:
            result["position"] = self._start.position
        if self._reference:
            result["reference"] = self._spelled(self._start.continuation)
        return result

    def _spelled(self, ids: list[int]) -> str:
        return "".join(self._pieces(ids))

    def _pieces(self, tokens: Iterable[int], *, after: int | None = None) -> Iterator[str]:
        """The text of tokens while they come: by characters, or by lines where it has to be detokenized."""
        pieces = self._vocab.spell(tokens, after=after)
        return pieces if self._start.detokenize is None else _by_line(pieces, self._start.detokenize)


def _headline(text: str) -> None:
    console.show_text(f"--- {text} ---")


def _by_line(pieces: Iterable[str], detokenize: Callable[[str], str]) -> Iterator[str]:
    """The lines of a text that comes in pieces, detokenized, each as soon as it is whole."""
    line: list[str] = []
    for piece in pieces:
        *whole, last = piece.split("\n")
        for part in whole:
            yield detokenize("".join([*line, part, "\n"]))
            line = []
        line.append(last)
    yield detokenize("".join(line))
