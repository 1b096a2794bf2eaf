"""`txl speed`: how much faster prediction is with memory than without (Table 9), how fast everything else runs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from txlcli import console
from txlcli.config import recipe
from txlcli.errors import UnknownNameError, UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    Attention,
    AttentionOption,
    DataDir,
    Device,
    DeviceOption,
    Json,
    Overrides,
    Plot,
    Precision,
    PrecisionOption,
    RunsDir,
    parse_lengths,
)
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.runs import run_folder
from txlcli.views import speed_table
from txlcli.workflows.speed import Bench

if TYPE_CHECKING:
    from txlcli.config.settings import Settings
    from txlcli.core.model.base import LanguageModel
    from txlcli.core.model.transformer_xl import TransformerXL

DEFAULT_RECIPE = "enwik8"
TABLE_9 = ",".join(map(str, SLOWDOWN_BY_ATTN_LEN))


def speed(
    subject: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|RECIPE]", help="A run, or a recipe with random weights; the newest run."),
    ] = None,
    attn_len: Annotated[
        str | None,
        typer.Option(
            "--attn-len",
            metavar="N,N,...",
            help=f"Attention lengths to compare at; {TABLE_9} by default, or the longest that was learned.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repetitions; the median is shown.")] = 3,
    plot: Plot = None,
    overrides: Overrides = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    attention: AttentionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Time a model with and without memory.

    Also training, evaluation and generation, as shares of the machine's peak. Speed does not depend on the weights, so
    a recipe is as good as a run.

    Example: txl speed stdlib --attn-len 128,256,512
    """
    from txlcli.views import plots

    if plot is not None:
        plots.check_path(plot)
    result = measure(
        subject,
        attn_len=attn_len,
        repeat=repeat,
        plot=plot,
        overrides=overrides,
        device=device,
        precision=precision,
        attention=attention,
        data_dir=data_dir,
        runs_dir=runs_dir,
        shown=not json,
    )
    if plot is not None:
        speed_table.plot_times(plot, result)
    if json:
        console.show_json(result)
    else:
        speed_table.show(result)


def measure(
    subject: str | None,
    *,
    attn_len: str | None = None,
    repeat: int = 3,
    plot: Path | None = None,
    overrides: list[str] | None = None,
    device: Device = Device.auto,
    precision: Precision | None = None,
    attention: Attention | None = None,
    data_dir: Path = DATA_DIR,
    runs_dir: Path = RUNS_DIR,
    shown: bool = True,
) -> dict[str, Any]:
    """Time a run or a recipe as `txl speed` does, and give the object that --json prints."""
    from txlcli.core.kernels.device import check_precision, describe

    attn_lens = None if attn_len is None else parse_lengths("--attn-len", attn_len, least=2)
    title, settings, model = _subject(
        subject, overrides or [], device=device, precision=precision, data_dir=data_dir, runs_dir=runs_dir
    )
    if settings.model.recurrent_state:
        _refuse_attention(title, {"--attn-len": attn_len, "--attention": attention, "--plot": plot})
        lengths = []
    else:
        settings.check_attn_lens(attn_lens or [], subject=title)
        lengths = attn_lens or _lengths_of_table_9(settings.model.longest_window)
        settings = _attending(settings, cast("TransformerXL", model), attention)
    used = precision.value if precision else settings.train.precision
    check_precision(used, model.device)
    machine = describe(model.device)
    console.say(f"timing {title} on {machine}, {used}")
    if not lengths:
        console.say("a model that carries a state has no attention length: Table 9 is left out")
    bench = Bench(model, settings, precision=used, repeat=repeat, shown=shown)
    return {
        "model": title,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": machine,
        "precision": used,
        "attention": None if settings.model.recurrent_state else settings.train.attention,
        "repeat": repeat,
        "peak_gflops_per_s": bench.peak / 1e9,
        "slowdown": [bench.slowdown(length) for length in lengths],
        "throughput": bench.throughput(),
    }


def _subject(
    subject: str | None,
    overrides: list[str],
    *,
    device: Device,
    precision: Precision | None,
    data_dir: Path,
    runs_dir: Path,
) -> tuple[str, "Settings", "LanguageModel"]:
    """What to time: a run, a recipe with random weights, or what is there."""
    from txlcli.core.kernels.device import pick_device
    from txlcli.core.training.loop import new_model
    from txlcli.runs import loading

    if subject is None:
        subject = str(run_folder.find(None, runs_dir).folder) if run_folder.any_run(runs_dir) else DEFAULT_RECIPE
    if run_folder.is_run(subject, runs_dir):
        if overrides:
            raise UsageError("--set changes a recipe; a run is timed as it is")
        opened = loading.open_run(
            subject, runs_dir, device=device.value, precision=precision.value if precision else None
        )
        return f"run {opened.run.folder}", opened.run.settings, opened.model
    packaged = recipe.packaged_names()
    if not Path(subject).exists() and Path(subject).name.removesuffix(".toml") not in packaged:
        raise UnknownNameError(
            "run or recipe", subject, [*run_folder.names(runs_dir), *packaged], like=Path(subject).name
        )
    settings = recipe.load(subject, overrides)
    vocab_size = settings.published.vocab_size
    if vocab_size is None:
        vocab_size = loading.open_store(settings.corpus.store, data_dir).vocab.size
    model = new_model(settings.model, vocab_size, seed=settings.train.seed, device=pick_device(device.value))
    return f"recipe {subject} with random weights (V = {vocab_size:,})", settings, model


def _lengths_of_table_9(longest: int | None) -> list[int]:
    """As many of its attention lengths as a window of the model can hold, or the longest that it can."""
    if longest is None:
        return list(SLOWDOWN_BY_ATTN_LEN)
    return [length for length in SLOWDOWN_BY_ATTN_LEN if length <= longest] or [longest]


def _attending(settings: "Settings", model: "TransformerXL", attention: Attention | None) -> "Settings":
    """The settings with the way to compute attention that is wished, or their own; the model takes it as well."""
    from txlcli.core.kernels.compilation import check_attention

    train = settings.train
    if attention is not None:
        recompute = train.recompute and attention == Attention.auto  # others cannot
        train = dataclasses.replace(train, attention=attention.value, recompute=recompute)
    check_attention(train.attention, model.device)
    model.attend_by(train.attention)
    return dataclasses.replace(settings, train=train)


def _refuse_attention(title: str, options: dict[str, Any]) -> None:
    """Refuse what asks for Table 9 of a model that carries a state."""
    used_options = [option for option, value in options.items() if value is not None]
    if used_options:
        raise UsageError(f"{title} carries a state and has no attention length (Table 9); leave out {used_options[0]}")
