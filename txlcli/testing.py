"""Checks of an architecture or an encoding, of txl or of your own, as scikit-learn's `check_estimator` checks a class.

A check builds a small model with random weights, trains it, saves it and reads with it. It raises a `ContractError` for
the first rule of `docs/extending.md` that the class breaks.

Axes: B batch, L segment, M memory, d model width, V vocabulary.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from txlcli.config.model_settings import MODELS, ModelSettings, TransformerSettings
from txlcli.config.settings import JITTER_MARGIN, EvalSettings, TrainSettings
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.core.architectures.registry import make_model
from txlcli.core.backend import ScoreTerms
from txlcli.core.measures.cost import evaluation_flops_per_token, step_flops_per_token
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.core.training import checkpoint
from txlcli.core.training.loop import Training, new_model
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import TrainingSegments
from txlcli.errors import TxlError, UnknownNameError, UsageError

V = 19
B = 3
L = 4
M = 6
LANES = 4
STEPS = 6
SMALL = {
    "n_layers": 2,
    "d_model": 12,
    "n_heads": 3,
    "d_head": 8,
    "d_inner": 18,
    "n_positions": L + JITTER_MARGIN,
    "compressed_len": 3,
    "compression_rate": 2,
    "segment_len": L,
    "n_memory_tokens": 2,
}
"""Values of settings without a default, and of those whose default is too large for a small model."""


class ContractError(TxlError):
    """A class breaks a rule that training or readers rely on."""

    def __init__(self, name: str, rule: str, found: str) -> None:
        self.name = name
        self.rule = rule
        self.found = found
        super().__init__(f'"{name}" breaks a contract: {rule}; {found}; see docs/extending.md')


def check_architecture(name: str, **settings: object) -> None:
    """Check a registered architecture.

    Args:
        name: the value of `model.arch`.
        settings: of the small model that is checked. Those without a default must be given, unless txl has them, too.

    Raises:
        ContractError: a rule is broken, or the class raises an error, which is the cause.
        UnknownNameError: no such architecture is registered.
        UsageError: a setting asks for dropout.
    """
    if name not in MODELS:
        raise UnknownNameError("architecture", name, MODELS)
    _Check(name, small_settings(name, settings)).run()


def check_encoding(name: str, **settings: object) -> None:
    """Check a registered encoding in the model of the paper; see `check_architecture`."""
    if name not in ENCODING_TRAITS:
        raise UnknownNameError("encoding", name, ENCODING_TRAITS)
    given = {"position": name, **settings}
    if ENCODING_TRAITS[name].learned_vectors:
        given.setdefault("n_positions", SMALL["n_positions"])
    _EncodingCheck(name, small_settings("transformer", given)).run()


def small_settings(name: str, given: dict[str, object]) -> ModelSettings:
    """Return settings of a small model of an architecture, without dropout."""
    for key, value in given.items():
        if key.endswith("dropout") and value:
            raise UsageError(f"{key} must be 0: the checks compare what a model computes twice")
    cls = MODELS[name]
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name in SMALL and (is_required or field.name in ("compression_rate", "n_memory_tokens")):
            values[field.name] = SMALL[field.name]
    # Without dropout, so that the same text gives the same numbers.
    return cls(**{"arch": name, "dropout": 0.0, **values, **given})  # type: ignore[arg-type]


class _Check:
    """The rules of an architecture, one method each."""

    def __init__(self, name: str, settings: ModelSettings) -> None:
        self.name = name
        self.settings = settings
        self.mem_len = 0 if settings.recurrent_state else M

    def run(self) -> None:
        """Check all rules."""
        self.attempt(self.model, "a model is made from its settings and the size of a vocabulary")
        self.attempt(self.check_memory, "forward reads one segment after another")
        self.attempt(self.check_causality, "forward reads any tokens")
        self.attempt(self.check_reading, "readers read a text by segments and by tokens")
        self.attempt(self.check_windows, "a window is read from an empty memory")
        self.attempt(self.check_gradients, "an objective has gradients, with a full memory")
        self.attempt(self.check_training, "a training run is saved and resumed")
        self.attempt(self.check_fixed_places, "a step runs on tensors of fixed places, as a CUDA graph takes it")
        self.attempt(self.check_padding, "a padded segment is trained on (train.seg_len_jitter)")
        self.attempt(self.check_operations, "operations are counted (`products`)")

    def attempt(self, check: Callable[[], object], rule: str) -> None:
        """Run a check; an error of the class that is checked breaks this rule."""
        try:
            check()
        except TxlError:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            raise ContractError(self.name, rule, f"{type(error).__name__}: {first_line}") from error

    def require(self, is_kept: bool, rule: str, found: str) -> None:
        """Raise a ContractError unless a rule is kept."""
        if not is_kept:
            raise ContractError(self.name, rule, found)

    def require_equal(self, given: Tensor, expected: Tensor, rule: str, *, atol: float = 1e-9) -> None:
        """Raise a ContractError unless two tensors are equal up to rounding."""
        self.require(given.shape == expected.shape, rule, f"shape {tuple(given.shape)}, not {tuple(expected.shape)}")
        difference = (given - expected).detach()
        error = float(difference.abs().max()) if difference.numel() else 0.0
        self.require(error <= atol, rule, f"the largest difference is {error:.1e}")

    def model(self, dtype: torch.dtype = torch.float64) -> LanguageModel:
        """Return a model in evaluation mode, each of whose weights is large enough to matter."""
        with torch.random.fork_rng([]), torch.no_grad():
            torch.manual_seed(1)
            model = make_model(self.settings, V)
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)
        return model.to(dtype).eval()

    def evaluation(self, *, seg_len: int = L, mem_len: int | None = None, batch_size: int = B) -> EvalSettings:
        """Return settings by which every query sees all of memory and segment."""
        mem_len = self.mem_len if mem_len is None else mem_len
        return EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=batch_size, same_length="off")

    @torch.no_grad()
    def read_segments(self, model: LanguageModel, tokens: Tensor, mem_len: int) -> tuple[Tensor, Memory]:
        """Return the last hidden states (B, T, d) of tokens (B, T), read in segments of L, and the last memory."""
        memory = model.first_memory(len(tokens), mem_len)
        parts = []
        for segment in tokens.split(L, dim=1):
            hidden, memory = model(segment, memory, mem_len=mem_len)
            parts.append(hidden)
        return torch.cat(parts, dim=1), memory

    def check_memory(self) -> None:
        """Check what `forward` returns: hidden states, and a memory without gradient, by lanes, that becomes full."""
        model = self.model()
        tokens = draw_tokens(B, 6 * L)
        memory = model.first_memory(B, self.mem_len)
        full_shapes = []
        for segment in tokens.split(L, dim=1):
            hidden, memory = model(segment, memory, mem_len=self.mem_len)
            expected = (B, L, self.settings.d_model)
            rule = "forward returns the last hidden states (B, L, d) and the memory"
            self.require(tuple(hidden.shape) == expected, rule, f"shape {tuple(hidden.shape)}, not {expected}")
            rule = "a memory is tensors without gradient, whose first axis is the batch"
            for tensor in memory:
                self.require(not tensor.requires_grad, rule, "one requires a gradient")
                self.require(len(tensor) == B, rule, f"one has the shape {tuple(tensor.shape)}")
            shapes = [tuple(tensor.shape) for tensor in memory]
            if model.memory_is_full(memory, self.mem_len):
                full_shapes.append(shapes)
        if model.memory_keeps_length(L):
            rule = "a full memory keeps its length, unless memory_keeps_length is false"
            for other in full_shapes:
                self.require(other == full_shapes[-1], rule, f"{other}, then {full_shapes[-1]}")
        full = [tuple(tensor.shape) for tensor in model.full_memory(B, self.mem_len)]
        rule = "full_memory has the shapes of a memory after a long text"
        self.require(shapes == full, rule, f"{full}, not {shapes}")
        rule = "memory_is_full is true of a memory after a long text"
        self.require(model.memory_is_full(memory, self.mem_len), rule, "it is false")

    def check_causality(self) -> None:
        """Check that a hidden state depends on tokens before it and on its own lane only."""
        model = self.model()
        tokens = draw_tokens(B, 3 * L)
        expected, _ = self.read_segments(model, tokens, self.mem_len)
        for position in range(L, 2 * L):
            changed = tokens.clone()
            changed[:, position] = (changed[:, position] + 1) % V
            hidden, _ = self.read_segments(model, changed, self.mem_len)
            rule = "a hidden state depends on no later token"
            self.require_equal(hidden[:, :position], expected[:, :position], rule)
        alone, _ = self.read_segments(model, tokens[:1], self.mem_len)
        self.require_equal(alone, expected[:1], "no lane depends on another")

    def check_reading(self) -> None:
        """Check that readers give what `forward` gives, by segments and by parts of them."""
        model = self.model()
        tokens = draw_tokens(B, 5 * L + 2)
        expected, _ = self.read_segments(model, tokens, self.mem_len)
        reader = make_reader(model, self.evaluation())
        by_segments = read_parts(reader, tokens, [L])
        self.require_equal(by_segments, expected, "a reader by segments gives what `forward` gives")
        rule = (
            "a segment that is read token by token leaves the memory that the whole segment leaves "
            "(the contract of memory in LanguageModel and TransformerXL.remember)"
        )
        for lengths in ([1], [L - 1, 1], [1, L]):
            reader = make_reader(model, self.evaluation(), by_tokens=True)
            self.require_equal(read_parts(reader, tokens, lengths), expected, rule)
        text = tokens[:1]
        one = reader_of_one_text(model, self.evaluation())
        if one.by_tokens or self.settings.recurrent_state:  # else each token sees M tokens, whatever a segment is
            self.require_equal(read_parts(one, text, [1]), expected[:1], rule)

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
            self.require_equal(after, expected, "with M = 0, nothing is left of a segment")
            hidden = reader.read(tokens[:, end - 1 : end])
            self.require_equal(hidden, expected[:, -1:], "a window that is read token by token equals the whole window")

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
            rule = "gradients in float32 equal those in float64 up to rounding"
            self.require(error <= 1e-3 * size + 1e-5, rule, f"{name} is off by {error:.1e} of {size:.1e}")

    def check_training(self) -> None:
        """Check that a resumed training run equals a whole one, and that a file has all weights."""
        with tempfile.TemporaryDirectory() as directory:
            whole = self.training(Path(directory, "whole"))
            finish(whole)
            first = self.training(Path(directory, "parts"))
            finish(first, STEPS // 2)
            saved = checkpoint.load(first.saver.last_path)
            resumed = self.training(Path(directory, "parts"), checkpoint.build_model(self.settings, V, saved))
            resumed.restore(saved)
            finish(resumed)
            self.require_same_weights(resumed, whole, "a resumed training run equals an uninterrupted one")
            again = checkpoint.build_model(self.settings, V, checkpoint.load(resumed.saver.last_path)).eval()
            tokens = draw_tokens(B, 3 * L)
            expected, _ = self.read_segments(resumed.model.eval(), tokens, self.mem_len)
            given, _ = self.read_segments(again, tokens, self.mem_len)
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
        runs: list[Training] = []
        with tempfile.TemporaryDirectory() as directory:
            for capture_graph in (None, call_again):
                run = self.training(
                    Path(directory, f"run{len(runs)}"),
                    capture_graph=capture_graph,
                    dtype=torch.float64,
                    optimizer="sgd",
                    lr=0.5,
                    seg_len_jitter=seg_len_jitter,
                )
                finish(run)
                runs.append(run)
        eager, captured = runs
        self.require_same_weights(captured, eager, rule, atol=1e-7)

    def training(
        self,
        directory: Path,
        model: LanguageModel | None = None,
        *,
        capture_graph: Callable[..., object] | None = None,
        dtype: torch.dtype = torch.float32,
        optimizer: str = "adam",
        lr: float = 1e-2,
        seg_len_jitter: bool = False,
    ) -> Training:
        """Return a training run of a few steps, which saves in a directory."""
        directory.mkdir(exist_ok=True)
        settings = TrainSettings(
            seg_len=L,
            mem_len=self.mem_len,
            batch_size=LANES,
            max_steps=STEPS,
            optimizer=optimizer,
            lr=lr,
            warmup_steps=0,
            seg_len_jitter=seg_len_jitter,
        )
        ids = draw_tokens(1, LANES * (STEPS + 2) * settings.padded_segment + 1)[0].numpy().astype(np.int64)
        if model is None:
            model = new_model(self.settings, V, seed=settings.seed, device=torch.device("cpu")).to(dtype)
        segments = TrainingSegments(ids, settings)
        return Training(model, settings, segments, saver=Saver(directory), capture_graph=capture_graph)  # type: ignore[arg-type]

    def require_same_weights(self, given: Training, expected: Training, rule: str, *, atol: float = 0.0) -> None:
        """Raise a ContractError unless two training runs end with the same weights."""
        weights = dict(expected.model.named_parameters())
        for name, weight in given.model.named_parameters():
            self.require_equal(weight, weights[name], f"{rule} ({name})", atol=atol)

    def check_operations(self) -> None:
        """Check the count of operations against PyTorch's count."""
        counted, formula, margin = self.operations()
        rule = "the count of operations (`products`) equals that of PyTorch"
        share = counted / formula
        self.require(0.95 <= share <= 1 + margin, rule, f"{formula:,.0f} per token by formula, {counted:,.0f} counted")

    def operations(self) -> tuple[float, float, float]:
        """Return the operations per token as PyTorch counts them and by formula, and the share that may be more."""
        model = self.model()  # in float64, PyTorch counts the products of an LSTM
        if isinstance(model, TransformerXL):
            model = model.on(attention="reference")
        if self.settings.recurrent_state and not self.settings.has_attention:
            # The first state has no gradient, so that forward passes are compared.
            settings = self.evaluation()
            tokens = draw_tokens(B, L)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                hidden, _ = model(tokens, model.first_memory(B, 0), mem_len=0)
                model.losses(hidden, tokens)
            return counter.get_total_flops() / tokens.numel(), self.evaluation_flops(settings), 0.05
        # A query of a longer segment is multiplied by keys that it does not see, which the formula leaves out.
        seg_len = L if self.settings.fixed_segments else 1
        model.train()
        memory = model.full_memory(B, self.mem_len)
        tokens = draw_tokens(B, 4 * seg_len)
        with FlopCounterMode(display=False) as counter:
            for segment in tokens.split(seg_len, dim=1):
                objective, _, memory = model.objective(segment, segment, memory, Objective(mem_len=self.mem_len))
                objective.backward()
        train = TrainSettings(seg_len=seg_len, mem_len=self.mem_len, batch_size=B, max_steps=1)
        formula = step_flops_per_token(self.settings, V, train)
        return counter.get_total_flops() / tokens.numel(), formula, 0.05 if seg_len == 1 else 0.2

    def evaluation_flops(self, settings: EvalSettings) -> float:
        """Return the operations of one token by formula."""
        return evaluation_flops_per_token(self.settings, V, settings)


