"""The bands into which adaptive embedding and adaptive softmax divide a vocabulary (Grave et al. 2016)."""

import shlex
from dataclasses import dataclass
from itertools import pairwise

from txlcli.config.model_settings import ModelSettings
from txlcli.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Band:
    """The ids from `first` to `end` - 1, whose embeddings have the width `width`."""

    first: int
    end: int
    width: int
    projection: int | None
    """Index of the embedding's projection to model width; None without projection."""
    shared: bool
    """True if the softmax uses the embedding's projection."""

    @property
    def size(self) -> int:
        """Number of ids in the band, n."""
        return self.end - self.first


def plain_softmax_overrides(settings: ModelSettings) -> tuple[str, ...]:
    """Return the overrides that give a model one band, for a vocabulary that is too small for its cutoffs."""
    if settings.tie_projections is None:
        return ("model.cutoffs=[]",)
    return "model.cutoffs=[]", "model.tie_projections=none"


def bands(settings: ModelSettings, vocab_size: int) -> list[Band]:
    """Return the bands of a vocabulary, the head first."""
    if settings.cutoffs and settings.cutoffs[-1] >= vocab_size:
        options = " ".join(f"`overrides` {shlex.quote(override)}" for override in plain_softmax_overrides(settings))
        raise RecipeError(
            f"[model] cutoffs {list(settings.cutoffs)} reach beyond the vocabulary of {vocab_size:,}; "
            f"each must be less, or none: {options}",
            setting="model.cutoffs",
        )
    edges = pairwise((0, *settings.cutoffs, vocab_size))
    all_bands = []
    for number, (first, end) in enumerate(edges):
        width = settings.embed_width // settings.div_val**number
        shared = number > 0
        if settings.tie_projections is not None:
            shared = settings.tie_projections[number]
        projection = _projection(settings, number, width)
        all_bands.append(Band(first=first, end=end, width=width, projection=projection, shared=shared))
    return all_bands


def _projection(settings: ModelSettings, number: int, width: int) -> int | None:
    """Return the index of the projection of a band; None if it has none."""
    if settings.div_val == 1:  # bands of the same width are parts of one embedding, with one projection
        return None if width == settings.d_model else 0
    if width == settings.d_model and not settings.project_same_width:
        return None
    return number
