"""The [model] section of a recipe: one class per architecture."""

import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from txlcli.config.encodings import ENCODINGS, EncodingTraits
from txlcli.config.ranges import known_words, no_larger_than_sizes, positive, require

MemoryStart = Literal["empty", "zeros"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """[model]: what every architecture has; the vocabulary size comes from the store."""

    recurrent_state: ClassVar[bool] = False
    """Whether the model carries a state instead of a memory of M tokens, so that lengths of memory mean nothing."""

    arch: Literal["transformer", "lstm", "qrnn"] = "transformer"
    """The architecture: attention, or layers that carry a state (LSTM; QRNN of Bradbury et al.)."""
    n_layers: int
    """Layers N."""
    d_model: int
    """Width d of the hidden states and of the embedding."""
    dropout: float = 0.1
    """Share dropped of embeddings, distance encodings, sublayer outputs, feed-forward activations, the output."""
    embedding_dropout: float | None = None
    """Share dropped of the embeddings; dropout where it is left out."""
    output_dropout: float | None = None
    """Share dropped of the last hidden states; dropout where it is left out."""
    variational_dropout: bool = False
    """Draw one mask per lane and segment and share it among the positions, and one for all distances (Gal & Ghahramani
    2016); attention probabilities have no channels, so there every one is drawn."""
    word_dropout: float = 0.0
    """Share of words whose embeddings are dropped, in every place and lane that is read at once but for the first of a
    segment; the softmax keeps them (Gal & Ghahramani 2016)."""
    cutoffs: tuple[int, ...] = ()
    """Ids at which the tail bands of adaptive softmax and adaptive input begin, rising; none is a plain softmax."""
    div_val: int = 1
    """Each band's embedding is this many times narrower than the one before."""
    d_embed: int | None = None
    """Width of the first band's embedding; d_model where it is left out."""
    tie_embeddings: bool = True
    """The softmax uses the matrices of the embedding."""
    tie_projections: tuple[bool, ...] | None = None
    """For each band, whether the softmax uses the embedding's projection; all but the first where it is left out
    (proj_share_all_but_first of the released TF code)."""
    project_same_width: bool = True
    """With div_val above 1, project a band as wide as the model, too (proj_same_dim of the released TF code)."""
    init_std: float = 0.02
    """Standard deviation of the initial weights, and of the initial layer-norm gains around 1."""
    proj_init_std: float = 0.01
    """Standard deviation of the initial projections between embedding and model width."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        known_words("model", self)
        no_larger_than_sizes("model", self)
        positive("model", self, "n_layers", "d_model", "d_embed", "div_val", "init_std", "proj_init_std")
        self._check_shares("dropout", "embedding_dropout", "output_dropout", "word_dropout")
        rising = all(first < second for first, second in itertools.pairwise((0, *self.cutoffs)))
        require(rising, "model", "cutoffs", list(self.cutoffs), "ids above 0, each larger than the one before")
        bands, tied = len(self.cutoffs) + 1, self.tie_projections
        fits = tied is None or len(tied) == bands
        require(fits, "model", "tie_projections", list(tied or ()), f"as many as bands ({bands})")
        narrowest = self.embed_width // self.div_val ** (bands - 1)
        require(narrowest > 0, "model", "div_val", self.div_val, f"small enough to leave band {bands} a width")

    def _check_shares(self, *keys: str) -> None:
        for key in keys:
            value = getattr(self, key)
            require(value is None or 0 <= value < 1, "model", key, value, "at least 0 and less than 1")

    @property
    def longest_window(self) -> int | None:
        """Tokens that can be read at once, in a segment or a window; None where there is no limit."""
        return None

    @property
    def absolute_positions(self) -> bool:
        """Whether positions count from the beginning of a segment, so that only training can make sense of a memory."""
        return False

    @property
    def scores_distances(self) -> bool:
        """True if attention scores depend on the distance between query and key, so `max_distance` applies."""
        return False

    def share(self, key: str) -> float:
        """A share of dropout that is `dropout` where it is left out."""
        value: float | None = getattr(self, key)
        return self.dropout if value is None else value

    @property
    def embed_width(self) -> int:
        """Width of the first band's embedding."""
        return self.d_embed or self.d_model


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(ModelSettings):
    """[model] with arch = "transformer": the Transformer-XL of section 3, and what Table 6 compares it with."""

    n_heads: int
    """Attention heads H per layer."""
    d_head: int
    """Width D of one head; H x D need not be d."""
    d_inner: int
    """Width F between the two matrices of a feed-forward block."""
    attention_dropout: float = 0.0
    """Share of attention probabilities dropped."""
    inner_dropout: float | None = None
    """Share dropped of the feed-forward activations; dropout where it is left out."""
    norm: Literal["post", "pre", "pre_released"] = "post"
    """Layer normalisation after each residual sum (the paper), or before each sublayer with one more at the end, or the
    latter without that last one (released code)."""
    norm_eps: float = 1e-5
    """What layer normalisation adds to the variance; 1e-12 in the released TF code."""
    position: Annotated[str, ENCODINGS] = "relative"
    """What is known of the order of tokens: Transformer-XL's relative encoding, Shaw et al.'s (a learned vector per
    distance), Vaswani et al.'s (sinusoids of positions), Al-Rfou et al.'s (a learned vector per position and layer)."""
    n_positions: int | None = None
    """Learned vectors: distances with one of their own ("shaw"), or positions of a segment ("learned")."""
    tie_biases: bool = True
    """One pair of biases u, v for all layers (released PyTorch code), or one pair per layer (released TF code)."""
    memory_start: MemoryStart = "empty"
    """Memory before the first token: empty, growing with the text (released PyTorch code), or M zero vectors that are
    attended to like others (released TF code, Hugging Face)."""
    auxiliary_losses: bool = False
    """Train with the losses of Al-Rfou et al.: every layer predicts the next two tokens, by classifiers that exist in
    training only."""
    init: Literal["pytorch", "tf"] = "pytorch"
    """Initial weights of the released PyTorch code, or of the released TF code: there the layer-norm gains are exactly
    1, and the rows that stand for tail bands 0."""

    @property
    def encoding(self) -> EncodingTraits:
        """Traits of the position encoding."""
        return ENCODINGS[self.position]

    @property
    def is_transformer_xl(self) -> bool:
        """True if this is the model of section 3, and no baseline."""
        return self.encoding.transformer_xl and not self.auxiliary_losses

    @property
    def longest_window(self) -> int | None:
        """Number of learned positions; None if positions are not learned."""
        return self.n_positions if self.absolute_positions else None

    @property
    def absolute_positions(self) -> bool:
        """True if positions count from the start of a segment (Vaswani et al., Al-Rfou et al.)."""
        return self.encoding.absolute_positions

    @property
    def scores_distances(self) -> bool:
        """True if attention scores depend on the distance between query and key, so `max_distance` applies."""
        return self.encoding.scores_distances

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        positive("model", self, "n_heads", "d_head", "d_inner", "n_positions", "norm_eps")
        require(self.d_model % 2 == 0, "model", "d_model", self.d_model, "even (half sines, half cosines)")
        self._check_shares("attention_dropout", "inner_dropout")
        learned = self.encoding.learned_vectors
        wish = "a number of vectors to learn" if learned else f'left out with position = "{self.position}"'
        require((self.n_positions is not None) == learned, "model", "n_positions", self.n_positions, wish)
        only = self.tie_biases or self.encoding.has_biases
        with_biases = " or ".join(f'"{name}"' for name, traits in ENCODINGS.items() if traits.has_biases)
        require(only, "model", "tie_biases", self.tie_biases, f"left out unless position = {with_biases}")
        if self.encoding.check is not None:
            self.encoding.check(self)


@dataclass(frozen=True, kw_only=True)
class RnnSettings(ModelSettings):
    """[model] with arch = "lstm" or "qrnn": the recurrent baselines of Tables 1 and 8.

    The layers are d_hidden wide but the last, which is d_model wide as the embedding is: the softmax is tied to it.
    """

    recurrent_state: ClassVar[bool] = True
    """The state is all the memory."""

    init_std: float = 0.1
    """Standard deviation of the initial embedding and softmax; the layers begin as PyTorch's do."""
    d_hidden: int | None = None
    """Width of all layers but the last; d_model where it is left out."""
    window: int | None = None
    """arch = "qrnn": inputs that the first layer sees at once, 2 where it is left out; the layers above see one."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        positive("model", self, "d_hidden", "window")
        inner = self.d_hidden is None or self.n_layers > 1
        require(inner, "model", "d_hidden", self.d_hidden, "left out with one layer, which is d_model wide")
        idle = self.window is None or self.arch == "qrnn"
        require(idle, "model", "window", self.window, f'left out with arch = "{self.arch}"')

    @property
    def widths(self) -> list[int]:
        """Width of each layer."""
        return [self.d_hidden or self.d_model] * (self.n_layers - 1) + [self.d_model]

    @property
    def first_window(self) -> int:
        """Inputs that the first layer sees at once."""
        return (self.window or 2) if self.arch == "qrnn" else 1


MODELS: dict[str, type[ModelSettings]] = {
    "transformer": TransformerSettings,
    "lstm": RnnSettings,
    "qrnn": RnnSettings,
}
"""The class of [model] for each word of `arch`."""