class _EncodingCheck(_Check):
    """The rules of an encoding."""

    settings: TransformerSettings

    def run(self) -> None:
        """Check all rules, those that concern encodings alone first."""
        self.attempt(self.model, "a model is made with the encoding, whose settings are its only argument")
        self.attempt(self.check_terms, "score_terms(reach, max_distance=..., like=...) returns terms of each layer")
        self.attempt(self.check_positions, "an encoding adds to hidden states by their positions")
        self.attempt(self.check_backends, "an encoding works on the fast path and by the definition of attention")
        super().run()

    def check_terms(self) -> None:
        """Check the shapes of the score terms, and that near distances depend neither on `reach` nor on a limit."""
        reach = L + M
        far = self.score_terms(reach)
        near = self.score_terms(L)
        rule = "the term of a distance does not depend on `reach`"
        for own, other in zip(far, near, strict=True):
            self.require_equal_terms(own.position_key, other.position_key, 1, rule)
            self.require_equal_terms(own.distance_bias, other.distance_bias, L, rule)
        if ENCODING_TRAITS[self.name].limits_distance:
            self.check_limit(far, L // 2)

    def score_terms(self, reach: int, max_distance: int | None = None) -> list[ScoreTerms]:
        """Return the score terms of each layer, whose shapes are right."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        terms = model.score_terms(reach, max_distance=max_distance)
        n_layers = self.settings.n_layers
        n_heads = self.settings.n_heads
        rule = "score_terms returns terms of each layer, whose rows are distances with the farthest first"
        self.require(len(terms) == n_layers, rule, f"{len(terms)} terms, not {n_layers}")
        for added in terms:
            self.require(added.reach == reach, rule, f"reach is {added.reach}, not {reach}")
            if added.position_key is not None:
                shape = tuple(added.position_key.shape)
                rows = shape[1] if len(shape) == 3 else 0
                is_right = rows <= reach and shape == (n_heads, rows, self.settings.d_head)
                self.require(is_right, rule, f"a position key has the shape {shape}")
            if added.distance_bias is not None:
                shape = tuple(added.distance_bias.shape)
                self.require(shape == (n_heads, reach), rule, f"a bias by distance has {shape}")
        return terms

    def require_equal_terms(self, own: Tensor | None, other: Tensor | None, count: int, rule: str) -> None:
        """Raise a ContractError unless two terms (H, n, ...) are equal at the nearest distances."""
        self.require((own is None) == (other is None), rule, "it has no value in one of two cases")
        if own is not None and other is not None:
            self.require_equal(own[:, -count:], other[:, -count:], rule)

    def check_limit(self, unlimited: list[ScoreTerms], max_distance: int) -> None:
        """Check that distances beyond `max_distance` share one term, as `limits_distance` declares."""
        rule = "with limits_distance, distances beyond max_distance share one term, and the others do not change"
        for own, added in zip(self.score_terms(L + M, max_distance), unlimited, strict=True):
            biases = (own.distance_bias, added.distance_bias)
            keys = (own.position_key, added.position_key)
            for limited, other in (biases, keys):
                self.require_equal_terms(limited, other, max_distance + 1, rule)
                if limited is not None:
                    beyond = limited[:, : -max_distance - 1]
                    shared = limited[:, -max_distance - 1 :][:, :1]
                    self.require_equal(beyond, shared.expand_as(beyond), rule)

    @torch.no_grad()
    def check_positions(self) -> None:
        """Check that an encoding is declared to have absolute positions if hidden states depend on them."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        hidden = torch.randn(B, L, self.settings.d_model, dtype=torch.float64)
        positions = torch.arange(L)
        found = []
        for moved in (positions, positions + L):
            embedded = model.encoding.add_to_embedding(hidden.clone(), moved)
            found.append(model.encoding.add_to_layer_input(embedded, 0, moved))
        is_absolute = not torch.equal(*found)
        declared = ENCODING_TRAITS[self.name].absolute_positions
        rule = "absolute_positions is true of an encoding whose hidden states depend on positions in the segment"
        self.require(is_absolute == declared, rule, f"it is {declared}")

    def check_backends(self) -> None:
        """Check that the fast path computes what the definition of attention computes, with its gradients."""
        rule = "the fast path equals the definition of attention"
        tokens = draw_tokens(B, L)
        found = []
        for backend in ("reference", "auto"):
            model = self.model()
            assert isinstance(model, TransformerXL)
            model = model.on(attention=backend)
            memory = model.full_memory(B, M)
            objective, _, _ = model.objective(tokens, tokens, memory, Objective(mem_len=M))
            objective.backward()
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            found.append([objective, *gradients])
        for given, expected in zip(*found, strict=True):
            self.require_equal(given, expected, rule)


def draw_tokens(lanes: int, count: int) -> Tensor:
    """Return random tokens (lanes, count)."""
    return torch.randint(V, (lanes, count), generator=torch.Generator().manual_seed(2))


def read_parts(reader: Reader, tokens: Tensor, lengths: list[int]) -> Tensor:
    """Return the last hidden states (B, T, d) of tokens read in parts of these lengths, over and over."""
    return torch.cat([reader.read(part) for part in parts_of(tokens, lengths)], dim=1)


def parts_of(tokens: Tensor, lengths: list[int]) -> Iterator[Tensor]:
    """Cut tokens (B, T) into parts of these lengths, over and over."""
    start = 0
    while start < tokens.shape[1]:
        for length in lengths:
            part = tokens[:, start : start + length]
            start += length
            if part.shape[1]:
                yield part


def finish(training: Training, step: int = STEPS) -> None:
    """Train up to a step, and save."""
    for _ in training.run(report_every=STEPS, should_stop=lambda: training.step >= step):
        pass


def call_again(run: Callable[..., object], device: torch.device, *, warm_up: int = 0) -> Callable[..., object]:
    """Stand in for a CUDA graph: a replay calls the function again, on the same tensors."""
    return run
