"""What a CUDA graph does, on a CPU: operations recorded once and repeated on the same memory with the same numbers."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Notes every operation."""

    def __init__(self):
        super().__init__()
        self._operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Do it and note it; what only looks at other memory needs no repetition."""
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
        if not is_view:
            self._operations.append((func, args, kwargs or {}, result))
        return result

    def repeat(self):
        """Do all of it again; results lie where they lay."""
        for func, args, kwargs, result in self._operations:
            writes = any(one.alias_info is not None for one in func._schema.returns)
            again = func(*args, **kwargs)
            if not writes:
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.data.copy_(new)


def capture(run, device):
    """Stands for `recording.recorded`: as there, `run` runs before it is recorded, and nothing of that may be kept."""
    assert device.type == "cpu"
    for _ in range(2):
        run()
    with Tape() as tape:
        out = run()
    out.data.fill_(float("nan"))  # a recording computes nothing

    def repeat():
        with torch.no_grad():
            tape.repeat()
        return out

    return repeat
