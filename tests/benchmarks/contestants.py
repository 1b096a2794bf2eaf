"""The same work done by txl and by Hugging Face's TransfoXL: a training step, the scoring of a segment, one token.

The peer must be installed (extra "peer"). It predicts L - 1 targets of a segment where txl predicts L, as its own loss
does; everything else is equal: sizes, weights, batches, a full memory, which keys a query sees.

Axes: B batch, L segment, M memory, V vocabulary.
"""

import dataclasses
import functools
from dataclasses import dataclass

import torch

from tests.peer import peer
from txlcli.config import recipe
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.modes import autocast, float32_products
from txlcli.core.measures.timing import MIN_STEPS
from txlcli.core.reading.registry import make_reader
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.workflows.exchange.huggingface import keys_of

CLIP, LR = 0.25, 2.5e-4
SEGMENTS = 256  # of the text that our steps read: more than steps, since an epoch begins without memory


@dataclass(frozen=True)
class Work:
    """What is measured, in the peer's words where it has some."""

    config: dict
    """Sizes and vocabulary, as keys of the peer's configuration."""
    batch_size: int
    seg_len: int
    mem_len: int
    max_distance: int | None = None
    """Evaluation only, where every query sees M keys."""
    recompute: bool = False
    """Whether our step keeps no probabilities of attention (train.recompute)."""

    def peer_config(self, *, training):
        limits = {"same_length": not training, "clamp_len": -1 if training else self.max_distance or -1}
        return {**self.config, "mem_len": self.mem_len, "untie_r": False, "dropout": 0.1, "dropatt": 0.0, **limits}

    @property
    def vocab_size(self):
        return self.config["vocab_size"]

    def draw_tokens(self, seed=3):
        """(B, L) tokens by Zipf's law: an id's share falls with its rank."""
        generator = torch.Generator().manual_seed(seed)
        share = torch.rand(self.batch_size, self.seg_len, dtype=torch.float64, generator=generator)
        return (((self.vocab_size + 1) ** share).long() - 1).clamp(max=self.vocab_size - 1)


CPU = torch.device("cpu")


def peer_model(work, *, training):
    """On the CPU, so that our model can read its weights."""
    return peer.peer_model(std=0.02, **work.peer_config(training=training)).train(training)


def our_settings(work, *, training):
    config = peer.peer_config(**work.peer_config(training=training)).to_dict()
    return recipe.read_section("model", keys_of(config)["model"])


def our_step(model, work):
    """A function that takes one training step in a precision; one set of weights serves both."""
    settings = TrainSettings(
        seg_len=work.seg_len,
        mem_len=work.mem_len,
        batch_size=work.batch_size,
        recompute=work.recompute,
        compile="on" if model.device.type == "cuda" else "off",  # as "auto" in a long run
        max_steps=1_000_000,
        lr=LR,
        clip=CLIP,
    )
    ids = torch.cat([work.draw_tokens(seed).flatten() for seed in range(SEGMENTS)]).numpy()
    segments = TrainingSegments(ids, settings)

    @functools.cache
    def training_in(precision):
        in_precision = dataclasses.replace(settings, precision=precision)
        return Training(model, in_precision, segments)

    return lambda precision: training_in(precision).update()


def peer_step(model, work):
    """The same of the peer, with PyTorch's autocast in bf16."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    tokens, memory = work.draw_tokens().to(model.device), None

    def step(precision):
        nonlocal memory
        with autocast(model.device, precision):
            out = model(tokens, labels=tokens, mems=memory)
        memory = out.mems
        with float32_products(model.device, precision):
            out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def min_steps(device):
    """Steps of a measurement, at least: on CUDA, launches of kernels must overlap with the kernels before."""
    return MIN_STEPS if device.type == "cuda" else 1


class OurReading:
    """Evaluation, or one token at a time with the probabilities of all that may follow."""

    def __init__(self, model, work, precision):
        settings = EvalSettings(
            seg_len=work.seg_len,
            mem_len=work.mem_len,
            same_length="m",
            max_distance=work.max_distance,
            batch_size=work.batch_size,
        )
        self._decoder = make_reader(model.on(precision=precision), settings)
        self._tokens = work.draw_tokens().to(model.device)
        # The buffer slides now and then; a measurement covers whole periods, so that the slide is paid for.
        period = max(1, self._decoder.housekeeping_interval // work.seg_len)
        self.segments = period * -(-min_steps(model.device) // period)

    def segment(self):
        hidden = self._decoder.read(self._tokens)
        if self._tokens.shape[1] == 1:
            return self._decoder.log_probs(hidden)
        return self._decoder.losses(hidden, self._tokens.roll(-1, dims=1))

    def first(self):
        """What the peer's `first` gives, of a memory of zeros."""
        self._decoder.reset()
        found = self.segment()
        return found if self._tokens.shape[1] == 1 else found[:, :-1].mean()


class PeerReading:
    """The same by the peer; it has nothing that comes around now and then."""

    def __init__(self, model, work, precision="fp32"):
        self._model, self._tokens, self._memory = model, work.draw_tokens().to(model.device), None
        self._precision = precision
        self.segments = max(5 if work.seg_len == 1 else 1, min_steps(model.device))

    @torch.inference_mode()
    def segment(self):
        labels = None if self._tokens.shape[1] == 1 else self._tokens
        with autocast(self._model.device, self._precision):
            out = self._model(self._tokens, labels=labels, mems=self._memory)
        self._memory = out.mems
        return out.prediction_scores if labels is None else out.losses

    def first(self):
        self._memory = None
        found = self.segment()
        return found if self._tokens.shape[1] == 1 else found.mean()


def fresh_model(contestant, work, device=CPU):
    """A model in training of `txl` or `peer`."""
    if contestant == "peer":
        return peer_model(work, training=True).to(device)
    return new_model(our_settings(work, training=True), work.vocab_size, seed=1, device=device)


def step_of(contestant, model, work):
    """A training step of that model, taking the precision."""
    return (our_step if contestant == "txl" else peer_step)(model, work)
