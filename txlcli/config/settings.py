"""Every knob of a model, its training and its evaluation: default, unit, range.

A recipe's sections are these dataclasses, its keys their fields. None means "off" or "derived"; a recipe leaves such
a key out.
"""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.optimizers import OPTIMIZERS
from txlcli.config.ranges import known_words, no_larger_than_sizes, not_negative, positive, require
from txlcli.errors import UsageError

PLAIN_NAME = r"\w[\w.+-]{0,99}"
"""What stores and runs may be called: a file name on every system."""
MOST_SEED = 2**63 - 1
"""The largest seed that PyTorch takes."""


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """[corpus]: the text that the model learns."""

    store: str
    """Name of the token store in the data folder, as `txl prepare --list` shows it."""
    shuffle_sentences: bool = False
    """Draw a new order of the sentences for every epoch (One Billion Word); the store must know where they start."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        plain = re.fullmatch(PLAIN_NAME, self.store) is not None
        require(plain, "corpus", "store", self.store, 'the name of a store: letters, digits, ".", "-" and "_"')


LossPart = Literal["full", "half"]
AttentionBackend = Literal["auto", "reference", "sdpa", "flex"]
SameLength = Literal["m", "m_plus_one", "off"]


@dataclass(frozen=True, kw_only=True)
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
    loss_part: LossPart = "full"
    """Positions of a segment whose losses count in training: all, or the recent half (Table 6); validation counts
    all."""
    accumulate: int = 1
    """Parts into which the lanes of a step are divided, one after the other, to save memory; each has its own M."""
    recompute: bool = False
    """Compute attention probabilities and logits again in the backward pass, piece by piece, instead of keeping them:
    the same gradients in less memory, for a few percent more operations."""
    attention: AttentionBackend = "auto"
    """How attention is computed; the function is the same. auto: txl's own, lane by lane on a CPU; reference: written
    out; sdpa: PyTorch's fused attention with the position score as its mask; flex: FlexAttention, on CUDA and without
    dropout of attention."""
    compile: bool = False
    """Let torch.compile make few kernels of the many small operations of each layer; it takes some seconds at first.
    For CUDA, where every kernel has its price: on a CPU nothing is gained."""
    cuda_graph: bool = False
    """Record the forward and backward pass of a step as a CUDA graph and repeat it: for models so small that starting
    their kernels takes longer than running them. For one process; not with adaptive softmax, auxiliary losses, flex."""
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
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
    average: Literal["none", "asgd", "exponential"] = "none"
    """Weights that validation, `best.safetensors` and so evaluation use: those of the last step; the mean of all steps
    since validation stopped getting better (averaged SGD with the non-monotonic trigger of AWD-LSTM, of whatever
    optimizer's steps); or an exponential mean of all steps. Training itself goes on from the last step."""
    average_patience: int = 5
    """average = "asgd": the mean begins when a validation loss is above the lowest of those more than this many
    validations before."""
    average_decay: float = 0.999
    """average = "exponential": what the mean keeps of itself at a step; less at the beginning, (1 + n) / (10 + n) at
    step n."""
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
        known_words("train", self)
        no_larger_than_sizes("train", self, but="seed")
        positive("train", self, "seg_len", "batch_size", "max_steps", "accumulate", "lr", "clip", "valid_every")
        positive("train", self, "valid_seg_len", "valid_batch_size", "valid_tokens")
        not_negative("train", self, "mem_len", "momentum", "weight_decay", "warmup_steps", "plateau_patience", "seed")
        not_negative("train", self, "average_patience")
        even = self.loss_part == "full" or self.seg_len % 2 == 0
        require(even, "train", "seg_len", self.seg_len, 'even with loss_part = "half"')
        kept = self.attention == "auto" or not self.recompute
        require(kept, "train", "recompute", self.recompute, 'false unless attention = "auto"')
        if self.cuda_graph:
            require(self.accumulate == 1, "train", "accumulate", self.accumulate, "1 with cuda_graph")
            require(not self.recompute, "train", "recompute", self.recompute, "false with cuda_graph")
            require(self.precision != "fp16", "train", "precision", self.precision, "fp32 or bf16 with cuda_graph")
            # FlexAttention keeps its masks elsewhere and may free them; a recording would go on reading them.
            plain, kinds = self.attention != "flex", "auto, reference or sdpa with cuda_graph"
            require(plain, "train", "attention", self.attention, kinds)
        require(self.seed <= MOST_SEED, "train", "seed", self.seed, f"at most {MOST_SEED}")
        require(0 <= self.min_lr_ratio <= 1, "train", "min_lr_ratio", self.min_lr_ratio, "from 0 to 1")
        require(0 < self.plateau_factor < 1, "train", "plateau_factor", self.plateau_factor, "between 0 and 1")
        require(0 < self.average_decay < 1, "train", "average_decay", self.average_decay, "between 0 and 1")
        require(
            self.batch_size % self.accumulate == 0,
            "train",
            "accumulate",
            self.accumulate,
            f"a divisor of batch_size ({self.batch_size})",
        )
        self._refuse_idle()
        longest = self.seg_len + self.mem_len
        require(
            self.valid_seg_len is None or self.valid_seg_len <= longest,
            "train",
            "valid_seg_len",
            self.valid_seg_len,
            f"at most seg_len + mem_len ({longest})",
        )

    def _refuse_idle(self) -> None:
        """Refuse values that the chosen optimizer, schedule and average would ignore."""
        of_optimizers = sorted(set().union(*(traits.settings for traits in OPTIMIZERS.values())))
        users = {
            key: ("optimizer", *(name for name, traits in OPTIMIZERS.items() if key in traits.settings))
            for key in of_optimizers
        } | {
            "cosine_from": ("schedule", "cosine"),
            "min_lr_ratio": ("schedule", "cosine", "inverse_sqrt", "plateau"),
            "plateau_factor": ("schedule", "plateau"),
            "plateau_patience": ("schedule", "plateau"),
            "average_patience": ("average", "asgd"),
            "average_decay": ("average", "exponential"),
        }
        for key, (choice, *words) in users.items():
            value, usual = getattr(self, key), type(self).__dataclass_fields__[key].default
            good = getattr(self, choice) in words or value == usual
            default = f'"{usual}"' if isinstance(usual, str) else f"{usual:g}"
            named = " or ".join(f'"{word}"' for word in words)
            require(good, "train", key, value, f"{default} unless {choice} = {named}")


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """[eval]: the defaults of `txl eval`; the released evaluation settings in the published recipes."""

    seg_len: int
    """Segment length L, in tokens."""
    mem_len: int
    """Memory length M, in tokens."""
    batch_size: int = 10
    """Lanes B; 1 is the reference."""
    max_distance: int | None = None
    """Distances beyond it share one encoding; the trained L + M where it is left out. Absolute positions have none."""
    same_length: SameLength = "m"
    """Keys that every query sees: M (released PyTorch code, Hugging Face), M + 1 (TF), or M + 1 to M + L ("off")."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        known_words("eval", self)
        no_larger_than_sizes("eval", self)
        positive("eval", self, "seg_len", "batch_size", "max_distance")
        not_negative("eval", self, "mem_len")


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """[log]: where the curves go."""

    every: int = 200
    """Steps between two reports of the training loss."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder; needs the tensorboard package."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        no_larger_than_sizes("log", self)
        positive("log", self, "every")


@dataclass(frozen=True, kw_only=True)
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
        no_larger_than_sizes("published", self, but="parameters")
        positive("published", self, "vocab_size", "parameters", "valid", "test")


@dataclass(frozen=True)
class Settings:
    """One recipe, resolved."""

    corpus: CorpusSettings
    model: ModelSettings
    train: TrainSettings
    eval: EvalSettings
    log: LogSettings = field(default_factory=LogSettings)
    published: PublishedSettings = field(default_factory=PublishedSettings)

    def __post_init__(self) -> None:
        """Check what one section asks of another."""
        dropped = self.model.word_dropout  # the first position of a segment is kept
        require(self.train.seg_len > 1 or not dropped, "model", "word_dropout", dropped, "0 with train.seg_len = 1")
        if self.model.recurrent_state:
            self._refuse_memory()
        elif isinstance(self.model, TransformerSettings):
            self._check_positions(self.model)
            dropout, flex = self.model.attention_dropout, self.train.attention == "flex"
            require(not (flex and dropout), "model", "attention_dropout", dropout, '0 with train.attention = "flex"')
            steady = not (self.model.cutoffs or self.model.auxiliary_losses)
            wish = "false with model.cutoffs or model.auxiliary_losses, whose work differs from step to step"
            require(steady or not self.train.cuda_graph, "train", "cuda_graph", self.train.cuda_graph, wish)

    def evaluation_settings(self, **changes: object) -> EvalSettings:
        """[eval] with changes; `max_distance` becomes the trained L + M where nothing else is said.

        A model that carries a state has no distances, and one with absolute positions none that it knows.
        """
        reading = dataclasses.replace(self.eval, **changes)  # type: ignore[arg-type]
        if reading.max_distance is None and self.model.scores_distances:
            reading = dataclasses.replace(reading, max_distance=self.train.seg_len + self.train.mem_len)
        return reading

    @property
    def supports_memory(self) -> bool:
        """Whether the model can be read with a memory: absolute positions need one in training."""
        return self.train.mem_len > 0 or not self.model.absolute_positions

    def check_memory(self, mem_len: int, *, run: object, instead: str) -> None:
        """Refuse to read a run with a memory that makes no sense to it.

        Args:
            mem_len: M, tokens; 0 always does.
            run: what the message is about.
            instead: the next step.

        Raises:
            UsageError: no memory makes sense.
        """
        if mem_len and not self.supports_memory:
            raise UsageError(f"{run} was trained without memory and with absolute positions; {instead}")

    def check_attn_lens(self, attn_lens: Iterable[int], *, subject: object) -> None:
        """Refuse windows, `--attn-len` of a command, that are longer than the positions that a model has learned.

        Args:
            attn_lens: N of each, tokens.
            subject: what the message is about.

        Raises:
            UsageError: one is.
        """
        known, longest = self.model.longest_window, max(attn_lens, default=0)
        if known is not None and longest > known:
            raise UsageError(
                f"--attn-len {longest}: {subject} has learned {known:,} positions, so that no window is longer; give "
                "at most that"
            )

    def _check_positions(self, model: TransformerSettings) -> None:
        """A segment must fit into the positions that are learned; absolute ones need training to know a memory."""
        known = model.longest_window
        for section, length in (("train", self.train.seg_len), ("eval", self.eval.seg_len)):
            fits = known is None or length <= known
            require(fits, section, "seg_len", length, f"at most model.n_positions ({known})")
        valid_seg_len = self.train.valid_seg_len if self.train.mem_len else None  # without memory it is seg_len
        fits = known is None or valid_seg_len is None or valid_seg_len <= known
        require(fits, "train", "valid_seg_len", valid_seg_len, f"at most model.n_positions ({known})")
        why = f'0 with position = "{model.position}" and train.mem_len = 0'
        require(self.eval.mem_len == 0 or self.supports_memory, "eval", "mem_len", self.eval.mem_len, why)
        far = self.eval.max_distance
        wish = f'left out, or "none", with position = "{model.position}"'
        require(far is None or model.scores_distances, "eval", "max_distance", far, wish)

    def _refuse_memory(self) -> None:
        """A model that carries a state has no use for lengths of memory and attention."""
        why = f'with arch = "{self.model.arch}": its state is its memory'
        require(self.train.mem_len == 0, "train", "mem_len", self.train.mem_len, f"0 {why}")
        require(self.train.valid_seg_len is None, "train", "valid_seg_len", self.train.valid_seg_len, f"left out {why}")
        attention = f'with arch = "{self.model.arch}", which has no layers with attention'
        for key, idle in (("recompute", False), ("compile", False), ("cuda_graph", False), ("attention", "auto")):
            value = getattr(self.train, key)
            require(value == idle, "train", key, value, f"{str(idle).lower()} {attention}")
        require(self.eval.mem_len == 0, "eval", "mem_len", self.eval.mem_len, f"0 {why}")
        for key in ("max_distance", "same_length"):
            value = getattr(self.eval, key)
            idle = value == EvalSettings.__dataclass_fields__[key].default
            require(idle, "eval", key, value, f"left out {why}")
