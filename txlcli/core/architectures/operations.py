"""Multiplications of a model's layers, by formula; `core.measures.cost` makes operations per token of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings


class LayerProducts(ABC):
    """Multiplications of a model's layers, and of a softmax other than `AdaptiveSoftmax`.

    Args:
        model: the settings of the model.
        shapes: of its parameters, by name.
    """

    def __init__(self, model: Any, shapes: Mapping[str, torch.Size]) -> None:
        self.model = model
        self._shapes = shapes

    def matrices(self, part: str = "layers.") -> int:
        """Count the elements of the matrices with a part in their names, without biases and gains."""
        return sum(shape.numel() for name, shape in self._shapes.items() if part in name and len(shape) > 1)

    @abstractmethod
    def decoding(self, settings: EvalSettings) -> float:
        """Return the products of one token, with what is kept of earlier tokens."""

    def window(self, settings: EvalSettings) -> float:
        """Return the products of one prediction from a recomputed window; every token takes equally many by default."""
        return settings.seg_len * self.decoding(settings)

    def training(self, train: TrainSettings) -> float:
        """Return the products per token read of a step, forward and backward: three forward passes by default."""
        return 3 * self.decoding(EvalSettings(seg_len=train.read_len, mem_len=train.mem_len))

    def auxiliary(self, vocab_size: int) -> float:
        """Return the products per token of classifiers that exist in training only, forward: none by default."""
        return 0.0

    def softmax(self, plain: float) -> float:
        """Return the products that score one target, given those of an `AdaptiveSoftmax`: as many by default."""
        return plain

    def kernel_elements(self) -> int:
        """Count the elements per token that a CPU's kernels keep for the backward pass without telling autograd."""
        return 0


class MatrixProducts(LayerProducts):
    """Layers whose tokens are multiplied once by each of their matrices, and by nothing else."""

    def decoding(self, settings: EvalSettings) -> float:
        return self.matrices()
