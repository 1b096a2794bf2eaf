"""What the fake devices share: tensors without numbers stand for those of the device, and nothing is sampled."""

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor


def numpy_dtype(tensor):
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def zeros_of(tensor):
    """Replace FakeTensor.numpy: every number is 0."""
    return np.zeros(tensor.shape, dtype=numpy_dtype(tensor))


def deepcopy(tensor, memo):
    """Replace Tensor.__deepcopy__, which would also copy the mode and its references to storages."""
    copied = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    return memo.setdefault(id(tensor), copied)


class NoGenerator:
    """A stand-in for torch.Generator without a state: nothing is sampled."""

    def __init__(self, device):
        assert device.type in ("cuda", "mps")

    def manual_seed(self, seed):
        """Return None: an operation then uses the device's generator."""


UNKNOWN = {
    "aten::_local_scalar_dense": lambda tensor: np.zeros((), dtype=numpy_dtype(tensor)).item(),
    "aten::nonzero": lambda tensor: tensor.new_empty((tensor.numel() // 8, tensor.dim()), dtype=torch.int64),
}
"""Operations whose result depends on data, and the results made up for them."""


def pretend_numbers():
    """Let PyTorch use these instead of its own."""
    torch.Generator = NoGenerator
    FakeTensor.numpy = zeros_of
    FakeTensor.__deepcopy__ = deepcopy
