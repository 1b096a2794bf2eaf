"""The table of architectures: how a model is built from its settings, counted and read."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch

from txlcli.config.model_settings import ModelSettings, register_model_settings
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.operations import LayerProducts
from txlcli.core.kernels.device import check_free_memory
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import UsageError

ReaderName = Literal["states", "keys"]
READER_NAMES = get_args(ReaderName)


class MakeReader(Protocol):
    """Makes a reader of text, such as a subclass of `core.reading.reader.Reader`."""

    def __call__(self, model: LanguageModel, settings: EvalSettings, *, by_tokens: bool, tokens: int) -> Any:
        """Return a reader; see `core.reading.reader.Reader`."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Class and formulas of an architecture."""

    model: type[LanguageModel]
    """Made from its settings and the vocabulary size."""
    products: type[LayerProducts]
    """Formulas of its operations."""
    reader: ReaderName | MakeReader
    """How its text is read; see `register_architecture`."""


ARCHITECTURES: dict[str, Architecture] = {}
"""The architecture of each value of `model.arch`."""


def register_architecture(
    name: str,
    *,
    settings: type[ModelSettings],
    model: type[LanguageModel],
    products: type[LayerProducts],
    reader: ReaderName | MakeReader,
) -> None:
    """Add an architecture, so that recipes accept `model.arch` = name and all commands use its model.

    Args:
        name: value of `model.arch`.
        settings: class of the [model] section; each field has a description below it.
        model: made from these settings and the vocabulary size.
        products: formulas of its operations, for `--dry-run` and `txl speed`. `MatrixProducts` counts one product for
            each element of the matrices of `layers`, and `transformer.TransformerProducts` attention, too.
        reader: "states" carries the memory that the model returns, and works with every model. "keys" keeps the
            projected keys and values of the last M positions; it is for subclasses of TransformerXL that have its
            memory. Or a class of readers.

    Raises:
        ValueError: the name is taken, an operation has no formula, a setting has no description, or the reader is
            unknown or does not fit the memory.
    """
    if name in ARCHITECTURES:
        raise ValueError(f'the architecture "{name}" is registered already')
    if isinstance(reader, str) and reader not in READER_NAMES:
        raise ValueError(f'the architecture "{name}": reader must be "states", "keys" or a class, not "{reader}"')
    if reader == "keys":
        _check_memory_of_keys(name, model)
    if inspect.isabstract(products):
        missing = ", ".join(sorted(products.__abstractmethods__))
        raise ValueError(
            f'the architecture "{name}" does not count its operations: {products.__name__} has no {missing}; use '
            "MatrixProducts if each token is multiplied once by each matrix of the layers and by nothing else"
        )
    register_model_settings(name, settings)
    ARCHITECTURES[name] = Architecture(model=model, products=products, reader=reader)


def _check_memory_of_keys(name: str, model: type[LanguageModel]) -> None:
    """Check that a model has the memory of TransformerXL: the reader "keys" keeps it, and calls no rule of memory."""
    if not issubclass(model, TransformerXL):
        raise ValueError(f'the architecture "{name}": reader = "keys" is for subclasses of TransformerXL; use "states"')
    if model.remember is not TransformerXL.remember or model.pasts is not TransformerXL.pasts:
        raise ValueError(
            f'the architecture "{name}" has a memory of its own, by the contract of TransformerXL.remember, which the '
            'reader "keys" never calls; use reader = "states"'
        )


def make_model(settings: ModelSettings, vocab_size: int) -> LanguageModel:
    """Return a model with fresh weights."""
    return ARCHITECTURES[settings.arch].model(settings, vocab_size)


def new_model(settings: ModelSettings, vocab_size: int, *, seed: int, device: torch.device) -> LanguageModel:
    """Make a model whose weights have a seed, if there is memory for them; dropout continues from the same seed."""
    check_free_memory(4 * count_parameters(settings, vocab_size), torch.device("cpu"))  # float32 has 4 bytes
    torch.manual_seed(seed)
    return make_model(settings, vocab_size).to(device)


def products_of(settings: ModelSettings) -> LayerProducts:
    """Return the formulas of the operations of a model's layers."""
    return ARCHITECTURES[settings.arch].products(settings, parameter_shapes(settings))


@functools.lru_cache(maxsize=8)
def parameter_shapes(settings: ModelSettings, vocab_size: int | None = None) -> Mapping[str, torch.Size]:
    """Return the shapes of a model's parameters by name; nothing is allocated.

    By default, the vocabulary has one symbol in its last band.
    """
    with torch.device("meta"):
        model = make_model(settings, vocab_size or max(settings.cutoffs, default=0) + 1)
    _check_constants(model)
    _check_names(model)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _check_constants(model: LanguageModel) -> None:
    """Check that a model without data has its constants, since a checkpoint has its parameters alone."""
    saved_buffers = sorted(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys())
    if saved_buffers:
        raise UsageError(
            f'the buffer "{saved_buffers[0]}" of the model "{model.settings.arch}" is not a parameter, and would not '
            "be saved; make a constant with register_buffer(..., persistent=False), and do without a buffer that "
            "training changes, such as the means of batch normalization"
        )
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if any(tensor.is_meta and id(tensor) not in registered for tensor in _tensors(value)):
                lost.append(f"{path}.{name}")
    if lost:
        raise UsageError(
            f'the tensor "{lost[0]}" of the model "{model.settings.arch}" is not a parameter, and would not be saved; '
            'compute it where it is used, or make it with device="cpu" and register_buffer(..., persistent=False)'
        )


def _check_names(model: LanguageModel) -> None:
    """Check that each weight has one name: a checkpoint has it once, and a model with two names expects both."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            raise UsageError(
                f'"{first}" and "{name}" of the model "{model.settings.arch}" are the same weight, and a weight has '
                "one name in a checkpoint; register a module that several others share once, and call it from there"
            )


def _tensors(value: object) -> list[torch.Tensor]:
    """Return a tensor, or those of a list, tuple or dictionary."""
    if isinstance(value, dict):
        value = tuple(value.values())
    parts = value if isinstance(value, list | tuple) else (value,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Count the parameters of a model."""
    return sum(shape.numel() for shape in parameter_shapes(settings, vocab_size).values())
