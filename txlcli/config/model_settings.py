"""The [model] section of a recipe: one class per architecture."""

import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from txlcli.config.descriptions import descriptions
from txlcli.config.ranges import (
    MAX_PARTS,
    AtLeastTwo,
    NotNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Range,
    Rate,
    Section,
    wrong_setting,
)
from txlcli.config.traits import (
    BLOCKS,
    ENCODING_TRAITS,
    FEED_FORWARDS,
    OF_BLOCK,
    Biases,
    Block,
    BlockName,
    EncodingTraits,
    NormType,
    QkNorm,
)

MemoryStart = Literal["empty", "zeros"]

MODELS: "dict[str, type[ModelSettings]]" = {}
"""Class of the [model] section for each value of `arch`."""


def register_model_settings(name: str, settings: "type[ModelSettings]") -> None:
    """Set the class of the [model] section for one value of `arch`; a test checks the classes of txl instead.

    Raises:
        ValueError: a field of the class has no description.
    """
    if MODELS.get(name) is not settings:
        descriptions(settings)
        MODELS[name] = settings


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """[model]: settings of every architecture; the vocabulary size comes from the store."""

    section = "model"

    recurrent_state: ClassVar[bool] = False
    """True if the model carries a state instead of a memory of M tokens, so that memory lengths do not apply."""
    keys_are_tokens: ClassVar[bool] = True
    """True if each key belongs to one token, at its distance."""
    has_slots: ClassVar[bool] = False
    """True if the memory has compressed slots, so that eval.compressed_len applies."""
    fixed_segments: ClassVar[bool] = False
    """True if train.seg_len must be a multiple of a number of the model, so that segment lengths cannot vary."""
    supports_reread: ClassVar[bool] = False
    """True if segments can be read again, with tokens before them (train.reread_len)."""
    supports_reset: ClassVar[bool] = False
    """True if the objective begins anew within a segment, at `Objective.since_reset` (train.reset_at_documents)."""

    layers_are_alike: ClassVar[bool] = False
    """True if all layers have the same weights and operations, so that a forecast may look at a few of them."""

    arch: Annotated[str, MODELS] = "transformer"
    """Architecture: a Transformer with a memory of hidden states (Transformer-XL; a vanilla one without), with a
    compressed memory (Rae et al.) or with memory tokens (RMT, Bulatov et al.), or a recurrent network (LSTM; QRNN,
    Bradbury et al.)."""
    n_layers: Annotated[int, Range(least=1, most=MAX_PARTS)]
    """Number of layers N."""
    d_model: PositiveInt
    """Width d of the hidden states and of the embedding."""
    dropout: Rate = 0.1
    """Dropout rate of embeddings, distance encodings, sublayer outputs, feed-forward activations and the output, where
    they have no rate of their own."""
    embedding_dropout: Rate | None = None
    """Dropout rate of the embeddings; by default the value of dropout."""
    output_dropout: Rate | None = None
    """Dropout rate of the last hidden states; by default the value of dropout."""
    variational_dropout: bool = False
    """Share one dropout mask per sequence and segment among all positions, and one mask among all distances (Gal &
    Ghahramani 2016); attention probabilities, which have no channels, keep independent masks."""
    word_dropout: Rate = 0.0
    """Share of words that are dropped from the input, every occurrence in a batch (with arch = "rmt", in a segment of
    the model); the softmax keeps them (Gal & Ghahramani 2016). A dropped embedding is 1e-12 instead of 0, since layer
    norms have no finite gradient at 0."""
    cutoffs: tuple[int, ...] = ()
    """First ids of the tail bands of adaptive softmax and adaptive input, rising; empty means a plain softmax."""
    div_val: PositiveInt = 1
    """Factor by which the embedding of each band is narrower than that of the band before."""
    d_embed: PositiveInt | None = None
    """Width of the first band's embedding; by default d_model."""
    tie_embeddings: bool = True
    """Use the embedding matrices in the softmax, too."""
    tie_projections: tuple[bool, ...] | None = None
    """For each band, true if the softmax uses the embedding's projection; by default all but the first
    (proj_share_all_but_first of the released TF code)."""
    project_same_width: bool = True
    """With div_val above 1, also project bands as wide as the model (proj_same_dim of the released TF code)."""
    init_std: PositiveFloat = 0.02
    """Standard deviation of the initial weights, and of the initial layer-norm gains around 1."""
    proj_init_std: PositiveFloat = 0.01
    """Standard deviation of the initial projections between embedding and model width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(first < second for first, second in itertools.pairwise((0, *self.cutoffs)))
        self.require(rising, "cutoffs", "ids above 0, each larger than the one before")
        bands = len(self.cutoffs) + 1
        self.require(bands <= MAX_PARTS, "cutoffs", f"fewer than {MAX_PARTS} ids")
        if self.tie_projections is not None:
            self.require(len(self.tie_projections) == bands, "tie_projections", f"as many as bands ({bands}), or none")
        narrowest = self.embed_width // self.div_val ** (bands - 1)
        self.require(narrowest > 0, "div_val", f"small enough to leave band {bands} a width")

    def check_training(self, *, seg_len: int, mem_len: int) -> None:
        """Raise a RecipeError if the model cannot be trained with segments of L tokens and a memory of M."""

    @property
    def head_width(self) -> int | None:
        """Head width D; None without attention."""
        return None

    @property
    def has_attention(self) -> bool:
        """True if the layers have attention."""
        return self.head_width is not None

    @property
    def longest_window(self) -> int | None:
        """Largest number of tokens in a segment or window; None if there is no limit."""
        return None

    @property
    def attention_window(self) -> int | None:
        """Largest number of keys that a query sees in training and evaluation, itself included; None: no limit."""
        return None

    def visible_memory(self, mem_len: int) -> int:
        """Return how many of M remembered positions a query can see at most; a memory keeps no more."""
        window = self.attention_window
        return mem_len if window is None else min(mem_len, window - 1)

    def memory_keys(self, mem_len: int, compressed_len: int | None = None) -> int:
        """Return how many keys precede a segment after a long text, with M positions and C compressed slots.

        C is that of the model by default; only a compressed memory has it.
        """
        return mem_len

    def mean_keys(self, *, seg_len: int, mem_len: int) -> float:
        """Return the mean number of keys that the L queries of a segment see after M remembered positions."""
        window = self.attention_window
        if window is None:
            return mem_len + (seg_len + 1) / 2
        growing = min(seg_len, max(0, window - mem_len))  # queries that see M + 1, M + 2, ... keys
        limited = seg_len - growing  # queries that see W keys
        return (growing * (mem_len + (growing + 1) / 2) + limited * window) / seg_len

    @property
    def encoding_name(self) -> str:
        """Name of the position encoding."""
        return "none"

    @property
    def encoding(self) -> EncodingTraits:
        """Traits of the position encoding."""
        return ENCODING_TRAITS[self.encoding_name]

    @property
    def absolute_positions(self) -> bool:
        """True if positions count from the start of a segment, so that using a memory must be learned in training."""
        return self.encoding.absolute_positions

    @property
    def memory_obstacle(self) -> str | None:
        """Reason why the model needs a memory in training to use one, in words that follow its name; None for most."""
        return "was trained without memory and with absolute positions" if self.absolute_positions else None

    @property
    def reset_obstacle(self) -> str | None:
        """Setting with which a document within a segment is not read as if it were alone; None if it is."""
        if not self.supports_reset:
            return f'with arch = "{self.arch}"'
        if self.absolute_positions:
            return f'with position = "{self.encoding_name}" (it counts from the beginning of a segment)'
        return None

    @property
    def limits_distance(self) -> bool:
        """True if `max_distance` applies: larger distances share one encoding."""
        return self.encoding.limits_distance

    def dropout_rate(self, *keys: str) -> float:
        """Return the first of these dropout rates that is set, or `dropout`."""
        for key in keys:
            rate: float | None = getattr(self, key)
            if rate is not None:
                return rate
        return self.dropout

    @property
    def embed_width(self) -> int:
        """Width of the first band's embedding."""
        return self.d_embed or self.d_model


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(ModelSettings):
    """[model] with arch = "transformer": Transformer-XL (section 3) and the models of Table 6."""

    supports_reread = True
    supports_reset = True
    layers_are_alike = True

    n_heads: PositiveInt
    """Number of attention heads H per layer."""
    d_head: PositiveInt
    """Width D of one head; H x D may differ from d."""
    d_inner: PositiveInt
    """Inner width F of a feed-forward sublayer with two matrices. A gated one, such as "swiglu", has three, whose width
    is 2/3 of this, rounded, so that the number of weights stays the same."""
    block: BlockName = "paper"
    """Parts of a layer: those of the paper (layer normalization, ReLU, biases), or later ones ("modern": RMSNorm,
    SwiGLU, normalized queries and keys, no biases). Each of the four settings below replaces one part."""
    norm_type: NormType = "block"
    """Normalization of the hidden states: that of the block; layer normalization; or RMSNorm (Zhang & Sennrich 2019),
    which divides by the root mean square and has gains only. For its place see norm."""
    feed_forward: Annotated[str, FEED_FORWARDS] = "block"
    """Feed-forward sublayer: that of the block; ReLU; or SwiGLU (Shazeer 2020)."""
    qk_norm: QkNorm = "block"
    """Normalization of queries and keys before they are rotated and scored: that of the block; RMSNorm of each head,
    with gains that all heads of a layer share ("rms"); or none. Position keys W_kR R are not normalized."""
    biases: Biases = "block"
    """Biases of the feed-forward sublayer and of layer normalization: as in the block, all or none. The biases u and v
    and those of the softmax are not part of a block."""
    attention_dropout: Rate = 0.0
    """Dropout rate of the attention probabilities."""
    projection_dropout: Rate = 0.0
    """Dropout rate of queries, keys and values, and with position = "relative_tied" of the same projections of
    distances."""
    feed_forward_dropout: Rate | None = None
    """Dropout rate of the output of the feed-forward sublayer; by default the value of dropout."""
    inner_dropout: Rate | None = None
    """Dropout rate of the feed-forward activations; by default the value of feed_forward_dropout."""
    distance_dropout: Rate | None = None
    """Dropout rate of the distance encodings R of the positions "relative" and "relative_tied"; by default the value
    of dropout."""
    norm: Literal["post", "pre", "pre_released"] = "post"
    """Place of normalization: after each residual sum (the paper); before each sublayer, with one more at the
    end; or the latter without the last one (released code)."""
    norm_eps: PositiveFloat = 1e-5
    """Constant that normalization adds to the variance, or to the mean square; 1e-12 in the released TF code."""
    gating: Literal["residual", "gru"] = "residual"
    """How the output of a sublayer joins the hidden states: it is added to them; or ("gru", only with norm = "pre" or
    "pre_released") a gated recurrent unit per position combines both, after a ReLU of the output (GTrXL, Parisotto et
    al. 2020). A layer then has 12 more matrices of d x d."""
    gate_bias: NotNegativeFloat = 2.0
    """gating = "gru": initial bias of the update gates; the larger, the more a layer begins as the identity."""
    position: Annotated[str, ENCODING_TRAITS] = "relative"
    """Position encoding: Transformer-XL's relative encoding; the same with the projections of hidden states in place of
    its own (W_k R for W_kR R, and W_q R_0 for u and v); Shaw et al.'s (a learned vector per distance); Vaswani et
    al.'s (sinusoids of positions); Al-Rfou et al.'s (a learned vector per position and layer); rotary positions (Su et
    al.: queries and keys are rotated); ALiBi (Press et al.: a fixed penalty per distance and head); T5's bias (Raffel
    et al.: a learned bias per head and range of distances, 32 ranges up to 128); or none at all."""
    n_positions: PositiveInt | None = None
    """Number of learned vectors: distances ("shaw"; larger ones share the last), or positions of a segment
    ("learned")."""
    tie_biases: bool = True
    """Share one pair of biases u, v among all layers (released PyTorch code) instead of one pair per layer (released TF
    code)."""
    window: AtLeastTwo | None = None
    """Largest number of keys W that a query sees in training and in evaluation, its own position included: the last W
    tokens at most. A query sees the smallest number of: those of memory and segment, those of eval.same_length, W. By
    default there is no limit."""
    memory_start: MemoryStart = "empty"
    """Memory before the first token: empty, growing with the text (released PyTorch code), or M zero vectors that are
    attended to like others (released TF code, Hugging Face)."""
    auxiliary_losses: bool = False
    """Train with the auxiliary losses of Al-Rfou et al.: every layer predicts the next two tokens, with
    classifiers that are used in training only."""
    init: Literal["pytorch", "tf"] = "pytorch"
    """Initial weights of the released PyTorch code, or of the released TF code, where the layer-norm gains are exactly
    1 and the softmax rows that represent tail bands are 0."""

    @property
    def encoding_name(self) -> str:
        return self.position

    @property
    def parts(self) -> Block:
        """Parts of a layer: those of the block with the single settings in their place."""
        parts = dict(vars(BLOCKS[self.block]))
        for name in parts:
            own = getattr(self, name)
            if own != OF_BLOCK:
                parts[name] = own
        return Block(**parts)

    @property
    def inner_width(self) -> int:
        """Width of the matrices of the feed-forward sublayer, which have as many weights as two of width F."""
        return round(2 * self.d_inner / FEED_FORWARDS[self.parts.feed_forward])

    @property
    def head_width(self) -> int:
        return self.d_head

    @property
    def longest_window(self) -> int | None:
        return self.n_positions if self.absolute_positions else None

    @property
    def attention_window(self) -> int | None:
        return self.window

    @property
    def reset_obstacle(self) -> str | None:
        if self.memory_start == "zeros":
            return 'with memory_start = "zeros"'
        if self.auxiliary_losses:
            return "with auxiliary_losses (which predict the first token of the next document, too)"
        return super().reset_obstacle

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.d_model % 2 == 0, "d_model", "even (half sines, half cosines)")
        if self.norm == "post":  # GTrXL's identity map reordering
            self.require(self.gating == "residual", "gating", '"residual" unless norm = "pre" or "pre_released"')
        self.belongs_to("gating", ["gru"], "gate_bias")
        arch = f'with arch = "{self.arch}"'
        if self.recurrent_state:
            self.must_be_default("memory_start", f"{arch} (its state is its memory)")
        if not self.keys_are_tokens:
            self.require(not self.absolute_positions, "position", f"an encoding of distances, or none, {arch}")
            self.must_be_default("window", arch)
            self.must_be_default("auxiliary_losses", arch)
        self._check_position()

    def _check_position(self) -> None:
        """Check the settings that belong to some position encodings only."""
        encoding = self.encoding
        position = f'with position = "{self.position}"'
        if encoding.learned_vectors:
            self.require(self.n_positions is not None, "n_positions", "the number of vectors to learn")
        else:
            self.must_be_default("n_positions", position)
        if not encoding.has_biases:
            self.must_be_default("tie_biases", position)
        if not encoding.projects_distances:
            self.must_be_default("distance_dropout", position)
        if encoding.rotates_pairs:
            self.require(self.d_head % 2 == 0, "d_head", f"even {position}")
        if encoding.check is not None:
            encoding.check(self)

    def check_training(self, *, seg_len: int, mem_len: int) -> None:
        if mem_len:
            why = "with train.mem_len above 0 (only the vanilla model has them; set train.mem_len=0)"
            self.must_be_default("auxiliary_losses", why)


