"""Table 8 and Figures 3 and 4: the relative effective context length of two groups of models."""

from collections.abc import Mapping
from dataclasses import replace

from txlcli.core.measures.recl import Recl
from txlcli.paper import published
from txlcli.workflows import recl
from txlcli.workflows.recl import ReclModel, ReclResult
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.scales import Scale
from txlcli.workflows.reproduction.section import Claim, Grid, ReportSection, parts

PAPER_ROWS = dict(zip(parts("table8"), published.TABLES[8].rows, strict=True))
"""Rows of Table 8 by the part in the paper."""


def _group(number: int) -> list[str]:
    return [part for part, row in PAPER_ROWS.items() if row.group == number]


MODEL_GROUPS = [_group(1), _group(2)]
"""Models that are compared, Transformer-XL first."""


def table8(runner: Runner, item: str) -> ReportSection:
    """Measure the RECL of both groups."""
    models: dict[str, ReclModel] = {}
    parameters = []  # The paper's models have equal numbers of parameters only within each group.
    for group in MODEL_GROUPS:
        result = _measure_group(runner, group, _options(runner.scale))
        measured = dict(zip(group, result.models, strict=True))
        models |= measured
        parameters.append(", ".join(f"{part} {model.parameters:,}" for part, model in measured.items()))
    rows = []
    for part, row in PAPER_ROWS.items():
        ours = [f"{point.bound}{point.recl_tokens}" for point in models[part].recl]
        rows.append([row.model, *ours, *map(str, row.recl)])
    shares = [f"r = {share}" for share in ReclOptions().top_r]
    columns = ["model", *shares, *(f"paper: {share}" for share in shares)]
    caption = "In tokens; >= if every step improved perplexity, <= if not even the first one did."
    return ReportSection(
        notes=[_recl_note(runner), f"Parameters: {'; '.join(parameters)}."],
        grids=[Grid(columns, rows, caption)],
        claims=compare_groups({part: model.recl[0] for part, model in models.items()}),
        data={part: model.to_json()["recl"] for part, model in models.items()},
    )


def recl_figure(runner: Runner, item: str) -> ReportSection:
    """Plot Figure 3, the gains, or Figure 4, perplexity by context length."""
    figures = []
    for number, group in enumerate(MODEL_GROUPS, 1):
        path = runner.directory / f"{item}-group{number}.png"
        options = replace(_options(runner.scale), force=True)
        if item == "figure3":
            options = replace(options, plot=path)
        else:
            options = replace(options, plot_ppl=path)
        result = _measure_group(runner, group, options)
        runner.report.plot_recl[item](path, result)
        figures.append([path.name, f"Figure {item[-1]}, model group {number}: {', '.join(group)}"])
    return ReportSection(notes=[_recl_note(runner)], figures=figures)


def _options(scale: Scale) -> ReclOptions:
    return ReclOptions(
        start=scale.recl_start,
        step=scale.recl_start,
        longest=scale.recl_longest,
        positions=scale.recl_positions,
    )


def _measure_group(runner: Runner, group: list[str], options: ReclOptions) -> ReclResult:
    """Return the result of `txl recl`, which does not depend on figures; the recorded command also plots them."""
    runs = [runner.run(part) for part in group]
    runner.record_command("recl", *(str(run.directory) for run in runs), options=options)
    key = tuple(group)
    if key not in runner.recl_results:
        runner.recl_results[key] = recl.run(runs, options, runner.workspace)
    return runner.recl_results[key]


def compare_groups(measured: Mapping[str, Recl]) -> list[Claim]:
    """Compare Transformer-XL with each other model of its group, on the hardest tenth of the positions."""
    claims = []
    for transformer_xl, *others in MODEL_GROUPS:
        for other in others:
            claims.append(_compare(transformer_xl, other, measured))
    return claims


def _compare(first: str, other: str, measured: Mapping[str, Recl]) -> Claim:
    first_length = f"{measured[first].bound}{measured[first].recl_tokens}"
    other_length = f"{measured[other].bound}{measured[other].recl_tokens}"
    held: bool | None = measured[first].recl_tokens > measured[other].recl_tokens
    if first_length == other_length and measured[first].bound:
        held = None  # the same bound of both
    first_name = PAPER_ROWS[first].model.removeprefix("- ")
    other_name = PAPER_ROWS[other].model.removeprefix("- ")
    text = f"{first_name} uses more context than {other_name} (r = 0.1)"
    return Claim(text, held, f"here {first_length} and {other_length} tokens")


def _recl_note(runner: Runner) -> str:
    scale = runner.scale
    return (
        f"Context lengths from {scale.recl_start} to {scale.recl_longest} tokens in steps of {scale.recl_start}, "
        f"{scale.recl_positions:,} positions of the test split, threshold 1 %, the first seed of every model."
    )
