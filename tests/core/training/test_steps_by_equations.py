"""Training steps of recipe ptb, written out: with the same dropout masks they give the same weights, in float64.

The masks are drawn in the order in which the model draws its own. Axes: B lanes, T tokens read, L targets, d width.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from txlcli.config import recipe
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.dropout import keep_mask
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

V, LAYERS, HEADS, WIDTH, LANES, STEPS = 31, 3, 2, 8, 3, 12
RECIPE = recipe.load("ptb")
MODEL = dataclasses.replace(
    RECIPE.model, n_layers=LAYERS, n_heads=HEADS, d_head=WIDTH, d_model=HEADS * WIDTH, d_inner=24
)
TRAIN = dataclasses.replace(RECIPE.train, seg_len=12, reread_len=12, batch_size=LANES, warmup_steps=5, valid_seg_len=6)
IDS = np.random.default_rng(3).integers(V, size=LANES * 500 + 1)


def mask(rate, *shape):
    """Draw the factors of a mask of this shape: 0, or what scales the entries that are kept."""
    return keep_mask(torch.Size(shape), rate, torch.device("cpu")).double() / (1 - rate)


def embed(table, tokens):
    """Embed tokens (B, T); each dropped word is 1e-12 in every entry."""
    of_word = mask(MODEL.word_dropout, V)[:, None]
    dropped = torch.where(of_word > 0, table * of_word, 1e-12)
    by_channel = mask(MODEL.embedding_dropout, LANES, 1, MODEL.d_model)
    return F.embedding(tokens, dropped) * math.sqrt(MODEL.d_model) * by_channel


def distance_encodings(length):
    """Return R of the distances T - 1 .. 0, (T, d), with one mask for all of them."""
    distance = torch.arange(length - 1, -1, -1).double()
    frequency = 10_000 ** (-torch.arange(0, MODEL.d_model, 2).double() / MODEL.d_model)
    angle = torch.outer(distance, frequency)
    return torch.cat([angle.sin(), angle.cos()], dim=1) * mask(MODEL.distance_dropout, 1, MODEL.d_model)


def heads(rows):
    """Split (..., T, d) -> (..., H, T, D)."""
    return rows.unflatten(-1, (HEADS, WIDTH)).transpose(-3, -2)


def attend(hidden, encodings, layer):
    """Return the output of relative attention (B, T, d): keys of distances are W_k R, and u = v = W_q R_0."""
    length = hidden.shape[1]
    rate = MODEL.projection_dropout
    w_q = layer["attention.w_q.weight"]
    w_k = layer["attention.w_k_content.weight"]
    w_v = layer["attention.w_v.weight"]
    position_key = heads(encodings @ w_k.T * mask(rate, 1, MODEL.d_model))  # (H, T, D)
    bias = heads(encodings[-1:] @ w_q.T * mask(rate, 1, MODEL.d_model))  # (H, 1, D)
    query, key, value = (heads(hidden @ w.T) * mask(rate, LANES, HEADS, 1, WIDTH) for w in (w_q, w_k, w_v))
    i = torch.arange(length)[:, None]
    j = torch.arange(length)[None]
    content = (query + bias) @ key.mT
    by_distance = (query + bias) @ position_key.mT  # of distance T - 1 first
    position = by_distance[..., i, (length - 1 - (i - j)).clamp(max=length - 1)]
    score = ((content + position) / math.sqrt(WIDTH)).masked_fill(j > i, -math.inf)
    weight = score.softmax(-1) * mask(MODEL.attention_dropout, LANES, HEADS, length, length)
    joined = (weight @ value).transpose(1, 2).flatten(2)
    return joined @ layer["attention.w_o.weight"].T


def run_layer(hidden, encodings, layer):
    """Return the output of a post-norm layer (B, T, d)."""
    branch = attend(hidden, encodings, layer) * mask(MODEL.dropout, LANES, 1, MODEL.d_model)
    hidden = F.layer_norm(
        hidden + branch, (MODEL.d_model,), layer["attention_norm.weight"], layer["attention_norm.bias"]
    )
    inner = F.relu(F.linear(hidden, layer["feed_forward.ff_1.weight"], layer["feed_forward.ff_1.bias"]))
    inner = inner * mask(MODEL.dropout, LANES, 1, MODEL.d_inner)
    branch = F.linear(inner, layer["feed_forward.ff_2.weight"], layer["feed_forward.ff_2.bias"])
    branch = branch * mask(MODEL.dropout, LANES, 1, MODEL.d_model)
    return F.layer_norm(hidden + branch, (MODEL.d_model,), layer["ff_norm.weight"], layer["ff_norm.bias"])


def objective(weights, tokens, targets):
    """Return the mean loss and the penalties of a pass over tokens (B, T), whose last L have targets."""
    encodings = distance_encodings(tokens.shape[1])
    hidden = embed(weights["embedding.tables.0"], tokens)
    for number in range(LAYERS):
        prefix = f"layers.{number}."
        layer = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        hidden = run_layer(hidden, encodings, layer)
    hidden = hidden[:, -targets.shape[1] :]
    dropped = hidden * mask(MODEL.output_dropout, LANES, 1, MODEL.d_model)
    logits = dropped @ weights["embedding.tables.0"].T + weights["softmax.biases.0"]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    penalty = TRAIN.activation_penalty * hidden.square().mean()
    penalty = penalty + TRAIN.slowness_penalty * (hidden[:, 1:] - hidden[:, :-1]).square().mean()
    return loss, penalty


def clipped(gradients):
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    return [gradient * min(1.0, TRAIN.clip / (norm + 1e-6)) for gradient in gradients], norm


class Adam:
    """Adam of one weight, with its L2 penalty in the gradient."""

    def __init__(self):
        self.mean = 0.0
        self.square = 0.0

    def update(self, weight, gradient, rate, step):
        beta_1, beta_2 = TRAIN.betas
        gradient = gradient + TRAIN.weight_decay * weight
        self.mean = beta_1 * self.mean + (1 - beta_1) * gradient
        self.square = beta_2 * self.square + (1 - beta_2) * gradient**2
        size = (self.square / (1 - beta_2**step)).sqrt() + 1e-8
        weight -= rate * self.mean / (1 - beta_1**step) / size


def test_steps_with_all_dropout_are_those_of_the_equations():
    model = new_model(MODEL, V, seed=1, device=torch.device("cpu")).double()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    adam = {name: Adam() for name in weights}
    segments = TrainingSegments(IDS, TRAIN)
    training = Training(model, TRAIN, segments)
    for step in range(1, STEPS + 1):
        tokens = torch.from_numpy(segments.at(training.position))
        drawn = segments.sampled_length(training.position)
        count = len(segments.range_of(training.position))
        torch.manual_seed(step)
        loss, penalty = objective(weights, tokens[:, :-1], tokens[:, -count:])
        gradients, norm = clipped(torch.autograd.grad(loss + penalty, list(weights.values())))
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                factor = TRAIN.embedding_lr if name == "embedding.tables.0" else 1.0
                warmth = min(1.0, step / TRAIN.warmup_steps)  # after it, the cosine has hardly begun
                rate = factor * TRAIN.lr * warmth * drawn / TRAIN.seg_len
                adam[name].update(weight, gradient, rate, step)
        torch.manual_seed(step)
        result = training.update()
        assert result.losses.tolist() == pytest.approx([loss.item(), penalty.item()], rel=1e-9)
        assert result.grad_norm.item() == pytest.approx(norm, rel=1e-6)
    for name, weight in training.model.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-10)
