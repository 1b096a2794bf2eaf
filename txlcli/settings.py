"""Every knob of a model, its training and its evaluation: default, unit, range.

A recipe's sections are these dataclasses, its keys their fields. None means "off" or "derived"; a recipe leaves such
a key out.
"""

import itertools
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from txlcli.errors import RecipeError, did_you_mean

PLAIN_NAME = r"\w[\w.+-]{0,99}"
"""What stores and runs may be called: a file name on every system."""
MOST_SEED = 2**63 - 1
"""The largest seed that PyTorch takes."""


def _require(good: bool, section: str, key: str, value: object, wish: str) -> None:
    if not good:
        raise RecipeError(f"[{section}] {key} must be {wish}, not {value!r}")


def _positive(section: str, instance: object, *keys: str) -> None:
    for key in keys:
        value = getattr(instance, key)
        _require(value is None or 0 < value < math.inf, section, key, value, "greater than 0")


def _not_negative(section: str, instance: object, *keys: str) -> None:
    for key in keys:
        value = getattr(instance, key)
        _require(value is None or 0 <= value < math.inf, section, key, value, "0 or more")


def _one_of(section: str, instance: object, key: str, known: Collection[str]) -> None:
    value = getattr(instance, key)
    if value not in known:
        raise RecipeError(
            f"[{section}] {key} must be one of {', '.join(known)}, not {value!r}{did_you_mean(value, known)}"
        )


@dataclass(frozen=True)
class CorpusSettings:
    """[corpus]: the text that the model learns."""

    store: str
    """Name of the token store in the data folder, as `txl prepare --list` shows it."""
    shuffle_sentences: bool = False
    """Draw a new order of the sentences for every epoch (One Billion Word); the store must know where they start."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        plain = re.fullmatch(PLAIN_NAME, self.store) is not None
        _require(plain, "corpus", "store", self.store, 'the name of a store: letters, digits, ".", "-" and "_"')


NORMS = ("post", "pre", "pre_released")
INITS = ("pytorch", "tf")
MEMORY_STARTS = ("empty", "zeros")


@dataclass(frozen=True)
class ModelSettings:
    """[model]: the Transformer-XL of section 3; the vocabulary size comes from the store."""

    n_layers: int
    """Layers N."""
    d_model: int
    """Width d of the hidden states and of the embedding."""
    n_heads: int
    """Attention heads H per layer."""
    d_head: int
    """Width D of one head; H x D need not be d."""
    d_inner: int
    """Width F between the two matrices of a feed-forward block."""
    dropout: float = 0.1
    """Share dropped of embeddings, distance encodings, sublayer outputs, feed-forward activations, the output."""
    attention_dropout: float = 0.0
    """Share of attention probabilities dropped."""
    norm: Literal["post", "pre", "pre_released"] = "post"
    """Layer normalisation after each residual sum (the paper), or before each sublayer with one more at the end, or the
    latter without that last one (released code)."""
    norm_eps: float = 1e-5
    """What layer normalisation adds to the variance; 1e-12 in the released TF code."""
    tie_biases: bool = True
    """One pair of biases u, v for all layers (released PyTorch code), or one pair per layer (released TF code)."""
    memory_start: Literal["empty", "zeros"] = "empty"
    """Memory before the first token: empty, growing with the text (released PyTorch code), or M zero vectors that are
    attended to like others (released TF code, Hugging Face)."""
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
    init: Literal["pytorch", "tf"] = "pytorch"
    """Initial weights of the released PyTorch code, or of the released TF code: there the layer-norm gains are exactly
    1, and the rows that stand for tail bands 0."""
    init_std: float = 0.02
    """Standard deviation of the initial weights, and of the initial layer-norm gains around 1."""
    proj_init_std: float = 0.01
    """Standard deviation of the initial projections between embedding and model width."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _positive("model", self, "n_layers", "d_model", "n_heads", "d_head", "d_inner", "d_embed", "div_val")
        _positive("model", self, "norm_eps", "init_std", "proj_init_std")
        _require(self.d_model % 2 == 0, "model", "d_model", self.d_model, "even (half sines, half cosines)")
        for key in ("dropout", "attention_dropout"):
            value = getattr(self, key)
            _require(0 <= value < 1, "model", key, value, "at least 0 and less than 1")
        _one_of("model", self, "norm", NORMS)
        _one_of("model", self, "memory_start", MEMORY_STARTS)
        _one_of("model", self, "init", INITS)
        rising = all(first < second for first, second in itertools.pairwise((0, *self.cutoffs)))
        _require(rising, "model", "cutoffs", list(self.cutoffs), "ids above 0, each larger than the one before")
        bands, tied = len(self.cutoffs) + 1, self.tie_projections
        fits = tied is None or len(tied) == bands
        _require(fits, "model", "tie_projections", list(tied or ()), f"as many as bands ({bands})")
        narrowest = self.embed_width // self.div_val ** (bands - 1)
        _require(narrowest > 0, "model", "div_val", self.div_val, f"small enough to leave band {bands} a width")

    @property
    def embed_width(self) -> int:
        """Width of the first band's embedding."""
        return self.d_embed or self.d_model


OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "inverse_sqrt", "constant", "plateau")
COSINE_STARTS = ("start", "warmup")
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class TrainSettings:
    """[train]: how the weights are learned."""

    seg_len: int
    """Segment length L, in tokens."""
    mem_len: int
    """Memory length M, in tokens; 0 switches recurrence off."""
    batch_size: int
    """Lanes B: contiguous slices of the corpus that are read side by side."""
    max_steps: int
    """Optimizer steps of the whole run; the schedule ends here."""
    accumulate: int = 1
    """Parts into which the lanes of a step are divided, one after the other, to save memory; each has its own M."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam (betas 0.9, 0.999) or stochastic gradient descent."""
    lr: float = 2.5e-4
    """Peak learning rate."""
    momentum: float = 0.0
    """Momentum of sgd."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient."""
    schedule: Literal["cosine", "inverse_sqrt", "constant", "plateau"] = "cosine"
    """Course of the learning rate after warm-up: cosine over all steps, falling with 1/sqrt(step), constant, or lowered
    when the validation loss stops falling."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    cosine_from: Literal["start", "warmup"] = "start"
    """schedule = "cosine": its fall begins at the first step, hidden by the warm-up (released PyTorch code), or where
    the warm-up ends (released TF code)."""
    min_lr_ratio: float = 0.0
    """Floor of the learning rate, as a share of lr."""
    plateau_factor: float = 0.5
    """schedule = "plateau": what the learning rate is multiplied by."""
    plateau_patience: int = 0
    """schedule = "plateau": validations without a better loss that are waited out first."""
    clip: float | None = 0.25
    """Largest norm of the whole gradient; "none" leaves it as it is."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of matrix products; weights and optimizer state stay fp32."""
    seed: int = 1111
    """Seed of the initial weights, dropout and the order of sentences."""
    valid_every: int = 4000
    """Steps between validations; a checkpoint is saved at each."""
    valid_seg_len: int | None = None
    """Segment length of validation; seg_len where it is left out. Its memory is mem_len + seg_len - valid_seg_len.
    Without memory validation reads the segments of training."""
    valid_batch_size: int = 10
    """Lanes of validation."""
    valid_tokens: int | None = None
    """Validate on this many tokens from the head of the split; all where it is left out."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _positive("train", self, "seg_len", "batch_size", "max_steps", "accumulate", "lr", "clip", "valid_every")
        _positive("train", self, "valid_seg_len", "valid_batch_size", "valid_tokens")
        _not_negative("train", self, "mem_len", "momentum", "weight_decay", "warmup_steps", "plateau_patience", "seed")
        _one_of("train", self, "optimizer", OPTIMIZERS)
        _one_of("train", self, "schedule", SCHEDULES)
        _one_of("train", self, "cosine_from", COSINE_STARTS)
        _one_of("train", self, "precision", PRECISIONS)
        _require(self.seed <= MOST_SEED, "train", "seed", self.seed, f"at most {MOST_SEED}")
        _require(0 <= self.min_lr_ratio <= 1, "train", "min_lr_ratio", self.min_lr_ratio, "from 0 to 1")
        _require(0 < self.plateau_factor < 1, "train", "plateau_factor", self.plateau_factor, "between 0 and 1")
        _require(
            self.batch_size % self.accumulate == 0,
            "train",
            "accumulate",
            self.accumulate,
            f"a divisor of batch_size ({self.batch_size})",
        )
        _require(
            self.momentum == 0 or self.optimizer == "sgd",
            "train",
            "momentum",
            self.momentum,
            '0 unless optimizer = "sgd"',
        )
        self._refuse_idle()
        longest = self.seg_len + self.mem_len
        _require(
            self.valid_seg_len is None or self.valid_seg_len <= longest,
            "train",
            "valid_seg_len",
            self.valid_seg_len,
            f"at most seg_len + mem_len ({longest})",
        )

    def _refuse_idle(self) -> None:
        """Refuse what the chosen schedule would ignore."""
        schedules = {
            "cosine_from": ("cosine",),
            "min_lr_ratio": ("cosine", "inverse_sqrt", "plateau"),
            "plateau_factor": ("plateau",),
            "plateau_patience": ("plateau",),
        }
        for key, words in schedules.items():
            value = getattr(self, key)
            good = self.schedule in words or value == type(self).__dataclass_fields__[key].default
            _require(good, "train", key, value, f"left out unless the schedule is {' or '.join(words)}")


SAME_LENGTHS = ("m", "m_plus_one", "off")


@dataclass(frozen=True)
class EvalSettings:
    """[eval]: the defaults of `txl eval`; the released evaluation settings in the published recipes."""

    seg_len: int
    """Segment length L, in tokens."""
    mem_len: int
    """Memory length M, in tokens."""
    batch_size: int = 10
    """Lanes B; 1 is the reference."""
    max_distance: int | None = None
    """Distances beyond it share one encoding; the trained L + M where it is left out."""
    same_length: Literal["m", "m_plus_one", "off"] = "m"
    """Keys that every query sees: M (released PyTorch code, Hugging Face), M + 1 (TF), or M + 1 to M + L ("off")."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _positive("eval", self, "seg_len", "batch_size", "max_distance")
        _not_negative("eval", self, "mem_len")
        _one_of("eval", self, "same_length", SAME_LENGTHS)


@dataclass(frozen=True)
class LogSettings:
    """[log]: where the curves go."""

    every: int = 200
    """Steps between two reports of the training loss."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder; needs the tensorboard package."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _positive("log", self, "every")


@dataclass(frozen=True)
class PublishedSettings:
    """[published]: what the paper reports for this recipe; used for counting and comparing only."""

    vocab_size: int | None = None
    """V of the full benchmark."""
    parameters: int | None = None
    """Parameters at that V, counted exactly."""
    valid: float | None = None
    """The paper's result on the validation split, in the corpus's metric."""
    test: float | None = None
    """The paper's result on the test split, in the corpus's metric."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _positive("published", self, "vocab_size", "parameters", "valid", "test")


@dataclass(frozen=True)
class Settings:
    """One recipe, resolved."""

    corpus: CorpusSettings
    model: ModelSettings
    train: TrainSettings
    eval: EvalSettings
    log: LogSettings = field(default_factory=LogSettings)
    published: PublishedSettings = field(default_factory=PublishedSettings)
