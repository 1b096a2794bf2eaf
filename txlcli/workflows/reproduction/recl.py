"""Table 8, Figures 3 and 4: relative effective context length (RECL) of two groups of models."""

from typing import Any

from txlcli.paper import published
from txlcli.workflows import recl
from txlcli.workflows.options import ReclOptions
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section

GROUPS = (
    ("words-xl", "words-qrnn", "words-lstm"),
    ("ablation-xl-full", "ablation-shaw-full", "ablation-alone-xl-full", "ablation-alone-learned-half"),
)
PARTS = tuple(part for group in GROUPS for part in group)
TITLES = {3: "unnormalized relative perplexity gains, r = 0.1", 4: "perplexity against context length"}


def table8(runner: Runner) -> Section:
    """Measure the RECL of both groups."""
    measured: dict[str, Any] = {}
    for group in GROUPS:
        measured |= dict(zip(group, _measure_group(runner, group).to_json()["models"], strict=True))
    rows, data = [], {}
    for row, part in zip(published.TABLES[8].rows, PARTS, strict=True):
        own = [_format_recl(point, runner.scale.recl_start) for point in measured[part]["recl"]]
        rows.append([row.model, *own, *(str(number) for number in row.recl)])
        data[part] = measured[part]["recl"]
    shares = [f"r = {share}" for share in published.TOP_R]
    return Section(
        name="table8",
        title=f"Table 8: {published.TABLES[8].title}",
        notes=[runner.scale.description, _describe_method(runner), _describe_parameters(runner)],
        grids=[
            Grid(
                ["model", *shares, *(f"paper: {share}" for share in shares)],
                rows,
                "In tokens; >= if every step improved perplexity, <= if not even the first one did.",
            )
        ],
        claims=compare_groups(measured, runner.scale.recl_start),
        data=data,
    )


def figure(runner: Runner, number: int) -> Section:
    """Plot Figure 3, the gains, or Figure 4, perplexity by context length."""
    plots = {3: (runner.plots.recl_gains, "--plot"), 4: (runner.plots.recl_perplexities, "--plot-ppl")}
    plot, option = plots[number]
    figures = []
    for index, group in enumerate(GROUPS, 1):
        file = f"figure{number}-group{index}.png"
        path = runner.directory / file
        plot(path, _measure_group(runner, group, option, str(path)))
        figures.append([file, f"Figure {number}, model group {index}: {', '.join(group)}"])
    return Section(
        name=f"figure{number}",
        title=f"Figure {number}: {TITLES[number]}",
        notes=[runner.scale.description, _describe_method(runner)],
        figures=figures,
    )


def _measure_group(runner: Runner, group: tuple[str, ...], *plot_options: str) -> ReclResult:
    """Return the result of `txl recl`."""
    runs, scale = [runner.run(part) for part in group], runner.scale
    options = ReclOptions(
        split="test",
        start=scale.recl_start,
        step=scale.recl_start,
        longest=scale.recl_longest,
        top_r=published.TOP_R,
        positions=scale.recl_positions,
    )
    words = ["--start", str(scale.recl_start), "--step", str(scale.recl_start), "--longest", str(scale.recl_longest)]
    words += ["--positions", str(scale.recl_positions)]
    runner.record_command("recl", *(str(run.directory) for run in runs), *words, *plot_options)
    return recl.run([str(run.directory) for run in runs], options, runner.workspace)


def _format_recl(point: dict[str, Any], start: int) -> str:
    """Format a RECL; mark one that is only a bound."""
    if point["grid_ended"]:
        return f">= {point['recl_tokens']}"
    return f"<= {start}" if point["recl_tokens"] == start else str(point["recl_tokens"])


def compare_groups(measured: dict[str, Any], start: int) -> list[Claim]:
    """Compare Transformer-XL with each other model of its group, on the hardest tenth of the positions."""
    names = {part: row.model.removeprefix("- ") for part, row in zip(PARTS, published.TABLES[8].rows, strict=True)}
    claims = []
    for first, *others in GROUPS:
        for other in others:
            longer, shorter = (measured[part]["recl"][0] for part in (first, other))
            formatted = [_format_recl(point, start) for point in (longer, shorter)]
            same_bound = formatted[0] == formatted[1] and not formatted[0].isdigit()
            held = None if same_bound else longer["recl_tokens"] > shorter["recl_tokens"]
            text = f"{names[first]} uses more context than {names[other]} (r = 0.1)"
            claims.append(Claim(text, held, f"here {formatted[0]} and {formatted[1]} tokens"))
    return claims


def _describe_parameters(runner: Runner) -> str:
    """Return the parameters of the models, which are the same within each group of the paper only."""
    groups = (", ".join(f"{part} {runner.run(part).parameters:,}" for part in group) for group in GROUPS)
    return f"Parameters: {'; '.join(groups)}."


def _describe_method(runner: Runner) -> str:
    scale = runner.scale
    return (
        f"Context lengths from {scale.recl_start} to {scale.recl_longest} tokens in steps of {scale.recl_start}, "
        f"{scale.recl_positions:,} positions of the test split, threshold 1 %, the first seed of every model."
    )
