"""Small models whose weights are large enough that every one of them matters, and streams for them to read.

Axes: B lanes, T tokens of a stream, L segment, V vocabulary.
"""

import itertools

import torch

from txlcli.config.model_settings import MODELS
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import make_model
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.scoring import Stream

V = 19
POSITIONS = {
    "relative": {"tie_biases": False},
    "relative_tied": {"position": "relative_tied"},
    "shaw": {"position": "shaw", "n_positions": 6},
    "sinusoid": {"position": "sinusoid"},
    "learned": {"position": "learned", "n_positions": 5},
    "rotary": {"position": "rotary", "d_head": 12},
    "alibi": {"position": "alibi"},
    "t5": {"position": "t5"},
    "none": {"position": "none"},
}
"""Settings of a small model with each encoding."""


def model_settings(**changed):
    """Settings of a small model with attention; those of `changed["arch"]`, if it is given."""
    return MODELS[changed.get("arch", "transformer")](
        **{"n_layers": 2, "d_model": 14, "n_heads": 3, "d_head": 11, "d_inner": 17, "dropout": 0.0, **changed}
    )


def small_model(*, vocab_size=V, seed=1, std=0.3, dtype=torch.float64, **changed):
    """A model in evaluation mode; no weight, gain or bias keeps a value that could hide it."""
    model = make_model(model_settings(**changed), vocab_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.normal_(mean, std, generator=generator)
    return model.to(dtype).eval()


def rnn_settings(arch, **changed):
    window = {"window": 3} if arch == "qrnn" else {}
    return MODELS[arch](
        **{"arch": arch, "n_layers": 3, "d_model": 7, "d_hidden": 11, "dropout": 0.0, **window, **changed}
    )


def small_rnn(arch, *, vocab_size=V, seed=1, std=0.5, dtype=torch.float64, **changed):
    """A model in evaluation mode, each of its weights large enough to matter."""
    model = make_model(rnn_settings(arch, **changed), vocab_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, std, generator=generator)
    return model.to(dtype).eval()


def make_decoder(
    model,
    *,
    batch_size,
    precision="fp32",
    by_tokens=False,
    seg_len,
    mem_len,
    same_length="off",
    max_distance=None,
    capture_graph=None,
):
    """A decoder, whose queries see all of memory and segment by default."""
    settings = EvalSettings(
        batch_size=batch_size, seg_len=seg_len, mem_len=mem_len, same_length=same_length, max_distance=max_distance
    )
    return Decoder(model.on(precision=precision), settings, by_tokens=by_tokens, capture_graph=capture_graph)


def assert_close(given, expected, *, atol=1e-10):
    torch.testing.assert_close(given, expected, rtol=0, atol=atol)


def draw_tokens(lanes, count, *, vocab_size=V, seed=2):
    return torch.randint(vocab_size, (lanes, count), generator=torch.Generator().manual_seed(seed))


def draw_stream(count, settings, model=None, **options):
    """A random text of so many predicted tokens, of a small model unless another is given."""
    tokens = draw_tokens(1, count + 1)[0].numpy()
    return Stream(model or small_model(), tokens[:-1], tokens[1:], settings, **options)


def read_segments(model, tokens, lengths, *, mem_len=0, memory=None, **limits):
    """Log-probabilities (B, T, V) of segments read one after the other, and the memory that the last leaves."""
    if memory is None:
        memory = model.first_memory(tokens.shape[0], mem_len)
    log_probs = []
    for segment in tokens.split(lengths, dim=1):
        hidden, memory = model(segment, memory, mem_len=mem_len, **limits)
        log_probs.append(model.log_probs(hidden))
    return torch.cat(log_probs, dim=1), memory


def cut(total, seg_len):
    """Lengths of the segments of a text, the last one shorter."""
    return [min(seg_len, total - first) for first in range(0, total, seg_len)]


def read_parts(reader, tokens, lengths):
    """Last hidden states (B, T, d) of a text read in parts of these lengths, over and over."""
    parts, at, turns = [], 0, itertools.cycle(lengths)
    while at < tokens.shape[1]:
        part = tokens[:, at : at + next(turns)]
        parts.append(reader.read(part.to(reader.device)))
        at += part.shape[1]
    return torch.cat(parts, dim=1)


@torch.no_grad()
def decoded(model, tokens, reader, lengths):
    """Log-probabilities (B, T, V) of a text read in parts of these lengths, over and over."""
    return model.log_probs(read_parts(reader, tokens, lengths))
