"""Models that adapt to the text they score: the continuous cache and dynamic evaluation.

The parameters of both are searched on the validation split and applied to another split, never the other way round.

Axes: B batch, L segment, C entries of the cache, d model width, T tokens scored, K candidates.
"""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import float64_device, send
from txlcli.core.kernels.modes import autocast, float32_products
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import limits_of
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Lanes, Scores, Stream, Tokens, score

FLATNESS_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidates of theta, in units of one over the standard deviation of h_t . h_i: from a flat cache to a peaked one."""
SHARES = tuple(np.linspace(0.0, 0.6, 31).tolist())
"""Candidates of lambda, the cache's share of the mixture."""
DECAYS = (0.0, 1e-3, 1e-2)


def cached_probabilities(
    states: Tensor, tokens: Tensor, targets: Tensor, *, size: int, thetas: Sequence[float]
) -> Tensor:
    """Return the probability of each target of a segment by a continuous cache, (K, B, L), NaN where it is empty.

    The cache has the last C = `size` hidden states, with the tokens that followed (Grave et al. 2016b); its
    distribution is softmax(theta h_t . h_i) for each of K thetas.

    Args:
        states: hidden states before the segment, C or fewer, and in it, (B, C + L, d).
        tokens: that follow each of them, (B, C + L).
        targets: the last of these, (B, L).
        size: C.
        thetas: flatnesses.
    """
    seg_len = targets.shape[1]
    entry = torch.arange(tokens.shape[1], device=states.device)
    query = entry[-seg_len:, None]
    visible = (entry < query) & (entry >= query - size)  # (L, C + L)
    products = states[:, -seg_len:] @ states.mT  # h_t . h_i, (B, L, C + L)
    matches = tokens[:, None, :] == targets[:, :, None]
    probabilities = []
    for theta in thetas:
        scores = (theta * products).masked_fill(~visible, -torch.inf)
        weights = scores.softmax(-1)
        probabilities.append((weights * matches).sum(-1))
    return torch.stack(probabilities)


def score_with_cache(stream: Stream, *, size: int, thetas: Sequence[float]) -> tuple[Scores, NDArray[np.float32]]:
    """Return the model's own losses (T,), and the cache's probability of each target for each theta, (K, T).

    Where the cache is empty, its probability is the model's, so that a mixture changes nothing.
    """
    before: list[Tensor] = []  # hidden states and tokens of the cache
    cached: list[Tensor] = []  # (K, B, l) of each segment

    def look_up(hidden: Tensor, targets: Tensor, losses: Tensor) -> None:
        states = hidden.float()
        targets = send(targets, hidden.device)
        tokens = targets
        if before:
            states = torch.cat([before[0], states], dim=1)
            tokens = torch.cat([before[1], tokens], dim=1)
        probabilities = cached_probabilities(states, tokens, targets, size=size, thetas=thetas)
        cached.append(torch.where(probabilities.isnan(), (-losses).exp(), probabilities))
        before[:] = [states[:, -size:], tokens[:, -size:]]

    with torch.inference_mode():
        scores = score(stream, on_segment=look_up)
        in_order = stream.lanes().join(torch.cat(cached, dim=-1))
    return scores, in_order.numpy()


