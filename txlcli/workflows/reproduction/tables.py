"""Tables 1 to 7 and 10, and the frontier: the results of `txl eval`."""

import dataclasses
import itertools
from collections.abc import Sequence

from txlcli.paper import published
from txlcli.paper.metrics import perplexity
from txlcli.workflows.options import AUTO, EvalOptions
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import TABLES, Claim, Grid, Measured, Section, check_claims, parts

STANDARD, LONGEST = "ablation-standard", "ablation-xl-full"
"""The models whose further lengths are measured: the paper's standard model, and the best of the ablations."""
COLUMNS = ["model", "init", "best", "attention", "paper: init", "paper: best", "paper: attention"]
NOT_WORSE = 0.005  # largest increase of perplexity, relative, up to four times the trained M


@dataclasses.dataclass(frozen=True)
class OurResult:
    """Result of one of our models."""

    model: str
    parameters: int
    valid: Measured
    test: Measured


def benchmark(runner: Runner, item: str) -> Section:
    """Make one of Tables 1 to 5: the paper's rows, with our numbers where txl has the model."""
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
    models = "; ".join(f"{part}: {model.model.n_layers} layers on {store}" for part, model in settings.items())
    return Section(
        notes=[f"Models: {models}."],
        grids=[Grid(columns, rows, caption)],
        claims=check_claims(item, {own.model: own.test for own in ours.values()}),
        data={name: dataclasses.asdict(result) for name, result in ours.items()},
    )


