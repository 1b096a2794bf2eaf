"""Tables 6 and 10: recurrence, encodings and losses compared, by models that are changes of one recipe."""

from dataclasses import dataclass, replace

from txlcli.paper import published
from txlcli.paper.metrics import perplexity
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Measured, ReportSection, check_claims, parts

STANDARD = "ablation-standard"
"""The paper's standard model, which Table 6 evaluates with further lengths."""
BEST = "ablation-xl-full"
"""The best of the ablations, whose lengths decide the claims about longer attention."""
COLUMNS = ["model", "init", "best", "attention", "paper: init", "paper: best", "paper: attention"]
NOT_WORSE = 0.005  # largest increase of perplexity, relative, up to four times the trained M


@dataclass(frozen=True, kw_only=True)
class LengthResult:
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


def table6(runner: Runner, item: str) -> ReportSection:
    """Compare recurrence, encodings and losses."""
    section, models = _ablations(runner, item)
    mem_len = runner.settings(STANDARD).train.mem_len
    further = (3 * mem_len, 2 * mem_len)  # the paper's 450 and 300 keys, of 150 in training
    (grid,) = section.grids
    rows = list(grid.rows)
    for row, length in zip(published.TABLES[6].rows[len(models) :], further, strict=True):
        value = runner.measure(STANDARD, "valid", "ppl", mem_len=length)
        rows.append(_row(row, "-", str(value), str(length)))
    claims = section.claims + _check_lengths(runner, models[BEST])
    return replace(section, grids=[replace(grid, rows=rows)], claims=claims)


def table10(runner: Runner, item: str) -> ReportSection:
    """Compare as in Table 6, with longer segments without recurrence, so that training needs the same memory."""
    section, models = _ablations(runner, item)
    trained = [runner.settings(part).train for part in models]
    steps = ", ".join(f"{train.batch_size} x {train.seg_len}" for train in trained)  # segment lengths differ
    paper = ", ".join(str(row.backprop_len) for row in published.TABLES[10].rows)
    note = f"Tokens per step (batch size x segment length), row by row: {steps}. Segments of the paper: {paper}."
    return replace(section, notes=[note])


def _ablations(runner: Runner, item: str) -> tuple[ReportSection, dict[str, LengthResult]]:
    """Return the section of a table of ablations, and the results of its models."""
    models = {part: _measure(runner, part) for part in parts(item)}
    paper = published.TABLES[int(item.removeprefix("table"))]
    rows = []
    for row, result in zip(paper.rows, models.values(), strict=False):
        shortest = min(result.attn_lens)
        longest = max(result.attn_lens)
        attention = str(shortest) if shortest == longest else f"{shortest} to {longest}"
        rows.append(_row(row, str(result.init), str(result.best), attention))
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: with the training settings (segments of "
        "L with M before them; windows of L without recurrence). best: the lowest of all lengths. attention: the "
        f"shortest length beyond which perplexity falls by less than 0.1 %. Ours: {runner.averaged}."
    )
    data = {}
    for part, result in models.items():
        data[part] = vars(result) | {"init": result.init.values, "best": result.best.values}
    section = ReportSection(
        grids=[Grid(COLUMNS, rows, caption)],
        claims=check_claims(item, {part: result.best for part, result in models.items()}),
        data=data,
    )
    return section, models


def _measure(runner: Runner, part: str) -> LengthResult:
    """Evaluate a model with its training settings, and at the lengths that the search for the best one tries."""
    train = runner.settings(part).train
    if train.mem_len:
        as_trained = EvalOptions(split="valid", mem_len=(train.mem_len,), seg_len=train.seg_len, same_length=False)
        search = EvalOptions(split="valid", mem_len="auto")
    else:
        as_trained = runner.window_options(part, "valid")
        search = EvalOptions(split="valid", attn_len="auto", stride=as_trained.stride)
    init = [perplexity(result.rows[0].loss_nats) for result in runner.evaluate_all(part, as_trained)]
    searches = [result.search for result in runner.evaluate_all(part, search) if result.search]
    best = []
    for at_init, searched in zip(init, searches, strict=True):
        best.append(min(at_init, perplexity(min(searched.tried.values()))))
    return LengthResult(
        init=Measured(tuple(init)),
        best=Measured(tuple(best)),
        attn_lens=tuple(searched.length for searched in searches),
        tried=tuple(searched.tried for searched in searches),
        trained=train.seg_len + train.mem_len,
    )


def _row(row: published.Ablation, *ours: str) -> list[str]:
    recurrence = "recurrence" if row.recurrence else "no recurrence"
    words = [recurrence, row.encoding, f"{row.loss_part} loss"]
    if row.remark:
        words.insert(0, row.remark)
    init = "-" if row.ppl_init is None else f"{row.ppl_init:.2f}"
    return [", ".join(words), *ours, init, f"{row.ppl_best:.2f}", str(row.attn_len)]


def _check_lengths(runner: Runner, result: LengthResult) -> list[Claim]:
    """Check that longer attention than in training helps, and that up to four times the trained M does no harm.

    Besides the lengths that the search tried, 2 and 4 times M and one and a half times the longest of training count.
    """
    mem_len = runner.settings(BEST).train.mem_len
    harmless_lengths = (2 * mem_len, 4 * mem_len)
    ppl_by_seed = []  # by length
    for tried in result.tried:
        ppl_by_seed.append({length: perplexity(loss) for length, loss in tried.items()})
    for length in (*harmless_lengths, result.trained * 3 // 2):
        measured = runner.measure(BEST, "valid", "ppl", mem_len=length)
        for ppl, value in zip(ppl_by_seed, measured.values, strict=True):
            ppl[length] = value
    return [_check_longer(result, ppl_by_seed), _check_harmless(harmless_lengths, mem_len, ppl_by_seed)]


def _check_longer(result: LengthResult, ppl_by_seed: list[dict[int, float]]) -> Claim:
    text = f"Attention longer than in training ({result.trained} keys at most) lowers the perplexity"
    lowest = []
    for ppl in ppl_by_seed:
        lowest.append(min(value for length, value in ppl.items() if length > result.trained))
    return Claim.of_lower(text, Measured(tuple(lowest)), result.init)


def _check_harmless(lengths: tuple[int, ...], mem_len: int, ppl_by_seed: list[dict[int, float]]) -> Claim:
    increases = {}  # of the lowest perplexity up to a length, in the worst seed
    for length in lengths:
        increase_by_seed = []
        for ppl in ppl_by_seed:
            lowest = min(ppl[other] for other in ppl if other <= length)
            increase_by_seed.append(ppl[length] / lowest - 1)
        increases[length] = max(increase_by_seed)
    text = (
        f"Up to four times the trained memory ({mem_len}) does no harm (perplexity within {NOT_WORSE:.1%} of that of "
        "shorter lengths)"
    )
    detail = "here " + " and ".join(f"{share:+.2%} at M = {length}" for length, share in increases.items())
    if len(ppl_by_seed) > 1:
        detail += ", the worst seed"
    return Claim(text, max(increases.values()) <= NOT_WORSE, detail)
