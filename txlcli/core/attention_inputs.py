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

    query_content: Tensor
    """(B, H, L, D), scaled W_q h + u: gives (a) + (c) against `key`."""
    query_position: Tensor | None
    """(B, H, L, D), scaled W_q h + v: gives (b) + (d) against `position_key`; None where scores know of no position."""
    key: Tensor
    """(B, H, K, D); the last L keys are the queries' own positions."""
    value: Tensor
    """(B, H, K, D)."""
    position_key: Tensor | None
    """(H, m, D); row c is distance m - 1 - c; None together with `query_position`. Without gradient m may be less than
    n if the first L rows are equal: all farther distances are scored as these are."""
    reach: int
    """n; keys at distance n or more are not seen."""

    @property
    def seg_len(self) -> int:
        """L."""
        return self.query_content.shape[2]

    @property
    def key_len(self) -> int:
        """K."""
        return self.key.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
        """All of them, in order."""
        return self.query_content, self.query_position, self.key, self.value, self.position_key

    def widened(self, multiple: int) -> "AttentionInputs":
        """The same with zeros after the D numbers of each row, up to a multiple: they add nothing to any score."""
        if all(one is None or one.shape[-1] % multiple == 0 for one in self.tensors):
            return self

        def wide(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, -tensor.shape[-1] % multiple))

        position = None if self.query_position is None else wide(self.query_position)
        position_key = None if self.position_key is None else wide(self.position_key)
        return AttentionInputs(
            wide(self.query_content), position, wide(self.key), wide(self.value), position_key, self.reach
        )

    @property
    def need_gradient(self) -> bool:
        """Whether any of them does."""
        return any(tensor is not None and tensor.requires_grad for tensor in self.tensors)
