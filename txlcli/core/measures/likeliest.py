"""The likeliest tokens at each position of a text.

Axes: B batch, L segment, d model width, T tokens scored, K likeliest tokens, V vocabulary.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.core.kernels.device import autocast
from txlcli.core.reading.scoring import Scores, Stream, score

MAX_LOGITS = 1 << 24
"""Log-probabilities that are computed at once: 64 MiB in fp32."""


def score_with_likeliest(stream: Stream, count: int) -> tuple[Scores, NDArray[np.int64], NDArray[np.float32]]:
    """Return the losses (T,), and ids and probabilities of the K = `count` likeliest tokens, likeliest first, (K, T).

    K is at most V.
    """
    model, parts = stream.model, []
    rows = max(1, MAX_LOGITS // model.vocab_size)

    def look_up(hidden: Tensor, _targets: Tensor, _losses: Tensor) -> None:
        with autocast(model.device, stream.precision):
            log_probs = (model.log_probs(part[None])[0].topk(count) for part in hidden.flatten(0, 1).split(rows))
            values, ids = (torch.cat(top).unflatten(0, hidden.shape[:2]) for top in zip(*log_probs, strict=True))
        parts.append((ids.cpu(), values.exp().float().cpu()))  # (B, L, K) each

    with torch.inference_mode():
        scores = score(stream, on_segment=look_up)
        ids, probabilities = (
            stream.lanes().join(torch.cat(all_parts, dim=1).movedim(-1, 0)).numpy()
            for all_parts in zip(*parts, strict=True)
        )
    return scores, ids, probabilities
