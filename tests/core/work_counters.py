"""Counts what PyTorch does, the same on every machine: bytes that operations allocate for what they return."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationCounter(TorchDispatchMode):
    """Sums the storages of results that no input lent; what an operation needs for itself is not seen."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        lent = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        new = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in _tensors(result)}
        self.bytes += sum(size for key, size in new.items() if key not in lent)
        return result


def _tensors(tree):
    """Those with one storage; a sparse one is two others."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def unseen_flops_per_token(settings, seg_len):
    """What a training step multiplies beyond the keys that queries see, if all queries are scored against all keys."""
    terms = 3 if settings.position in ("relative", "shaw") else 2
    return 2 * 3 * settings.n_layers * terms * (seg_len - 1) / 2 * settings.n_heads * settings.d_head
