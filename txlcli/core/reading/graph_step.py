"""One token's way through the layers without a size that changes: what a CUDA graph can record and repeat.

A graph repeats the same kernels on the same memory. So the token's place in the buffers of keys, and how far it sees,
are numbers on the device, and its query is scored against the whole buffer: what holds no key, or one too far away, is
masked. It is the same function as the decoder's way; it scores up to a quarter more, and waits for no kernel's launch.

Axes: B lanes, C capacity of the buffers, H heads, D head width, d model width, m distances with a position key.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.cuda_graph import capture
from txlcli.core.model.attention import ScoreTerms
from txlcli.core.model.transformer_xl import TransformerXL


class FixedStep:
    """Reads one token of each lane, again and again.

    Args:
        model: whose layers and encoding do the work.
        buffers: keys and values of each layer, (B, H, C, D) each, D or wider; their tensors must stay the same.
        terms: what each layer's attention adds, for all distances.
        lanes: B.
        dtype: of embeddings.
    """

    def __init__(
        self,
        model: TransformerXL,
        buffers: Sequence[tuple[Tensor, Tensor]],
        terms: Sequence[ScoreTerms],
        *,
        lanes: int,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._buffers, self._terms = model, buffers, terms
        device = model.device
        self._embedded = torch.zeros(lanes, 1, model.settings.d_model, dtype=dtype, device=device)
        self._at, self._reach, self._position = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(3))
        self._slots = torch.arange(buffers[0][0].shape[2], device=device)  # (C,)
        self._run: Callable[[], Tensor] | None = None

    def read(self, embedded: Tensor, *, at: int, reach: int, position: Tensor) -> Tensor:
        """The last layer's output (B, 1, d) for embeddings (B, 1, d).

        Args:
            embedded: of the tokens.
            at: their place in the buffers.
            reach: distances that they see, themselves included.
            position: absolute, (1,).
        """
        self._embedded.copy_(embedded)
        self._at.fill_(at)
        self._reach.fill_(reach)
        self._position.copy_(position)
        if self._run is None:
            self._run = capture(self._layers, self._embedded.device)
        return self._run().clone()

    def _layers(self) -> Tensor:
        distance = self._at - self._slots  # (C,)
        unseen = torch.zeros_like(distance, dtype=torch.float32)
        unseen.masked_fill_((distance < 0) | (distance >= self._reach), -math.inf)
        hidden = self._embedded
        for number, (layer, (keys, values), terms) in enumerate(
            zip(self._model.layers, self._buffers, self._terms, strict=True)
        ):
            hidden = self._model.encoding.add(hidden, number, self._position)
            query, (key, value) = layer.attention.project(layer.attention_input(hidden))
            keys[..., : key.shape[3]].index_copy_(2, self._at, key.to(keys.dtype))
            values[..., : value.shape[3]].index_copy_(2, self._at, value.to(values.dtype))
            inputs = layer.attention.inputs(query, (keys, values), terms)
            hidden = layer.finish(hidden, layer.attention.output(_attend(inputs, distance, unseen)))
        return hidden


def _attend(inputs: AttentionInputs, distance: Tensor, unseen: Tensor) -> Tensor:
    """`attention.attend` for one query (B, H, 1, D) and keys at distances (C,), of which some are unseen."""
    width = inputs.query.shape[3]
    with torch.autocast(inputs.key.device.type, enabled=False):
        scores = inputs.query_content @ inputs.key[..., :width].mT + unseen  # (B, H, 1, C), float32 at least
        if inputs.position_key is not None:
            by_distance = inputs.query_position @ inputs.position_key.mT  # (B, H, 1, m)
            farthest = by_distance.shape[3] - 1  # row c is distance m - 1 - c, row 0 also all that are farther
            scores = scores + by_distance.index_select(3, (farthest - distance).clamp(0, farthest))
        out: Tensor = scores.softmax(dim=-1).to(inputs.value.dtype) @ inputs.value[..., :width]
        return out
