"""Sampling with memory (Appendix E)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import useful_threads
from txlcli.core.kernels.modes import threads
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import depends_on_segments, make_reader
from txlcli.core.reading.windows import WindowReader
from txlcli.errors import RunError

NO_TOKEN = -1
"""Stands for a token that cannot be drawn."""


@dataclass(frozen=True)
class Sampling:
    """Options for sampling the next token."""

    temperature: float = 1.0
    """Divisor of the logits; values below 1 favour likely tokens."""
    top_k: int | None = 40
    """Sample among the k likeliest tokens only; None is all."""
    top_p: float | None = None
    """Sample among the likeliest tokens that together reach this probability; None is all."""
    greedy: bool = False
    """Always take the likeliest token."""

    def candidates(self, vocab_size: int) -> int:
        """Return how many of the likeliest tokens must be known to sample one."""
        if self.greedy:
            return 1
        return min(self.top_k or vocab_size, vocab_size)


def reader_of_one_text(model: LanguageModel, settings: EvalSettings) -> Reader:
    """Return a reader of one text, token by token: with memory at constant cost, or by windows without memory."""
    settings = settings.with_batch_size(1)
    if not model.settings.recurrent_state and settings.mem_len == 0:
        return WindowReader(model, settings)
    return make_reader(model, settings, by_tokens=depends_on_segments(model))


def sample(log_probs: Tensor, tokens: Tensor, options: Sampling, noise: Tensor) -> Tensor:
    """Sample one of the candidates, (1,), given their log-probabilities (k,) and ids (k,), likeliest first.

    The noise (k,) is from the exponential distribution: the candidate whose probability divided by it is largest is
    chosen, as torch.multinomial does, so that a CUDA graph may read other noise each time.

    It is NO_TOKEN if the probabilities are not numbers, which the caller finds without waiting for the device twice.
    """
    unknown = log_probs.isnan().any()
    if options.greedy:
        return tokens[:1].masked_fill(unknown, NO_TOKEN)
    probabilities = (log_probs / options.temperature).softmax(dim=-1).nan_to_num(nan=1.0)
    # With a share of 1, rounded sums would reach it early, and leave out unlikely tokens of a large vocabulary.
    if options.top_p is not None and options.top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities
        top_p = max(options.top_p, torch.finfo(before.dtype).tiny)  # less would be 0, and drop the first token, too
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    chosen = (probabilities / noise).argmax(dim=-1, keepdim=True)
    return tokens.gather(0, chosen).masked_fill(unknown, NO_TOKEN)


def generate(reader: Reader, context: Tensor, options: Sampling, *, seed: int) -> Iterator[int]:
    """Reset a reader of one text, read a context (T,), T at least 1, then yield sampled tokens without end.

    The same seed gives the same tokens.
    """
    reader.reset()
    generator = torch.Generator(device=reader.device).manual_seed(seed)
    yield from continue_text(reader, context, options, generator)


def continue_text(reader: Reader, context: Tensor, options: Sampling, generator: torch.Generator) -> Iterator[int]:
    """Read more context (T,) after all that was read, then yield sampled tokens, each of which is read, too."""
    hidden = reader.read_last(context.to(reader.device)[None])  # (1, 1, d)
    exact = torch.promote_types(hidden.dtype, torch.float32)
    candidates = options.candidates(reader.model.vocab_size)
    noise = torch.empty(candidates, dtype=exact, device=reader.device)
    choose = reader.captured(sample_next, options)
    few = useful_threads(reader.model, tokens=1)
    while True:
        with threads(few), torch.inference_mode():
            token = choose(hidden[0, -1:], noise.exponential_(generator=generator))
            number = int(token)
            if number == NO_TOKEN:
                raise RunError(
                    "the model's probabilities are not numbers: its weights have diverged; use an earlier checkpoint, "
                    "or train again with a lower train.lr"
                )
            hidden = reader.read(token[None])
        yield number


def sample_next(reader: Reader, options: Sampling, hidden: Tensor, noise: Tensor) -> Tensor:
    """Sample the token after a position (1, d), given noise (k,) for the k likeliest candidates."""
    if reader.replays_tokens:  # whether a tail holds a candidate would have to be known on the host
        log_probs, tokens = reader.log_probs(hidden[None])[0, 0].topk(len(noise))
    else:
        log_probs, tokens = reader.likeliest(hidden, len(noise))
    return sample(log_probs, tokens, options, noise)
