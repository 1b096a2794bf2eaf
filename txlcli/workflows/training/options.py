"""Options of `txl train` and `txl recipes scale`, without PyTorch."""

import re
from typing import Any

from txlcli.config.ranges import NaturalInt, NotNegativeFloat, PositiveInt, Seed
from txlcli.config.train_settings import AttentionBackend, Compile, Precision
from txlcli.errors import UsageError
from txlcli.workflows.options import (
    Options,
    attention_option,
    check_given_once,
    compile_option,
    flag_option,
    force_option,
    option,
    overrides_option,
    seeds_option,
)


class TrainOptions(Options):
    """Options of `txl train`; None keeps the setting of the recipe, or of the run that is resumed."""

    name: str | None = option("Name of the run [default: name of the recipe].")
    resume: str | None = option("Resume this run.", metavar="RUN")
    begin_from: str | None = option(
        "Begin a new run with the weights of this one, and its settings unless a recipe is given.", metavar="RUN"
    )
    max_steps: PositiveInt | None = option("Stop and save after this step, without changing the schedule.")
    max_minutes: NotNegativeFloat | None = option("Stop and save after this time.")
    log_every: PositiveInt | None = option("Steps between two reports.")
    overrides: tuple[str, ...] = overrides_option()
    precision: Precision | None = option("Precision of matrix products [default: as in the recipe].")
    attention: AttentionBackend | None = attention_option()
    compile: Compile | None = compile_option()
    seed: Seed | None = option("Random seed.")
    profile: PositiveInt | None = option(
        "Record the kernels of N steps after the warm-up: a table, and a trace in the run folder."
    )
    force: bool = force_option()
    resume_command: str | None = None
    """Command that resumes the run after a stop; None for `txl train --resume`."""

    def _check(self) -> None:
        check_given_once(self.changes)  # `seed` 3 is train.seed=3
        if self.resume is not None:
            self.exclude("name", "force", "begin_from", because="`resume` continues a run")

    @property
    def changes(self) -> list[str]:
        """Changes of settings, as `overrides` has them."""
        settings = {
            "train.precision": self.precision,
            "train.attention": self.attention,
            "train.compile": self.compile,
            "train.seed": self.seed,
            "log.every": self.log_every,
        }
        given = [f"{key}={value}" for key, value in settings.items() if value is not None]
        return [*self.overrides, *given]

    def check_steps(self, last_step: int) -> None:
        """Reject a step beyond the last one of the run."""
        if self.max_steps is not None and self.max_steps > last_step:
            raise UsageError(
                f"`max_steps` {self.max_steps}: the run ends at step {last_step:,}, and this option can only stop "
                f"earlier; for a longer run give `overrides` train.max_steps={self.max_steps}"
            )


class LaunchOptions(Options):
    """Processes that divide the work of `txl train`, and runs that repeat it; a forecast of them."""

    processes: PositiveInt = option("Divide each batch among this many processes, one per GPU.", default=1)
    restarts: NaturalInt = option(
        "Start the processes again, up to N times, if one is lost; they resume the run.",
        default=0,
    )
    seeds: PositiveInt = seeds_option()
    dry_run: bool = flag_option("Print the plan, its memory and its time; do not train.")
    measure: bool = flag_option("With --dry-run: time the machine and some steps for longer, for a better forecast.")

    def _check(self) -> None:
        if self.seeds > 1:
            others = ("processes", "restarts", "dry_run")
            self.exclude(*others, because="`seeds` trains one run after the other in one process")


PREFIXES = " KMGTP"
"""Prefix of each power of 1000, or of 1024."""


def quantity_option(help_: str, unit: str) -> Any:
    """Return the option of a number with a unit: `80GiB` -> 80 * 2**30. Case counts: some read Gb as bits."""
    pattern = re.compile(rf"(\d+(?:\.\d+)?) ?([KMGT]i|[kMGTP]|){unit}")

    def read(text: str) -> float:
        match = pattern.fullmatch(text.strip())
        if match is None or not float(match[1]):
            raise ValueError(text)
        number, prefix = match.groups()
        base = 1024.0 if prefix.endswith("i") else 1000.0
        exponent = PREFIXES.index(prefix[0].upper()) if prefix else 0
        return float(number) * base**exponent

    example = f"a number above 0, a prefix such as G or Gi, and {unit}"
    return option(help_, metavar=f"N[k|M|G|..]{unit}", read=read, example=example)


class ScaleOptions(Options):
    """Options of `txl recipes scale`: one of several equal GPUs; None is unknown."""

    overrides: tuple[str, ...] = overrides_option()
    device_memory: float | None = quantity_option("Memory of each GPU, such as 80GiB; says whether a step fits.", "B")
    """In bytes."""
    bandwidth: float | None = quantity_option(
        "Bytes that each GPU sends per second while it receives as many, such as 300GB/s.", "B/s"
    )
    """In bytes per second."""
    device_flops: float | None = quantity_option(
        "Peak rate of matrix products of each GPU by its data sheet, in the precision of training, such as 989TFLOP/s; "
        "gives tokens/s and time.",
        "FLOP/s",
    )
    """In operations per second."""

    def _check(self) -> None:
        check_given_once(self.overrides)
