"""The settings of a model, its training and its evaluation: default, unit and range of each.

The sections of a recipe are these dataclasses, its keys their fields. None means "off" or "derived"; a recipe omits
such a key.
"""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.ranges import (
    NaturalInt,
    NotNegativeFloat,
    OpenShare,
    PositiveFloat,
    PositiveInt,
    Range,
    Rate,
    Section,
)
from txlcli.config.traits import OPTIMIZERS
from txlcli.errors import RecipeError, UsageError

MAX_SEED = 2**63 - 1
"""Largest seed that PyTorch accepts."""
Seed = Annotated[int, Range(least=0, most=MAX_SEED)]

JITTER_STD = 5
"""Standard deviation of segment lengths with train.seg_len_jitter, in tokens."""
JITTER_MARGIN = 8 * JITTER_STD
"""A segment is at most this much longer than train.seg_len, which no sampled length reaches in practice."""
USUAL_JITTER = 4 * JITTER_STD
"""All segments but one in 30,000 are at most this much longer than train.seg_len."""
LossPart = Literal["full", "half"]
Parallel = Literal["ddp", "zero", "fsdp"]
Recompute = bool | Literal["layers"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
AttentionBackend = Literal["auto", "reference"]
Compile = Literal["auto", "on", "off"]
SameLength = Literal["m", "m_plus_one", "off"]
TrackerName = Literal["tensorboard", "wandb"]
PLAIN_NAME = r"\w[\w.+-]{0,99}"
"""Pattern for the names of stores and runs: valid file names on every system."""
_LONGEST_NAME = 100


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files, which have another one before."""


def plain_name(path: Path, *, otherwise: str) -> str:
    """Derive the name of a store or a run from a file or directory; `otherwise` if no character of its name remains."""
    name = path.name
    if path.is_file():
        name = path.stem
        if path.suffix in COMPRESSED:
            name = re.sub(r"\.[a-z]+$", "", name)  # topics.txt.gz is "topics"
    return re.sub(r"[^\w.+-]+", "-", name).strip("+-.")[:_LONGEST_NAME] or otherwise


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(Section):
    """[corpus]: the text on which the model is trained."""

    section = "corpus"

    store: str
    """Name of the token store in the data folder, as `txl prepare --list` shows it."""
    shuffle_sentences: bool = False
    """Shuffle the sentences in every epoch (One Billion Word); needs a store that records where sentences start."""
    shuffle_documents: bool = False
    """Shuffle the documents in every epoch; needs a store of txl prepare --documents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_plain = re.fullmatch(PLAIN_NAME, self.store) is not None
        self.require(is_plain, "store", 'the name of a store: letters, digits, ".", "-" and "_"')


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Section):
    """[train]: how the weights are trained."""

    section = "train"

    seg_len: PositiveInt
    """Segment length L, in tokens."""
    mem_len: NaturalInt
    """Memory length M, in tokens; 0 turns recurrence off."""
    batch_size: PositiveInt
    """Batch size B: number of contiguous slices ("lanes") of the training text that are read side by side."""
    max_steps: PositiveInt
    """Optimizer steps of the whole run; the learning-rate schedule ends here."""
    roll_lanes: bool = False
    """Begin each epoch at a random token of every lane and continue from the lane's end at its start, so that segments
    begin at other tokens in every epoch (NVIDIA's roll)."""
    reread_len: NaturalInt = 0
    """Tokens E before each segment that are read again with it, with gradient, before the memory (ext_len of the
    released code); their losses do not count. Not for a recurrent state or a compressed memory."""
    seg_len_jitter: bool = False
    """Sample segment lengths as AWD-LSTM does: 95 % from a normal distribution around seg_len, the others around half
    of it, with a standard deviation of 5 tokens. The learning rate of a step is scaled by its length / seg_len."""
    loss_part: LossPart = "full"
    """Positions of a segment whose losses count in training: all, or the recent half (Table 6); validation counts
    all."""
    accumulate: PositiveInt = 1
    """Number of parts of a batch that are computed one after another to save memory; each part has its own memory M."""
    recompute: Recompute = False
    """Recompute attention probabilities and logits in the backward pass instead of storing them: the same gradients
    with less memory, for a few percent more operations. "layers" recomputes whole layers from their inputs, for a third
    more operations."""
    attention: AttentionBackend = "auto"
    """Implementation of attention; the result is the same. auto: the fast one of the device; reference: written out
    as in the paper."""
    compile: Compile = "auto"
    """Fuse the operations of each layer with torch.compile, which takes up to half a minute at the start: on; off; or
    auto: on GPUs of compute capability 8.0 or higher, unless the run takes less than two minutes without."""
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
    """adam or adamw; sgd: stochastic gradient descent; muon: Muon for the matrices inside the layers and adamw for all
    other parameters; lamb: LAMB for large batches, in NVIDIA's variant: without bias correction, and with the norm that
    scales an update limited to 10."""
    lr: PositiveFloat = 2.5e-4
    """Peak learning rate of all parameters. Muon scales its updates to the size of AdamW's, so both use this rate."""
    momentum: Rate = 0.0
    """optimizer = "sgd": momentum. optimizer = "muon": Nesterov momentum, 0.95 where it is left at 0."""
    weight_decay: NotNegativeFloat = 0.0
    """Weight of the L2 penalty, which is added to the gradient; adamw and muon instead shrink the weights by lr times
    this at each step, and lamb adds it to the update before scaling it."""
    embedding_lr: PositiveFloat = 1.0
    """Factor of the peak learning rate of the embedding, and so of a softmax that is tied to it; the lowest rate,
    min_lr_ratio, is that of the other parameters."""
    decay_norms: bool = True
    """Apply weight_decay to gains and biases, too; false leaves them out."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Decays of the means of the gradient and of its square, per step, in adam, adamw and lamb, and in muon for the
    parameters that adamw trains."""
    schedule: Literal["cosine", "inverse_sqrt", "constant", "plateau", "wsd"] = "cosine"
    """Learning rate after warm-up: cosine over all steps; falling with 1/sqrt(step); constant; reduced when the
    validation loss stops falling; or constant with a linear decay at the end ("wsd")."""
    warmup_steps: NaturalInt = 0
    """Steps over which the learning rate rises linearly from 0."""
    cosine_from: Literal["start", "warmup"] = "start"
    """schedule = "cosine": the cosine begins at the first step, although warm-up hides it (released PyTorch code), or
    at the end of warm-up (released TF code)."""
    cosine_until: PositiveFloat | None = None
    """schedule = "cosine": step at which the cosine reaches the lowest learning rate, which later steps keep, or its
    share of max_steps if below 1; by default the step at which the schedule ends."""
    min_lr_ratio: Annotated[float, Range(least=0, most=1)] = 0.0
    """Lowest learning rate, as a share of lr."""
    decay_share: OpenShare = 0.2
    """schedule = "wsd": share of the schedule, at its end, in which the learning rate falls linearly."""
    plateau_factor: OpenShare = 0.5
    """schedule = "plateau": factor by which the learning rate is reduced."""
    plateau_patience: NaturalInt = 0
    """schedule = "plateau": validations without improvement that are tolerated before a reduction."""
    average: Literal["none", "asgd", "exponential", "mean"] = "none"
    """Weights used for validation, best.safetensors and evaluation: those of the last step (none); the mean over all
    steps since validation stopped improving (asgd, the non-monotonically triggered averaging of AWD-LSTM, with any
    optimizer); an exponential moving average; or the mean over all steps after average_from. Training itself continues
    from the last step."""
    average_patience: NaturalInt = 5
    """average = "asgd": averaging starts when a validation loss exceeds the lowest one of more than this many
    validations before."""
    average_decay: OpenShare = 0.999
    """average = "exponential": decay per step; at most (1 + n) / (10 + n) at step n, which is smaller at first."""
    average_from: PositiveFloat = 0.75
    """average = "mean": step after which the mean begins, or its share of max_steps if below 1. The schedule ends at
    this step; its last learning rate, times average_lr_factor, is that of all later steps."""
    average_lr_factor: PositiveFloat = 1.0
    """average = "mean": factor of the learning rate from average_from on."""
    activation_penalty: NotNegativeFloat = 0.0
    """Weight of the mean square of the last hidden states, before dropout, in the loss that is minimized (AR of
    AWD-LSTM). Reported losses and perplexities do not contain it."""
    slowness_penalty: NotNegativeFloat = 0.0
    """Weight of the mean square of the difference between last hidden states of neighbouring positions (TAR), as for
    activation_penalty."""
    clip: PositiveFloat | None = 0.25
    """Largest norm of the gradient of all weights together; "none" turns clipping off."""
    skip_nonfinite: NaturalInt = 0
    """Steps in a row with a non-finite loss or gradient that are skipped before the training ends. A skipped step
    leaves the weights as they are, passes over its segment and empties the memory. On CUDA the check waits for every
    step."""
    precision: Precision = "fp32"
    """Precision of matrix products; weights and optimizer state stay fp32. tf32 rounds the factors of fp32 products to
    10 bits of mantissa, on CUDA devices of compute capability 8.0 or higher."""
    deterministic: bool = False
    """Give the same bits whenever the training is repeated or resumed on the same machine, with deterministic kernels
    of CUDA; one GPU. On a CPU this holds in any case, for one number of threads."""
    parallel: Parallel = "ddp"
    """State that each of several processes holds: all of it (ddp); all weights and a part of the optimizer's state
    (zero, ZeRO stage 1); or a part of everything (fsdp, PyTorch's FSDP2), for models that do not fit, without CUDA
    graphs."""
    exchange_precision: Literal["fp32", "bf16"] = "fp32"
    """Precision in which several processes add up their gradients: fp32 equals one process; bf16 sends half the
    bytes."""
    rank_timeout: Annotated[float, Range(above=0, most=86_400)] = 60.0
    """Seconds that several processes wait for one that does not answer, before all of them end; and after a signal for
    one that does not save and end, before it is killed. Raise it if a checkpoint takes longer to write."""
    save_minutes: PositiveFloat = 5.0
    """Longest time between two checkpoints: a crash costs the steps since the last one."""
    seed: Seed = 1111
    """Random seed of the initial weights, dropout and the order of sentences."""
    valid_every: PositiveInt | Literal["epoch"] = 4000
    """Steps between validations, or "epoch" for one after every epoch; a checkpoint is saved at each."""
    valid_seg_len: PositiveInt | None = None
    """Segment length in validation; by default seg_len. The memory length is then mem_len + reread_len + seg_len -
    valid_seg_len. Without memory and reread_len, validation uses the segment length of training."""
    valid_attn_len: PositiveInt | None = None
    """Validate in windows of this many tokens without memory, of which the last valid_seg_len count, as `txl eval
    --attn-len N --stride S` does; by default by segments. The first window counts whole."""
    valid_batch_size: PositiveInt = 10
    """Batch size in validation."""
    valid_tokens: PositiveInt | None = None
    """Number of tokens, from the beginning of the split, on which to validate; by default all."""
    stop_after: PositiveInt | None = None
    """End training after this many consecutive validations without improvement; by default only at max_steps."""
    keep_every: PositiveInt | None = None
    """Keep the weights of every step that is a multiple of this, as step-N.safetensors in the run folder."""

    @property
    def valid_stride(self) -> int:
        """Tokens that count in a window of valid_attn_len."""
        return self.valid_seg_len or self.seg_len

    @property
    def longest_segment(self) -> int:
        """Largest number of tokens that a segment predicts."""
        return self.seg_len + JITTER_MARGIN if self.seg_len_jitter else self.seg_len

    @property
    def padded_segment(self) -> int:
        """Number of predictions to which jittered segments are padded, where steps must have equal shapes."""
        return self.seg_len + USUAL_JITTER if self.seg_len_jitter else self.seg_len

    @property
    def read_len(self) -> int:
        """Tokens that a pass reads, E + L."""
        return self.reread_len + self.seg_len

    @property
    def schedule_steps(self) -> int:
        """Step at which the learning-rate schedule ends: where the mean of the weights begins, or max_steps."""
        if self.average != "mean":
            return self.max_steps
        return self._step_of(self.average_from)

    @property
    def cosine_steps(self) -> int:
        """Step at which the cosine has fallen to the lowest learning rate."""
        if self.cosine_until is None:
            return self.schedule_steps
        return self._step_of(self.cosine_until)

    def _step_of(self, value: float) -> int:
        """Return a step that is given as its number, or as a share of all steps below 1."""
        if value < 1:
            return round(value * self.max_steps)
        return int(value)

    def ends_after(self, step: int, stale: int) -> bool:
        """Return True if a step is the last: max_steps, or `stale` consecutive validations brought no improvement."""
        return step >= self.max_steps or (self.stop_after is not None and stale >= self.stop_after)

    def check_processes(self, processes: int) -> None:
        """Raise a RecipeError if one of several processes would have no lane of a micro-batch."""
        if self.accumulate * processes > self.batch_size:
            wanted = f"{processes} processes"
            if self.accumulate > 1:
                wanted += f" x {self.accumulate} parts"
            message = f"train.batch_size = {self.batch_size} is too small for {wanted}; use fewer of them"
            raise RecipeError(message, setting="train.batch_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_implementations()
        self._check_schedule()
        self._check_average()
        self._check_optimizer()
        self._check_lengths()

    def _check_implementations(self) -> None:
        """Reject combinations that are not implemented."""
        if self.attention != "auto" and self.recompute is True:
            self.reject("recompute", 'false or "layers" unless attention = "auto"')
        if self.parallel == "fsdp":
            # The scale of an fp16 loss would have to be agreed on; torch.compile has not been tried.
            self.require(self.precision != "fp16", "precision", 'fp32, tf32 or bf16 with parallel = "fsdp"')
            self.require(self.compile != "on", "compile", '"auto" or "off" with parallel = "fsdp"')
            self.must_be_default("exchange_precision", 'with parallel = "fsdp"')

    def _check_schedule(self) -> None:
        """Reject settings of other schedules."""
        if self.schedule != "cosine":
            self.must_be_default("cosine_from", 'unless schedule = "cosine"')
            self.must_be_default("cosine_until", 'unless schedule = "cosine"')
        if self.schedule == "constant":
            users = '"cosine" or "inverse_sqrt" or "plateau" or "wsd"'
            self.must_be_default("min_lr_ratio", f"unless schedule = {users}")
        if self.schedule != "wsd":
            self.must_be_default("decay_share", 'unless schedule = "wsd"')
        if self.schedule != "plateau":
            self.must_be_default("plateau_factor", 'unless schedule = "plateau"')
            self.must_be_default("plateau_patience", 'unless schedule = "plateau"')

    def _check_average(self) -> None:
        """Reject settings of other averages, and a mean that would begin too late or of weights that do not move."""
        if self.average != "asgd":
            self.must_be_default("average_patience", 'unless average = "asgd"')
        if self.average != "exponential":
            self.must_be_default("average_decay", 'unless average = "exponential"')
        if self.average != "mean":
            self.must_be_default("average_from", 'unless average = "mean"')
            self.must_be_default("average_lr_factor", 'unless average = "mean"')
            return
        if self.schedule in ("cosine", "wsd") and self.min_lr_ratio == 0:
            self.reject("min_lr_ratio", 'greater than 0 with average = "mean", which begins there')
        is_step = self.average_from < 1 or (self.average_from % 1 == 0 and self.average_from < self.max_steps)
        self.require(is_step, "average_from", f"a share below 1, or a step before max_steps ({self.max_steps})")

    def _check_optimizer(self) -> None:
        """Reject settings of other optimizers, those without effect, and betas out of range."""
        if self.weight_decay == 0:
            self.must_be_default("decay_norms", "with weight_decay = 0")
        of_any = set().union(*OPTIMIZERS.values())
        for key in sorted(of_any - OPTIMIZERS[self.optimizer]):
            users = [f'"{name}"' for name, keys in OPTIMIZERS.items() if key in keys]
            self.must_be_default(key, f"unless optimizer = {' or '.join(users)}")
        in_range = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self.require(in_range, "betas", "two numbers of at least 0 and less than 1")

    def _check_lengths(self) -> None:
        """Reject sizes that do not suit the segment length or the batch size."""
        if self.loss_part == "half":
            self.require(self.seg_len % 2 == 0, "seg_len", 'even with loss_part = "half"')
        divides = self.batch_size % self.accumulate == 0
        self.require(divides, "accumulate", f"a divisor of batch_size ({self.batch_size})")
        if self.valid_attn_len is not None:
            self._check_validation_windows(self.valid_attn_len)
        elif self.valid_seg_len is not None:
            longest = self.read_len + self.mem_len
            lengths = "seg_len + reread_len + mem_len" if self.reread_len else "seg_len + mem_len"
            self.require(self.valid_seg_len <= longest, "valid_seg_len", f"at most {lengths} ({longest})")

    def _check_validation_windows(self, length: int) -> None:
        """Reject windows that are shorter than the part that counts, or that a divided model cannot read."""
        key = "seg_len" if self.valid_seg_len is None else "valid_seg_len"
        self.require(self.valid_stride <= length, key, f"at most valid_attn_len ({length})")
        if self.parallel == "fsdp":
            self.must_be_default("valid_attn_len", 'with parallel = "fsdp"')


@dataclass(frozen=True, kw_only=True)
class EvalSettings(Section):
    """[eval]: defaults of `txl eval`; the recipes of published models have the released evaluation settings."""

    section = "eval"

    seg_len: PositiveInt
    """Segment length L, in tokens."""
    mem_len: NaturalInt
    """Memory length M, in tokens."""
    batch_size: PositiveInt = 10
    """Batch size B; 1 is the reference."""
    max_distance: PositiveInt | None = None
    """Largest distance with an encoding of its own, larger ones share it; by default L + M of training, plus C of a
    compressed memory. Only with the positions "relative", "relative_tied", "shaw" and "t5"."""
    same_length: SameLength = "m"
    """Number of keys that every query attends to: M (released PyTorch code, Hugging Face), M + 1 (released TF code), or
    M + 1 to M + L ("off")."""
    compressed_len: PositiveInt | None = None
    """arch = "compressive": number of slots C of the compressed memory; by default model.compressed_len."""
    temperature: PositiveFloat | Literal["auto"] = 1.0
    """Divide the logits by this number when a text is scored; auto: by the number with the lowest loss on the
    validation split, which the result reports."""

    @property
    def key_limit(self) -> int | None:
        """Largest number of keys a query may see, itself included; None is all of memory and segment.

        A window of the model is one more limit. A model without memory reads each segment from its first token, so
        there is no length to make the same.
        """
        if self.same_length == "off" or self.mem_len == 0:
            return None
        return self.mem_len + 1 if self.same_length == "m_plus_one" else self.mem_len


@dataclass(frozen=True, kw_only=True)
class LogSettings(Section):
    """[log]: what is recorded during training."""

    section = "log"

    every: PositiveInt = 200
    """Steps between reports of the training loss."""
    to: tuple[TrackerName, ...] = ()
    """Experiment trackers that also receive the settings and the metrics: TensorBoard (event files in the run folder),
    Weights & Biases. Each needs its package: pip install ".[wandb]"."""


@dataclass(frozen=True, kw_only=True)
class PublishedSettings(Section):
    """[published]: the paper's numbers for this recipe; used only for counting and comparing."""

    section = "published"

    vocab_size: PositiveInt | None = None
    """Vocabulary size V of the full benchmark."""
    parameters: Annotated[int, Range(least=1)] | None = None
    """Exact number of parameters at that V."""
    valid: PositiveFloat | None = None
    """The paper's result on the validation split, in the corpus's metric."""
    test: PositiveFloat | None = None
    """The paper's result on the test split, in the corpus's metric."""


@dataclass(frozen=True)
class Settings:
    """All settings of a recipe."""

    corpus: CorpusSettings
    model: ModelSettings
    train: TrainSettings
    eval: EvalSettings
    log: LogSettings = field(default_factory=LogSettings)
    published: PublishedSettings = field(default_factory=PublishedSettings)

    def __post_init__(self) -> None:
        """Check requirements between sections."""
        if self.corpus.shuffle_sentences:
            self.train.must_be_default("roll_lanes", "with corpus.shuffle_sentences")
        if self.corpus.shuffle_documents:
            self.train.must_be_default("roll_lanes", "with corpus.shuffle_documents")
        self._check_segments()
        self._check_memory()
        self._check_attention()
        if self.model.longest_window is not None:
            self._check_positions(self.model.longest_window)

    def evaluation_settings(self, **changes: object) -> EvalSettings:
        """Return [eval] with changes; if a limit applies, `max_distance` defaults to L + M of training.

        A memory without attention has no `same_length`: it is "off".
        """
        if not (self.model.has_attention or self.model.recurrent_state):
            changes["same_length"] = "off"
        limit = changes.get("max_distance", self.eval.max_distance)
        if limit is None and self.model.limits_distance:
            changes["max_distance"] = self.train.read_len + self.model.memory_keys(self.train.mem_len)
        return dataclasses.replace(self.eval, **changes)  # type: ignore[arg-type]

    def with_train(self, **changes: object) -> "Settings":
        """Return the settings with changes of [train]."""
        train = dataclasses.replace(self.train, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, train=train)

    @property
    def supports_memory(self) -> bool:
        """True if the model can use a memory; with absolute positions it needs one in training."""
        return self.train.mem_len > 0 or not self.model.absolute_positions

    def check_memory(self, mem_len: int, *, run: object, instead: str) -> None:
        """Raise a UsageError, which ends with `instead`, if the model of a run cannot use a memory of M tokens."""
        if mem_len and not self.supports_memory:
            raise UsageError(f"{run} was trained without memory and with absolute positions; {instead}")

    def check_attn_lens(self, attn_lens: Iterable[int], *, subject: object) -> None:
        """Raise a UsageError if a window (`attn_len`, in tokens) is longer than the learned positions of a run."""
        n_positions = self.model.longest_window
        longest = max(attn_lens, default=0)
        if n_positions is not None and longest > n_positions:
            raise UsageError(
                f"`attn_len` {longest}: {subject} has learned {n_positions:,} positions, so that no window is longer; "
                "use at most that"
            )

    def _check_segments(self) -> None:
        """Reject segments that the model cannot be trained with."""
        model, train = self.model, self.train
        arch = f'with arch = "{model.arch}"'
        if not model.supports_reread:
            train.must_be_default("reread_len", arch)
        if model.absolute_positions:
            train.must_be_default("reread_len", f'with position = "{model.encoding_name}"')
        if model.fixed_segments:
            train.must_be_default("seg_len_jitter", arch)
        if not model.supports_penalties:
            train.must_be_default("activation_penalty", arch)
            train.must_be_default("slowness_penalty", arch)
        model.check_training(seg_len=train.seg_len, mem_len=train.mem_len)

    def _check_memory(self) -> None:
        """Reject lengths that the memory of the model does not have."""
        model, train, evaluation = self.model, self.train, self.eval
        if model.recurrent_state:
            why = f'with arch = "{model.arch}" (its state is its memory)'
            train.require(train.mem_len == 0, "mem_len", f"0 {why}")
            train.must_be_default("valid_seg_len", why)
            evaluation.require(evaluation.mem_len == 0, "mem_len", f"0 {why}")
        if not model.has_slots:
            users = [f'"{name}"' for name, cls in MODELS.items() if cls.has_slots]
            evaluation.must_be_default("compressed_len", f"unless model.arch = {' or '.join(users)}")
        if not self.supports_memory:
            expected = f'0 with position = "{model.encoding_name}" and train.mem_len = 0'
            evaluation.require(evaluation.mem_len == 0, "mem_len", expected)

    def _check_attention(self) -> None:
        """Reject settings of attention that the model does not have, or not in this way."""
        model, train, evaluation = self.model, self.train, self.eval
        if not model.keys_are_tokens and evaluation.same_length != "off":
            evaluation.reject("same_length", f'"off" with arch = "{model.arch}" (queries see all of its memory)')
        if not model.has_attention:
            why = f'with arch = "{model.arch}", which has no layers with attention'
            train.must_be_default("compile", why)
            train.must_be_default("attention", why)
            evaluation.must_be_default("max_distance", why)
            evaluation.must_be_default("same_length", why)
        if not model.limits_distance:
            evaluation.must_be_default("max_distance", f'with position = "{model.encoding_name}"')

    def _check_positions(self, n_positions: int) -> None:
        """Check that segments have enough learned positions."""
        model, train = self.model, self.train
        expected = f"at most model.n_positions ({n_positions})"
        if train.longest_segment > n_positions:
            margin = f" minus {JITTER_MARGIN} tokens of jitter" if train.seg_len_jitter else ""
            train.reject("seg_len", expected + margin)
        self.eval.require(self.eval.seg_len <= n_positions, "seg_len", expected)
        train.require((train.valid_attn_len or 0) <= n_positions, "valid_attn_len", expected)
        if train.mem_len == 0:  # segments have the length of training also in validation
            if model.attention_window is not None and model.attention_window > n_positions:
                model.reject("window", f"{expected} without memory: no segment is longer")
        elif train.valid_seg_len is not None:
            train.require(train.valid_seg_len <= n_positions, "valid_seg_len", expected)