@dataclass(frozen=True, kw_only=True)
class CompressiveSettings(TransformerSettings):
    """[model] with arch = "compressive": the Compressive Transformer (Rae et al. 2019).

    Tokens that leave the memory are compressed; keys are those of compressed memory, memory and segment.
    """

    keys_are_tokens = False  # a compressed slot stands for c tokens
    has_slots = True
    fixed_segments = True
    supports_reread = False
    supports_reset = False

    compressed_len: PositiveInt
    """Number of slots C of the compressed memory of each layer; eval.compressed_len may differ."""
    compression_rate: AtLeastTwo = 3
    """Number of positions c that are compressed into one slot."""
    compression: Literal["convolution", "mean", "max"] = "convolution"
    """How positions are compressed: by a convolution with kernel and stride c, trained to reconstruct the attention of
    its layer to the tokens that it replaces; by their mean; or by their maximum."""

    def check_training(self, *, seg_len: int, mem_len: int) -> None:
        super().check_training(seg_len=seg_len, mem_len=mem_len)
        if mem_len == 0:
            raise wrong_setting("train.mem_len", mem_len, f'greater than 0 with arch = "{self.arch}"')
        if seg_len % self.compression_rate:
            expected = f"a multiple of model.compression_rate ({self.compression_rate})"
            raise wrong_setting("train.seg_len", seg_len, expected)

    def full_len(self, mem_len: int) -> int:
        """Return how many positions a memory has after a long text: M, and those that do not make a whole slot."""
        if self.memory_start == "zeros":
            return mem_len
        return mem_len + -mem_len % self.compression_rate

    def memory_keys(self, mem_len: int, compressed_len: int | None = None) -> int:
        if mem_len == 0:
            return 0
        slots = self.compressed_len if compressed_len is None else compressed_len
        return self.full_len(mem_len) + slots