def mixed_losses(losses_nats: NDArray[np.float32], cached: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Return -log((1 - share) p_model + share p_cache) of each token, (T,)."""
    model = np.exp(-losses_nats.astype(np.float64))
    mixture = (1 - share) * model + share * cached
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(mixture), dtype=np.float32)


def theta_candidates(model: LanguageModel, inputs: Tokens, settings: EvalSettings) -> list[float]:
    """Return values of theta that suit the scale of a model's hidden states."""
    length = min(settings.seg_len, len(inputs))
    reader = make_reader(model, settings.with_batch_size(1), length=length)
    tokens = torch.from_numpy(np.asarray(inputs[:length], dtype=np.int64)).to(reader.device)
    hidden = reader.read(tokens[None])[0].to(float64_device(reader.device)).double()
    earlier = torch.tril_indices(len(hidden), len(hidden), -1).unbind()  # pairs (t, i) with i < t
    products = (hidden @ hidden.mT)[earlier]
    deviation = float(products.std()) if len(products) > 1 else 1.0
    return [step / max(deviation, 1e-6) for step in FLATNESS_STEPS]


def search_cache(
    losses_nats: NDArray[np.float32], cached: NDArray[np.float32], thetas: Sequence[float]
) -> tuple[float, float]:
    """Return the theta and lambda with the lowest loss, from `score_with_cache` on the validation split."""
    totals = dict[tuple[float, float], float]()
    for theta, probabilities in zip(thetas, cached, strict=True):
        for share in SHARES:
            losses = mixed_losses(losses_nats, probabilities, share)
            totals[theta, share] = float(losses.sum(dtype=np.float64))
    return min(totals, key=lambda pair: totals[pair])


@dataclass(frozen=True, kw_only=True)
class DynamicSettings:
    """Dynamic evaluation with scaled steps (Krause et al. 2018, 2019).

    There, a constant takes the place of the mean root mean square, and the decay starts from the weights before the
    step.
    """

    lr: float
    """Step size. The gradient is divided by its root mean square in training plus the mean of that over all parameters,
    else rows of words that are rare in training would change too much."""
    decay: float
    """Share of the way back to the trained weights after each step, larger where gradients are usually large."""


def gradient_rms(model: LanguageModel, ids: Tokens, settings: EvalSettings, count: int) -> list[Tensor]:
    """Return the root mean square of a segment's gradient, for each of `LanguageModel.predicting_weights`.

    The segments are the first of each lane of the training split, at most `count`, in the evaluation's shape.
    """
    batch_size = min(settings.batch_size, max(1, len(ids) // (2 * settings.seg_len)))
    whole = (len(ids) - 1) // batch_size * batch_size  # lanes of equal lengths
    lanes = Lanes.of(whole, settings.with_batch_size(batch_size))
    parameters = model.predicting_weights
    parts = list(lanes.parts(settings.seg_len))
    parts = parts[: min(count, max(1, len(parts) - 1))]
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    memory = model.first_memory(batch_size, settings.mem_len)
    limits = limits_of(model, settings)
    for part in parts:
        inputs = lanes.cut(ids, model.device, part)
        targets = lanes.cut(ids[1:], model.device, part)
        with _without_cudnn():
            hidden, memory = model(inputs, memory, mem_len=settings.mem_len, **limits)
        loss = model.losses(hidden, targets).mean()
        for square, gradient in zip(squares, _gradients(loss, parameters), strict=True):
            square.addcmul_(gradient, gradient)
    return [(square / len(parts)).sqrt() for square in squares]


def score_dynamic(stream: Stream, dynamic: DynamicSettings, rms: Sequence[Tensor]) -> Scores:
    """Score a stream segment by segment, training a copy of the model on each segment after it is scored.

    Every step decays towards the trained weights; `rms` is the result of `gradient_rms`. A temperature of the softmax
    changes the losses that are returned, not those that are minimized.
    """
    if dynamic.lr == 0:  # no step changes the model, so no gradient is needed
        return score(stream)
    settings = stream.settings
    temperature = stream.model.backend.temperature
    scorer = copy.deepcopy(stream.model).eval()
    model = scorer.on(temperature=1.0)  # as in training
    precision = model.backend.precision
    device = model.device
    step = _dynamic_step(model, stream.model.predicting_weights, dynamic, rms)
    lanes = stream.lanes()
    inputs = lanes.cut(stream.inputs, device)
    targets = lanes.cut(stream.targets, device)
    is_token = lanes.cut(np.ones(len(stream.targets), dtype=bool), device) > 0  # padding is not
    losses = torch.empty(lanes.n_lanes, lanes.length, device=device)
    memory = stream.model.first_memory(lanes.n_lanes, settings.mem_len)
    limits = limits_of(model, settings)
    started = time.perf_counter()
    for part in lanes.parts(settings.seg_len):
        with autocast(device, precision):
            with _without_cudnn():
                hidden, memory = model(inputs[:, part], memory, mem_len=settings.mem_len, **limits)
            scored = model.losses(hidden, targets[:, part])
            reported = scored.detach()
            if temperature != 1:
                with torch.no_grad():
                    reported = scorer.losses(hidden, targets[:, part])
            losses[:, part] = reported.float()
        with float32_products(device, precision):
            step(scored[is_token[:, part]].mean())
        stream.on_tokens(min(part.stop * lanes.n_lanes, lanes.n_tokens))
    return Scores(lanes.join(losses).numpy(), time.perf_counter() - started, lanes.n_lanes)


def _dynamic_step(
    model: LanguageModel, trained: Sequence[Tensor], dynamic: DynamicSettings, rms: Sequence[Tensor]
) -> Callable[[Tensor], None]:
    """Return a function that changes the weights by the gradient of a loss (0-d), then decays to the trained ones."""
    parameters = model.predicting_weights
    all_rms = torch.cat([size.flatten() for size in rms])
    mean = max(float(all_rms.mean()), torch.finfo(torch.float32).tiny)
    scales = [size + mean for size in rms]
    decays = [(dynamic.decay * size / mean).clamp(max=1.0) for size in rms]

    @torch.no_grad()
    def step(loss: Tensor) -> None:
        changes = zip(parameters, _gradients(loss, parameters), scales, decays, trained, strict=True)
        for parameter, gradient, scale, decay, start in changes:
            parameter.sub_(dynamic.lr * gradient / scale)
            parameter.add_(decay * (start - parameter))

    return step


@contextlib.contextmanager
def _without_cudnn() -> Iterator[None]:
    """Leave out cuDNN inside this block: it computes the gradients of an LSTM in training mode only.

    PyTorch's own context manager would also reset determinism and TF32.
    """
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradient of a loss (0-d) for each parameter; zeros if the loss does not depend on it."""
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
