"""Makes each table and figure of the paper, and the frontier, from the results of the other jobs."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from txlcli.core.measures.recl import Recl
from txlcli.paper import published
from txlcli.paper.metrics import format_ratio, perplexity
from txlcli.workflows import attention, generate, recl, speed
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.evaluation.options import AUTO, EvalOptions
from txlcli.workflows.generate import GenerateResult
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.reproduction.runner import FIRST_SEED, Runner
from txlcli.workflows.reproduction.section import TABLES, Claim, Grid, Measured, Section, check_claims, parts
from txlcli.workflows.speed_options import SpeedOptions

STANDARD, LONGEST = "ablation-standard", "ablation-xl-full"
"""The models whose further lengths are measured: the paper's standard model, and the best of the ablations."""
COLUMNS = ["model", "init", "best", "attention", "paper: init", "paper: best", "paper: attention"]
NOT_WORSE = 0.005  # largest increase of perplexity, relative, up to four times the trained M


@dataclass(frozen=True)
class OurResult:
    """Result of one of our models."""

    model: str
    parameters: int
    valid: Measured
    test: Measured


def benchmark(runner: Runner, item: str) -> Section:
    """Make one of Tables 1 to 5 or 7: the paper's rows, with our numbers where txl has the model."""
    paper = published.TABLES[int(item.removeprefix("table"))]
    ours = {
        name: OurResult(
            part,
            runner.run(part).parameters,
            *(runner.measure(part, split, paper.metric) for split in ("valid", "test")),
        )
        for part, name in TABLES["parts"][item].items()
    }
    rows = []
    for row in paper.rows:
        own = ours.get(row.name)
        cells = [f"{own.parameters:,}", str(own.valid), str(own.test)] if own else [""] * 3
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
    caption += "" if paper.split else " The paper does not name the split."
    models = "; ".join(f"{part}: {model.model.n_layers} layers on {store}" for part, model in settings.items())
    return Section(
        notes=[f"Models: {models}."],
        grids=[Grid(columns, rows, caption)],
        claims=check_claims(item, {own.model: own.test for own in ours.values()}),
        data={**ours},
    )


