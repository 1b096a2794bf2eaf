"""A CUDA graph emulated on a CPU: operations are recorded once and repeated on the same memory."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txlcli.errors import UsageError


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self._operations, self._before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        composite, own = (
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
            for key in ("CompositeImplicitAutograd", "CPU")
        )
        if composite and not own:  # an operation with both, as silu_backward, would be rounded otherwise
            with self:  # only in inference mode; such an operation may return a view or a copy
                return func.decompose(*args, **(kwargs or {}))
        written = tree_leaves(
            [value for value, argument in zip(args, func._schema.arguments, strict=False) if argument.is_write]
        )
        self._before += [(tensor, tensor.clone()) for tensor in written if isinstance(tensor, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        if not is_view:
            self._operations.append((func, args, kwargs or {}, result))
        return result

    def undo(self):
        """Restore what the operations have overwritten: a capture computes nothing."""
        for tensor, value in reversed(self._before):
            tensor.data.copy_(value)

    def replay(self):
        """Run all operations again; their results keep their memory."""
        for func, args, kwargs, result in self._operations:
            writes = any(value.alias_info is not None for value in func._schema.returns)
            again = func(*args, **kwargs)
            if not writes:
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.data.copy_(new)


def call_again(run, device, *, warm_up=0):
    """Stand in for a `cuda_graph.GraphPool` on a device without kernels: a replay calls the function again."""
    return run


def capture(run, device, *, warm_up=2):
    """Stand in for a `cuda_graph.GraphPool`: like it, call `run` before recording, whose results must not be kept."""
    assert device.type == "cpu"
    for _ in range(warm_up):
        run()
    with Tape() as tape:
        out = run()
    tape.undo()
    for result in filter(torch.is_tensor, tree_leaves(out)):
        result.data.fill_(float("nan") if result.is_floating_point() else -1)

    def replay():
        with torch.no_grad():
            tape.replay()
        return out

    return replay


class Graphs:
    def __init__(self, capture=capture, *, failing=None):
        self.captured = self.replays = 0
        self._capture, self._failing = capture, failing

    def __call__(self, run, device, **how):
        self.captured += 1
        if self.captured == self._failing:
            raise UsageError("no graphs here")
        replay = self._capture(run, device, **how)

        def counted():
            self.replays += 1
            return replay()

        return counted
