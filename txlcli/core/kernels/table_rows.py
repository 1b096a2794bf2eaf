"""Rows of a table of embeddings, whose gradient a backward pass adds in place to the table's own.

Axes: w width of a row.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from txlcli.core.kernels.private import add_to_rows


def rows_of_table(table: nn.Parameter, ids: Tensor) -> Tensor:
    """Return F.embedding(ids, table), (..., w); see `core.model.backends.Backend.gradient_of_rows`."""
    if table.device.type == "cpu":
        return F.embedding(ids, _with_gradient_of_rows(table), sparse=True)
    rows: Tensor = RowsOfTable.apply(table.detach().requires_grad_(), ids, [table])
    return rows


class RowsOfTable(torch.autograd.Function):
    """Rows (..., w) of a table, given an alias of it, ids (...) and the table: `backward` adds to the table's gradient.

    It waits for nothing, and adds up the gradients of a row in an order that does not change. The table is in a list:
    autograd would otherwise hold its gradient from the softmax back until this one is there.
    """

    @staticmethod
    def forward(ctx: Any, alias: Tensor, ids: Tensor, tables: list[nn.Parameter]) -> Tensor:
        ctx.save_for_backward(ids)
        (ctx.table,) = tables
        return F.embedding(ids, alias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        table: nn.Parameter = ctx.table
        if table.grad is None:
            table.grad = torch.zeros_like(table)
        add_to_rows(table.grad, ids, gradient.to(table.dtype))
        return None, None, None


def _with_gradient_of_rows(table: nn.Parameter) -> Tensor:
    """Return an alias of the table whose sparse gradient `backward` adds to the table's own."""

    def add(rows: Tensor) -> None:
        assert rows.grad is not None
        if table.grad is None:
            table.grad = rows.grad.to_dense()
        else:
            table.grad.add_(rows.grad)
        rows.grad = None

    rows = table.detach().requires_grad_()
    rows.register_post_accumulate_grad_hook(add)
    return rows
