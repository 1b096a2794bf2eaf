"""The contract of an architecture, tried on a small model.

Axes: B batch, T tokens, L segment, M memory, d model width, V vocabulary.
"""

import copy
import io
import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import JITTER_MARGIN, TrainSettings
from txlcli.core.architectures.registry import ARCHITECTURES, make_model, new_model, parameter_shapes
from txlcli.core.kernels.device import CUDA_MULTIPLE
from txlcli.core.kernels.modes import use_row_multiple
from txlcli.core.measures.cost import (
    evaluation_flops_per_token,
    step_flops_per_token,
    window_flops_per_prediction,
)
from txlcli.core.measures.forecast import step_bytes
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import Objective
from txlcli.core.model.sublayers import make_feed_forward
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.core.training import checkpoint
from txlcli.core.training.loop import Training
from txlcli.errors import RecipeError
from txlcli.testing.rules import Rules
from txlcli.testing.samples import (
    MEMORY_LENGTHS,
    SEGMENT_LENGTHS,
    B,
    L,
    M,
    V,
    call_again,
    draw_tokens,
    finish,
    nan_in_new_tensors,
    read_parts,
    small_model,
    small_run,
    small_train_settings,
    whole_and_resumed,
)
from txlcli.workflows.exchange.export_run import export_program