@dataclass(frozen=True, kw_only=True)
class RmtSettings(TransformerSettings):
    """[model] with arch = "rmt": the Recurrent Memory Transformer (Bulatov et al. 2022).

    A state of n vectors is read before each segment and written after it. A training step reads several segments, and
    gradients pass through the states between them.
    """

    recurrent_state = True
    keys_are_tokens = False  # some keys are memory tokens
    fixed_segments = True
    supports_reread = False
    supports_reset = False

    segment_len: PositiveInt
    """Number of tokens L between two states. train.seg_len is a multiple of it: its gradients pass through
    train.seg_len / L segments."""
    n_memory_tokens: PositiveInt = 10
    """Number n of memory tokens, of which each segment has a group before and a group after its tokens."""

    def check_training(self, *, seg_len: int, mem_len: int) -> None:
        super().check_training(seg_len=seg_len, mem_len=mem_len)
        length = self.segment_len
        if seg_len % length:
            expected = f"a multiple of model.segment_len ({length}): gradients pass through that many segments"
            raise wrong_setting("train.seg_len", seg_len, expected)

    @property
    def limits_distance(self) -> bool:
        return False  # distances end with the segment

    @property
    def rows(self) -> int:
        """Rows of the input of a layer: those of a segment and of both groups of memory tokens."""
        return self.segment_len + 2 * self.n_memory_tokens

    def mean_keys(self, *, seg_len: int, mem_len: int) -> float:
        return (self.rows + 1) / 2


