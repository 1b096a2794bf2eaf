"""Results of a single model: Table 9 (speed), Figures 5 to 7 (attention), Appendix E (generated text)."""

import itertools

from txlcli.paper import metrics, published
from txlcli.workflows import attention
from txlcli.workflows.options import AttentionOptions
from txlcli.workflows.reproduction.runner import FIRST_SEED, Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section

PART = "words-xl"  # the paper's figures and samples are of its standard model on WikiText-103
ATTENTION_TITLES = {
    5: "average attention over the previous tokens",
    6: "attention of the widest heads, the highest fifth in red",
    7: "terms (a), (b) and (d) of the attention score",
}


def table9(runner: Runner) -> Section:
    """Compare prediction with and without memory."""
    recipe = runner.scale.timed_recipe
    result = runner.measure_speed(recipe)
    rows = [
        [
            f"{row['attn_len']:,}",
            f"{row['xl_ms_per_token']:.3f}",
            f"{row['vanilla_ms_per_token']:.1f}",
            metrics.format_ratio(row["slowdown"]),
            metrics.format_ratio(row["slowdown_batched"]),
            f"{row['paper_slowdown']:,}x" if row["paper_slowdown"] else "-",
        ]
        for row in result["slowdown"]
    ]
    columns = ["attention", "XL ms/token", "vanilla ms/token", "slowdown", "windows batched", "paper"]
    ordered = sorted(result["slowdown"], key=lambda row: row["attn_len"])
    grows = all(a["slowdown"] < b["slowdown"] for a, b in itertools.pairwise(ordered))
    detail = ", ".join(f"{metrics.format_ratio(row['slowdown'])} at {row['attn_len']}" for row in ordered)
    return Section(
        name="table9",
        title=f"Table 9: {published.TABLES[9].title}",
        notes=[
            f"Recipe {recipe} with random weights, since speed does not depend on them. Vanilla: the same weights "
            "without memory, recomputing one window per prediction; batched: with the fastest number of windows at "
            "once."
        ],
        grids=[Grid(columns, rows, f"{result['device']}, {result['precision']}, medians of {result['repeat']}.")],
        claims=[Claim("The slowdown of vanilla grows with the attention length", grows, detail)],
        data={"slowdown": result["slowdown"]},
    )


def attention_figure(runner: Runner, number: int) -> Section:
    """Plot Figure 5, 6 or 7 of the standard model on the validation split."""
    run, directory = runner.run(PART), runner.directory
    runner.record_command("attention", str(run.directory), "--figure", str(number), "--out", str(directory), "--force")
    options = AttentionOptions(figure=(number,))
    result = attention.run(str(run.directory), options, runner.workspace)
    file = f"figure{number}.png"
    runner.plots.attention(result, number, directory / file)
    return Section(
        name=f"figure{number}",
        title=f"Figure {number}: {ATTENTION_TITLES[number]}",
        notes=[runner.scale.description],
        figures=[[file, f"Figure {number}, {run.name}, {run.settings.corpus.store} valid"]],
    )


def appendix_e(runner: Runner) -> Section:
    """Generate samples, each beside the actual continuation."""
    run = runner.run(PART)
    texts = []
    for number, tokens in enumerate(runner.scale.sample_tokens, 1):
        result = runner.generate(run, tokens=tokens, seed=FIRST_SEED + number - 1)
        texts += [
            [f"Context {number}", result.context],
            [f"Generated text {number}, {tokens:,} tokens", result.samples[0].text],
            [f"Actual continuation {number}", result.reference or ""],
        ]
    return Section(
        name="appendix-e",
        title="Appendix E: generated text",
        notes=[
            runner.scale.description,
            "The first samples generated, without selection; contexts are random passages of the test split.",
        ],
        texts=texts,
    )
