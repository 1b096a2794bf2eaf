"""Table 8, Figures 3 and 4: relative effective context length (RECL) of two groups of models."""

from collections.abc import Mapping

from txlcli.core.measures.recl import Recl
from txlcli.paper import published
from txlcli.workflows import recl
from txlcli.workflows.options import ReclOptions
from txlcli.workflows.recl import ReclModel, ReclResult
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import TABLES, Claim, Grid, Section

GROUPS: list[list[str]] = TABLES["groups"]["table8"]
PARTS = tuple(part for group in GROUPS for part in group)
NAMES = {part: row.model for part, row in zip(PARTS, published.TABLES[8].rows, strict=True)}


def table8(runner: Runner) -> Section:
    """Measure the RECL of both groups."""
    models: dict[str, ReclModel] = {}
    for group in GROUPS:
        models |= zip(group, _measure_group(runner, group).models, strict=True)
    start = runner.scale.recl_start
    rows = [
        [row.model, *(_format(point, start) for point in models[part].recl), *map(str, row.recl)]
        for row, part in zip(published.TABLES[8].rows, PARTS, strict=True)
    ]
    shares = [f"r = {share}" for share in published.TOP_R]
    columns = ["model", *shares, *(f"paper: {share}" for share in shares)]
    # The paper's models have equal numbers of parameters only within each group.
    parameters = (", ".join(f"{part} {models[part].parameters:,}" for part in group) for group in GROUPS)
    caption = "In tokens; >= if every step improved perplexity, <= if not even the first one did."
    return Section(
        notes=[*_notes(runner), f"Parameters: {'; '.join(parameters)}."],
        grids=[Grid(columns, rows, caption)],
        claims=compare_groups({part: model.recl[0] for part, model in models.items()}, start),
        data={part: models[part].to_json()["recl"] for part in PARTS},
    )


def figure(runner: Runner, number: int) -> Section:
    """Plot Figure 3, the gains, or Figure 4, perplexity by context length."""
    figures = []
    for index, group in enumerate(GROUPS, 1):
        file = f"figure{number}-group{index}.png"
        path = runner.directory / file
        result = _measure_group(runner, group, "--plot" if number == 3 else "--plot-ppl", str(path))
        runner.report.plot_recl(path, result, number)
        figures.append([file, f"Figure {number}, model group {index}: {', '.join(group)}"])
    return Section(notes=_notes(runner), figures=figures)


def _measure_group(runner: Runner, group: list[str], *plot: str) -> ReclResult:
    """Return the result of `txl recl`, whose recorded command also plots it."""
    directories, scale = [str(runner.run(part).directory) for part in group], runner.scale
    options = ReclOptions(
        start=scale.recl_start,
        step=scale.recl_start,
        longest=scale.recl_longest,
        top_r=published.TOP_R,
        positions=scale.recl_positions,
    )
    runner.record_command("recl", *directories, *plot, options=options)
    return recl.run(directories, options, runner.workspace)


def _format(point: Recl, start: int) -> str:
    """Format a RECL; mark one that is only a bound."""
    if point.grid_ended:
        return f">= {point.recl_tokens}"
    return f"<= {start}" if point.recl_tokens == start else str(point.recl_tokens)


def compare_groups(measured: Mapping[str, Recl], start: int) -> list[Claim]:
    """Compare Transformer-XL with each other model of its group, on the hardest tenth of the positions."""
    claims = []
    for first, other in ((group[0], other) for group in GROUPS for other in group[1:]):
        longer, shorter = _format(measured[first], start), _format(measured[other], start)
        same_bound = longer == shorter and not longer.isdigit()
        held = None if same_bound else measured[first].recl_tokens > measured[other].recl_tokens
        names = [NAMES[part].removeprefix("- ") for part in (first, other)]
        text = f"{names[0]} uses more context than {names[1]} (r = 0.1)"
        claims.append(Claim(text, held, f"here {longer} and {shorter} tokens"))
    return claims


def _notes(runner: Runner) -> list[str]:
    scale = runner.scale
    method = (
        f"Context lengths from {scale.recl_start} to {scale.recl_longest} tokens in steps of {scale.recl_start}, "
        f"{scale.recl_positions:,} positions of the test split, threshold 1 %, the first seed of every model."
    )
    return [scale.description, method]
