"""The bands into which adaptive embedding and adaptive softmax divide a vocabulary (Grave et al. 2016)."""

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


def bands(settings: ModelSettings, vocab_size: int) -> list[Band]:
    """Return the bands of a vocabulary, the head first."""
    if settings.cutoffs and settings.cutoffs[-1] >= vocab_size:
        raise RecipeError(
            f"[model] cutoffs {list(settings.cutoffs)} reach beyond the vocabulary of {vocab_size:,}; "
            "each must be less, or none: `overrides` model.cutoffs=[]"
        )
    edges = list(pairwise((0, *settings.cutoffs, vocab_size)))
    tied = settings.tie_projections or [number > 0 for number in range(len(edges))]
    all_bands = []
    for number, ((first, end), shared) in enumerate(zip(edges, tied, strict=True)):
        width = settings.embed_width // settings.div_val**number
        always = settings.div_val > 1 and settings.project_same_width
        # Bands of the same width are parts of one embedding, with one projection.
        projection = (number if settings.div_val > 1 else 0) if always or width != settings.d_model else None
        all_bands.append(Band(first=first, end=end, width=width, projection=projection, shared=shared))
    return all_bands
