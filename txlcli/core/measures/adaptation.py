"""Models that go on learning from the text they are scored on: the continuous cache, and dynamic evaluation.

Both have parameters of their own, which are searched on the validation split and applied to another, never the other
way.

Axes: B lanes, L segment, C entries of the cache, d model width, T tokens scored, K candidates.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import autocast, send
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.rnn import differentiable, gather_weights
from txlcli.core.reading.decoder import key_limit
from txlcli.core.reading.registry import make_reader, sized_for
from txlcli.core.reading.scoring import Lanes, Scores, score
from txlcli.core.training.segments import StreamPosition, Tokens, TrainingSegments

FLATNESS_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidates of theta, in units of one over the deviation of h_t . h_i: from an even cache to a peaked one."""
SHARES = tuple(float(share) for share in np.linspace(0.0, 0.6, 31))
"""Candidates of lambda, the cache's share of the mixture."""
LEARNING_RATES = (0.0, 3e-5, 1e-4, 3e-4, 1e-3)
"""Candidates of the size of a step; 0 leaves the model as it is, where every step makes it worse."""
LARGER_LEARNING_RATES = (3e-3, 1e-2, 3e-2, 1e-1)
"""More candidates, one after the other as long as each does better than the one before."""
DECAYS = (0.0, 1e-3, 1e-2)


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """The continuous cache (Grave et al. 2016b)."""

    size: int
    """Hidden states that are remembered, each with the token that followed it."""
    theta: float
    """How peaked the distribution over the cache is: softmax(theta h_t . h_i)."""
    share: float
    """lambda: the cache's share of the mixture with the model."""


