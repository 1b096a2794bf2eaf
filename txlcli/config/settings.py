"""The settings of a recipe: default, unit and range of each, and the rules between the sections.

The sections of a recipe are these dataclasses, its keys their fields. None means "off" or "derived"; a recipe omits
such a key.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.ranges import NaturalInt, PositiveFloat, PositiveInt, Range, Section
from txlcli.config.train_settings import JITTER_MARGIN, TrainSettings
from txlcli.errors import UsageError

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
        is_plain = re.fullmatch(PLAIN_NAME, self.store) is not None and not self.store.endswith(".h5")
        self.require(
            is_plain, "store", 'the name of a store, without folder and ".h5": letters, digits, ".", "-" and "_"'
        )


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
    """Largest distance with an encoding of its own, larger ones share it; by default E + L + M of training
    (train.reread_len, seg_len, mem_len), plus C of a compressed memory. Only with the positions "relative",
    "relative_tied", "shaw" and "t5"."""
    same_length: SameLength = "m"
    """Number of keys that every query attends to: M (released PyTorch code, Hugging Face), M + 1 (released TF code,
    NVIDIA's code), or M + 1 to M + L ("off")."""
    compressed_len: PositiveInt | None = None
    """arch = "compressive": number of slots C of the compressed memory; by default model.compressed_len. With
    model.memory_start = "zeros", a text begins with at most model.compressed_len slots of zeros."""
    temperature: PositiveFloat | Literal["auto"] = 1.0
    """Divide the logits by this number when `txl eval` or `run.score` scores a text; auto: by the number with the
    lowest loss on the validation split, which the result reports."""

    @property
    def key_limit(self) -> int | None:
        """Largest number of keys a query may see, itself included; None is all of memory and segment.

        A window of the model is one more limit. A model without memory reads each segment from its first token, so
        there is no length to make the same.
        """
        if self.same_length == "off" or self.mem_len == 0:
            return None
        return self.mem_len + 1 if self.same_length == "m_plus_one" else self.mem_len

    @property
    def fixed_temperature(self) -> float:
        """Temperature before one is chosen on a text: 1 in place of "auto"."""
        return 1.0 if self.temperature == "auto" else self.temperature

    def with_batch_size(self, batch_size: int) -> "EvalSettings":
        """Return the settings of an evaluation with so many lanes, or windows, side by side."""
        return dataclasses.replace(self, batch_size=batch_size)

    def with_windows(self, length: int) -> "EvalSettings":
        """Return the settings of the vanilla model: windows of `length` tokens, and no memory."""
        return dataclasses.replace(self, seg_len=length, mem_len=0)


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
    """Vocabulary size V of the published model."""
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
        """Return [eval] with changes; if a limit applies, `max_distance` defaults to E + L + M of training.

        A memory without attention has no `same_length`: it is "off".
        """
        if not (self.model.has_attention or self.model.recurrent_state):
            changes["same_length"] = "off"
        limit = changes.get("max_distance", self.eval.max_distance)
        if limit is None and self.model.limits_distance:
            changes["max_distance"] = self.train.read_len + self.model.memory_keys(self.train.mem_len)
        return dataclasses.replace(self.eval, **changes)  # type: ignore[arg-type]

    def without_log(self) -> "Settings":
        """Return the settings with the defaults of [log], which has no effect on the weights."""
        return dataclasses.replace(self, log=LogSettings())

    def with_train(self, **changes: object) -> "Settings":
        """Return the settings with changes of [train]."""
        train = dataclasses.replace(self.train, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, train=train)

    @property
    def supports_memory(self) -> bool:
        """True if the model can use a memory; with absolute positions it needs one in training."""
        return self.train.mem_len > 0 or self.model.memory_obstacle is None

    def check_memory(self, mem_len: int, *, run: object, instead: str) -> None:
        """Raise a UsageError, which ends with `instead`, if the model of a run cannot use a memory of M tokens."""
        if mem_len and not self.supports_memory:
            raise UsageError(f"{run} {self.model.memory_obstacle}; {instead}")

    def _check_segments(self) -> None:
        """Reject segments that the model cannot be trained with."""
        model = self.model
        train = self.train
        arch = f'with arch = "{model.arch}"'
        if not model.supports_reread:
            train.must_be_default("reread_len", arch)
        if model.absolute_positions:
            train.must_be_default("reread_len", f'with position = "{model.encoding_name}"')
        if model.reset_obstacle is not None:
            train.must_be_default("reset_at_documents", model.reset_obstacle)
        if model.fixed_segments:
            train.must_be_default("seg_len_jitter", arch)
        model.check_training(seg_len=train.seg_len, mem_len=train.mem_len)

    def _check_memory(self) -> None:
        """Reject lengths that the memory of the model does not have."""
        model = self.model
        train = self.train
        evaluation = self.eval
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
        model = self.model
        train = self.train
        evaluation = self.eval
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
        model = self.model
        train = self.train
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
