"""Private PyTorch names that txl uses, each behind one function with a public fallback.

A release of PyTorch may drop a private name without notice. Each function looks it up in `source`, so that a test can
leave it out.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ONEDNN_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
COMPILER = "torch._dynamo"
"""Module that traces functions for torch.compile."""
NAMES = (
    "_softmax_backward_data",
    "_dynamo.config.optimize_ddp",
    "_subclasses.fake_tensor.FakeTensorMode",
    "utils._python_dispatch.TorchDispatchMode",
    *(f"ops.mkldnn.{name}" for name in ONEDNN_OPERATORS),
)
"""All private names in use, as paths below `torch`."""


def find(path: str, source: object = torch) -> Any:
    """Return the attribute at a dotted path, or None if PyTorch has no such name."""
    for name in path.split("."):
        source = getattr(source, name, None)
    return source


def softmax_backward(grad: Tensor, probability: Tensor, *, source: object = torch) -> Tensor:
    """Return the gradient of the scores, given the gradient of their softmax over the last axis.

    The fallback takes a few operations instead of one.
    """
    function = find("_softmax_backward_data", source)
    if function is not None:
        fused: Tensor = function(grad, probability, -1, probability.dtype)
        return fused
    weighted = grad.to(torch.promote_types(grad.dtype, torch.float32)) * probability
    return (weighted - probability * weighted.sum(-1, keepdim=True)).to(probability.dtype)


def compile_across_ddp_buckets(*, source: object = torch) -> None:
    """Let torch.compile compile whole graphs under DistributedDataParallel, instead of one graph per bucket.

    The fallback leaves PyTorch's default: more and smaller graphs, with equal results.
    """
    config = find("_dynamo.config", source)
    if hasattr(config, "optimize_ddp"):
        config.optimize_ddp = False


def compiler_may_trace(*, module: str = COMPILER) -> bool:
    """Return True unless the module that traces functions for torch.compile has not been imported.

    The fallback is True: nothing can be said of a module that does not exist.
    """
    return module in sys.modules or not _exists(module)


@functools.cache
def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def tensors_without_data(*, source: object = torch) -> AbstractContextManager[object]:
    """Create tensors that have a shape, a dtype and a device, but no data, inside this block.

    Tensors of the fallback are on the meta device, which takes the code paths of accelerators and ignores autocast.
    """
    mode = find("_subclasses.fake_tensor.FakeTensorMode", source)
    return torch.device("meta") if mode is None else mode()


def observed_results(observe: Callable[[Tensor], None], *, source: object = torch) -> AbstractContextManager[object]:
    """Call `observe` with every tensor that an operator returns inside this block. The fallback observes nothing."""
    mode = find("utils._python_dispatch.TorchDispatchMode", source)
    if mode is None:
        return nullcontext()

    class Observer(mode):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = operator(*args, **(kwargs or {}))
            for result in results if isinstance(results, tuple | list) else (results,):
                if isinstance(result, Tensor):
                    observe(result)
            return results

    return Observer()


def has_onednn(*, source: object = torch) -> bool:
    """True if PyTorch was built with oneDNN and offers its operators."""
    operators = all(find(f"ops.mkldnn.{name}", source) is not None for name in ONEDNN_OPERATORS)
    return operators and torch.backends.mkldnn.is_available()


def onednn_has_bf16(*, source: object = torch) -> bool:
    """True if oneDNN has bf16 kernels for this processor. The fallback is False."""
    return has_onednn(source=source) and bool(find("ops.mkldnn._is_mkldnn_bf16_supported", source)())


def onednn_reorder(weight: Tensor, *, source: object = torch) -> Tensor:
    """Copy a weight (out, in) into the layout that oneDNN reads fastest. The fallback copies it as it is."""
    function = find("ops.mkldnn._reorder_linear_weight", source)
    reordered: Tensor = weight.clone() if function is None else function(weight)
    return reordered


def onednn_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, *, source: object = torch) -> Tensor:
    """Return F.linear computed by oneDNN, with an ordinary or a reordered weight. The fallback is F.linear."""
    function = find("ops.mkldnn._linear_pointwise", source)
    product: Tensor = F.linear(rows, weight, bias) if function is None else function(rows, weight, bias, "none", [], "")
    return product
