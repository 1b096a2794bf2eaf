"""What attention with relative distances is computed from (section 3.3)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values of one layer.

    Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a
    position key.
    """

    query: Tensor
    """(B, H, L, D), scaled W_q h: gives (a) against `key` and (b) against `position_key`."""
    key: Tensor
    """(B, H, K, D); the last L keys are the queries' own positions."""
    value: Tensor
    """(B, H, K, D)."""
    content_bias: Tensor | None
    """Scaled u, (H, 1, D): gives (c) against `key`."""
    position_bias: Tensor | None
    """Scaled v, (H, 1, D): gives (d) against `position_key`."""
    position_key: Tensor | None
    """(H, m, D); row c is distance m - 1 - c; None where scores know of no position. Without gradient m may be less
    than n if the first L rows are equal: all farther distances are scored as these are."""
    reach: int
    """n; keys at distance n or more are not seen."""

    @property
    def seg_len(self) -> int:
        """L."""
        return self.query.shape[2]

    @property
    def key_len(self) -> int:
        """K."""
        return self.key.shape[2]

    @property
    def query_content(self) -> Tensor:
        """(B, H, L, D): gives (a) + (c) against `key`."""
        return self.query if self.content_bias is None else self.query + self.content_bias

    @property
    def query_position(self) -> Tensor:
        """(B, H, L, D): gives (b) + (d) against `position_key`."""
        return self.query if self.position_bias is None else self.query + self.position_bias

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """All of them, in order."""
        return self.query, self.key, self.value, self.content_bias, self.position_bias, self.position_key

    def widened(self, multiple: int) -> "AttentionInputs":
        """The same with zeros after the D numbers of each row, up to a multiple: they add nothing to any score."""
        if all(one is None or one.shape[-1] % multiple == 0 for one in self.tensors):
            return self

        def wide(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, -tensor.shape[-1] % multiple))

        others = (self.content_bias, self.position_bias, self.position_key)
        content_bias, position_bias, position_key = (None if one is None else wide(one) for one in others)
        return AttentionInputs(
            wide(self.query), wide(self.key), wide(self.value), content_bias, position_bias, position_key, self.reach
        )

    @property
    def need_gradient(self) -> bool:
        """Whether any of them does."""
        return any(tensor is not None and tensor.requires_grad for tensor in self.tensors)
