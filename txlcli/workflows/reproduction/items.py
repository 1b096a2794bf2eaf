"""Makes each table and figure of the paper, and the frontier, from the results of the other jobs."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txlcli.paper import published
from txlcli.paper.metrics import format_ratio
from txlcli.workflows import attention, generate, speed
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.generate import GenerateResult
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.reproduction.ablation_tables import table6, table10
from txlcli.workflows.reproduction.models import BLOCKS, MEMORIES, POSITIONS, frontier_part
from txlcli.workflows.reproduction.recl_tables import recl_figure, table8
from txlcli.workflows.reproduction.runner import FIRST_SEED, Runner
from txlcli.workflows.reproduction.section import TABLES, Claim, Grid, ReportSection, check_claims, parts
from txlcli.workflows.speed import SlowdownRow
from txlcli.workflows.speed_options import SpeedOptions


def benchmark(runner: Runner, item: str) -> ReportSection:
    """Make one of Tables 1 to 5 or 7: the paper's rows, with our numbers where txl has the model."""
    paper = published.TABLES[int(item.removeprefix("table"))]
    data = {}
    our_cells = {}
    tests = {}
    for part, name in TABLES["parts"][item].items():
        parameters = runner.run(part).parameters
        valid = runner.measure(part, "valid", paper.metric)
        tests[part] = runner.measure(part, "test", paper.metric)
        data[name] = {"model": part, "parameters": parameters, "valid": valid, "test": tests[part]}
        our_cells[name] = [f"{parameters:,}", str(valid), str(tests[part])]
    rows = []
    for row in paper.rows:
        cells = our_cells.get(row.name, ["", "", ""])
        rows.append([row.label, *cells, row.parameters or "-", str(row.valid or "-"), f"{row.test}{row.mark}"])
    settings = {part: runner.settings(part) for part in parts(item)}
    (store,) = {model.corpus.store for model in settings.values()}
    text = "" if store == paper.corpus else f" ({store})"  # the text, if it is not the paper's
    columns = [
        "system",
        "parameters",
        f"valid{text}",
        f"test{text}",
        "paper: parameters",
        "paper: valid",
        "paper: test",
    ]
    caption = f"{paper.metric}, lower is better. Ours: {runner.averaged}. Empty: a system that txl does not have."
    if paper.split is None:
        caption += " The paper does not name the split."
    models = "; ".join(f"{part}: {model.model.n_layers} layers on {store}" for part, model in settings.items())
    return ReportSection(
        notes=[f"Models: {models}."],
        grids=[Grid(columns, rows, caption)],
        claims=check_claims(item, tests),
        data=data,
    )


def frontier(runner: Runner, item: str) -> ReportSection:
    """Compare recurrence with other memories, for each encoding of positions and each block.

    It goes beyond the paper. All models of a scale have the same text, tokens, steps and optimizer, and the same number
    of parameters within 1 %.
    """
    table = TABLES[item]
    train = runner.settings(parts(item)[0]).train
    longer = table["longer"] * train.mem_len
    rows = []
    data: dict[str, dict[str, Any]] = {}
    for block, position in itertools.product(BLOCKS, POSITIONS):
        names = [frontier_part(memory, position, block) for memory in MEMORIES]
        trained = [runner.measure(name, "test", "bpc") for name in names]
        with_longer = runner.measure(names[0], "test", "bpc", mem_len=longer)
        for name, measured in zip(names, trained, strict=True):
            data[name] = {"parameters": runner.run(name).parameters, "trained": measured, "longer": None}
        data[names[0]]["longer"] = with_longer
        with_recurrence, *with_others = trained
        rows.append([block, position, *map(str, (with_recurrence, with_longer, *with_others))])
    first, *others = MEMORIES
    columns = ["block", "positions", first, f"{first}, M = {longer}", *others]
    caption = f"Bits per character of the test split; lower is better; {runner.averaged}."
    tokens = train.batch_size * train.seg_len
    note = f"{train.max_steps:,} steps of {tokens:,} tokens each; L = {train.seg_len}, M = {train.mem_len}."
    return ReportSection(
        notes=[note, *table["notes"]],
        grids=[Grid(columns, rows, caption), Grid(**table["published"])],
        data=data,
    )