@dataclass(frozen=True, kw_only=True)
class RnnSettings(ModelSettings):
    """[model] with arch = "lstm" or "qrnn": the recurrent baselines of Tables 1 and 8.

    All layers but the last are d_hidden wide. The last is as wide as the embedding, to which the softmax is tied.
    """

    recurrent_state = True
    supports_reset = True
    reads_window: ClassVar[bool] = False
    """True if the first layer reads several inputs per position."""

    init_std: PositiveFloat = 0.1
    """Standard deviation of the initial embedding and softmax; the layers have PyTorch's initial weights."""
    d_hidden: PositiveInt | None = None
    """Width of all layers but the last; by default d_model."""
    window: PositiveInt | None = None
    """arch = "qrnn": number of inputs that the first layer reads per position, by default 2; higher layers read one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reads_window:
            self.must_be_default("window", f'with arch = "{self.arch}"')
        if self.n_layers == 1:
            self.must_be_default("d_hidden", "with one layer, which is d_model wide")

    @property
    def widths(self) -> list[int]:
        """Width of each layer."""
        hidden = self.d_hidden or self.d_model
        return [hidden] * (self.n_layers - 1) + [self.d_model]

    @property
    def first_window(self) -> int:
        """Number of inputs that the first layer reads per position."""
        if not self.reads_window:
            return 1
        return self.window or 2


@dataclass(frozen=True, kw_only=True)
class QrnnSettings(RnnSettings):
    """[model] with arch = "qrnn": layers whose gates are convolutions of their inputs."""

    reads_window = True


MODELS.update(transformer=TransformerSettings, compressive=CompressiveSettings, rmt=RmtSettings)
MODELS.update(lstm=RnnSettings, qrnn=QrnnSettings)
