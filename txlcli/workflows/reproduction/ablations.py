"""Tables 6, 7 and 10: what recurrence, the encoding and the loss are worth."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txlcli.paper import published
from txlcli.paper.metrics import perplexity
from txlcli.views import plots
from txlcli.workflows.reproduction.benchmarks import compared, read_as_recipe
from txlcli.workflows.reproduction.report import Claim, Grid, Section
from txlcli.workflows.reproduction.workshop import Measured, Workshop

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
STANDARD = "words-xl"
TABLE_7 = ("short-xl", "short-shaw", "short-alone")
TABLE_10 = ("ablation-xl-full", "ablation-xl-half", "ablation-alone-xl-full-longer", "ablation-alone-xl-half-longer")
COLUMNS = ["model", "init", "best", "attention", "paper: init", "paper: best", "paper: attention"]
# For Table 6: the model that is ahead in the paper, the one that is behind, what that says.
PAIRS_6 = (
    ("ablation-xl-full", "ablation-alone-xl-full", "Recurrence helps (full loss)"),
    ("ablation-xl-half", "ablation-alone-xl-half", "Recurrence helps (half loss)"),
    ("ablation-xl-full", "ablation-shaw-full", "With recurrence, the paper's encoding is ahead of Shaw et al.'s"),
    (
        "ablation-alone-xl-full",
        "ablation-alone-shaw-full",
        "Without recurrence, the paper's encoding is ahead of Shaw et al.'s",
    ),
    (
        "ablation-alone-xl-half",
        "ablation-alone-sinusoid-half",
        "The paper's encoding is ahead of Vaswani et al.'s (half loss)",
    ),
    (
        "ablation-alone-xl-half",
        "ablation-alone-learned-half",
        "The paper's encoding is ahead of Al-Rfou et al.'s (half loss)",
    ),
    ("ablation-xl-full", "ablation-xl-half", "Full loss is ahead of half loss with recurrence"),
)
NOT_WORSE = 0.005  # of the perplexity, up to four times the trained M
PAIRS_10 = (
    (
        "ablation-xl-full",
        "ablation-alone-xl-full-longer",
        "At the same cost of memory, recurrence is ahead (full loss)",
    ),
    (
        "ablation-xl-half",
        "ablation-alone-xl-half-longer",
        "At the same cost of memory, recurrence is ahead (half loss)",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Perplexity of valid by the length of attention; an entry for each seed."""

    init: Measured
    """Read as in training: segments of L with a memory of M, or windows of L where there is no recurrence."""
    best: Measured
    """The lowest of all readings."""
    attn_lens: tuple[int, ...]
    """The shortest beyond which perplexity falls by less than 0.1 %."""
    tried: tuple[dict[int, float], ...]
    """Loss in nats by length, of the readings of the search."""
    trained: int
    """Keys that a query of training sees at most."""

    def to_table(self) -> dict[str, Any]:
        """Plain data."""
        return {**dataclasses.asdict(self), "init": self.init.values, "best": self.best.values}


def table6(shop: Workshop, folder: Path) -> Section:
    """Recurrence, encoding and loss on WikiText-103; perplexity of the validation split."""
    by_model = {key: _lengths(shop, key) for key in (*TABLE_6, STANDARD)}
    printed = published.TABLE_6.rows
    rows = [_row(row, by_model[key]) for row, key in zip(printed, TABLE_6, strict=False)]
    standard = printed[len(TABLE_6) :]
    rows.append(_row(standard[0], by_model[STANDARD]))
    trained = shop.model(STANDARD).settings().train.mem_len
    # 450 and 300 keys are three and two times the 150 of training.
    lengths = (3 * trained, 2 * trained)
    by_seed = _read_at(shop, STANDARD, lengths)
    for row, mem_len in zip(standard[1:], lengths, strict=True):
        value = Measured(tuple(perplexity(losses[mem_len]) for losses in by_seed))
        rows.append(_cells(row, "-", str(value), str(mem_len)))
    claims = [
        *_claims(by_model, PAIRS_6),
        _longer(by_model["ablation-xl-full"]),
        _flat(shop, by_model["ablation-xl-full"]),
    ]
    return _section(shop, 6, published.TABLE_6.title, rows, claims, by_model, _drawn(by_model, folder, "table6"))