def frontier(runner: Runner, item: str) -> Section:
    """Compare recurrence with other memories, for each encoding of positions and each block, at equal cost.

    It goes beyond the paper. All models of a scale have the same text, tokens, steps and optimizer, and the same number
    of parameters within 1 %.
    """
    table, train = TABLES[item], runner.settings(parts(item)[0]).train
    rows, data, longer = [], {}, table["longer"] * train.mem_len
    for block, position in itertools.product(table["blocks"], table["positions"]):
        names = [f"{item}-{memory}-{position}-{block}" for memory in table["memories"]]
        recurrence, *others = (runner.measure(name, "test", "bpc") for name in names)
        with_longer = runner.measure(names[0], "test", "bpc", mem_len=longer)
        rows.append([block, position, *map(str, (recurrence, with_longer, *others))])
        for name, trained in zip(names, (recurrence, *others), strict=True):
            of_longer = with_longer if trained is recurrence else None
            data[name] = {"parameters": runner.run(name).parameters, "trained": trained, "longer": of_longer}
    first, *memories = table["memories"]
    columns = ["block", "positions", first, f"{first}, M = {longer}", *memories]
    caption = f"Bits per character of the test split; lower is better; {runner.averaged}."
    note = (
        f"{train.max_steps:,} steps of {train.batch_size * train.seg_len:,} tokens each; L = {train.seg_len}, "
        f"M = {train.mem_len}."
    )
    return Section(
        notes=[note, *table["notes"]],
        grids=[Grid(columns, rows, caption), Grid(**table["published"])],
        data=data,
    )


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Perplexity on valid by attention length, for each seed."""

    init: Measured
    """Perplexity with the training settings: segments of L with a memory of M, or windows of L without recurrence."""
    best: Measured
    """Lowest perplexity of all lengths."""
    attn_lens: tuple[int, ...]
    """Shortest length beyond which perplexity falls by less than 0.1 %."""
    tried: tuple[dict[int, float], ...]
    """Loss in nats by length, as tried by the search."""
    trained: int
    """Largest number of keys that a query sees in training."""


def table6(runner: Runner, item: str) -> Section:
    """Compare recurrence, encodings and losses."""
    section, models = _ablations(runner, item)
    mem_len = runner.settings(STANDARD).train.mem_len
    further = (3 * mem_len, 2 * mem_len)  # the paper's 450 and 300 keys, of 150 in training
    for row, length in zip(published.TABLES[6].rows[len(models) :], further, strict=True):
        value = runner.measure(STANDARD, "valid", "ppl", mem_len=length)
        section.grids[0].rows.append(_row(row, "-", str(value), str(length)))
    section.claims.extend(_check_lengths(runner, models[LONGEST]))
    return section


def table10(runner: Runner, item: str) -> Section:
    """Compare as in Table 6, with longer segments without recurrence, so that training needs the same memory."""
    section, models = _ablations(runner, item)
    trained = [runner.settings(part).train for part in models]
    steps = ", ".join(f"{train.batch_size} x {train.seg_len}" for train in trained)  # segment lengths differ
    paper = ", ".join(str(row.backprop_len) for row in published.TABLES[10].rows)
    section.notes.append(
        f"Tokens per step (batch size x segment length), row by row: {steps}. Segments of the paper: {paper}."
    )
    return section


def _ablations(runner: Runner, item: str) -> tuple[Section, dict[str, Lengths]]:
    """Return the section of a table of ablations, and the results of its models."""
    rows, models = [], {part: _measure(runner, part) for part in parts(item)}
    for row, lengths in zip(published.TABLES[int(item.removeprefix("table"))].rows, models.values(), strict=False):
        found = sorted({min(lengths.attn_lens), max(lengths.attn_lens)})
        rows.append(_row(row, str(lengths.init), str(lengths.best), " to ".join(map(str, found))))
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: with the training settings (segments of "
        "L with M before them; windows of L without recurrence). best: the lowest of all lengths. attention: the "
        f"shortest length beyond which perplexity falls by less than 0.1 %. Ours: {runner.averaged}."
    )
    section = Section(
        grids=[Grid(COLUMNS, rows, caption)],
        claims=check_claims(item, {part: lengths.best for part, lengths in models.items()}),
        data={
            part: vars(lengths) | {"init": lengths.init.values, "best": lengths.best.values}
            for part, lengths in models.items()
        },
    )
    return section, models


def _measure(runner: Runner, part: str) -> Lengths:
    """Evaluate a model with its training settings, and at the lengths that the search for the best one tries."""
    train = runner.settings(part).train
    if train.mem_len:
        as_trained = EvalOptions(split="valid", mem_len=(train.mem_len,), seg_len=train.seg_len, same_length=False)
        search = EvalOptions(split="valid", mem_len=AUTO)
    else:
        as_trained = runner.in_windows(part, "valid")
        search = replace(as_trained, attn_len=AUTO)
    init = tuple(perplexity(result.rows[0].loss_nats) for result in runner.evaluate_all(part, as_trained))
    searches = [result.search for result in runner.evaluate_all(part, search) if result.search]
    tried = tuple(searched.tried for searched in searches)
    lowest = [perplexity(min(losses.values())) for losses in tried]
    return Lengths(
        init=Measured(init),
        best=Measured(tuple(map(min, init, lowest))),
        attn_lens=tuple(searched.length for searched in searches),
        tried=tried,
        trained=train.seg_len + train.mem_len,
    )


def _row(row: published.Ablation, *ours: str) -> list[str]:
    words = [row.remark, "recurrence" if row.recurrence else "no recurrence", row.encoding, f"{row.loss_part} loss"]
    init = "-" if row.ppl_init is None else f"{row.ppl_init:.2f}"
    return [", ".join(filter(None, words)), *ours, init, f"{row.ppl_best:.2f}", str(row.attn_len)]


def _check_lengths(runner: Runner, lengths: Lengths) -> list[Claim]:
    """Check that longer attention than in training helps, and that up to four times the trained M does no harm.

    Besides the lengths that the search tried, 2 and 4 times M and one and a half times the longest of training count.
    """
    trained, mem_len = lengths.trained, runner.settings(LONGEST).train.mem_len
    further = (2 * mem_len, 4 * mem_len, trained * 3 // 2)
    measured = [runner.measure(LONGEST, "valid", "ppl", mem_len=length).values for length in further]
    by_seed = [
        {length: perplexity(loss) for length, loss in tried.items()} | dict(zip(further, values, strict=True))
        for tried, values in zip(lengths.tried, zip(*measured, strict=True), strict=True)
    ]
    longer = tuple(min(value for length, value in ppl.items() if length > trained) for ppl in by_seed)
    increases = {
        length: max(ppl[length] / min(ppl[other] for other in ppl if other <= length) - 1 for ppl in by_seed)
        for length in further[:2]
    }
    helps = f"Attention longer than in training ({trained} keys at most) lowers the perplexity"
    harmless = (
        f"Up to four times the trained memory ({mem_len}) does no harm (perplexity within {NOT_WORSE:.1%} of that of "
        "shorter lengths)"
    )
    detail = "here " + " and ".join(f"{share:+.2%} at M = {length}" for length, share in increases.items())
    detail += ", the worst seed" if len(runner.seeds) > 1 else ""
    is_harmless = max(increases.values()) <= NOT_WORSE
    return [Claim.of_lower(helps, Measured(longer), lengths.init), Claim(harmless, is_harmless, detail)]


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
    figures, option = [], "plot" if item == "figure3" else "plot_ppl"
    for index, group in enumerate(GROUPS, 1):
        path = runner.directory / f"{item}-group{index}.png"
        runner.report.plot_recl[item](path, _measure_group(runner, group, **{option: path, "force": True}))
        figures.append([path.name, f"Figure {item[-1]}, model group {index}: {', '.join(group)}"])
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
    if (key := tuple(group)) not in runner.recl_results:
        runner.recl_results[key] = recl.run(directories, options, runner.workspace)
    return runner.recl_results[key]


def _format_recl(point: Recl, start: int) -> str:
    """Format a RECL; mark one that is only a bound."""
    if point.grid_ended:
        return f">= {point.recl_tokens}"
    return f"<= {start}" if point.recl_tokens == start else str(point.recl_tokens)


def compare_groups(measured: Mapping[str, Recl], start: int) -> list[Claim]:
    """Compare Transformer-XL with each other model of its group, on the hardest tenth of the positions."""
    claims = []
    for first, other in ((first, other) for first, *others in GROUPS for other in others):
        longer, shorter = (_format_recl(measured[part], start) for part in (first, other))
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
        data={"slowdown": result.slowdown},
    )


def attention_figure(runner: Runner, item: str) -> Section:
    """Plot Figure 5, 6 or 7 of the standard model on the validation split."""
    (part,), number, file = parts(item), int(item[-1]), f"{item}.png"
    run, options = runner.run(part), AttentionOptions()
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


ITEMS: dict[str, Callable[[Runner, str], Section]] = {
    **dict.fromkeys(("table1", "table2", "table3", "table4", "table5"), benchmark),
    "table6": table6,
    "table7": benchmark,
    "table8": table8,
    "table9": table9,
    "table10": table10,
    **dict.fromkeys(("figure3", "figure4"), recl_figure),
    **dict.fromkeys(("figure5", "figure6", "figure7"), attention_figure),
    "appendix-e": appendix_e,
    "frontier": frontier,
}
"""The function that makes each table or figure, which it is given the name of."""
