"""Tables 8 and 9, Figures 3 to 7, Appendix E: the results of `txl recl`, `speed`, `attention` and `generate`."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from txlcli.core.measures.recl import Recl
from txlcli.paper import published
from txlcli.paper.metrics import format_ratio
from txlcli.workflows import attention, generate, recl, speed
from txlcli.workflows.generate import GenerateResult
from txlcli.workflows.options import AttentionOptions, GenerateOptions, ReclOptions, SpeedOptions
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.reproduction.runner import FIRST_SEED, Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section, parts

ROWS = dict(zip(parts("table8"), published.TABLES[8].rows, strict=True))
"""Rows of Table 8 by the part in the paper."""
GROUPS = [[part for part, row in ROWS.items() if row.group == group] for group in (1, 2)]
"""Models that are compared, Transformer-XL first."""


def table8(runner: Runner, item: str) -> Section:
    """Measure the RECL of both groups."""
    measured = [model for group in GROUPS for model in _measure_group(runner, group).models]
    models, start = dict(zip(ROWS, measured, strict=True)), runner.scale.recl_start
    rows = [
        [row.model, *(_format_recl(point, start) for point in models[part].recl), *map(str, row.recl)]
        for part, row in ROWS.items()
    ]
    shares = [f"r = {share}" for share in ReclOptions().top_r]
    # The paper's models have equal numbers of parameters only within each group.
    parameters = (", ".join(f"{part} {models[part].parameters:,}" for part in group) for group in GROUPS)
    caption = "In tokens; >= if every step improved perplexity, <= if not even the first one did."
    return Section(
        notes=[_recl_note(runner), f"Parameters: {'; '.join(parameters)}."],
        grids=[Grid(["model", *shares, *(f"paper: {share}" for share in shares)], rows, caption)],
        claims=compare_groups({part: model.recl[0] for part, model in models.items()}, start),
        data={part: model.to_json()["recl"] for part, model in models.items()},
    )


def recl_figure(runner: Runner, item: str) -> Section:
    """Plot Figure 3, the gains, or Figure 4, perplexity by context length."""
    figures = []
    for index, group in enumerate(GROUPS, 1):
        file, option = f"{item}-group{index}.png", "plot" if item == "figure3" else "plot_ppl"
        path = runner.directory / file
        runner.report.plot_recl[item](path, _measure_group(runner, group, **{option: path, "force": True}))
        figures.append([file, f"Figure {item[-1]}, model group {index}: {', '.join(group)}"])
    return Section(notes=[_recl_note(runner)], figures=figures)


def _measure_group(runner: Runner, group: list[str], **plotting: Any) -> ReclResult:
    """Return the result of `txl recl`; with these options, the recorded command also plots it."""
    directories, scale = [str(runner.run(part).directory) for part in group], runner.scale
    options = ReclOptions(
        start=scale.recl_start,
        step=scale.recl_start,
        longest=scale.recl_longest,
        positions=scale.recl_positions,
        **plotting,
    )
    runner.record_command("recl", *directories, options=options)
    return recl.run(directories, options, runner.workspace)


def _format_recl(point: Recl, start: int) -> str:
    """Format a RECL; mark one that is only a bound."""
    if point.grid_ended:
        return f">= {point.recl_tokens}"
    return f"<= {start}" if point.recl_tokens == start else str(point.recl_tokens)


def compare_groups(measured: Mapping[str, Recl], start: int) -> list[Claim]:
    """Compare Transformer-XL with each other model of its group, on the hardest tenth of the positions."""
    claims = []
    for first, other in ((group[0], other) for group in GROUPS for other in group[1:]):
        longer, shorter = _format_recl(measured[first], start), _format_recl(measured[other], start)
        same_bound = longer == shorter and not longer.isdigit()
        held = None if same_bound else measured[first].recl_tokens > measured[other].recl_tokens
        names = [ROWS[part].model.removeprefix("- ") for part in (first, other)]
        text = f"{names[0]} uses more context than {names[1]} (r = 0.1)"
        claims.append(Claim(text, held, f"here {longer} and {shorter} tokens"))
    return claims


def _recl_note(runner: Runner) -> str:
    scale = runner.scale
    return (
        f"Context lengths from {scale.recl_start} to {scale.recl_longest} tokens in steps of {scale.recl_start}, "
        f"{scale.recl_positions:,} positions of the test split, threshold 1 %, the first seed of every model."
    )


def table9(runner: Runner, item: str) -> Section:
    """Compare prediction with and without memory."""
    recipe, options = runner.scale.timed_recipe, SpeedOptions(attn_len=tuple(runner.scale.attn_lens))
    runner.record_command("speed", recipe, options=options)
    result = speed.run(recipe, options, runner.workspace)
    rows = [
        [
            f"{row.attn_len:,}",
            f"{row.xl_ms_per_token:.3f}",
            f"{row.vanilla_ms_per_token:.1f}",
            format_ratio(row.slowdown),
            format_ratio(row.slowdown_batched),
            f"{row.paper_slowdown:,}x" if row.paper_slowdown else "-",
        ]
        for row in result.slowdown
    ]
    columns = ["attention", "XL ms/token", "vanilla ms/token", "slowdown", "windows batched", "paper"]
    ordered = sorted(result.slowdown, key=lambda row: row.attn_len)
    grows = all(shorter.slowdown < longer.slowdown for shorter, longer in itertools.pairwise(ordered))
    detail = ", ".join(f"{format_ratio(row.slowdown)} at {row.attn_len}" for row in ordered)
    note = (
        f"Recipe {recipe} with random weights, since speed does not depend on them. Vanilla: the same weights without "
        "memory, recomputing one window per prediction; batched: with the fastest number of windows at once."
    )
    return Section(
        notes=[note],
        grids=[Grid(columns, rows, f"{result.device}, {result.precision}, medians of {result.repeat}.")],
        claims=[Claim("The slowdown of vanilla grows with the attention length", grows, detail)],
        data={"slowdown": [dataclasses.asdict(row) for row in result.slowdown]},
    )


def attention_figure(runner: Runner, item: str) -> Section:
    """Plot Figure 5, 6 or 7 of the standard model on the validation split."""
    (part,), number, file = parts(item), int(item[-1]), f"{item}.png"
    run, options = runner.run(part), AttentionOptions(figure=(number,))
    runner.record_command("attention", str(run.directory), "--out", str(runner.directory), "--force", options=options)
    result = attention.run(str(run.directory), options, runner.workspace)
    runner.report.plot_attention(result, number, runner.directory / file)
    return Section(figures=[[file, f"Figure {number}, {run.name}, {run.settings.corpus.store} valid"]])


def appendix_e(runner: Runner, item: str) -> Section:
    """Generate samples, each next to the actual continuation."""
    (part,), samples = parts(item), []
    directory = str(runner.run(part).directory)
    for seed, tokens in enumerate(runner.scale.sample_tokens, FIRST_SEED):
        options = GenerateOptions(context=runner.scale.context, tokens=tokens, reference=True, seed=seed)
        runner.record_command("generate", directory, options=options)
        samples.append(generate.run(directory, options, runner.workspace))
    note = "The first samples generated, without selection; contexts are random passages of the test split."
    return Section(notes=[note], texts=sample_texts(samples))


def sample_texts(samples: Iterable[GenerateResult]) -> list[list[str]]:
    """Return title and text of each context, of the text generated after it, and of its actual continuation."""
    texts = []
    for number, result in enumerate(samples, 1):
        (sample,) = result.samples
        texts += [
            [f"Context {number}", result.context],
            [f"Generated text {number}, {len(sample.tokens):,} tokens", sample.text],
            [f"Actual continuation {number}", result.reference or ""],
        ]
    return texts