def table10(shop: Workshop, folder: Path) -> Section:
    """As Table 6, with longer segments where there is no recurrence, so that training needs as much memory."""
    by_model = {key: _lengths(shop, key) for key in TABLE_10}
    rows = []
    for row, key in zip(published.TABLE_10.rows, TABLE_10, strict=True):
        cells = _row(row, by_model[key])
        cells[0] += f", backprop {shop.model(key).settings().train.seg_len} (paper: {row.backprop_len})"
        rows.append(cells)
    claims = _claims(by_model, PAIRS_10)
    section = _section(shop, 10, published.TABLE_10.title, rows, claims, by_model, _drawn(by_model, folder, "table10"))
    return dataclasses.replace(section, notes=[*section.notes, _text_per_step(shop)])


def _text_per_step(shop: Workshop) -> str:
    """How much the rows of Table 10 read: with longer segments it may be more."""
    trained = [shop.model(key).settings().train for key in TABLE_10]
    told = (f"{one.batch_size} lanes of {one.seg_len}" for one in trained)
    return f"A step reads, row by row: {', '.join(told)} tokens."


def table7(shop: Workshop) -> Section:
    """Recurrence and encoding on One Billion Word, whose sentences know nothing of each other."""
    perplexities = {
        key: Measured(tuple(read_as_recipe(shop, key, seed, "test", "ppl") for seed in shop.seeds)) for key in TABLE_7
    }
    printed = dict(zip(TABLE_7, published.TABLE_7.rows, strict=True))
    rows = [[printed[key].name, str(perplexities[key]), str(printed[key].ppl)] for key in TABLE_7]
    text = "{} is ahead of {}"
    claims = [
        compared(text.format("recurrence", "none"), perplexities["short-xl"], perplexities["short-alone"]),
        compared(
            text.format("the paper's encoding", "Shaw et al.'s"), perplexities["short-xl"], perplexities["short-shaw"]
        ),
    ]
    return Section(
        name="table7",
        title=f"Table 7: {published.TABLE_7.title}",
        scale=shop.scale.name,
        notes=[shop.scale.says],
        grids=[Grid(["method", "ppl", "paper: ppl"], rows, "Perplexity of the test split; the paper names no split.")],
        claims=claims,
        data={key: one.values for key, one in perplexities.items()},
    )


def _lengths(shop: Workshop, key: str) -> Lengths:
    """A model read as in training, and at the lengths that the search for the best one tries."""
    train = shop.model(key).settings().train
    at_training: dict[str, Any]
    if train.mem_len:
        at_training = {"mem_len": str(train.mem_len), "seg_len": train.seg_len, "same_length": False}
        auto: dict[str, Any] = {"mem_len": "auto"}
    else:
        stride = min(shop.scale.stride, train.seg_len)
        at_training = {"attn_len": str(train.seg_len), "stride": stride}
        auto = {"attn_len": "auto", "stride": stride}
    init, best, lengths, tried = [], [], [], []
    for seed in shop.seeds:
        run = shop.run(key, seed)
        init.append(float(shop.evaluated(run, "valid", **at_training)["rows"][0]["ppl"]))
        search = shop.evaluated(run, "valid", **auto)["search"]
        tried.append({one["length"]: one["loss_nats"] for one in search["tried"]})
        best.append(min(init[-1], perplexity(min(tried[-1].values()))))
        lengths.append(search["found"])
    return Lengths(
        init=Measured(tuple(init)),
        best=Measured(tuple(best)),
        attn_lens=tuple(lengths),
        tried=tuple(tried),
        trained=train.seg_len + train.mem_len,
    )