def table9(runner: Runner, item: str) -> ReportSection:
    """Compare prediction with and without memory."""
    recipe = runner.scale.timed_recipe
    options = SpeedOptions(attn_len=runner.scale.attn_lens)
    runner.record_command("speed", recipe, options=options)
    result = speed.time_recipe(recipe, options, runner.workspace)
    rows = []
    for row in result.slowdown:
        times = [f"{row.xl_ms_per_token:.3f}", f"{row.vanilla_ms_per_token:.1f}"]
        ratios = [format_ratio(ratio) for ratio in (row.slowdown, row.slowdown_batched, row.paper_slowdown)]
        rows.append([f"{row.attn_len:,}", *times, *ratios])
    columns = ["attention", "XL ms/token", "vanilla ms/token", "slowdown", "windows batched", "paper"]
    note = (
        f"Recipe {recipe} with random weights, since speed does not depend on them. Vanilla: the same weights without "
        "memory, recomputing one window per prediction; batched: with the fastest number of windows at once."
    )
    return ReportSection(
        notes=[note],
        grids=[Grid(columns, rows, f"{result.device}, {result.precision}, medians of {result.repeat}.")],
        claims=[compare_slowdowns(result.slowdown)],
        data={"slowdown": result.slowdown},
    )


def compare_slowdowns(rows: Sequence[SlowdownRow]) -> Claim:
    """Check that the slowdown grows with the attention length; undecided if other programs disturbed the times."""
    ordered = sorted(rows, key=lambda row: row.attn_len)
    grows: bool | None = all(shorter.slowdown < longer.slowdown for shorter, longer in itertools.pairwise(ordered))
    detail = ", ".join(f"{format_ratio(row.slowdown)} at {row.attn_len}" for row in ordered)
    if not all(row.times_trusted for row in rows):
        grows = None
        detail += "; other programs used the processors, so that the times cannot be trusted"
    return Claim("The slowdown of vanilla grows with the attention length", grows, detail)


def attention_figure(runner: Runner, item: str) -> ReportSection:
    """Plot Figure 5, 6 or 7 of the standard model on the validation split."""
    (part,) = parts(item)
    number = int(item[-1])
    file = f"{item}.png"
    run = runner.run(part)
    options = AttentionOptions()
    runner.record_command("attention", str(run.directory), "--out", str(runner.directory), "--force", options=options)
    result = attention.measure_attention(run, options, runner.workspace)
    runner.report.plot_attention(result, number, runner.directory / file)
    return ReportSection(figures=[[file, f"Figure {number}, {run.name}, {run.settings.corpus.store} valid"]])


def appendix_e(runner: Runner, item: str) -> ReportSection:
    """Generate samples, each next to the actual continuation."""
    (part,) = parts(item)
    samples = []
    run = runner.run(part)
    for seed, tokens in enumerate(runner.scale.sample_tokens, FIRST_SEED):
        options = GenerateOptions(context=runner.scale.context, tokens=tokens, reference=True, seed=seed)
        runner.record_command("generate", str(run.directory), options=options)
        samples.append(generate.generate_texts(run, options, runner.workspace))
    note = "The first samples generated, without selection; contexts are random passages of the test split."
    return ReportSection(notes=[note], texts=sample_texts(samples))


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


ITEMS: dict[str, Callable[[Runner, str], ReportSection]] = {
    "table1": benchmark,
    "table2": benchmark,
    "table3": benchmark,
    "table4": benchmark,
    "table5": benchmark,
    "table6": table6,
    "table7": benchmark,
    "table8": table8,
    "table9": table9,
    "table10": table10,
    "figure3": recl_figure,
    "figure4": recl_figure,
    "figure5": attention_figure,
    "figure6": attention_figure,
    "figure7": attention_figure,
    "appendix-e": appendix_e,
    "frontier": frontier,
}
"""The function that makes each table or figure, which it is given the name of."""
