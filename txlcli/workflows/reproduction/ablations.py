"""Tables 6, 7 and 10: ablations of recurrence, encoding and loss."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from txlcli.paper import published
from txlcli.paper.metrics import perplexity
from txlcli.workflows.reproduction.benchmarks import compare, evaluate_as_recipe
from txlcli.workflows.reproduction.runner import Measured, Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section

TABLE_6 = (
    "ablation-xl-full",
    "ablation-shaw-full",
    "ablation-xl-half",
    "ablation-alone-xl-full",
    "ablation-alone-xl-half",
    "ablation-alone-shaw-full",
    "ablation-alone-shaw-half",
    "ablation-alone-sinusoid-half",
    "ablation-alone-learned-half",
)
STANDARD = "ablation-standard"
TABLE_7 = ("short-xl", "short-shaw", "short-alone")
TABLE_10 = ("ablation-xl-full", "ablation-xl-half", "ablation-alone-xl-full-longer", "ablation-alone-xl-half-longer")
COLUMNS = ["model", "init", "best", "attention", "paper: init", "paper: best", "paper: attention"]
# The model that is better in the paper, the one that is worse, and the claim.
PAIRS_6 = (
    ("ablation-xl-full", "ablation-alone-xl-full", "Recurrence helps (full loss)"),
    ("ablation-xl-half", "ablation-alone-xl-half", "Recurrence helps (half loss)"),
    ("ablation-xl-full", "ablation-shaw-full", "With recurrence, the paper's encoding is better than Shaw et al.'s"),
    (
        "ablation-alone-xl-full",
        "ablation-alone-shaw-full",
        "Without recurrence, the paper's encoding is better than Shaw et al.'s",
    ),
    (
        "ablation-alone-xl-half",
        "ablation-alone-sinusoid-half",
        "The paper's encoding is better than Vaswani et al.'s (half loss)",
    ),
    (
        "ablation-alone-xl-half",
        "ablation-alone-learned-half",
        "The paper's encoding is better than Al-Rfou et al.'s (half loss)",
    ),
    ("ablation-xl-full", "ablation-xl-half", "Full loss is better than half loss with recurrence"),
)
NOT_WORSE = 0.005  # largest increase of perplexity, relative, up to four times the trained M
PAIRS_10 = (
    (
        "ablation-xl-full",
        "ablation-alone-xl-full-longer",
        "With the same training memory, recurrence is better (full loss)",
    ),
    (
        "ablation-xl-half",
        "ablation-alone-xl-half-longer",
        "With the same training memory, recurrence is better (half loss)",
    ),
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

    def to_table(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**dataclasses.asdict(self), "init": self.init.values, "best": self.best.values}


def table6(runner: Runner) -> Section:
    """Compare recurrence, encodings and losses on WikiText-103, by the perplexity on the validation split."""
    by_model = {part: _lengths(runner, part) for part in (*TABLE_6, STANDARD)}
    printed = published.TABLES[6].rows
    rows = [_row(row, by_model[part]) for row, part in zip(printed, TABLE_6, strict=False)]
    standard = printed[len(TABLE_6) :]
    rows.append(_row(standard[0], by_model[STANDARD]))
    trained = runner.model(STANDARD).settings().train.mem_len
    # 450 and 300 keys are three and two times the 150 of training.
    lengths = (3 * trained, 2 * trained)
    by_seed = _losses_at(runner, STANDARD, lengths)
    for row, mem_len in zip(standard[1:], lengths, strict=True):
        value = Measured(tuple(perplexity(losses[mem_len]) for losses in by_seed))
        rows.append(_cells(row, "-", str(value), str(mem_len)))
    claims = [
        *_claims(by_model, PAIRS_6),
        _check_longer(runner, by_model["ablation-xl-full"]),
        _check_harmless(runner, by_model["ablation-xl-full"]),
    ]
    return _section(runner, 6, published.TABLES[6].title, rows, claims, by_model)


def table10(runner: Runner) -> Section:
    """Compare as in Table 6, with longer segments without recurrence, so that training needs the same memory."""
    by_model = {part: _lengths(runner, part) for part in TABLE_10}
    rows = []
    for row, part in zip(published.TABLES[10].rows, TABLE_10, strict=True):
        cells = _row(row, by_model[part])
        cells[0] += f", backprop {runner.model(part).settings().train.seg_len} (paper: {row.backprop_len})"
        rows.append(cells)
    claims = _claims(by_model, PAIRS_10)
    section = _section(runner, 10, published.TABLES[10].title, rows, claims, by_model)
    settings = (runner.model(part).settings().train for part in TABLE_10)  # their segment lengths differ
    steps = ", ".join(f"{train.batch_size} x {train.seg_len}" for train in settings)
    note = f"Tokens per step (batch size x segment length), row by row: {steps}."
    return dataclasses.replace(section, notes=[*section.notes, note])


def table7(runner: Runner) -> Section:
    """Compare recurrence and encodings on One Billion Word, whose sentences are independent of each other."""
    perplexities = {part: evaluate_as_recipe(runner, part, "test", "ppl") for part in TABLE_7}
    printed = dict(zip(TABLE_7, published.TABLES[7].rows, strict=True))
    rows = [[printed[part].name, str(perplexities[part]), str(printed[part].ppl)] for part in TABLE_7]
    claims = [
        compare("Recurrence helps", perplexities["short-xl"], perplexities["short-alone"]),
        compare(
            "The paper's encoding is better than Shaw et al.'s", perplexities["short-xl"], perplexities["short-shaw"]
        ),
    ]
    caption = "Perplexity on the test split; the paper does not name the split."
    return Section(
        name="table7",
        title=f"Table 7: {published.TABLES[7].title}",
        notes=[runner.scale.description],
        grids=[Grid(["method", "ppl", "paper: ppl"], rows, caption)],
        claims=claims,
        data={part: measured.values for part, measured in perplexities.items()},
    )


def _lengths(runner: Runner, part: str) -> Lengths:
    """Evaluate a model with its training settings, and at the lengths that the search for the best one tries."""
    train = runner.model(part).settings().train
    at_training: dict[str, Any]
    if train.mem_len:
        at_training = {"mem_len": (train.mem_len,), "seg_len": train.seg_len, "same_length": False}
        auto: dict[str, Any] = {"mem_len": "auto"}
    else:
        stride = min(runner.scale.stride, train.seg_len)
        at_training = {"attn_len": (train.seg_len,), "stride": stride}
        auto = {"attn_len": "auto", "stride": stride}
    init, best, lengths, tried = [], [], [], []
    for seed in runner.seeds:
        run = runner.run(part, seed)
        init.append(float(runner.evaluate(run, "valid", **at_training)["rows"][0]["ppl"]))
        search = runner.evaluate(run, "valid", **auto)["search"]
        tried.append({trial["length"]: trial["loss_nats"] for trial in search["tried"]})
        best.append(min(init[-1], perplexity(min(tried[-1].values()))))
        lengths.append(search["found"])
    return Lengths(
        init=Measured(tuple(init)),
        best=Measured(tuple(best)),
        attn_lens=tuple(lengths),
        tried=tuple(tried),
        trained=train.seg_len + train.mem_len,
    )


def _losses_at(runner: Runner, part: str, mem_lens: Sequence[int]) -> list[dict[int, float]]:
    """Return the loss in nats by memory length, for each seed."""
    mem_len = tuple(mem_lens)
    results = [runner.evaluate(runner.run(part, seed), "valid", mem_len=mem_len) for seed in runner.seeds]
    return [{row["mem_len"]: row["loss_nats"] for row in result["rows"]} for result in results]


def _row(row: published.Ablation, by_length: Lengths) -> list[str]:
    shortest, longest = min(by_length.attn_lens), max(by_length.attn_lens)
    lengths = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    return _cells(row, str(by_length.init), str(by_length.best), lengths)


def _cells(row: published.Ablation, init: str, best: str, lengths: str) -> list[str]:
    words = [row.remark, "recurrence" if row.recurrence else "no recurrence", row.encoding, f"{row.loss_part} loss"]
    return [
        ", ".join(word for word in words if word),
        *(init, best, lengths),
        "-" if row.ppl_init is None else f"{row.ppl_init:.2f}",
        f"{row.ppl_best:.2f}",
        str(row.attn_len),
    ]


def _claims(by_model: Mapping[str, Lengths], pairs: tuple[tuple[str, str, str], ...]) -> list[Claim]:
    return [compare(text, by_model[better].best, by_model[worse].best) for better, worse, text in pairs]


def _check_longer(runner: Runner, by_length: Lengths) -> Claim:
    """Check that an attention length beyond that of training has a lower perplexity than the training settings.

    Besides the lengths that the search tried, one and a half times the longest of training is measured.
    """
    text = f"Attention longer than in training ({by_length.trained} keys at most) lowers the perplexity"
    by_seed = _losses_at(runner, "ablation-xl-full", (by_length.trained * 3 // 2,))
    longer = [
        [loss for length, loss in (tried | losses).items() if length > by_length.trained]
        for tried, losses in zip(by_length.tried, by_seed, strict=True)
    ]
    return compare(text, Measured(tuple(perplexity(min(losses)) for losses in longer)), by_length.init)


def _check_harmless(runner: Runner, by_length: Lengths) -> Claim:
    """Check that perplexity at 2 and 4 times the trained M is within 0.5 % of that of all shorter lengths."""
    mem_len = runner.model("ablation-xl-full").settings().train.mem_len
    lengths = (2 * mem_len, 4 * mem_len)
    worse = dict.fromkeys(lengths, 0.0)
    for losses, tried in zip(_losses_at(runner, "ablation-xl-full", lengths), by_length.tried, strict=True):
        for length in lengths:
            shorter = min(loss for other, loss in (tried | losses).items() if other <= length)
            worse[length] = max(worse[length], perplexity(losses[length] - shorter) - 1)
    text = (
        f"Up to four times the trained memory ({mem_len}) does no harm (perplexity within {NOT_WORSE:.1%} of that of "
        "shorter lengths)"
    )
    increases = " and ".join(f"{share:+.2%} at M = {length}" for length, share in worse.items())
    remark = ", the worst seed" if len(runner.seeds) > 1 else ""
    return Claim(text, max(worse.values()) <= NOT_WORSE, f"here {increases}{remark}")


def _plot(runner: Runner, by_model: Mapping[str, Lengths], file: str) -> list[list[str]]:
    """Plot perplexity by length, a curve for each model, for all lengths that the searches tried."""
    curves = {
        part.removeprefix("ablation-"): (
            [length for length in lengths.tried[0] if length],
            [perplexity(loss) for length, loss in lengths.tried[0].items() if length],
        )
        for part, lengths in by_model.items()
        if part != STANDARD
    }
    runner.plots.curves(
        runner.directory / file,
        curves,
        x_label="attention length (M with recurrence, the window without)",
        y_label="perplexity on valid",
        title="Perplexity by attention length",
    )
    return [[file, "Perplexity on valid by attention length, first seed; alone: without recurrence."]]


def _section(
    runner: Runner, number: int, title: str, rows: list[list[str]], claims: list[Claim], by_model: dict[str, Lengths]
) -> Section:
    seeds = len(runner.seeds)
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: with the training settings (segments of "
        "L with M before them; windows of L without recurrence). best: the lowest of all lengths. attention: the "
        "shortest length beyond which perplexity falls by less than 0.1 %. "
        f"{'One seed' if seeds == 1 else f'Mean and standard deviation of {seeds} seeds'}."
    )
    return Section(
        name=f"table{number}",
        title=f"Table {number}: {title}",
        notes=[runner.scale.description],
        grids=[Grid(COLUMNS, rows, caption)],
        figures=_plot(runner, by_model, f"table{number}.png"),
        claims=claims,
        data={part: lengths.to_table() for part, lengths in by_model.items()},
    )
