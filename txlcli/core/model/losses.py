"""The predictions that count in training, full and half loss, and what training adds to their loss.

That is penalties of the last hidden states, and the auxiliary losses of the vanilla model.

Axes: B batch, L segment, d model width, N layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txlcli.config.bands import Band
from txlcli.config.model_settings import ModelSettings
from txlcli.config.train_settings import LossPart
from txlcli.core.model.module_list import ModuleList
from txlcli.core.model.softmax import AdaptiveSoftmax, at_least_float32

SECOND_STEP_WEIGHT = 0.5


def counted_positions(seg_len: int, part: LossPart) -> slice:
    """Return the positions of a segment whose losses count: all of them, or the recent half (Table 6).

    Half loss does not train predictions from a few tokens only, which occur at the beginning of a segment.
    """
    first = seg_len // 2 if part == "half" else 0
    return slice(first, seg_len)


def mean_over_positions(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean (0-d) of values (B, L), weighted if weights are given: by position (L,), or each (B, L)."""
    if weights is None:
        return values.mean()
    weights = weights.expand_as(values)
    return (values * weights).sum() / weights.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss that a training step minimizes on a segment, and the memory that it keeps."""

    mem_len: int
    """M."""
    part: LossPart = "full"
    """Positions whose losses count."""
    progress: float = 0.0
    """Share of the training steps that are done, 0 to 1."""
    seg_len: Tensor | None = None
    """L, the number of targets before the padding, 0-d; None without padding, as for models without attention."""
    tail_rows: Sequence[Tensor] | None = None
    """Rows (n,) of the targets in each tail of an adaptive softmax, as many in each step of a CUDA graph: see
    `core.model.softmax.fill_up`. None: the softmax finds them."""
    reread_len: int = 0
    """E, final positions that the next segment reads again, so that the memory ends before them."""
    since_reset: Tensor | None = None
    """Tokens that were read since the memory began anew, before each one that is read, (B, E + L); what is farther away
    has no influence. None: the memory is carried through all of the text."""
    activation_penalty: float = 0.0
    """Weight of the mean square of the last hidden states, before their dropout (AR, Merity et al. 2017)."""
    slowness_penalty: float = 0.0
    """Weight of the mean square of their differences between neighbouring positions, unless the memory begins anew
    between them (TAR)."""

    def counted(self, length: int) -> slice:
        """Return the last positions of L, which count; all of them with padding, which `weights` leave out."""
        if self.seg_len is not None:
            return slice(0, length)
        return counted_positions(length, self.part)

    def weights(self, length: int) -> Tensor | None:
        """Return 1 for each counted position and 0 for the others, (L,), where some are padding; None elsewhere."""
        if self.seg_len is None:
            return None
        position = torch.arange(length, device=self.seg_len.device)
        counts = position < self.seg_len
        if self.part == "half":
            counts = counts & (position >= self.seg_len // 2)
        return counts.float()

    def penalties(self, hidden: Tensor) -> list[Tensor]:
        """Return the penalties (0-d) of hidden states (B, L, d) before their dropout."""
        penalties: list[Tensor] = []
        weights = self.weights(hidden.shape[1])
        hidden = at_least_float32(hidden)
        if self.activation_penalty:
            squares = hidden.square().mean(-1)  # (B, L)
            penalties.append(self.activation_penalty * mean_over_positions(squares, weights))
        if self.slowness_penalty and hidden.shape[1] > 1:
            squares = hidden.diff(dim=1).square().mean(-1)  # (B, L - 1)
            pairs = None if weights is None else weights[1:] * weights[:-1]  # (L - 1,)
            if self.since_reset is not None:
                # The change at a reset counts as 0, so that the mean is over as many pairs in every part of a batch.
                squares = squares * (self.since_reset[:, 1 - hidden.shape[1] :] > 0)
            penalties.append(self.slowness_penalty * mean_over_positions(squares, pairs))
        return penalties


def layer_weight(layer: int, *, n_layers: int, progress: float) -> float:
    """Return the weight of the losses of layer 1 .. N, which falls to 0 at progress l / 2N (Al-Rfou et al. 2018).

    The weight of the last layer is always 1. The paper says where each layer ends, not how its weight falls; here it
    falls linearly.
    """
    if layer == n_layers:
        return 1.0
    return max(0.0, 1.0 - progress * 2 * n_layers / layer)


class AuxiliaryLosses(nn.Module):
    """Classifiers that exist in training only: every layer predicts the next two tokens (Al-Rfou et al. 2018).

    The last layer's prediction of the next token is made by the softmax of the model.
    """

    def __init__(self, bands: list[Band], settings: ModelSettings) -> None:
        super().__init__()
        self.next_token: ModuleList[AdaptiveSoftmax] = ModuleList(
            AdaptiveSoftmax(bands, settings.d_model, tied=False) for _ in range(settings.n_layers - 1)
        )
        self.token_after: ModuleList[AdaptiveSoftmax] = ModuleList(
            AdaptiveSoftmax(bands, settings.d_model, tied=False) for _ in range(settings.n_layers)
        )

    def forward(self, hidden: Sequence[Tensor], targets: Tensor, progress: float) -> Tensor:
        """Return the weighted sum of the mean losses (0-d).

        Args:
            hidden: outputs (B, L, d) of the N layers.
            targets: (B, L) next tokens. The token after the last one is unknown, so that position predicts one only.
            progress: share of the training that is done.
        """
        total = hidden[0].new_zeros(())
        n_layers = len(hidden)
        for number, output in enumerate(hidden):
            weight = layer_weight(number + 1, n_layers=n_layers, progress=progress)
            if weight == 0:
                continue
            if number < n_layers - 1:
                total = total + weight * self.next_token[number].mean_loss(output, targets)
            if targets.shape[1] > 1:
                after = self.token_after[number].mean_loss(output[:, :-1], targets[:, 1:])
                total = total + weight * SECOND_STEP_WEIGHT * after
        return total
