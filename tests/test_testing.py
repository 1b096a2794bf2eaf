"""The checks of architectures and encodings: all of txl pass, and wrong ones from outside the package do not.

The right ones from outside the package are those of docs/extending.md, which test_extending.py checks.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from tests.core.builders import V, draw_tokens, model_settings
from tests.extensions import (
    GruModel,
    GruProducts,
    GruSettings,
    SlopesEncoding,
    registered_architecture,
    registered_encoding,
    registered_feed_forward,
)
from tests.samples import sampled
from txlcli.config.model_settings import MODELS, CompressiveSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.config.traits import ENCODING_TRAITS, EncodingTraits
from txlcli.core.architectures.compressive import CompressiveTransformer
from txlcli.core.architectures.operations import MatrixProducts
from txlcli.core.architectures.registry import make_model
from txlcli.core.architectures.transformer import TransformerProducts
from txlcli.core.backend import Rotation, ScoreTerms
from txlcli.core.measures.forecast import step_bytes
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.encodings import Encoding, SinusoidEncoding, TiedRelativeEncoding
from txlcli.core.model.layer import update_memory
from txlcli.core.model.softmax import AdaptiveSoftmax
from txlcli.core.model.sublayers import GatedFeedForward, ReluFeedForward
from txlcli.core.model.transformer_xl import TransformerXL, declares
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.errors import UnknownNameError, UsageError
from txlcli.testing import ContractError, check_architecture, check_encoding


@dataclass(frozen=True, kw_only=True)
class EverySecondSettings(TransformerSettings):
    """[model] of a memory whose keys are not at the distance of their tokens."""

    keys_are_tokens = False


every_second = partial(registered_architecture, "every-second", settings=EverySecondSettings)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "transformer"])
def test_every_architecture_keeps_the_contract(name):
    check_architecture(name)


@pytest.mark.parametrize("memory_start", sampled(2, ["empty", "zeros"]))
def test_a_compressed_memory_keeps_the_contract_if_m_is_no_multiple_of_its_rate(memory_start):
    check_architecture("compressive", compression_rate=4, compressed_len=1, memory_start=memory_start)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("transformer", {"cutoffs": (5, 11), "div_val": 2, "n_heads": 1, "d_head": 4, "variational_dropout": True}),
        ("compressive", {"compression_rate": 4, "compressed_len": 5}),
    ],
)
def test_unusual_sizes_keep_the_contract(name, settings):
    check_architecture(name, **settings)


@pytest.mark.parametrize("settings", sampled(3, [{"block": "modern"}, {"norm": "pre"}, {"window": 4}]))
def test_every_block_keeps_the_contract(settings):
    check_architecture("transformer", **settings)


@pytest.mark.parametrize("name", sampled(len(ENCODING_TRAITS), ENCODING_TRAITS))
def test_every_encoding_keeps_the_contract_in_the_model_of_the_paper(name):
    check_encoding(name)


class Geglu(GatedFeedForward):
    """A feed-forward sublayer whose gate is gelu (Shazeer 2020)."""

    def gate(self, hidden):
        """Return the gate (B, L, F)."""
        return torch.nn.functional.gelu(hidden)


class Gain(ReluFeedForward):
    """A feed-forward sublayer with a scalar weight."""

    def __init__(self, settings):
        super().__init__(settings)
        self.gain = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, hidden):
        return self.gain * super().forward(hidden)


@pytest.mark.slow
def test_a_weight_may_be_a_scalar():
    with registered_feed_forward("gain", Gain, matrices=2):
        check_architecture("transformer", feed_forward="gain")


class AddsOne(Geglu):
    """A gate that does not keep the zeros of padded rows, although it says so."""

    reads_padded_rows = True

    def forward(self, hidden):
        return super().forward(hidden) + 1


class EndsInTanh(Geglu):
    """A gate whose backward pass needs its output, although it says otherwise."""

    output_may_be_overwritten = True

    def forward(self, hidden):
        return super().forward(hidden).tanh()


class ReturnsInner(Geglu):
    """A gate that returns its inner states (B, L, F)."""

    def forward(self, hidden):
        return self.ff_1(hidden)


@pytest.mark.parametrize(
    ("cls", "word"),
    [
        (AddsOne, "reads_padded_rows"),
        (EndsInTanh, "output_may_be_overwritten"),
        (ReturnsInner, r"\(B, L, d\) to \(B, L, d\)"),
    ],
)
def test_a_gate_that_does_not_do_what_it_declares_breaks_the_contract(cls, word):
    with registered_feed_forward("geglu", cls, matrices=3), pytest.raises(ContractError, match=word) as caught:
        check_architecture("transformer", feed_forward="geglu")
    assert str(caught.value).startswith('"transformer" with feed_forward = geglu breaks a contract')


class DividesByWidth(TransformerXL):
    """A model that divides by the width of padded rows, although it says that it reads them."""

    reads_padded_rows = True

    def final_hidden(self, hidden):
        return super().final_hidden(hidden / hidden.shape[-1])

    def objective(self, tokens, targets, memory, goal):
        return LanguageModel.objective(self, tokens, targets, memory, goal)


class EverySecondState(TransformerXL):
    """A memory of every second state."""

    def first(self, seg_len):
        """Return the first position that is kept, so that the last one is."""
        return (seg_len - 1) % 2

    def remember(self, pasts, outputs, goal):
        """Keep the last state of a segment and every second one before it."""
        mem_len = self.settings.visible_memory(goal.mem_len)
        memory = []
        for past, output in zip(pasts, outputs, strict=True):
            kept = output.kept[:, self.first(output.kept.shape[1]) :: 2]
            memory.append(update_memory(past.hidden, kept, mem_len=mem_len))
        return memory


class OddPositions(EverySecondState):
    """A memory that keeps nothing of segments of one token."""

    def first(self, seg_len):
        return 1


class CountsCalls(EverySecondState):
    """A memory that depends on earlier calls."""

    calls = 0

    def first(self, seg_len):
        self.calls += 1
        return self.calls // self.settings.n_layers % 2


class KeepsPadding(EverySecondState):
    """A memory that keeps padding but declares to skip it."""

    @declares(skips_padding=True)
    def remember(self, pasts, outputs, goal):
        return super().remember(pasts, outputs, goal)


class AddsLeavingStates(TransformerXL):
    """A memory whose oldest position has what left the memory, but declares a reset."""

    @declares(supports_reset=True)
    def remember(self, pasts, outputs, goal):
        """Add the mean of the positions that leave."""
        memory = super().remember(pasts, outputs, goal)
        for kept, past, output in zip(memory, pasts, outputs, strict=True):
            states = torch.cat([past.hidden, output.kept], dim=1)
            leaving = states[:, : states.shape[1] - kept.shape[1]]
            if goal.mem_len and leaving.shape[1]:
                kept[:, 0] += leaving.mean(1)
        return memory


class AddsLanes(TransformerXL):
    """A memory whose lanes have the states of the lanes before, too."""

    def remember(self, pasts, outputs, goal):
        return [states.cumsum(0) for states in super().remember(pasts, outputs, goal)]


class SixPositions(TransformerXL):
    """A memory of six positions for every M above 0."""

    def remember(self, pasts, outputs, goal):
        """Keep six positions, or none."""
        pairs = zip(pasts, outputs, strict=True)
        return [update_memory(past.hidden, output.kept, mem_len=6 if goal.mem_len else 0) for past, output in pairs]

    def full_memory(self, batch_size, mem_len):
        return super().full_memory(batch_size, 6 if mem_len else 0)

    def memory_is_full(self, memory, mem_len):
        return super().memory_is_full(memory, 6 if mem_len else 0)


@dataclass(frozen=True, kw_only=True)
class OneKeyMore(TransformerSettings):
    """[model] of a memory that is said to have a slot in addition to M positions."""

    def memory_keys(self, mem_len, compressed_len=None):
        return mem_len + 1


@dataclass(frozen=True, kw_only=True)
class RereadSlots(CompressiveSettings):
    """[model] of a compressed memory that says its segments can be read again."""

    supports_reread = True


class AlternatingLength(TransformerXL):
    """A memory of M and of M + 1 positions in turn."""

    def remember(self, pasts, outputs, goal):
        """Keep one position more if the memory has M."""
        memory = []
        for past, output in zip(pasts, outputs, strict=True):
            mem_len = goal.mem_len
            if mem_len and past.hidden.shape[1] == mem_len:
                mem_len += 1
            memory.append(update_memory(past.hidden, output.kept, mem_len=mem_len))
        return memory


class ForgetsParts(EverySecondState):
    """A model whose part of a segment is read as if it were a segment."""

    def read_part(self, tokens, memory, before, *, mem_len, ends, **limits):
        """Read tokens as a segment of their own."""
        return *self(tokens, memory, mem_len=mem_len, **limits), []


class DropsAsManyAsItReads(TransformerXL):
    """A memory of at least the whole segment, even if M is shorter."""

    def remember(self, pasts, outputs, goal):
        """Drop the oldest positions of the memory only."""
        memory = []
        for past, output in zip(pasts, outputs, strict=True):
            states = torch.cat([past.hidden, output.kept], dim=1)
            dropped = min(max(0, states.shape[1] - goal.mem_len), past.hidden.shape[1])
            memory.append(states[:, dropped:] if goal.mem_len else states[:, :0])
        return memory


class RemembersEight(TransformerXL):
    """A memory of at most eight positions, for every M."""

    def remember(self, pasts, outputs, goal):
        """Keep up to eight positions."""
        pairs = zip(pasts, outputs, strict=True)
        return [update_memory(past.hidden, output.kept, mem_len=min(8, goal.mem_len)) for past, output in pairs]


class HalvesInEvaluation(EverySecondState):
    """A model that halves its last hidden states in `forward` alone: `objective` does not call `final_hidden`."""

    def final_hidden(self, hidden):
        return super().final_hidden(hidden) / 2


class HalvesLastStates(TransformerXL):
    """A model that halves its last hidden states."""

    def undropped_hidden(self, hidden):
        return super().undropped_hidden(hidden) / 2


class DropsTokens(TransformerXL):
    """A model that replaces tokens of its caller."""

    def embed(self, tokens, positions):
        tokens[tokens == 3] = 0
        return super().embed(tokens, positions)


class CappedSoftmax(AdaptiveSoftmax):
    """A softmax whose logits lie between -1 and 1, where a method computes them itself."""

    def logits(self, hidden):
        """Return capped logits (T, V), divided by the temperature."""
        return super().log_probs(hidden).tanh() / self.backend.temperature

    def log_probs(self, hidden):
        """Return the log-probabilities (T, V) of all tokens."""
        return self.logits(hidden).log_softmax(-1)

    def losses(self, hidden, targets, tail_rows=None):
        """Return the loss (T,) of each target."""
        return -self.log_probs(hidden).gather(1, targets[:, None])[:, 0]

    def mean_loss(self, hidden, targets, tail_rows=None, weights=None):
        """Return the mean loss (0-d)."""
        losses = self.losses(hidden.flatten(0, 1), targets.flatten()).view(targets.shape)
        if weights is None:
            return losses.mean()
        return (losses * weights).mean() / weights.mean()


class WithoutNormalization(CappedSoftmax):
    """A softmax that returns logits."""

    def log_probs(self, hidden):
        return self.logits(hidden)


class PlainLosses(CappedSoftmax):
    """A softmax whose losses are those of the class that it changes."""

    losses = AdaptiveSoftmax.losses


class PlainMeanLoss(CappedSoftmax):
    """A softmax that trains on the loss of the class that it changes."""

    mean_loss = AdaptiveSoftmax.mean_loss


class ForgetsWeights(CappedSoftmax):
    """A softmax that counts the padding of a segment."""

    def mean_loss(self, hidden, targets, tail_rows=None, weights=None):
        return super().mean_loss(hidden, targets)


class WithoutTemperature(CappedSoftmax):
    """A softmax that is the same at every temperature."""

    def logits(self, hidden):
        return (hidden @ self._table(0).mT).tanh()


class LikeliestById(CappedSoftmax):
    """A softmax whose likeliest tokens are in the order of their ids."""

    def likeliest(self, hidden, count):
        scores, tokens = super().likeliest(hidden, count)
        tokens, order = tokens.sort()
        return scores[order], tokens


class DecodesPlainly(CappedSoftmax):
    """A softmax whose copy for decoding is one of the class that it changes."""

    def for_decoding(self, dtype):
        copied = super().for_decoding(dtype)
        copied.__class__ = AdaptiveSoftmax
        return copied


SOFTMAXES = [  # a wrong softmax, a telling word of the error
    (WithoutNormalization, "the sum 1"),
    (PlainLosses, "a loss is the negative log-probability"),
    (PlainMeanLoss, "softmax.mean_loss. is the mean"),
    (ForgetsWeights, "positions whose weight is 0"),
    (WithoutTemperature, "backend.temperature"),
    (LikeliestById, "softmax.likeliest"),
    (DecodesPlainly, "softmax.for_decoding"),
]


@pytest.mark.parametrize(("softmax", "word"), SOFTMAXES)
def test_a_softmax_whose_methods_do_not_agree_breaks_the_contract(softmax, word):
    with registered_softmax(softmax), pytest.raises(ContractError, match=word):
        check_architecture("own")


def registered_softmax(softmax, name="own"):
    """Register a Transformer-XL with a softmax of this class inside a block."""

    class Own(TransformerXL):
        def make_softmax(self, bands):
            return softmax(bands, self.settings.d_model, tied=self.settings.tie_embeddings, embedding=self.embedding)

    return registered_architecture(name, model=Own, settings=TransformerSettings, reader="keys")


class ScaledSoftmax(AdaptiveSoftmax):
    """A softmax that reads hidden states multiplied by constants."""

    def __init__(self, bands, d_model, **options):
        super().__init__(bands, d_model, **options)
        scales = torch.linspace(0.5, 2.0, d_model, device="cpu")
        self.register_buffer("scales", scales, persistent=False)

    def project(self, number, hidden):
        return super().project(number, hidden * self.scales)


def test_a_softmax_may_have_constants():
    with registered_softmax(ScaledSoftmax):
        check_architecture("own")
        model = make_model(model_settings(arch="own"), V)
        copied = model.softmax.for_decoding(torch.bfloat16)
        assert copied.scales.dtype == torch.bfloat16
        assert model.softmax.scales.dtype == torch.float32


class CountsNans(CappedSoftmax):
    """A softmax that reads a value of a tensor in training."""

    def mean_loss(self, hidden, targets, tail_rows=None, weights=None):
        if hidden.isnan().any():
            raise ValueError("the hidden states are not finite")
        return super().mean_loss(hidden, targets, tail_rows, weights)


def test_a_training_step_that_reads_values_breaks_the_contract():
    with registered_softmax(CountsNans, "nans"), pytest.raises(ContractError, match="runs on tensors without data"):
        check_architecture("nans")


@dataclass(frozen=True, kw_only=True)
class ValueOfEachLayer(TransformerSettings):
    """[model] with a value for each layer."""

    layers_are_alike = False

    scales: tuple[float, ...] = (1.0, 2.0)
    """A number for each layer."""

    def __post_init__(self):
        super().__post_init__()
        self.require(len(self.scales) == self.n_layers, "scales", "as many as layers")


@dataclass(frozen=True, kw_only=True)
class UndeclaredValues(ValueOfEachLayer):
    """[model] that says its layers are alike."""

    layers_are_alike = True


class WiderLayers(TransformerXL):
    """A model whose layers after the first have one weight more."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for layer in self.layers[1:]:
            layer.scale = torch.nn.Parameter(torch.tensor(1.0))


