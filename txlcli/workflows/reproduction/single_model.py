"""Results of a single model: Table 9 (speed), Figures 5 to 7 (attention), Appendix E (generated text)."""

import dataclasses
import itertools

from txlcli.paper.metrics import format_ratio
from txlcli.workflows import attention, generate, speed
from txlcli.workflows.options import AttentionOptions, GenerateOptions, SpeedOptions
from txlcli.workflows.reproduction.runner import FIRST_SEED, Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section

PART = "words-xl"  # the paper's figures and samples are of its standard model on WikiText-103


def table9(runner: Runner) -> Section:
    """Compare prediction with and without memory."""
    recipe, options = runner.scale.timed_recipe, SpeedOptions(attn_len=runner.scale.attn_lens)
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


def attention_figure(runner: Runner, number: int) -> Section:
    """Plot Figure 5, 6 or 7 of the standard model on the validation split."""
    run, options, file = runner.run(PART), AttentionOptions(figure=(number,)), f"figure{number}.png"
    runner.record_command("attention", str(run.directory), "--out", str(runner.directory), "--force", options=options)
    result = attention.run(str(run.directory), options, runner.workspace)
    runner.report.plot_attention(runner.directory / file, result, number)
    caption = f"Figure {number}, {run.name}, {run.settings.corpus.store} valid"
    return Section(notes=[runner.scale.description], figures=[[file, caption]])


def appendix_e(runner: Runner) -> Section:
    """Generate samples, each next to the actual continuation."""
    directory, texts = str(runner.run(PART).directory), []
    for number, tokens in enumerate(runner.scale.sample_tokens, 1):
        options = GenerateOptions(
            context=runner.scale.context, tokens=tokens, reference=True, seed=FIRST_SEED + number - 1
        )
        runner.record_command("generate", directory, options=options)
        result = generate.run(directory, options, runner.workspace)
        texts += [
            [f"Context {number}", result.context],
            [f"Generated text {number}, {tokens:,} tokens", result.samples[0].text],
            [f"Actual continuation {number}", result.reference or ""],
        ]
    note = "The first samples generated, without selection; contexts are random passages of the test split."
    return Section(notes=[runner.scale.description, note], texts=texts)
