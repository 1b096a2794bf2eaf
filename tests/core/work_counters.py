"""Counts of PyTorch's work that are equal on every machine: bytes that operations allocate for their results."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationCounter(TorchDispatchMode):
    """Sums the storages of results that no input shares; temporary memory of an operation is not counted."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {id(tensor.untyped_storage()) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        new = {id(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in _tensors(result)}
        self.bytes += sum(size for key, size in new.items() if key not in inputs)
        return result


def _tensors(tree):
    """Return the tensors with a storage of their own; a sparse tensor consists of two others."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def unseen_flops_per_token(settings, seg_len):
    """Return the operations of a training step on keys that queries do not see, if all keys are scored."""
    terms = 3 if settings.position in ("relative", "shaw") else 2
    return 2 * 3 * settings.n_layers * terms * (seg_len - 1) / 2 * settings.n_heads * settings.d_head