def test_layers_may_differ_if_their_settings_say_so():
    with registered_architecture("own", model=TransformerXL, settings=ValueOfEachLayer):
        check_architecture("own")
        settings = model_settings(arch="own", n_layers=4, scales=(1.0, 2.0, 1.0, 2.0))
        layers = model_settings(n_layers=4)
        for recompute in (False, "layers"):
            train = TrainSettings(seg_len=4, mem_len=4, batch_size=5, max_steps=1, recompute=recompute)
            needed = step_bytes(settings, V, train)
            alike = step_bytes(layers, V, train)
            assert needed.weights == alike.weights
            assert needed.activations == pytest.approx(alike.activations, rel=0.3 if recompute else 0)


class SharedFeedForward(TransformerXL):
    """A model whose layers after the first have the feed-forward sublayer of the first."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for layer in self.layers[1:]:
            layer.feed_forward = self.layers[0].feed_forward


def test_a_weight_with_two_names_is_rejected_before_a_run_is_saved():
    with (
        registered_architecture("own", model=SharedFeedForward, settings=ValueOfEachLayer),
        pytest.raises(UsageError, match=r'"layers\.0\.feed_forward\..*" and "layers\.1\.feed_forward\..*one name'),
    ):
        check_architecture("own")


@pytest.mark.parametrize(("model", "settings"), [(TransformerXL, UndeclaredValues), (WiderLayers, TransformerSettings)])
def test_layers_that_differ_break_the_contract_unless_it_is_declared(model, settings):
    with (
        registered_architecture("own", model=model, settings=settings),
        pytest.raises(ContractError, match="layers_are_alike"),
    ):
        check_architecture("own")


BROKEN = [  # model, settings, a telling word of the error
    (DividesByWidth, TransformerSettings, "reads_padded_rows"),
    (OddPositions, EverySecondSettings, "in segments of 1 fills a memory"),
    (DropsAsManyAsItReads, TransformerSettings, "with M = 2"),
    (RemembersEight, TransformerSettings, "fills a memory of M = 24"),
    (HalvesInEvaluation, EverySecondSettings, "the loss and the memory of evaluation"),
    (DropsTokens, TransformerSettings, "changes neither its tokens"),
    (CountsCalls, EverySecondSettings, "state of its own"),
    (EverySecondState, TransformerSettings, "keys_are_tokens"),
    (KeepsPadding, EverySecondSettings, "memory_skips_padding"),
    (AddsLeavingStates, TransformerSettings, "supports_reset"),
    (AddsLanes, TransformerSettings, "no lane depends on another"),
    (SixPositions, TransformerSettings, "depends on M"),
    (TransformerXL, OneKeyMore, "memory_keys"),
    (CompressiveTransformer, RereadSlots, "supports_reread"),
    (AlternatingLength, EverySecondSettings, "memory_keeps_length"),
    (ForgetsParts, EverySecondSettings, "contract of memory"),
]


@pytest.mark.parametrize("reader", ["keys", "states"])
def test_a_model_may_change_its_last_hidden_states(reader):
    with registered_architecture("own", model=HalvesLastStates, settings=TransformerSettings, reader=reader):
        check_architecture("own")


@pytest.mark.parametrize(("model", "settings", "word"), BROKEN)
def test_a_model_or_a_memory_that_is_not_as_it_declares_breaks_the_contract(model, settings, word):
    with every_second(model=model, settings=settings), pytest.raises(ContractError, match=word):
        check_architecture("every-second")


class RemembersOutputs(TransformerXL):
    """A memory of what each layer has returned, without a rule of its own for windows and segments read again."""

    read_part = LanguageModel.read_part

    def remember(self, pasts, outputs, goal):
        """Keep the last M outputs."""
        memory = []
        for past, output in zip(pasts, outputs, strict=True):
            memory.append(update_memory(past.hidden, output.hidden.detach(), mem_len=goal.mem_len))
        return memory


def test_a_memory_of_outputs_keeps_the_contract_with_a_window():
    with every_second(model=RemembersOutputs, settings=TransformerSettings):
        check_architecture("every-second", window=3)


class Remembers:
    """A rule of memory for models of several classes."""

    def remember(self, pasts, outputs, goal):
        """Return what each layer has read."""
        return [output.kept for output in outputs]


@pytest.mark.parametrize(
    ("declaring", "trait"),
    [
        (TransformerXL, "memory_skips_padding"),
        (TransformerXL, "supports_reset"),
        (KeepsPadding, "memory_skips_padding"),
    ],
)
def test_a_rule_of_memory_is_not_taken_to_skip_padding_or_to_reset_unless_it_says_so(declaring, trait):
    class Inherits(declaring):
        pass

    class Overrides(declaring):
        def remember(self, pasts, outputs, goal):
            return super().remember(pasts, outputs, goal)

    class OverridesByMixin(Remembers, declaring):
        pass

    cases = {declaring: True, Inherits: True, Overrides: False, OverridesByMixin: False}
    assert {cls: getattr(cls(model_settings(), V), trait) for cls in cases} == cases


def test_an_error_of_a_rule_names_the_architecture_and_keeps_its_cause():
    class TooFewArguments(TransformerXL):
        def remember(self, pasts, outputs):
            return []

    with every_second(model=TooFewArguments), pytest.raises(ContractError, match=r"TypeError: .*remember") as raised:
        check_architecture("every-second")
    assert raised.value.name == "every-second"
    assert isinstance(raised.value.__cause__, TypeError)


def test_settings_with_dropout_are_refused():
    with pytest.raises(UsageError, match="attention_dropout must be 0"):
        check_architecture("transformer", attention_dropout=0.1)


def test_a_setting_that_no_model_has_is_named():
    with pytest.raises(UsageError, match='no key "d_headd"; did you mean "d_head"'):
        check_architecture("transformer", d_headd=8)


def test_text_is_generated_with_a_memory_of_every_second_state_as_it_was_trained():
    with every_second(model=EverySecondState):
        model = make_model(model_settings(arch="every-second"), V).double().eval()
        reader = reader_of_one_text(model, EvalSettings(seg_len=5, mem_len=7, same_length="off"))
        tokens = draw_tokens(1, 23)
        given = torch.cat([reader.read(token) for token in tokens.split(1, dim=1)], dim=1)
        memory, expected = model.first_memory(1, 7), []
        for segment in tokens.split(5, dim=1):
            hidden, memory = model(segment, memory, mem_len=7)
            expected.append(hidden)
        torch.testing.assert_close(given, torch.cat(expected, dim=1), rtol=0, atol=1e-10)


def test_the_reader_of_keys_is_refused_for_another_memory():
    with pytest.raises(ValueError, match=r"contract of TransformerXL\.remember"):
        every_second(model=EverySecondState, reader="keys").__enter__()


class GruOfOneSegment(GruModel):
    """A GRU that begins anew in each segment."""

    def forward(self, tokens, memory, *, mem_len):
        return super().forward(tokens, self.first_memory(len(tokens), mem_len), mem_len=mem_len)


def test_a_recurrent_state_that_is_forgotten_breaks_the_contract():
    gru = registered_architecture("forgets", settings=GruSettings, model=GruOfOneSegment, products=GruProducts)
    with gru, pytest.raises(ContractError, match="all that a token needs of those before is in the memory"):
        check_architecture("forgets")


class ScaledGru(GruModel):
    """A GRU whose outputs are normalized, and multiplied by gains of its own."""

    def __init__(self, settings, vocab_size):
        super().__init__(settings, vocab_size)
        self.norm = torch.nn.LayerNorm(settings.d_model)
        self.factors = torch.nn.Parameter(torch.ones(settings.d_model))

    def forward(self, tokens, memory, *, mem_len):
        hidden, memory = super().forward(tokens, memory, mem_len=mem_len)
        return self.factors * self.norm(hidden), memory


class InitializedGru(ScaledGru):
    """One whose factors are zeros at first, as `reset_parameters` makes vectors."""

    def __init__(self, settings, vocab_size):
        super().__init__(settings, vocab_size)
        self.reset_parameters()


class EmptyGru(GruModel):
    """A GRU with a bias without a first value."""

    def __init__(self, settings, vocab_size):
        super().__init__(settings, vocab_size)
        self.bias = torch.nn.Parameter(torch.empty(settings.d_model))

    def forward(self, tokens, memory, *, mem_len):
        hidden, memory = super().forward(tokens, memory, mem_len=mem_len)
        return hidden + self.bias, memory


class DropsInReading(GruModel):
    """A GRU that drops hidden states in evaluation, too."""

    def forward(self, tokens, memory, *, mem_len):
        hidden, memory = super().forward(tokens, memory, mem_len=mem_len)
        return torch.nn.functional.dropout(hidden, self.settings.dropout), memory


class ReadsTargets(GruModel):
    """A GRU that is trained on the tokens that it should predict."""

    def objective(self, tokens, targets, memory, goal):
        return super().objective(targets, targets, memory, goal)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (InitializedGru, "depend on its tokens"),
        (EmptyGru, "bias has none"),
        (DropsInReading, "drops nothing in evaluation"),
        (ReadsTargets, "a training step has the loss"),
    ],
)
def test_a_recurrent_model_that_trains_without_an_error_may_break_the_contract(model, words):
    gru = registered_architecture("wrong", settings=GruSettings, model=model, products=GruProducts)
    with gru, pytest.raises(ContractError, match=words):
        check_architecture("wrong")


def test_a_model_may_have_first_weights_of_its_own():
    with registered_architecture("scaled", settings=GruSettings, model=ScaledGru, products=GruProducts):
        check_architecture("scaled")


def test_reset_parameters_sets_the_gains_of_a_norm_to_one_and_other_vectors_to_zero():
    with registered_architecture("scaled", settings=GruSettings, model=InitializedGru, products=GruProducts):
        model = make_model(GruSettings(arch="scaled", n_layers=1, d_model=5), V)
    assert model.norm.weight.tolist() == [1.0] * 5
    assert model.norm.bias.tolist() == model.factors.tolist() == [0.0] * 5


class TrainsForFree(GruProducts):
    """A count that is right for reading alone."""

    def training(self, train):
        return 0.0


def test_a_wrong_count_of_training_with_a_recurrent_state_breaks_the_contract():
    gru = registered_architecture("miscounted", settings=GruSettings, model=GruModel, products=TrainsForFree)
    with gru, pytest.raises(ContractError, match="count of operations"):
        check_architecture("miscounted")


class SevenKeys(TransformerProducts):
    """A count for one length of memory."""

    def _layer(self, keys, max_distance=None):
        return super()._layer(7, max_distance)


class DecodesForFree(TransformerProducts):
    """A count that is right for training alone."""

    def decoding(self, settings):
        return 0.0


class WindowsForFree(TransformerProducts):
    """A count that is wrong for windows."""

    def window(self, settings):
        return 0.0


@pytest.mark.parametrize("products", [MatrixProducts, SevenKeys, DecodesForFree, WindowsForFree])
def test_a_wrong_count_of_operations_breaks_the_contract(products):
    settings = {"settings": TransformerSettings, "model": TransformerXL, "reader": "keys"}
    with (
        registered_architecture("miscounted", products=products, **settings),
        pytest.raises(ContractError, match="count of operations"),
    ):
        check_architecture("miscounted")


class ShrinkingBias(SlopesEncoding):
    """A bias that depends on how far a query sees."""

    def score_terms(self, reach, *, max_distance, like):
        (terms, *_) = super().score_terms(reach, max_distance=max_distance, like=like)
        return [terms.__class__(reach, distance_bias=terms.distance_bias / reach)] * self.settings.n_layers


class IgnoresLimit(SlopesEncoding):
    """A bias that grows beyond every limit."""

    def score_terms(self, reach, *, max_distance, like):
        return super().score_terms(reach, max_distance=None, like=like)


class LimitsOneLater(SlopesEncoding):
    """A bias by pairs of distances, whose limit is one distance farther."""

    def score_terms(self, reach, *, max_distance, like):
        distances = torch.arange(reach - 1, -1, -1, dtype=like.dtype)
        if max_distance is not None:
            distances = distances.clamp(max=max_distance + 1)
        bias = self.log_factors.exp()[:, None] * (distances // 2)
        return [ScoreTerms(reach, distance_bias=bias)] * self.settings.n_layers


class RotatesBySquares(SlopesEncoding):
    """A rotation whose angles grow with the square of a position."""

    def rotation(self, positions):
        angles = positions[:, None].double().square().expand(-1, self.settings.d_head // 2)
        return Rotation(angles.cos(), angles.sin())


class BiasOfOneAxis(Encoding):
    """A bias without the axis of heads."""

    def score_terms(self, reach, *, max_distance, like):
        bias = torch.zeros(reach, dtype=like.dtype)
        return [ScoreTerms(reach, distance_bias=bias)] * self.settings.n_layers


class Decides(SlopesEncoding):
    """An encoding that decides by the values of its weights in evaluation, which a program cannot."""

    def score_terms(self, reach, *, max_distance, like):
        assert self.training or self.log_factors.max() < 9
        return super().score_terms(reach, max_distance=max_distance, like=like)


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        (ShrinkingBias, "depend on .reach."),
        (IgnoresLimit, "limits_distance"),
        (LimitsOneLater, "limits_distance"),
        (RotatesBySquares, "differences of their positions"),
        (BiasOfOneAxis, "a bias by distance has"),
        (Decides, "exported as a program"),
    ],
)
def test_an_encoding_that_is_not_as_it_declares_breaks_the_contract(encoding, word):
    with registered_encoding("own", encoding), pytest.raises(ContractError, match=word):
        check_encoding("own")


class IgnoresLimitOfDistances(TiedRelativeEncoding):
    """Distances that are projected by the layers, beyond every limit."""

    def score_terms(self, reach, *, max_distance, like):
        return super().score_terms(reach, max_distance=None, like=like)


class ShrinkingDistances(Encoding):
    """Distances that depend on how far a query sees, projected by the layers."""

    def score_terms(self, reach, *, max_distance, like):
        distances = like.new_ones(reach, self.settings.d_model) / reach
        return [ScoreTerms(reach, distances=distances)] * self.settings.n_layers


@pytest.mark.parametrize(
    ("encoding", "terms", "word"),
    [
        (SlopesEncoding, "ab", r"\(b\) is declared"),
        (ShrinkingDistances, "abcd", "depend on .reach."),
        (IgnoresLimitOfDistances, "abcd", "limits_distance"),
    ],
)
def test_terms_that_are_not_as_the_traits_declare_break_the_contract(encoding, terms, word):
    traits = EncodingTraits(limits_distance=True, score_terms=tuple(terms))
    with registered_encoding("own", encoding, traits), pytest.raises(ContractError, match=word):
        check_encoding("own")


class FixedSlopes(Encoding):
    """A bias with slopes that are not trained."""

    device = None

    def __init__(self, settings):
        super().__init__(settings)
        self.keep(torch.arange(1.0, settings.n_heads + 1, device=self.device))

    def keep(self, slopes):
        self.register_buffer("slopes", slopes, persistent=self.device is None)

    def score_terms(self, reach, *, max_distance, like):
        distances = torch.arange(reach - 1, -1, -1, device=like.device)
        slopes = torch.stack(list(self.slopes)).to(like)
        return [ScoreTerms(reach, distance_bias=-slopes[:, None] * distances)] * self.settings.n_layers


class ListOfSlopes(FixedSlopes):
    """Slopes in a list."""

    def keep(self, slopes):
        self.slopes = list(slopes)


class SlopesOnHost(FixedSlopes):
    """Slopes that a model without data has."""

    device = "cpu"


def test_a_constant_must_be_there_before_weights_are_loaded():
    traits = EncodingTraits(score_terms=("a", "d"))
    for name, lost, advice in (("lost", FixedSlopes, "means of batch"), ("listed", ListOfSlopes, 'device="cpu"')):
        with registered_encoding(name, lost, traits), pytest.raises(UsageError, match=rf"encoding\.slopes.*{advice}"):
            check_encoding(name)
    with registered_encoding("kept", SlopesOnHost, traits):
        check_encoding("kept")


class UpperPositions(Encoding):
    """Positions that the first layer does not read."""

    def add_to_layer_input(self, hidden, layer, positions):
        return hidden + layer * positions[:, None]


@pytest.mark.parametrize(("cls", "declared"), [(SinusoidEncoding, False), (UpperPositions, False), (Encoding, True)])
def test_absolute_positions_that_are_declared_wrongly_break_the_contract(cls, declared):
    class Own(cls):
        pass

    traits = EncodingTraits(absolute_positions=declared)
    with registered_encoding("own", Own, traits), pytest.raises(ContractError, match="absolute_positions"):
        check_encoding("own")


def test_a_name_that_is_not_registered_is_unknown():
    for check in (check_architecture, check_encoding):
        with pytest.raises(UnknownNameError, match="relativ"):
            check("relativ")
