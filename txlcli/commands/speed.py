"""`txl speed`: how much faster prediction is with memory than without (Table 9), how fast everything else runs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from txlcli import console, recipe, runs
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
from txlcli.published import SLOWDOWN_BY_ATTN_LEN

if TYPE_CHECKING:
    from txlcli.core.language_model import LanguageModel
    from txlcli.core.model import TransformerXL
    from txlcli.settings import EvalSettings, Settings

DEFAULT_RECIPE = "enwik8"
TABLE_9 = ",".join(map(str, SLOWDOWN_BY_ATTN_LEN))
SINGLE_TOKENS = "one token at a time"
TRAINING_TOKENS_ON_CPU = 1024  # a whole step of a published recipe takes minutes there; more lanes change little


def speed(
    wanted: Annotated[
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
    from txlcli import plots

    if plot is not None:
        plots.check_path(plot)
    result = measure(
        wanted,
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
        _plot(plot, result)
    if json:
        console.show_json(result)
    else:
        _show(result)


def measure(
    wanted: str | None,
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
    from txlcli.core.device import describe

    given = None if attn_len is None else parse_lengths("--attn-len", attn_len, least=2)
    title, settings, model = _subject(wanted, overrides or [], device, precision, (data_dir, runs_dir))
    if settings.model.recurrent_state:
        _refuse_attention(title, {"--attn-len": attn_len, "--attention": attention, "--plot": plot})
        lengths = []
    else:
        lengths = _lengths(given, title, settings.model.longest_window)
        settings = _attending(settings, cast("TransformerXL", model), attention)
    place = model.device
    used = _usable_precision(precision.value if precision else settings.train.precision, place)
    console.say(f"timing {title} on {describe(place)}, {used}")
    if not lengths:
        console.say("a model that carries a state has no attention length: Table 9 is left out")
    bench = _Bench(model, settings, used, repeat, shown=shown)
    return {
        "model": title,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": describe(place),
        "precision": used,
        "attention": None if settings.model.recurrent_state else settings.train.attention,
        "repeat": repeat,
        "peak_gflops_per_s": bench.peak / 1e9,
        "slowdown": [bench.slowdown(length) for length in lengths],
        "throughput": bench.throughput(),
    }


def _subject(
    wanted: str | None,
    overrides: list[str],
    device: Device,
    precision: Precision | None,
    folders: tuple[Path, Path],
) -> tuple[str, "Settings", "LanguageModel"]:
    """What to time: a run, a recipe with random weights, or what is there."""
    from txlcli import opening
    from txlcli.core.device import pick_device
    from txlcli.core.training import new_model

    data_dir, runs_dir = folders
    if wanted is None:
        wanted = str(runs.find(None, runs_dir).folder) if runs.any_run(runs_dir) else DEFAULT_RECIPE
    if runs.is_run(wanted, runs_dir):
        if overrides:
            raise UsageError("--set changes a recipe; a run is timed as it is")
        opened = opening.open_run(
            wanted, runs_dir, device=device.value, precision=precision.value if precision else None
        )
        return f"run {opened.run.folder}", opened.run.settings, opened.model
    packaged = recipe.packaged_names()
    if not Path(wanted).exists() and Path(wanted).name.removesuffix(".toml") not in packaged:
        raise UnknownNameError("run or recipe", wanted, [*runs.names(runs_dir), *packaged], like=Path(wanted).name)
    settings = recipe.load(wanted, overrides)
    vocab_size = settings.published.vocab_size
    if vocab_size is None:
        vocab_size = opening.open_store(settings.corpus.store, data_dir).vocab.size
    model = new_model(settings.model, vocab_size, seed=settings.train.seed, device=pick_device(device.value))
    return f"recipe {wanted} with random weights (V = {vocab_size:,})", settings, model


def _lengths(given: list[int] | None, title: str, longest: int | None) -> list[int]:
    """The attention lengths to compare at: those given, or as much of Table 9 as a window of the model can hold."""
    if longest is None:
        return given or list(SLOWDOWN_BY_ATTN_LEN)
    if given and max(given) > longest:
        raise UsageError(
            f"--attn-len {max(given)}: {title} has learned {longest:,} positions, so that no window is longer; give at "
            "most that"
        )
    return given or [length for length in SLOWDOWN_BY_ATTN_LEN if length <= longest] or [longest]


def _attending(settings: "Settings", model: "TransformerXL", attention: Attention | None) -> "Settings":
    """The settings with the way to compute attention that is wished, or their own; the model takes it as well."""
    from txlcli.core.device import check_attention

    train = settings.train
    if attention is not None:
        recompute = train.recompute and attention == Attention.auto  # others cannot
        train = dataclasses.replace(train, attention=attention.value, recompute=recompute)
    check_attention(train.attention, model.device)
    model.attend_by(train.attention)
    return dataclasses.replace(settings, train=train)


def _refuse_attention(title: str, options: dict[str, Any]) -> None:
    """Refuse what asks for Table 9 of a model that carries a state."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{title} carries a state and has no attention length (Table 9); leave out {given[0]}")