class ContinuousCache:
    """The last C hidden states of each lane with the tokens that followed them.

    Args:
        size: C.
        thetas: (K,) all of them are tried at once.
    """

    def __init__(self, size: int, thetas: Sequence[float]) -> None:
        self._size, self._thetas = size, thetas
        self._states: Tensor | None = None  # (B, C, d)
        self._tokens: Tensor | None = None  # (B, C)

    def read(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cache's probability of each target before it is seen, and remember them.

        Args:
            hidden: (B, L, d) the last hidden states of a segment.
            targets: (B, L) the tokens that follow.
        Returns:
            (K, B, L); NaN where the cache is empty.
        """
        lanes, seg_len, width = hidden.shape
        if self._states is None or self._tokens is None:
            self._states, self._tokens = hidden.new_zeros(lanes, 0, width), targets.new_zeros(lanes, 0)
        states = torch.cat([self._states, hidden], dim=1)  # (B, C + L, d)
        tokens = torch.cat([self._tokens, targets], dim=1)
        place = torch.arange(seg_len, device=hidden.device)[:, None] + self._states.shape[1]  # of each query
        entry = torch.arange(states.shape[1], device=hidden.device)
        seen = (entry < place) & (entry >= place - self._size)  # (L, C + L)
        scores = hidden @ states.mT  # (B, L, C + L)
        same = tokens[:, None, :] == targets[:, :, None]
        shares = ((theta * scores).masked_fill(~seen, -torch.inf).softmax(-1) for theta in self._thetas)
        probabilities = torch.stack([(share * same).sum(-1) for share in shares])
        self._states, self._tokens = states[:, -self._size :], tokens[:, -self._size :]
        return probabilities


def score_with_cache(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    how: EvalSettings,
    *,
    size: int,
    thetas: Sequence[float],
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> tuple[Scores, NDArray[np.float32]]:
    """The model's own losses (T,), and the cache's probability of each target by theta, (K, T).

    Where the cache is empty the latter is the model's, so that a mixture changes nothing there.
    """
    cache = ContinuousCache(size, thetas)
    cached: list[Tensor] = []  # (K, B, l) of each segment

    def look(hidden: Tensor, segment_targets: Tensor, losses: Tensor) -> None:
        probabilities = cache.read(hidden.float(), send(segment_targets, hidden.device))
        cached.append(torch.where(probabilities.isnan(), (-losses).exp(), probabilities))

    with torch.inference_mode():
        scores = score(model, inputs, targets, how, precision=precision, on_tokens=on_tokens, on_segment=look)
        in_order = Lanes.of(len(targets), how).join(torch.cat(cached, dim=-1))
    return scores, in_order.numpy()


def mixed_losses(losses_nats: NDArray[np.float32], cached: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """-log((1 - share) p_model + share p_cache) of each token, (T,)."""
    mixture = (1 - share) * np.exp(-losses_nats.astype(np.float64)) + share * cached
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(mixture), dtype=np.float32)


def theta_candidates(model: LanguageModel, inputs: Tokens, how: EvalSettings) -> list[float]:
    """Values of theta that suit the size of a model's hidden states."""
    reader = make_reader(model, sized_for(model, how, min(how.seg_len, len(inputs))), lanes=1)
    tokens = torch.from_numpy(np.asarray(inputs[: how.seg_len], dtype=np.int64)).to(reader.device)
    hidden = reader.read(tokens[None])[0].double()
    products = (hidden @ hidden.mT)[torch.tril_indices(len(hidden), len(hidden), -1).unbind()]
    deviation = float(products.std()) if len(products) > 1 else 1.0
    return [step / max(deviation, 1e-6) for step in FLATNESS_STEPS]


def search_cache(
    losses_nats: NDArray[np.float32], cached: NDArray[np.float32], *, thetas: Sequence[float], size: int
) -> CacheSettings:
    """The theta and lambda with the lowest loss, from what `score_with_cache` gave on the validation split."""
    tried = {
        (theta, share): float(mixed_losses(losses_nats, row, share).sum(dtype=np.float64))
        for theta, row in zip(thetas, cached, strict=True)
        for share in SHARES
    }
    theta, share = min(tried, key=lambda pair: tried[pair])
    return CacheSettings(size=size, theta=theta, share=share)


@dataclass(frozen=True, kw_only=True)
class DynamicSettings:
    """Dynamic evaluation with scaled steps (Krause et al. 2018, 2019)."""

    lr: float
    """Size of a step along the gradient divided by its root mean square in training, to which the mean over all
    parameters is added: else rows of words that training hardly met would leap."""
    decay: float
    """Share of the way back to the trained weights after each step, more where gradients are usually large."""


def gradient_rms(model: LanguageModel, segments: Iterator[tuple[Tensor, Tensor]], how: EvalSettings) -> list[Tensor]:
    """The root mean square of the gradient of a segment's mean loss, for each of `LanguageModel.predicting_weights`.

    Args:
        model: in evaluation mode.
        segments: inputs and targets (B, L) of the training split, in reading order.
        how: M and the limits on distance.
    """
    parameters = model.predicting_weights
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    memory, count = None, 0
    for read, targets in segments:
        memory = memory or model.first_memory(len(read), how.mem_len)
        losses, memory = _losses(model, read, targets, memory, how)
        for square, gradient in zip(squares, _gradients(losses.mean(), parameters), strict=True):
            square.addcmul_(gradient, gradient)
        count += 1
    return [(square / max(count, 1)).sqrt() for square in squares]


def score_dynamic(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    how: EvalSettings,
    settings: DynamicSettings,
    rms: Sequence[Tensor],
    *,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> Scores:
    """Score a stream, one segment after the other, and learn from each once it is scored; the model stays as it is.

    Args:
        model: the trained weights, where every step decays to.
        inputs: (T,) tokens read.
        targets: (T,) tokens predicted.
        how: L, M, B, the limits on distance.
        settings: the steps.
        rms: what `gradient_rms` gave.
        precision: number format of matrix products.
        on_tokens: called with the number of tokens scored so far.
    """
    if settings.lr == 0:  # nothing is learned, so no gradient is needed
        return score(model, inputs, targets, how, precision=precision, on_tokens=on_tokens)
    adapted = copy.deepcopy(model).eval()
    gather_weights(adapted)
    trained, parameters = [one.detach() for one in model.predicting_weights], adapted.predicting_weights
    typical = max(float(torch.cat([one.flatten() for one in rms]).mean()), torch.finfo(torch.float32).tiny)
    scales = [one + typical for one in rms]
    pull = [(settings.decay * one / typical).clamp(max=1.0) for one in rms]
    lanes = Lanes.of(len(targets), how)
    input_lanes, target_lanes = (lanes.cut(tokens, model.device) for tokens in (inputs, targets))
    real = lanes.cut(np.ones(lanes.count, dtype=np.int64), model.device).bool()
    losses = torch.empty(lanes.number, lanes.length, device=model.device)
    memory = adapted.first_memory(lanes.number, how.mem_len)
    started = time.perf_counter()
    for part in lanes.parts(how.seg_len):
        with autocast(model.device, precision):
            scored, memory = _losses(adapted, input_lanes[:, part], target_lanes[:, part], memory, how)
        losses[:, part] = scored.detach().float()
        gradients = _gradients(scored[real[:, part]].mean(), parameters)
        with torch.no_grad():
            for one, gradient, scale, back, origin in zip(parameters, gradients, scales, pull, trained, strict=True):
                one.sub_(settings.lr * gradient / scale)
                one.add_(back * (origin - one))
        if on_tokens:
            on_tokens(min(part.stop * lanes.number, lanes.count))
    return Scores(lanes.join(losses).numpy(), time.perf_counter() - started, lanes.number)


def head_segments(ids: Tokens, how: EvalSettings, count: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (B, L) of the first segments of a split, `count` at most, in the evaluation's own shape."""
    lanes = min(how.batch_size, max(1, len(ids) // (2 * how.seg_len)))
    segments = TrainingSegments(ids, batch_size=lanes, seg_len=min(how.seg_len, max(1, len(ids) // (2 * lanes))))
    for number in range(min(count, segments.per_epoch - 1)):
        tokens = torch.from_numpy(segments.at(StreamPosition(0, number))).to(device)
        yield tokens[:, :-1], tokens[:, 1:]


def _losses(
    model: LanguageModel, inputs: Tensor, targets: Tensor, memory: Memory, how: EvalSettings
) -> tuple[Tensor, Memory]:
    """The losses (B, L) of targets (B, L) after inputs (B, L), with gradient, and the new memory."""
    limits = {}
    if not model.settings.recurrent_state:
        limits = {"key_limit": key_limit(how.same_length, how.mem_len), "max_distance": how.max_distance}
    with differentiable(model):
        hidden, memory = model(inputs, memory, mem_len=how.mem_len, **limits)
    return model.losses(hidden, targets), memory


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a loss (0-d) by each parameter; zeros where it does not depend on one."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
