"""The [train] section of a recipe: how the weights are trained."""

from dataclasses import dataclass
from typing import Annotated, Literal

from txlcli.config.ranges import (
    NaturalInt,
    NotNegativeFloat,
    OpenShare,
    PositiveFloat,
    PositiveInt,
    Range,
    Rate,
    Section,
    Seed,
)
from txlcli.config.traits import OPTIMIZERS
from txlcli.errors import RecipeError

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
    reset_at_documents: bool = False
    """Begin each document, piece or sentence of the store with an empty memory, in training and validation. A segment
    may hold parts of several documents: their tokens do not see each other. Needs a store that records where documents
    begin. The last token of a document is read again as the first before the next one."""
    seg_len_jitter: bool = False
    """Sample segment lengths as AWD-LSTM does: 95 % from a normal distribution around seg_len, the others around half
    of it, with a standard deviation of 5 tokens. The learning rate of a step is scaled by its length / seg_len."""
    loss_part: LossPart = "full"
    """Positions of a segment whose losses count in training: all, or the recent half (Table 6); validation counts
    all."""
    accumulate: PositiveInt = 1
    """Number of parts of a batch that are computed one after another to save memory; each part has its own memory M."""
    recompute: Recompute = False
    """Recompute attention probabilities in the backward pass instead of storing them: the same gradients with less
    memory, for a few percent more operations. Triton's kernels never store them. "layers" recomputes whole layers from
    their inputs, for a third more operations."""
    attention: AttentionBackend = "auto"
    """Implementation of attention; the result is the same. auto: the fast one of the device; reference: written out
    as in the paper."""
    compile: Compile = "auto"
    """Fuse the operations of each layer with torch.compile, which takes up to half a minute at the start: on; off; or
    auto: on GPUs of compute capability 8.0 or higher, unless the run takes less than a minute."""
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
        most = self.batch_size // self.accumulate
        if processes > most:
            message = (
                f"train.batch_size = {self.batch_size} with train.accumulate = {self.accumulate} is too small for "
                f"{processes} processes; use {most} or fewer"
            )
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
            for key in ("exchange_precision", "reset_at_documents", "valid_attn_len"):
                self.must_be_default(key, 'with parallel = "fsdp"')

    def _check_schedule(self) -> None:
        """Reject settings of other schedules, and an end of the cosine that is neither a share nor a step."""
        self.belongs_to("schedule", ["cosine"], "cosine_from", "cosine_until")
        self.belongs_to("schedule", ["cosine", "inverse_sqrt", "plateau", "wsd"], "min_lr_ratio")
        self.belongs_to("schedule", ["wsd"], "decay_share")
        self.belongs_to("schedule", ["plateau"], "plateau_factor", "plateau_patience")
        until = self.cosine_until
        if until is not None:
            # A cosine that ends at its first step would have no other rate than the lowest.
            is_valid = _is_share_or_step(until) and self.cosine_steps >= 2
            expected = f"a step of at least 2, or a share of max_steps ({self.max_steps}) below 1 that gives one"
            self.require(is_valid, "cosine_until", expected)

    def _check_average(self) -> None:
        """Reject settings of other averages, and a mean that would begin too late or of weights that do not move."""
        self.belongs_to("average", ["asgd"], "average_patience")
        self.belongs_to("average", ["exponential"], "average_decay")
        self.belongs_to("average", ["mean"], "average_from", "average_lr_factor")
        if self.average != "mean":
            return
        if self.schedule in ("cosine", "wsd") and self.min_lr_ratio == 0:
            self.reject("min_lr_ratio", 'greater than 0 with average = "mean", whose steps have this rate')
        is_valid = _is_share_or_step(self.average_from) and 1 <= self.schedule_steps < self.max_steps
        expected = f"a step of at least 1 before max_steps ({self.max_steps}), or a share below 1 that gives one"
        self.require(is_valid, "average_from", expected)

    def _check_optimizer(self) -> None:
        """Reject settings of other optimizers, those without effect, and betas out of range."""
        if self.weight_decay == 0:
            self.must_be_default("decay_norms", "with weight_decay = 0")
        for key in sorted(set().union(*OPTIMIZERS.values())):
            users = [name for name, keys in OPTIMIZERS.items() if key in keys]
            self.belongs_to("optimizer", users, key)
        in_range = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self.require(in_range, "betas", "two numbers of at least 0 and less than 1")

    def _check_lengths(self) -> None:
        """Reject sizes that do not suit the segment length or the batch size."""
        if self.loss_part == "half":
            self.require(self.seg_len % 2 == 0, "seg_len", 'even with loss_part = "half"')
        divides = self.batch_size % self.accumulate == 0
        self.require(divides, "accumulate", f"a divisor of batch_size ({self.batch_size})")
        if self.valid_attn_len is not None:
            key = "seg_len" if self.valid_seg_len is None else "valid_seg_len"
            is_covered = self.valid_stride <= self.valid_attn_len
            self.require(is_covered, key, f"at most valid_attn_len ({self.valid_attn_len})")
            self.must_be_default("reset_at_documents", "with valid_attn_len, whose windows have no documents")
        elif self.valid_seg_len is not None:
            longest = self.read_len + self.mem_len
            expected = f"at most seg_len + reread_len + mem_len ({longest})"
            self.require(self.valid_seg_len <= longest, "valid_seg_len", expected)


def _is_share_or_step(value: float) -> bool:
    """Return True for a share of all steps, below 1, and for a whole number of a step."""
    return value < 1 or value % 1 == 0
