"""The sections [corpus], [log] and [published] of a recipe."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from txlcli.config.ranges import PositiveFloat, PositiveInt, Range, Section

PLAIN_NAME = r"\w[\w.+-]{0,99}"
"""Pattern for the names of stores and runs: valid file names on every system."""
_LONGEST_NAME = 100


def plain_name(path: Path, *, otherwise: str) -> str:
    """Derive the name of a store or a run from a file or directory; `otherwise` if no character of its name remains."""
    name = path.stem if path.is_file() else path.name
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


TrackerName = Literal["tensorboard", "wandb"]


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
