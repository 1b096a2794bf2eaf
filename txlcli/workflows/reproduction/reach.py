"""Table 8, Figures 3 and 4: how much context the models make use of."""

from pathlib import Path
from typing import Any

from txlcli.commands import recl
from txlcli.paper import published
from txlcli.views import recl_table
from txlcli.workflows.reproduction.report import Claim, Grid, Section
from txlcli.workflows.reproduction.workshop import Workshop

GROUPS = (
    ("words-xl", "words-qrnn", "words-lstm"),
    ("ablation-xl-full", "ablation-shaw-full", "ablation-alone-xl-full", "ablation-alone-learned-half"),
)
MODELS = tuple(key for group in GROUPS for key in group)


def table8(shop: Workshop) -> Section:
    """The relative effective context length of two groups of models."""
    measured = _measure(shop)
    rows, data = [], {}
    for row, key in zip(published.TABLE_8.rows, MODELS, strict=True):
        own = [_in_words(point, shop.scale.recl_start) for point in measured[key]["recl"]]
        rows.append([row.model, *own, *(str(number) for number in row.recl)])
        data[key] = measured[key]["recl"]
    shares = [f"r = {share}" for share in published.TOP_R]
    return Section(
        name="table8",
        title=f"Table 8: {published.TABLE_8.title}",
        scale=shop.scale.name,
        notes=[shop.scale.says, _protocol(shop), _budgets(shop)],
        grids=[
            Grid(
                ["model", *shares, *(f"paper: {share}" for share in shares)],
                rows,
                "In tokens; >= where the grid ended first, <= where its first step gained less than the threshold.",
            )
        ],
        claims=_claims(measured, shop.scale.recl_start),
        data=data,
    )


def figure(shop: Workshop, number: int, folder: Path) -> Section:
    """Figure 3, the gains; or Figure 4, perplexity by context length."""
    draw, option = {3: (recl_table.plot_gains, "--plot"), 4: (recl_table.plot_perplexities, "--plot-ppl")}[number]
    figures = []
    for which, group in enumerate(GROUPS, 1):
        file = f"figure{number}-group{which}.png"
        draw(folder / file, _of_group(shop, group, option, str(folder / file)))
        figures.append([file, f"Figure {number}, model group {which}: {', '.join(group)}"])
    titles = {3: "unnormalised relative perplexity gains, r = 0.1", 4: "perplexity against context length"}
    return Section(
        name=f"figure{number}",
        title=f"Figure {number}: {titles[number]}",
        scale=shop.scale.name,
        notes=[shop.scale.says, _protocol(shop)],
        figures=figures,
    )


def _measure(shop: Workshop) -> dict[str, Any]:
    """What `txl recl` says of every model, by its word."""
    by_word: dict[str, Any] = {}
    for group in GROUPS:
        result = _of_group(shop, group)
        by_word |= dict(zip(group, result["models"], strict=True))
    return by_word


def _of_group(shop: Workshop, group: tuple[str, ...], *drawing: str) -> dict[str, Any]:
    runs = [shop.run(key) for key in group]
    scale = shop.scale
    wishes = recl.ReclWishes(
        split="test",
        start=scale.recl_start,
        step=scale.recl_start,
        longest=scale.recl_longest,
        top_r=published.TOP_R,
        positions=scale.recl_positions,
    )
    grid = ["--start", str(scale.recl_start), "--step", str(scale.recl_start), "--longest", str(scale.recl_longest)]
    grid += ["--positions", str(scale.recl_positions)]
    shop.note("recl", *(str(run.folder) for run in runs), *grid, *drawing)
    return recl.measure(
        [str(run.folder) for run in runs],
        wishes,
        device=shop.device.value,
        data_dir=shop.data_dir,
        runs_dir=shop.runs_dir,
    )


def _in_words(point: dict[str, Any], start: int) -> str:
    """A length that is only a bound is called one."""
    if point["grid_ended"]:
        return f">= {point['recl_tokens']}"
    return f"<= {start}" if point["recl_tokens"] == start else str(point["recl_tokens"])


def _claims(measured: dict[str, Any], start: int) -> list[Claim]:
    """Transformer-XL reaches further than each other model of its group, on the hardest tenth."""
    names = {key: row.model.removeprefix("- ") for key, row in zip(MODELS, published.TABLE_8.rows, strict=True)}
    claims = []
    for first, *others in GROUPS:
        for other in others:
            own, less = (measured[key]["recl"][0] for key in (first, other))
            told = [_in_words(point, start) for point in (own, less)]
            bounds = told[0] == told[1] and not told[0].isdigit()
            held = None if bounds else own["recl_tokens"] > less["recl_tokens"]
            text = f"{names[first]} reaches further than: {names[other]} (r = 0.1)"
            claims.append(Claim(text, held, f"here {told[0]} and {told[1]} tokens"))
    return claims


def _budgets(shop: Workshop) -> str:
    """The paper's groups have the same number of parameters each; at other scales they need not."""
    groups = (", ".join(f"{key} {shop.run(key).parameters:,}" for key in group) for group in GROUPS)
    return f"Parameters: {'; '.join(groups)}."


def _protocol(shop: Workshop) -> str:
    scale = shop.scale
    return (
        f"Context lengths from {scale.recl_start} to {scale.recl_longest} tokens in steps of {scale.recl_start}, "
        f"{scale.recl_positions:,} positions of the test split, threshold 1 %, the first seed of every model."
    )