def _usable_precision(precision: str, place: Any) -> str:
    from txlcli.core.device import check_precision

    check_precision(precision, place)
    return precision


class _Bench:
    """Times one model; every number is a median with its spread."""

    def __init__(
        self, model: "LanguageModel", settings: "Settings", precision: Any, repeat: int, *, shown: bool
    ) -> None:
        from txlcli.core.timing import peak_flops_per_s

        self.model, self.settings, self.precision, self.repeat, self.shown = model, settings, precision, repeat, shown
        self.device = model.device
        self.peak = peak_flops_per_s(self.device, precision)

    def slowdown(self, attn_len: int) -> dict[str, Any]:
        """One row of Table 9: vanilla against one lane with memory, at the same attention length."""
        from txlcli.core.timing import best_windows, peak_memory, time_evaluation, time_single_tokens, time_vanilla

        reading = self._reading(attn_len)
        flops = self._reading_flops(reading)
        with console.progress(f"attention length {attn_len:,}", total=4, shown=self.shown) as bar:
            bar.reach(0, "segments with memory")
            with peak_memory(self.device) as memory:
                segments = time_evaluation(self.model, reading, precision=self.precision, repeat=self.repeat)
            bar.reach(1, "one token at a time with memory")
            tokens = time_single_tokens(self.model, reading, precision=self.precision, repeat=self.repeat)
            bar.reach(2, "vanilla, one window at a time")
            alike: Any = {"max_distance": reading.max_distance, "precision": self.precision, "repeat": self.repeat}
            one = time_vanilla(self.model, attn_len, windows=1, **alike)
            bar.reach(3, "vanilla, batched windows")
            windows, batched = best_windows(self.model, attn_len, one, **alike)
        return {
            "attn_len": attn_len,
            "seg_len": reading.seg_len,
            "xl_ms_per_token": segments.median,
            "xl_low_high_ms": [segments.low, segments.high],
            "xl_tokens_per_s": 1e3 / segments.median,
            "xl_share_of_peak": flops * 1e3 / segments.median / self.peak,
            "xl_peak_memory_bytes": memory[0] if memory else None,
            "xl_single_ms_per_token": tokens.median,
            "xl_single_low_high_ms": [tokens.low, tokens.high],
            "xl_single_tokens_per_s": 1e3 / tokens.median,
            "vanilla_ms_per_token": one.median,
            "vanilla_low_high_ms": [one.low, one.high],
            "windows": windows,
            "vanilla_batched_ms_per_token": batched.median,
            "vanilla_batched_low_high_ms": [batched.low, batched.high],
            "slowdown": one.median / segments.median,
            "slowdown_batched": batched.median / segments.median,
            "slowdown_single": one.median / tokens.median,
            "paper_slowdown": SLOWDOWN_BY_ATTN_LEN.get(attn_len),
        }

    def _reading(self, mem_len: int, lanes: int = 1) -> "EvalSettings":
        train, how = self.settings.train, self.settings.eval
        farthest = how.max_distance or train.seg_len + train.mem_len
        return dataclasses.replace(how, mem_len=mem_len, batch_size=lanes, max_distance=farthest)

    def throughput(self) -> list[dict[str, Any]]:
        """Evaluation, one token at a time, training: tokens/s, share of the matrix-product peak, peak memory."""
        lane_counts = dict.fromkeys((1, self.settings.eval.batch_size))
        return [*(self._evaluation(lanes) for lanes in lane_counts), self._single_tokens(), self._training()]

    def _evaluation(self, lanes: int) -> dict[str, Any]:
        from txlcli.core.timing import peak_memory, time_evaluation

        how = self._reading(self.settings.eval.mem_len, lanes)
        work = f"evaluation, {lanes} lane{'s' if lanes > 1 else ''}"
        with console.progress(work, shown=self.shown), peak_memory(self.device) as memory:
            timing = time_evaluation(self.model, how, precision=self.precision, repeat=self.repeat)
        title = f"{work}, L {how.seg_len}{self._memory(how)}"
        return self._throughput_row(title, timing, self._reading_flops(how), memory)

    def _single_tokens(self) -> dict[str, Any]:
        from txlcli.core.cost import window_flops_per_prediction
        from txlcli.core.timing import peak_memory, time_single_tokens

        how = self._reading(self.settings.eval.mem_len)
        with console.progress(SINGLE_TOKENS, shown=self.shown), peak_memory(self.device) as memory:
            timing = time_single_tokens(self.model, how, precision=self.precision, repeat=self.repeat)
        if how.mem_len or self.settings.model.recurrent_state:
            title = f"{SINGLE_TOKENS}, L 1{self._memory(how)}"
            flops = self._reading_flops(dataclasses.replace(how, seg_len=1))
        else:
            title = f"{SINGLE_TOKENS}, a window of {how.seg_len} each"
            flops = window_flops_per_prediction(
                self.settings.model, self.model.vocab_size, window=how.seg_len, max_distance=how.max_distance
            )
        return self._throughput_row(title, timing, flops, memory)

    def _training(self) -> dict[str, Any]:
        from txlcli.core.cost import training_flops_per_token
        from txlcli.core.timing import peak_memory, time_training

        train = self._training_settings()
        with console.progress("training", shown=self.shown), peak_memory(self.device) as memory:
            timing = time_training(self.model, train, repeat=self.repeat)
        flops = training_flops_per_token(
            self.settings.model,
            self.model.vocab_size,
            seg_len=train.seg_len,
            mem_len=train.mem_len,
            lanes=train.batch_size,
        )
        title = f"training, {train.batch_size} lanes, L {train.seg_len}{self._memory(train)}"
        return self._throughput_row(title, timing, flops, memory)

    def _reading_flops(self, how: "EvalSettings") -> float:
        """Operations per token of a reading with a full memory."""
        from txlcli.core.cost import decoding_flops_per_token
        from txlcli.core.evaluation import keys_seen

        return decoding_flops_per_token(
            self.settings.model, self.model.vocab_size, keys=keys_seen(how), max_distance=how.max_distance
        )

    def _memory(self, section: Any) -> str:
        return "" if self.settings.model.recurrent_state else f", M {section.mem_len}"

    def _training_settings(self) -> Any:
        train = dataclasses.replace(self.settings.train, precision=self.precision, accumulate=1)
        if self.device.type == "cpu":
            most = max(1, TRAINING_TOKENS_ON_CPU // train.seg_len)
            train = dataclasses.replace(train, batch_size=min(train.batch_size, most))
        return train

    def _throughput_row(self, work: str, timing: Any, flops: float, memory: list[int]) -> dict[str, Any]:
        rate = 1e3 / timing.median
        return {
            "work": work,
            "tokens_per_s": rate,
            "ms_per_token": timing.median,
            "low_high_ms": [timing.low, timing.high],
            "share_of_peak": rate * flops / self.peak,
            "peak_memory_bytes": memory[0] if memory else None,
        }


def _show(result: dict[str, Any]) -> None:
    if result["slowdown"]:
        _show_slowdown(result)
    _show_throughput(result)


def _show_slowdown(result: dict[str, Any]) -> None:
    title = f"{result['model']} on {result['device']}, {result['precision']}"
    lines = [
        [
            f"{row['attn_len']:,}",
            _spread(row["xl_ms_per_token"], row["xl_low_high_ms"]),
            _spread(row["vanilla_ms_per_token"], row["vanilla_low_high_ms"]),
            console.times(row["slowdown"]),
            f"{row['paper_slowdown']:,}x" if row["paper_slowdown"] else "-",
        ]
        for row in result["slowdown"]
    ]
    caption = (
        f"Table 9. XL: one lane, M = attention, L = {result['slowdown'][0]['seg_len']}. vanilla: the same weights\n"
        "without memory, a window computed anew for each prediction, one at a time.\n"
        f"Median (low-high) of {result['repeat']}."
    )
    console.show_table(title, ("attention", "XL ms/token", "vanilla ms/token", "slowdown", "paper"), lines, caption)
    others = [
        [
            f"{row['attn_len']:,}",
            f"{_short(row['vanilla_batched_ms_per_token'])} ({row['windows']})",
            console.times(row["slowdown_batched"]),
            _short(row["xl_single_ms_per_token"]),
            console.times(row["slowdown_single"]),
        ]
        for row in result["slowdown"]
    ]
    headings = ("attention", "vanilla batched", "slowdown", "XL at L = 1", "slowdown")
    caption = "batched: as many windows at once as gain anything; L = 1: one token at a time, against one window."
    console.show_table("the same with other batches, ms/token", headings, others, caption)
    rates = [
        [
            f"{row['attn_len']:,}",
            f"{row['xl_tokens_per_s']:,.0f}",
            f"{row['xl_share_of_peak']:.1%}",
            _in_mib(row["xl_peak_memory_bytes"]),
            f"{row['xl_single_tokens_per_s']:,.0f}",
        ]
        for row in result["slowdown"]
    ]
    headings = ("attention", "XL tokens/s", "of peak", "peak MiB", "tokens/s at L = 1")
    console.show_table("one lane with memory, by attention length", headings, rates)


def _show_throughput(result: dict[str, Any]) -> None:
    works = [
        [
            row["work"],
            f"{row['tokens_per_s']:,.0f}",
            _spread(row["ms_per_token"], row["low_high_ms"]),
            f"{row['share_of_peak']:.1%}",
            _in_mib(row["peak_memory_bytes"]),
        ]
        for row in result["throughput"]
    ]
    caption = (
        f"Peak: {result['peak_gflops_per_s']:,.0f} GFLOP/s in a 2048 x 2048 matrix product, measured just now.\n"
        "of peak: by operation count, of the keys that queries see and the distances they tell apart.\n"
        "peak MiB: the whole process on a CPU, tensors on CUDA."
    )
    headings = ("work", "tokens/s", "ms/token", "of peak", "peak MiB")
    title = "throughput" if result["slowdown"] else f"{result['model']} on {result['device']}, {result['precision']}"
    console.show_table(title, headings, works, caption)


def _in_mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.0f}"


def _spread(median: float, ends: list[float]) -> str:
    return f"{_short(median)} ({'-'.join(_short(end, like=median) for end in ends)})"


def _short(number: float, *, like: float | None = None) -> str:
    size = number if like is None else like
    return f"{number:.{3 if size < 1 else 2 if size < 100 else 0}f}"


def _plot(path: Path, result: dict[str, Any]) -> None:
    from txlcli import plots

    rows = sorted(result["slowdown"], key=lambda row: row["attn_len"])
    x = [row["attn_len"] for row in rows]
    curves = {
        "Transformer-XL": (x, [row["xl_ms_per_token"] for row in rows]),
        "Transformer-XL, one token at a time": (x, [row["xl_single_ms_per_token"] for row in rows]),
        "vanilla": (x, [row["vanilla_ms_per_token"] for row in rows]),
        "vanilla, batched": (x, [row["vanilla_batched_ms_per_token"] for row in rows]),
    }
    plots.draw_curves(
        path, curves, x_label="attention length (tokens)", y_label="ms per token", title=result["model"], log_y=True
    )
    console.say(f"drawn to {path}")