class ArchitectureCheck(Rules):
    """The rules of an architecture, one method each."""

    def __init__(self, name: str, settings: ModelSettings, given: Mapping[str, object]) -> None:
        super().__init__(name, given)
        self.settings = settings
        self.mem_len = 0 if settings.recurrent_state else M
        self.memory_lengths = (0,) if settings.recurrent_state else MEMORY_LENGTHS

    def run(self) -> None:
        """Check all rules."""
        self.attempt(self.model, "a model is made from its settings and the size of a vocabulary")
        rule = "a model is made without data, on the meta device"
        self.attempt(parameter_shapes, rule, self.settings)
        self.check_layers()
        self.attempt(self.check_feed_forward, "a feed-forward sublayer reads hidden states (B, L, d)")
        rule = (
            "a training step runs on tensors without data, whose memory `txl train` counts: it reads no value of them"
        )
        self.attempt(step_bytes, rule, self.settings, V, self.train_settings())
        self.attempt(self.check_new_weights, "a new model has its first weights, and reads tokens with them")
        self.attempt(self.check_repetition, "forward reads one segment after another")
        self.attempt(self.check_dropout, "a model is made with dropout")
        for seg_len, mem_len in itertools.product(SEGMENT_LENGTHS, self.memory_lengths):
            rule = f"forward reads one segment of {seg_len} after another, with M = {mem_len}"
            self.attempt(self.check_memory, rule, seg_len, mem_len)
        self.attempt(self.check_memory_lengths, "a full memory is made for each M")
        self.attempt(self.check_keys, "the keys of a memory belong to tokens (keys_are_tokens)")
        self.attempt(self.check_causality, "forward reads any tokens")
        for seg_len in SEGMENT_LENGTHS:
            self.attempt(self.check_reading, f"readers read a text by segments of {seg_len} and by tokens", seg_len)
        self.attempt(self.check_windows, "a window is read from an empty memory")
        self.attempt(self.check_predictions, "a softmax has log-probabilities, losses and likeliest tokens")
        self.attempt(self.check_objective, "an objective has the loss of a segment")
        rule = "an objective has gradients, with a full memory, also where output_may_be_overwritten is declared"
        self.attempt(self.check_gradients, rule)
        self.attempt(self.check_padded_rows, "rows of hidden states are padded (reads_padded_rows)")
        self.attempt(self.check_resets, "documents begin within segments (train.reset_at_documents)")
        self.attempt(self.check_rereading, "segments are read again (train.reread_len)")
        self.attempt(self.check_training, "a training run is saved and resumed")
        self.attempt(self.check_fixed_places, "a step runs on tensors of fixed places, as a CUDA graph takes it")
        self.attempt(self.check_padding, "a padded segment is trained on (train.seg_len_jitter)")
        self.attempt(self.check_export, "a model is exported as a program of PyTorch (`txl export`)")
        self.attempt(self.check_operations, "operations are counted (`products`)")

    @torch.no_grad()
    def check_new_weights(self) -> None:
        """Check that each weight of a new model has a value, and that the model reads its tokens."""
        with nan_in_new_tensors():
            model = make_model(self.settings, V).double().eval()
        for name, weight in model.named_parameters():
            rule = "each weight has a first value: __init__ of a model ends with self.reset_parameters()"
            self.require(bool(weight.isfinite().all()), rule, f"{name} has none, or one that is not finite")
        tokens = draw_tokens(B, L)
        hidden, _ = self.read_segments(model, tokens)
        of_others, _ = self.read_segments(model, (tokens + 1) % V)
        rule = (
            "the last hidden states of a new model depend on its tokens; reset_parameters sets each vector that is not "
            'called "weight" to 0, gains too'
        )
        self.require(not torch.equal(hidden, of_others), rule, "they are the same for other tokens")

    def check_layers(self) -> None:
        """Compare the weights of layers with each other, in a model with another number of layers."""
        if not self.settings.layers_are_alike:
            return
        rule = "layers have the same weights, and there may be any number of them, or layers_are_alike is false"
        try:
            shapes = parameter_shapes(replace(self.settings, n_layers=3), V)
        except RecipeError as error:
            raise self.broken(rule, str(error)) from error
        layers: list[dict[str, torch.Size]] = [{}, {}, {}]
        for name, shape in shapes.items():
            if name.startswith("layers."):
                _, number, of_layer = name.split(".", 2)
                layers[int(number)][of_layer] = shape
        self.require(layers[0] == layers[1] == layers[2], rule, "layers with different weights")

    def check_feed_forward(self) -> None:
        """Check the shape that the feed-forward sublayer returns."""
        if not isinstance(self.settings, TransformerSettings):
            return
        hidden = torch.zeros(B, L, self.settings.d_model)
        given = make_feed_forward(self.settings)(hidden)
        rule = "a feed-forward sublayer maps hidden states (B, L, d) to (B, L, d)"
        self.require(given.shape == hidden.shape, rule, f"shape {tuple(given.shape)}, not {tuple(hidden.shape)}")

    def model(self, dtype: torch.dtype = torch.float64) -> LanguageModel:
        """Return a model in evaluation mode, each of whose weights is large enough to matter."""
        return small_model(self.settings).to(dtype).eval()

    def evaluation(self, *, seg_len: int = L, mem_len: int | None = None) -> EvalSettings:
        """Return settings by which every query sees all of memory and segment."""
        mem_len = self.mem_len if mem_len is None else mem_len
        return EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=B, same_length="off")

    @torch.no_grad()
    def read_segments(self, model: LanguageModel, tokens: Tensor, seg_len: int = L) -> tuple[Tensor, Memory]:
        """Return the last hidden states (B, T, d) of tokens (B, T), read in segments, and the last memory."""
        memory = model.first_memory(len(tokens), self.mem_len)
        parts = []
        for segment in tokens.split(seg_len, dim=1):
            hidden, memory = model(segment, memory, mem_len=self.mem_len)
            parts.append(hidden)
        return torch.cat(parts, dim=1), memory

    def check_repetition(self) -> None:
        """Check that a model reads a text as it did before it read another text."""
        model = self.model()
        tokens = draw_tokens(B, 5 * L)
        expected, _ = self.read_segments(model, tokens)
        self.read_segments(model, tokens[:, L:].flip(1))
        given, _ = self.read_segments(model, tokens)
        rule = (
            "hidden states and memory depend on nothing but the tokens and the memory before, so that a text is read "
            "alike each time; state of its own, such as a count of calls in `remember`, belongs in the memory, and "
            "random numbers, as for dropout, in training alone"
        )
        self.require_equal(given, expected, rule)

    def check_dropout(self) -> None:
        """Check that dropout changes nothing in evaluation."""
        try:
            settings = replace(self.settings, dropout=0.5)
        except RecipeError:
            return  # a model without dropout
        tokens = draw_tokens(B, 3 * L)
        expected, _ = self.read_segments(self.model(), tokens)
        given, _ = self.read_segments(small_model(settings).double().eval(), tokens)
        rule = "a model drops nothing in evaluation, and has the same weights with dropout"
        self.require_equal(given, expected, rule)

    def check_memory(self, seg_len: int, mem_len: int) -> None:
        """Check what `forward` returns: hidden states, and a memory without gradient, by lanes, that becomes full."""
        model = self.model()
        count = L * max(M, mem_len)
        if self.settings.has_slots:
            count *= 4  # each slot holds several tokens
        tokens = draw_tokens(B, count)
        memory = model.first_memory(B, mem_len)
        full_shapes = []
        for segment in tokens.split(seg_len, dim=1):
            inputs = [segment, *memory]
            before = [tensor.clone() for tensor in inputs]
            hidden, memory = model(segment, memory, mem_len=mem_len)
            for tensor, copied in zip(inputs, before, strict=True):
                self.require_equal(tensor, copied, "forward changes neither its tokens nor the memory before")
            expected = (B, seg_len, self.settings.d_model)
            rule = "forward returns the last hidden states (B, L, d) and the memory"
            self.require(tuple(hidden.shape) == expected, rule, f"shape {tuple(hidden.shape)}, not {expected}")
            rule = "a memory is tensors without gradient, whose first axis is the batch"
            for tensor in memory:
                self.require(not tensor.requires_grad, rule, "one requires a gradient")
                self.require(len(tensor) == B, rule, f"one has the shape {tuple(tensor.shape)}")
            shapes = [tuple(tensor.shape) for tensor in memory]
            if model.memory_is_full(memory, mem_len):
                full_shapes.append(shapes)
        rule = (
            f"a long text in segments of {seg_len} fills a memory of M = {mem_len}, so that memory_is_full is true, or "
            "the settings have recurrent_state = True"
        )
        self.require(model.memory_is_full(memory, mem_len), rule, f"it is false of the shapes {shapes}")
        if model.memory_keeps_length(seg_len):
            rule = "a full memory keeps its length, unless memory_keeps_length is false"
            for other in full_shapes:
                self.require(other == full_shapes[-1], rule, f"{other}, then {full_shapes[-1]}")
        full = [tuple(tensor.shape) for tensor in model.full_memory(B, mem_len)]
        rule = f"full_memory has the shapes of a memory after a long text in segments of {seg_len}, with M = {mem_len}"
        self.require(full in full_shapes, rule, f"{full}, not {shapes}")

    def check_memory_lengths(self) -> None:
        """Check that the length of a full memory depends on M, and that its keys are as many as memory_keys says."""
        if self.settings.recurrent_state:
            return
        model = self.model()
        if self.settings.attention_window is None:
            shortest = min(self.memory_lengths)
            longest = max(self.memory_lengths)
            shapes = []
            for mem_len in (shortest, longest):
                shapes.append([tuple(tensor.shape) for tensor in model.full_memory(B, mem_len)])
            rule = "the length of the memory depends on M, or the settings have recurrent_state = True"
            found = f"full_memory has the shapes {shapes[0]} for M = {shortest} and for M = {longest}"
            self.require(shapes[0] != shapes[1], rule, found)
        if not isinstance(model, TransformerXL):
            return
        for mem_len in self.memory_lengths:
            given = model.pasts(model.full_memory(B, mem_len), mem_len)[0].length
            expected = self.settings.visible_memory(self.settings.memory_keys(mem_len))
            rule = f"memory_keys (settings) is the number of keys of a full memory, with M = {mem_len}"
            self.require(given == expected, rule, f"{given} keys, not {expected}")

    @torch.no_grad()
    def check_keys(self) -> None:
        """Check that each key of a memory depends on the token at its distance, as keys_are_tokens declares."""
        model = self.model()
        if not self.settings.keys_are_tokens or not isinstance(model, TransformerXL):
            return
        tokens = draw_tokens(B, 3 * L)
        states = self.first_states(model, tokens)
        count = states.shape[1]
        for distance in range(1, min(count, 3 * L) + 1):
            changed = tokens.clone()
            changed[:, -distance] = (changed[:, -distance] + 1) % V
            own = self.first_states(model, changed)[:, count - distance]
            depends = not torch.equal(own, states[:, count - distance])
            rule = "each key of a memory belongs to one token, at its distance, or keys_are_tokens is false"
            self.require(depends, rule, f"key {distance} from the end does not change with the token at this distance")

    def first_states(self, model: TransformerXL, tokens: Tensor) -> Tensor:
        """Return the hidden states (B, x, d) that the first layer attends to after tokens (B, T)."""
        _, memory = self.read_segments(model, tokens)
        return model.pasts(memory, self.mem_len)[0].remembered

    def check_causality(self) -> None:
        """Check that a hidden state depends on tokens before it and on its own lane only."""
        model = self.model()
        tokens = draw_tokens(B, 3 * L)
        expected, _ = self.read_segments(model, tokens)
        for position in range(L, 2 * L):
            changed = tokens.clone()
            changed[:, position] = (changed[:, position] + 1) % V
            hidden, _ = self.read_segments(model, changed)
            rule = "a hidden state depends on no later token"
            self.require_equal(hidden[:, :position], expected[:, :position], rule)
        for lane in range(B):
            alone, _ = self.read_segments(model, tokens[lane : lane + 1])
            self.require_equal(alone, expected[lane : lane + 1], "no lane depends on another")

    def check_reading(self, seg_len: int) -> None:
        """Check that readers give what `forward` gives, by segments and by parts of them."""
        model = self.model()
        tokens = draw_tokens(B, 5 * L + 2)
        expected, _ = self.read_segments(model, tokens, seg_len)
        evaluation = self.evaluation(seg_len=seg_len)
        by_segments = read_parts(make_reader(model, evaluation), tokens, [seg_len])
        rule = "a reader by segments, which calls read_part and computes score terms once, gives what `forward` gives"
        self.require_equal(by_segments, expected, rule)
        rule = (
            "a segment that is read token by token has the hidden states of the whole segment and leaves its memory: a "
            "sublayer that mixes positions needs those before the call, too, and the memory changes at the end of the "
            "segment (the contract of memory in LanguageModel and TransformerXL.remember)"
        )
        if self.settings.recurrent_state:
            rule = (
                "a segment that is read token by token has the hidden states of the whole segment: all that a token "
                "needs of those before is in the memory, in the dtype of the model (the contract of memory in "
                "LanguageModel)"
            )
        for lengths in ([1], [seg_len - 1, 1], [1, seg_len]):
            reader = make_reader(model, evaluation, by_tokens=True)
            self.require_equal(read_parts(reader, tokens, lengths), expected, rule)
        text = tokens[:1]
        reader = reader_of_one_text(model, evaluation)
        if reader.by_tokens or self.settings.recurrent_state:  # else each token sees M tokens, whatever a segment is
            self.require_equal(read_parts(reader, text, [1]), expected[:1], rule)

    def check_windows(self) -> None:
        """Check that a window is read from an empty memory, at once and token by token."""
        if self.settings.recurrent_state:
            return
        model = self.model()
        tokens = draw_tokens(1, 3 * L)
        reader = reader_of_one_text(model, self.evaluation(mem_len=0))
        for end in range(1, tokens.shape[1] + 1):
            window = tokens[:, max(0, end - L) : end]
            with torch.no_grad():
                expected, memory = model(window, model.first_memory(1, 0), mem_len=0)
                after, _ = model(window, memory, mem_len=0)
            rule = "with M = 0, nothing is left of a segment, or the settings have recurrent_state = True"
            self.require_equal(after, expected, rule)
            hidden = reader.read(tokens[:, end - 1 : end])
            self.require_equal(hidden, expected[:, -1:], "a window that is read token by token equals the whole window")

    @torch.no_grad()
    def check_predictions(self) -> None:
        """Check that losses, likeliest tokens and a copy for decoding follow the log-probabilities."""
        model = self.model()
        targets = draw_tokens(B, L)
        hidden, _ = self.read_segments(model, targets.flip(1))
        hot = model.on(temperature=2.0)
        for predicting in (model, hot):
            log_probs = predicting.log_probs(hidden)
            total = log_probs.exp().sum(-1)
            self.require_equal(total, torch.ones(B, L).to(total), "the probabilities of all tokens have the sum 1")
            expected = -log_probs.gather(-1, targets[:, :, None])[:, :, 0]
            rule = "a loss is the negative log-probability of its target: `losses` and `log_probs` compute the same"
            self.require_equal(predicting.losses(hidden, targets), expected, rule)
            rule = "`softmax.mean_loss` is the mean of `losses`"
            self.require_equal(predicting.softmax.mean_loss(hidden, targets), expected.mean(), rule)
            rule = "`softmax.mean_loss` leaves out positions whose weight is 0, such as padding"
            weights = (torch.arange(L) < L - 1).float()
            of_others = predicting.softmax.mean_loss(hidden, targets, weights=weights)
            self.require_equal(of_others, expected[:, :-1].mean(), rule, atol=1e-6)
            of_first = log_probs[0, 0]
            for count in (1, V // 2):
                scores, tokens = predicting.softmax.likeliest(hidden[0, :1], count)
                rule = "`softmax.likeliest` finds the likeliest tokens of `log_probs`"
                self.require_equal(scores, of_first.topk(count).values, rule)
                self.require_equal(of_first[tokens], scores, rule)
            copied = predicting.softmax.for_decoding(torch.float32)
            given = copied.log_probs(hidden.flatten(0, 1).float())
            rule = "`softmax.for_decoding`, a copy in another dtype, predicts what the softmax predicts"
            self.require_equal(given, log_probs.flatten(0, 1), rule, atol=1e-3)
        changes = not torch.equal(hot.log_probs(hidden), model.log_probs(hidden))
        self.require(changes, "the softmax divides its logits by `backend.temperature`", "they do not change with it")

    @torch.no_grad()
    def check_objective(self) -> None:
        """Check that a training step has the loss of what `forward` returns in evaluation, and its memory."""
        model = self.model()
        memory = model.first_memory(B, self.mem_len)
        rule = (
            "without dropout, a training step has the loss and the memory of evaluation: `objective` and `forward` "
            "compute the same; random numbers in training need a setting that turns them off, which the check is given"
        )
        stream = draw_tokens(B, 4 * L + 1)
        for segment, targets in zip(stream[:, :-1].split(L, dim=1), stream[:, 1:].split(L, dim=1), strict=True):
            hidden, after = model.eval()(segment, memory, mem_len=self.mem_len)
            expected = model.losses(hidden, targets).mean()
            _, loss, memory = model.train().objective(segment, targets, memory, Objective(mem_len=self.mem_len))
            for own, other in zip((loss, *memory), (expected, *after), strict=True):
                self.require_equal(own, other, rule)

    def check_gradients(self) -> None:
        """Check that gradients in float32 are those in float64, and that every weight has one."""
        exact = self.model().train()
        rounded = copy.deepcopy(exact).to(torch.float32)
        for model in (exact, rounded):
            memory = model.full_memory(B, self.mem_len)
            for segment in draw_tokens(B, 4 * L).split(L, dim=1):
                objective, _, memory = model.objective(segment, segment, memory, Objective(mem_len=self.mem_len))
                objective.backward()
        for (name, weight), rounded_weight in zip(exact.named_parameters(), rounded.parameters(), strict=True):
            if weight.grad is None or rounded_weight.grad is None:
                rule = "every weight has a gradient, unless the model has idle weights (has_idle_weights)"
                self.require(exact.has_idle_weights, rule, f"{name} has none")
                continue
            size = float(weight.grad.abs().max())
            error = float((rounded_weight.grad - weight.grad).abs().max())
            rule = "gradients in float32 equal those in float64 up to rounding, without random numbers"
            self.require(error <= 1e-3 * size + 1e-5, rule, f"{name} is off by {error:.1e} of {size:.1e}")

    def check_padded_rows(self) -> None:
        """Check that rows that end in zeros, as compiled layers have them on CUDA, change nothing."""
        model = self.model()
        if not isinstance(model, TransformerXL):
            return
        expected = self.objective_and_gradients(model)
        with use_row_multiple(CUDA_MULTIPLE), torch.compiler.set_stance("force_eager"):
            given = self.objective_and_gradients(self.model().on(compiles=True))
        rule = "rows that end in zeros change nothing and stay so, or reads_padded_rows is false"
        for own, other in zip(given, expected, strict=True):
            self.require_equal(own, other, rule)

    def objective_and_gradients(self, model: LanguageModel) -> list[Tensor]:
        """Return the objective of a segment after a full memory, and the gradients of the weights that have one."""
        tokens = draw_tokens(B, L)
        memory = model.full_memory(B, self.mem_len)
        objective, _, _ = model.objective(tokens, tokens, memory, Objective(mem_len=self.mem_len))
        objective.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        return [objective.detach(), *gradients]

    @torch.no_grad()
    def check_resets(self) -> None:
        """Check that documents that begin within segments have the losses that they have alone."""
        model = self.model()
        if self.settings.reset_obstacle is not None or not model.supports_reset:
            return
        count = 6 * L  # so that positions of the second documents leave the memory
        tokens = draw_tokens(B, count + 1)
        begins = torch.arange(B)[:, None] + L + 1  # of the second document of each lane
        position = torch.arange(count)
        since_reset = torch.where(position < begins, position, position - begins)
        memory = model.first_memory(B, self.mem_len)
        together = torch.zeros((), dtype=torch.float64)
        for first in range(0, count, L):
            segment = tokens[:, first : first + L + 1]
            goal = Objective(mem_len=self.mem_len, since_reset=since_reset[:, first : first + L])
            _, loss, memory = model.objective(segment[:, :-1], segment[:, 1:], memory, goal)
            together += loss * B * L
        alone = torch.zeros((), dtype=torch.float64)
        for lane, begin in enumerate(begins.flatten().tolist()):
            alone += self.loss_alone(model, tokens[lane], 0, begin)
            alone += self.loss_alone(model, tokens[lane], begin, count)
        rule = "a document that begins within a segment has the loss that it has alone, or supports_reset is false"
        self.require_equal(together, alone, rule)

    def loss_alone(self, model: LanguageModel, tokens: Tensor, first: int, end: int) -> Tensor:
        """Return the loss (0-d) of the inputs from `first` up to `end` of tokens (T,), read in the text's segments."""
        memory = model.first_memory(1, self.mem_len)
        total = torch.zeros((), dtype=torch.float64)
        while first < end:
            stop = min(end, first - first % L + L)
            hidden, memory = model(tokens[None, first:stop], memory, mem_len=self.mem_len)
            total += model.losses(hidden, tokens[None, first + 1 : stop + 1]).sum()
            first = stop
        return total

    @torch.no_grad()
    def check_rereading(self) -> None:
        """Check that a memory ends before the positions that the next segment reads again."""
        if not self.settings.supports_reread or self.settings.absolute_positions:
            return
        model = self.model()
        reread_len = L // 2
        goal = Objective(mem_len=self.mem_len, reread_len=reread_len)
        tokens = draw_tokens(B, 4 * L)
        memory = model.first_memory(B, self.mem_len)
        for first in range(0, 4 * L, L):
            predicted = tokens[:, first : first + L]
            read = tokens[:, max(0, first - reread_len) : first + L]
            _, expected = model(read[:, :-reread_len], memory, mem_len=self.mem_len)
            _, _, memory = model.objective(read, predicted, memory, goal)
            rule = "the memory leaves out the tokens that the next segment reads again, or supports_reread is false"
            for own, other in zip(memory, expected, strict=True):
                self.require_equal(own, other, rule)

    def check_training(self) -> None:
        """Check that a resumed training run equals a whole one, and that a file has all weights."""
        with tempfile.TemporaryDirectory() as directory:
            whole, resumed = whole_and_resumed(Path(directory), self.settings, self.train_settings())
            rule = "a resumed training run equals an uninterrupted one, so that all state is in memory and optimizer"
            self.require_same_weights(resumed.model, whole.model, rule)
            again = checkpoint.build_model(self.settings, V, checkpoint.load(resumed.saver.last_path)).eval()
            tokens = draw_tokens(B, 3 * L)
            expected, _ = self.read_segments(resumed.model.eval(), tokens)
            given, _ = self.read_segments(again, tokens)
            self.require_equal(given, expected, "all that a model predicts with is in its parameters", atol=0.0)

    def check_fixed_places(self) -> None:
        """Check that a captured training run equals an eager one."""
        rule = "a step on tensors of fixed places, as a CUDA graph takes it, equals an eager one"
        self.require_captured_steps(rule, seg_len_jitter=False)

    def check_padding(self) -> None:
        """Check that a captured run, which pads jittered segments, equals an eager one."""
        if self.settings.fixed_segments or self.settings.recurrent_state:
            return
        learned = self.settings.longest_window
        if learned is not None and learned < L + JITTER_MARGIN:
            return  # the settings of the caller have too few positions for the longest segment
        rule = (
            "a padded segment (train.seg_len_jitter) trains like the segment without padding; "
            "`remember` leaves padding out by goal.seg_len, or memory_skips_padding is false"
        )
        self.require_captured_steps(rule, seg_len_jitter=True)

    def require_captured_steps(self, rule: str, *, seg_len_jitter: bool) -> None:
        """Raise a ContractError unless a captured training run and an eager one in float64 are equal.

        Adam would divide rounding errors by the size of the smallest gradients.
        """
        settings = self.train_settings(optimizer="sgd", lr=0.5, seg_len_jitter=seg_len_jitter)
        runs: list[Training] = []
        with tempfile.TemporaryDirectory() as directory:
            for capture_graph in (None, call_again):
                model = new_model(self.settings, V, seed=settings.seed, device=checkpoint.CPU).double()
                run = small_run(Path(directory, f"run{len(runs)}"), model, settings, capture_graph=capture_graph)
                finish(run)
                runs.append(run)
        eager, captured = runs
        self.require_same_weights(captured.model, eager.model, rule, atol=1e-7)

    def train_settings(self, **changed: object) -> TrainSettings:
        """Return settings of a training run of a few steps, with Adam unless another optimizer is given."""
        return small_train_settings(**{"mem_len": self.mem_len, **changed})

    @torch.no_grad()
    def check_export(self) -> None:
        """Check that a program that was exported, saved and loaded predicts what the model predicts."""
        if self.settings.arch != "transformer":
            return  # `txl export` writes no other model
        model = self.model(torch.float32)
        assert isinstance(model, TransformerXL)
        saved = io.BytesIO()
        torch.export.save(export_program(model, self.evaluation()), saved)
        program = torch.export.load(saved).module()
        tokens = draw_tokens(B, 5 * L)
        hidden, _ = self.read_segments(model, tokens)
        expected = model.log_probs(hidden)
        memory = model.full_memory(B, self.mem_len)
        held = memory[0].shape[1]
        first = held if model.memory_starts_full else 0
        parts = []
        for number, segment in enumerate(tokens.split(L, dim=1)):
            remembered = torch.tensor(min(first + number * L, held))
            log_probs, memory = program(segment, torch.tensor(L), remembered, memory)
            parts.append(log_probs)
        rule = "an exported program predicts what the model predicts"
        self.require_equal(torch.cat(parts, dim=1), expected, rule, atol=1e-3)

    def check_operations(self) -> None:
        """Check the count of operations per token against PyTorch's count."""
        if self.settings.recurrent_state and not self.settings.has_attention:
            formula = evaluation_flops_per_token(self.settings, V, self.evaluation())
            self.require_operations(self.counted_reading(), formula, 1.05)
            seg_len = 4 * L  # the first state has no gradient, which saves a share of 1 / L
            train = TrainSettings(seg_len=seg_len, mem_len=0, batch_size=B, max_steps=1)
            formula = step_flops_per_token(self.settings, V, train)
            self.require_operations(self.counted_training(seg_len, 0), formula, 1.05)
            return
        seg_len = 1
        largest = 1.05
        if self.settings.fixed_segments:
            # A query of a longer segment is multiplied by keys that it does not see, which the formula leaves out.
            seg_len = L
            largest = 1.2
        if self.settings.cutoffs:
            # The embedding projects all tokens in each band; the formula counts the frequent tokens of a text.
            largest = 1.2
        for mem_len in self.memory_lengths:
            train = TrainSettings(seg_len=seg_len, mem_len=mem_len, batch_size=B, max_steps=1)
            formula = step_flops_per_token(self.settings, V, train)
            self.require_operations(self.counted_training(seg_len, mem_len), formula, largest)
        if ARCHITECTURES[self.settings.arch].reader == "keys":
            for mem_len in self.memory_lengths:
                evaluation = self.evaluation(seg_len=1, mem_len=mem_len)
                formula = evaluation_flops_per_token(self.settings, V, evaluation)
                self.require_operations(self.counted_decoding(evaluation), formula, largest)
            window = self.evaluation(mem_len=0)
            formula = window_flops_per_prediction(self.settings, V, window)
            # A query of a window is multiplied by keys that it does not see.
            self.require_operations(self.counted_window(window), formula, 1.2)

    def require_operations(self, counted: float, formula: float, largest: float) -> None:
        """Raise a ContractError unless the count is a share of the formula between 0.95 and `largest`."""
        rule = "the count of operations (`products`) equals that of PyTorch"
        found = f"{formula:,.0f} per token by formula, {counted:,.0f} counted"
        self.require(0.95 <= counted / formula <= largest, rule, found)

    @torch.no_grad()
    def counted_reading(self) -> float:
        """Return PyTorch's count of the operations per token of reading and scoring a segment."""
        model = self.model()  # in float64, PyTorch counts the products of an LSTM
        tokens = draw_tokens(B, L)
        with FlopCounterMode(display=False) as counter:
            hidden, _ = model(tokens, model.first_memory(B, 0), mem_len=0)
            model.losses(hidden, tokens)
        return counter.get_total_flops() / tokens.numel()

    @torch.no_grad()
    def counted_decoding(self, evaluation: EvalSettings) -> float:
        """Return PyTorch's count of the operations of reading and scoring one token with a full memory."""
        reader = make_reader(self.model().on(attention="reference"), evaluation)
        tokens = draw_tokens(B, evaluation.mem_len + 2)
        read_parts(reader, tokens[:, :-1], [1])
        with FlopCounterMode(display=False) as counter:
            reader.model.losses(reader.read(tokens[:, -1:]), tokens[:, -1:])
        return counter.get_total_flops() / B

    @torch.no_grad()
    def counted_window(self, evaluation: EvalSettings) -> float:
        """Return PyTorch's count of the operations of reading a window of L tokens and scoring the token after it."""
        reader = make_reader(self.model().on(attention="reference"), evaluation)
        tokens = draw_tokens(B, evaluation.seg_len)
        with FlopCounterMode(display=False) as counter:
            reader.model.losses(reader.read_last(tokens), tokens[:, -1:])
        return counter.get_total_flops() / B

    def counted_training(self, seg_len: int, mem_len: int) -> float:
        """Return PyTorch's count of the operations per token of training on segments with a full memory."""
        model = self.model()
        if isinstance(model, TransformerXL):
            model = model.on(attention="reference")
        model.train()
        memory = model.full_memory(B, mem_len)
        tokens = draw_tokens(B, 4 * seg_len)
        with FlopCounterMode(display=False) as counter:
            for segment in tokens.split(seg_len, dim=1):
                objective, _, memory = model.objective(segment, segment, memory, Objective(mem_len=mem_len))
                objective.backward()
        return counter.get_total_flops() / tokens.numel()
