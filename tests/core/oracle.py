"""A TransformerXL as the dict of weights that tests/reference.py reads, and a whole batch read by its loops."""

import itertools

import numpy as np

from tests import reference
from tests.core import builders

GATE = ("w_r", "w_z", "w_g", "u_r", "u_z", "u_g")
ATTENTION = ("w_q", "w_k_content", "w_v", "w_o")


def attention_weights(attention, w_k_position):
    """The matrices of one Attention and of its relative encoding; a Linear keeps them transposed."""
    modules = {name: getattr(attention, name) for name in ATTENTION} | {"w_k_position": w_k_position}
    return {name: module.weight.detach().numpy().T for name, module in modules.items()}


def numbers_of(model):
    """The model's parameters by name: its own numbers, not copies."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def weights_of(numbers, settings):
    """The oracle's weights as views of a model's parameters: changing an entry of one changes the other."""

    def bias_of(name):
        return numbers.get(f"{name}.bias", np.zeros(len(numbers[f"{name}.weight"])))

    def pair(name):
        return numbers[f"{name}.weight"], bias_of(name)

    def matrix_and_bias(name):
        return numbers[f"{name}.weight"].T, bias_of(name)

    def optional(n):
        found = {"ff_gate": matrix_and_bias(f"layers.{n}.feed_forward.ff_gate")} if gated else {}
        for name in ("q_norm", "k_norm") if settings.parts.qk_norm == "rms" else ():
            found[name] = numbers[f"layers.{n}.attention.{name}.weight"]
        for name in ("attention_gate", "feed_forward_gate") if settings.gating == "gru" else ():
            gate = {key: numbers[f"layers.{n}.{name}.{key}.weight"].T for key in GATE}
            found[name] = gate | {"update_bias": numbers[f"layers.{n}.{name}.update_bias"]}
        if getattr(settings, "compression", None) == "convolution":
            found["compression"] = matrix_and_bias(f"layers.{n}.compression.convolution")
        return found

    assert settings.parts.feed_forward in ("relu", "swiglu"), "the oracle lacks this feed-forward sublayer"
    relative, gated = settings.position == "relative", settings.parts.feed_forward == "swiglu"

    def layer(n):
        return {
            **{name: numbers[f"layers.{n}.attention.{name}.weight"].T for name in ATTENTION},
            **({"w_k_position": numbers[f"encoding.w_k_position.{n}.weight"].T} if relative else {}),
            "attention_norm": pair(f"layers.{n}.attention_norm"),
            "ff_norm": pair(f"layers.{n}.ff_norm"),
            "ff_1": matrix_and_bias(f"layers.{n}.feed_forward.ff_1"),
            "ff_2": matrix_and_bias(f"layers.{n}.feed_forward.ff_2"),
            **optional(n),
        }

    weights = {"layers": [layer(n) for n in range(settings.n_layers)]}
    if not relative:
        weights["n_heads"] = settings.n_heads
    if settings.position == "relative_tied":
        weights["tied_distances"] = True
    if settings.position == "t5":
        weights["bucket_biases"] = numbers["encoding.bucket_biases"]
    for name in ("content_bias", "position_bias") if relative else ():
        bias = numbers[f"encoding.{name}"]
        weights[name] = bias[0] if settings.tie_biases else bias
    if settings.norm == "pre":
        weights["final_norm"] = pair("final_norm")
    if "first_state" in numbers:
        weights["first_state"] = numbers["first_state"]
    return weights | bands_of(numbers, settings)


def bands_of(numbers, settings):
    """The two ends of the model: a single tied band stays plain, others become lists."""
    plain = ["embedding.tables.0", "softmax.biases.0"]
    if sorted(name for name in numbers if name.startswith(("embedding.", "softmax."))) == plain:
        return {"embedding": numbers["embedding.tables.0"], "softmax_bias": numbers["softmax.biases.0"]}
    embedding, softmax = [], []
    for band in range(len(settings.cutoffs) + 1):
        table = numbers[f"embedding.tables.{band}"]
        projection = None
        always = settings.div_val > 1 and settings.project_same_width
        if always or table.shape[1] != settings.d_model:
            # One projection per width; with div_val = 1 all widths are one.
            projection = numbers[f"embedding.projections.{band if settings.div_val > 1 else 0}"].T
        embedding.append((table, projection))
        own = numbers.get(f"softmax.projections.{band}")
        outwards = own if own is not None else None if projection is None else projection.T
        table = numbers.get(f"softmax.tables.{band}", table)
        softmax.append((table, outwards, numbers[f"softmax.biases.{band}"]))
    clusters = {}
    if settings.cutoffs:
        clusters = {"clusters": (numbers["softmax.cluster_weight"].T, numbers["softmax.cluster_bias"])}
    return {"embedding": embedding, "softmax": softmax, **clusters}


def options_of(settings):
    """The keyword arguments of the functions of `reference` that read with a model."""
    names = {"norm": settings.norm, "norm_type": settings.parts.norm_type, "norm_eps": settings.norm_eps}
    return {**names, "position": settings.position}


def compressive_options(settings, *, mem_len):
    """The keyword arguments of `reference.forward_compressive` for a model."""
    lengths = {"mem_len": mem_len, "compressed_len": settings.compressed_len}
    lengths |= {"rate": settings.compression_rate, "compression": settings.compression}
    return {"lengths": lengths, **options_of(settings)}


def read_compressive(model, tokens, lengths, *, mem_len, **limits):
    """Log-probabilities (B, T, V), and the last memories, (B, M, d) of each layer and then (B, C, d), by the oracle."""
    settings, ends = model.settings, list(itertools.accumulate(lengths))
    weights = weights_of(numbers_of(model), settings)
    options = compressive_options(settings, mem_len=mem_len) | limits
    zeros = settings.memory_start == "zeros"
    log_probs, memories = [], []
    for row in tokens.tolist():
        memory = reference.first_memory(weights, zeros=mem_len if zeros else 0)
        slots = reference.first_memory(weights, zeros=options["lengths"]["compressed_len"] if zeros else 0)
        parts = []
        for end, length in zip(ends, lengths, strict=True):
            read = reference.forward_compressive(row[end - length : end], memory, slots, weights, **options)
            parts.append(read.log_probs)
            memory, slots = read.memory, read.slots
        log_probs.append(np.concatenate(parts))
        memories.append(memory + slots)
    return np.stack(log_probs), [np.stack(rows) for rows in zip(*memories, strict=True)]


def read_segments(model, tokens, lengths, *, mem_len, key_limit=None, max_distance=None):
    """Log-probabilities (B, T, V) and the last memory, (B, M, d) for each layer, by the oracle."""
    ends = list(itertools.accumulate(lengths))
    weights = weights_of(numbers_of(model), model.settings)
    log_probs, memories = [], []
    for row in tokens.tolist():
        segments = [row[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        parts, memory = reference.forward_segments(
            segments,
            weights,
            mem_len=mem_len,
            memory_start=model.settings.memory_start,
            **options_of(model.settings),
            key_limit=key_limit,
            max_distance=max_distance,
        )
        log_probs.append(np.concatenate(parts))
        memories.append(memory)
    return np.stack(log_probs), [np.stack(rows) for rows in zip(*memories, strict=True)]


def assert_equals_oracle(model, tokens, lengths, **options):
    """Compare log-probabilities and memory of segments read one after the other, by the model and by the oracle."""
    read = read_compressive if model.settings.arch == "compressive" else read_segments
    expected, expected_memory = read(model, tokens, lengths, **options)
    given, memory = builders.read_segments(model, tokens, lengths, **options)
    for own, wanted in zip((given, *memory), (expected, *expected_memory), strict=True):
        np.testing.assert_allclose(own.detach(), wanted, rtol=0, atol=1e-10)


def exact_gradients(numbers, loss):
    """The derivative of `loss()` along each entry of the complex arrays that it reads, by name, by complex steps.

    Of several losses, an array has one more axis than the numbers.
    """

    def slope(array, index):
        def stepped_loss(stepped):
            array[index] = stepped[index]
            return loss()

        derivative = reference.complex_step_gradient(stepped_loss, array, index)
        array[index] = array[index].real
        return derivative

    derivatives = {}
    for name, array in numbers.items():
        slopes = np.array([slope(array, index) for index in np.ndindex(array.shape)])
        derivatives[name] = slopes.reshape(*array.shape, *slopes.shape[1:])
    return derivatives