def table7(runner: Runner, item: str) -> Section:
    """Compare recurrence and encodings on One Billion Word, whose sentences are independent of each other."""
    perplexities = {part: runner.measure(part, "test", "ppl") for part in parts(item)}
    printed = published.TABLES[7].rows
    rows = [[row.name, str(own), str(row.ppl)] for row, own in zip(printed, perplexities.values(), strict=True)]
    caption = "Perplexity on the test split; the paper does not name the split."
    return Section(
        grids=[Grid(["method", "ppl", "paper: ppl"], rows, caption)],
        claims=check_claims(item, perplexities),
        data={part: measured.values for part, measured in perplexities.items()},
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
            of_longer = dataclasses.asdict(with_longer) if trained is recurrence else None
            of_name = {"parameters": runner.run(name).parameters, "trained": dataclasses.asdict(trained)}
            data[name] = of_name | {"longer": of_longer}
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


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    models = {part: _measure(runner, part) for part in parts(item)}
    section, mem_len = _ablations(runner, item, models), runner.settings(STANDARD).train.mem_len
    further = (3 * mem_len, 2 * mem_len)  # the paper's 450 and 300 keys, of 150 in training
    by_seed = _losses_at(runner, STANDARD, further)
    for row, length in zip(published.TABLES[6].rows[len(models) :], further, strict=True):
        value = Measured(tuple(perplexity(losses[length]) for losses in by_seed))
        section.grids[0].rows.append(_row(row, "-", str(value), str(length)))
    section.claims.extend(_check_lengths(runner, models[LONGEST]))
    return section


def table10(runner: Runner, item: str) -> Section:
    """Compare as in Table 6, with longer segments without recurrence, so that training needs the same memory."""
    section = _ablations(runner, item, {part: _measure(runner, part) for part in parts(item)})
    trained = [runner.settings(part).train for part in parts(item)]
    steps = ", ".join(f"{train.batch_size} x {train.seg_len}" for train in trained)  # segment lengths differ
    paper = ", ".join(str(row.backprop_len) for row in published.TABLES[10].rows)
    section.notes.append(
        f"Tokens per step (batch size x segment length), row by row: {steps}. Segments of the paper: {paper}."
    )
    return section


def _measure(runner: Runner, part: str) -> Lengths:
    """Evaluate a model with its training settings, and at the lengths that the search for the best one tries."""
    train = runner.settings(part).train
    if train.mem_len:
        as_trained = EvalOptions(split="valid", mem_len=(train.mem_len,), seg_len=train.seg_len, same_length=False)
        search = EvalOptions(split="valid", mem_len=AUTO)
    else:
        as_trained = runner.in_windows(part, "valid")
        search = dataclasses.replace(as_trained, attn_len=AUTO)
    init = [perplexity(result.rows[0].loss_nats) for result in runner.evaluate_all(part, as_trained)]
    searches = [result.search for result in runner.evaluate_all(part, search) if result.search]
    tried = tuple(searched.tried for searched in searches)
    lowest = [perplexity(min(losses.values())) for losses in tried]
    return Lengths(
        init=Measured(tuple(init)),
        best=Measured(tuple(map(min, init, lowest))),
        attn_lens=tuple(searched.length for searched in searches),
        tried=tried,
        trained=train.seg_len + train.mem_len,
    )


def _losses_at(runner: Runner, part: str, mem_lens: Sequence[int]) -> list[dict[int, float]]:
    """Return the loss in nats by memory length, for each seed."""
    options = EvalOptions(split="valid", mem_len=tuple(mem_lens))
    return [{row.mem_len: row.loss_nats for row in result.rows} for result in runner.evaluate_all(part, options)]


def _row(row: published.Ablation, *ours: str) -> list[str]:
    words = [row.remark, "recurrence" if row.recurrence else "no recurrence", row.encoding, f"{row.loss_part} loss"]
    init = "-" if row.ppl_init is None else f"{row.ppl_init:.2f}"
    return [", ".join(filter(None, words)), *ours, init, f"{row.ppl_best:.2f}", str(row.attn_len)]


def _check_lengths(runner: Runner, lengths: Lengths) -> list[Claim]:
    """Check that longer attention than in training helps, and that up to four times the trained M does no harm.

    Besides the lengths that the search tried, 2 and 4 times M and one and a half times the longest of training count.
    """
    trained, mem_len = lengths.trained, runner.settings(LONGEST).train.mem_len
    increases, longer = dict.fromkeys((2 * mem_len, 4 * mem_len), 0.0), []
    measured = _losses_at(runner, LONGEST, sorted({*increases, trained * 3 // 2}))
    for losses in (tried | more for tried, more in zip(lengths.tried, measured, strict=True)):
        longer.append(perplexity(min(loss for length, loss in losses.items() if length > trained)))
        for length, increase in increases.items():
            best = min(loss for other, loss in losses.items() if other <= length)
            increases[length] = max(increase, perplexity(losses[length] - best) - 1)
    helps = f"Attention longer than in training ({trained} keys at most) lowers the perplexity"
    harmless = (
        f"Up to four times the trained memory ({mem_len}) does no harm (perplexity within {NOT_WORSE:.1%} of that of "
        "shorter lengths)"
    )
    detail = "here " + " and ".join(f"{share:+.2%} at M = {length}" for length, share in increases.items())
    detail += ", the worst seed" if len(runner.seeds) > 1 else ""
    is_harmless = max(increases.values()) <= NOT_WORSE
    return [Claim.of_lower(helps, Measured(tuple(longer)), lengths.init), Claim(harmless, is_harmless, detail)]


def _ablations(runner: Runner, item: str, models: dict[str, Lengths]) -> Section:
    """Return the section of a table of ablations."""
    rows = []
    for row, lengths in zip(published.TABLES[int(item.removeprefix("table"))].rows, models.values(), strict=False):
        found = sorted({min(lengths.attn_lens), max(lengths.attn_lens)})
        rows.append(_row(row, str(lengths.init), str(lengths.best), " to ".join(map(str, found))))
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: with the training settings (segments of "
        "L with M before them; windows of L without recurrence). best: the lowest of all lengths. attention: the "
        f"shortest length beyond which perplexity falls by less than 0.1 %. Ours: {runner.averaged}."
    )
    return Section(
        grids=[Grid(COLUMNS, rows, caption)],
        claims=check_claims(item, {part: lengths.best for part, lengths in models.items()}),
        data={
            part: dataclasses.asdict(lengths) | {"init": lengths.init.values, "best": lengths.best.values}
            for part, lengths in models.items()
        },
    )