def _read_at(shop: Workshop, key: str, mem_lens: Sequence[int]) -> list[dict[int, float]]:
    """The loss in nats at some memory lengths, for each seed."""
    mem_len = ",".join(map(str, mem_lens))
    results = [shop.evaluated(shop.run(key, seed), "valid", mem_len=mem_len) for seed in shop.seeds]
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


def _claims(by_model: dict[str, Lengths], pairs: tuple[tuple[str, str, str], ...]) -> list[Claim]:
    return [compared(text, by_model[better].best, by_model[worse].best) for better, worse, text in pairs]


def _longer(by_length: Lengths) -> Claim:
    """Some length that no query of training has is better than the reading of training."""
    text = f"Attention longer than in training ({by_length.trained} keys at most) lowers the perplexity"
    longer = [[loss for length, loss in tried.items() if length > by_length.trained] for tried in by_length.tried]
    if not all(longer):
        return Claim(text, None, f"no length above {by_length.trained} was tried")
    return compared(text, Measured(tuple(perplexity(min(losses)) for losses in longer)), by_length.init)


def _flat(shop: Workshop, by_length: Lengths) -> Claim:
    """At two and four times the trained M perplexity is within half a percent of all shorter ones, in every seed."""
    mem_len = shop.model("ablation-xl-full").settings().train.mem_len
    lengths = (2 * mem_len, 4 * mem_len)
    worse = dict.fromkeys(lengths, 0.0)
    for losses, tried in zip(_read_at(shop, "ablation-xl-full", lengths), by_length.tried, strict=True):
        for length in lengths:
            shorter = min(loss for other, loss in (tried | losses).items() if other <= length)
            worse[length] = max(worse[length], perplexity(losses[length] - shorter) - 1)
    text = (
        f"Up to four times the trained memory ({mem_len}) does no harm (perplexity within {NOT_WORSE:.1%} of what "
        "shorter ones reach)"
    )
    told = " and ".join(f"{share:+.2%} at M = {length}" for length, share in worse.items())
    of_seeds = ", the worst seed" if len(shop.seeds) > 1 else ""
    return Claim(text, max(worse.values()) <= NOT_WORSE, f"here {told}{of_seeds}")


def _drawn(by_model: dict[str, Lengths], folder: Path, name: str) -> list[list[str]]:
    """Perplexity by length, a curve for each model, as far as the searches went."""
    curves = {
        key.removeprefix("ablation-"): (
            [length for length in one.tried[0] if length],
            [perplexity(loss) for length, loss in one.tried[0].items() if length],
        )
        for key, one in by_model.items()
        if key != STANDARD
    }
    file = f"{name}.png"
    plots.draw_curves(
        folder / file,
        curves,
        x_label="attention length (M with recurrence, the window without)",
        y_label="perplexity of valid",
        title="Perplexity by attention length",
        log_x=True,
    )
    return [[file, "Perplexity of valid by attention length, first seed; alone: without recurrence."]]


def _section(
    shop: Workshop,
    number: int,
    title: str,
    rows: list[list[str]],
    claims: list[Claim],
    by_model: dict[str, Lengths],
    figures: list[list[str]],
) -> Section:
    seeds = len(shop.seeds)
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: read as in training (segments of L with "
        "M before them; windows of L without recurrence). best: the lowest of all lengths read. attention: the "
        "shortest length beyond which perplexity falls by less than 0.1 %. "
        f"{'One seed' if seeds == 1 else f'Mean and deviation of {seeds} seeds'}."
    )
    return Section(
        name=f"table{number}",
        title=f"Table {number}: {title}",
        scale=shop.scale.name,
        notes=[shop.scale.says],
        grids=[Grid(COLUMNS, rows, caption)],
        figures=figures,
        claims=claims,
        data={key: one.to_table() for key, one in by_model.items()},
    )
