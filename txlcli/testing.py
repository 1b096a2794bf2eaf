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
from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.core.architectures.registry import make_model
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
from txlcli.errors import TxlError, UnknownNameError

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
    "n_positions": 2 * L,
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
        ContractError: a rule is broken.
        UnknownNameError: no such architecture is registered.
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
    check = _EncodingCheck(name, small_settings("transformer", given))
    check.run()
    check.run_for_encodings()


def small_settings(name: str, given: dict[str, object]) -> ModelSettings:
    """Return settings of a small model of an architecture, without dropout."""
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
        self.check_memory()
        self.check_causality()
        self.check_reading()
        self.check_windows()
        self.check_gradients()
        self.check_training()
        self.check_operations()

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
        """Check that a resumed training run and a captured one equal a whole one, and that a file has all weights."""
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
            captured = self.training(Path(directory, "captured"), capture_graph=call_again)
            finish(captured)
            rule = "a step on tensors of fixed places, as a CUDA graph takes it, equals an eager one"
            self.require_same_weights(captured, whole, rule, atol=1e-6)

    def training(
        self, directory: Path, model: LanguageModel | None = None, *, capture_graph: Callable[..., object] | None = None
    ) -> Training:
        """Return a training run of a few steps, which saves in a directory."""
        directory.mkdir(exist_ok=True)
        settings = TrainSettings(
            seg_len=L, mem_len=self.mem_len, batch_size=LANES, max_steps=STEPS, lr=1e-2, warmup_steps=0
        )
        ids = draw_tokens(1, LANES * (STEPS + 2) * L + 1)[0].numpy().astype(np.int64)
        if model is None:
            model = new_model(self.settings, V, seed=settings.seed, device=torch.device("cpu"))
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

    def run_for_encodings(self) -> None:
        """Check the rules that concern encodings alone."""
        self.check_terms()
        self.check_backends()

    def check_terms(self) -> None:
        """Check the shapes of the score terms, and that near distances do not depend on how far a query sees."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        reach = L + M
        near = model.score_terms(L, max_distance=None)
        for number, terms in enumerate(model.score_terms(reach, max_distance=None)):
            rule = "score_terms returns terms of each layer, whose rows are distances with the farthest first"
            key = terms.position_key
            bias = terms.distance_bias
            self.require(terms.reach == reach, rule, f"reach is {terms.reach}, not {reach}")
            if key is not None:
                shape = tuple(key.shape)
                is_right = shape[0] == self.settings.n_heads and shape[1] <= reach and shape[2] == self.settings.d_head
                self.require(is_right, rule, f"a position key has the shape {shape}")
                own, other = key[:, -1:], near[number].position_key
                assert other is not None
                self.require_equal(own, other[:, -1:], "the term of a distance does not depend on `reach`")
            if bias is not None:
                expected = (self.settings.n_heads, reach)
                self.require(tuple(bias.shape) == expected, rule, f"a bias by distance has {tuple(bias.shape)}")
                other = near[number].distance_bias
                assert other is not None
                self.require_equal(bias[:, -L:], other, "the term of a distance does not depend on `reach`")

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
