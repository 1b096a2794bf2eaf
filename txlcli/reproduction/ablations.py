"""Tables 6, 7 and 10: what recurrence, the encoding and the loss are worth."""

import dataclasses
from pathlib import Path
from typing import Any

from txlcli import plots, published
from txlcli.metrics import perplexity
from txlcli.reproduction.benchmarks import compared, read_as_trained
from txlcli.reproduction.report import Claim, Grid, Section
from txlcli.reproduction.workshop import Measured, Workshop

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
LONGER = (
    "Longer segments are read in as many lanes and steps, so those rows learn from more text; where training is short, "
    "that counts for more than recurrence."
)
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


def table6(shop: Workshop, folder: Path) -> Section:
    """Recurrence, encoding and loss on WikiText-103; perplexity of the validation split."""
    found = {key: _lengths(shop, key) for key in (*TABLE_6, STANDARD)}
    printed = published.TABLE_6.rows
    rows = [_row(row, found[key]) for row, key in zip(printed, TABLE_6, strict=False)]
    standard = printed[len(TABLE_6) :]
    rows.append(_row(standard[0], found[STANDARD]))
    for row, times in zip(
        standard[1:], (3, 2), strict=True
    ):  # 450 and 300 keys are three and two times the 150 of training
        rows.append(_row(row, _at(shop, STANDARD, times)))
    own = found["ablation-xl-full"]
    longer = compared("Attention longer than in training lowers the perplexity", own["best"], own["init"])
    flat = _flat(own["tried"], shop.model("ablation-xl-full").settings().train.mem_len)
    return _section(
        shop,
        6,
        published.TABLE_6.title,
        rows,
        [*_claims(found, PAIRS_6), longer, flat],
        {key: _plain(one) for key, one in found.items()},
        _drawn(found, folder, "table6"),
    )


def table10(shop: Workshop, folder: Path) -> Section:
    """As Table 6, with longer segments where there is no recurrence, so that training needs as much memory."""
    found = {key: _lengths(shop, key) for key in TABLE_10}
    rows = []
    for row, key in zip(published.TABLE_10.rows, TABLE_10, strict=True):
        cells = _row(row, found[key])
        cells[0] += f", backprop {shop.model(key).settings().train.seg_len} (paper: {row.backprop_len})"
        rows.append(cells)
    data = {key: _plain(one) for key, one in found.items()}
    made = _section(
        shop, 10, published.TABLE_10.title, rows, _claims(found, PAIRS_10), data, _drawn(found, folder, "table10")
    )
    return dataclasses.replace(made, notes=[*made.notes, LONGER])


def table7(shop: Workshop) -> Section:
    """Recurrence and encoding on One Billion Word, whose sentences know nothing of each other."""
    found = {
        key: Measured(tuple(read_as_trained(shop, key, seed, "test", "ppl") for seed in shop.seeds)) for key in TABLE_7
    }
    printed = dict(zip(TABLE_7, published.TABLE_7.rows, strict=True))
    rows = [[printed[key].name, str(found[key]), str(printed[key].ppl)] for key in TABLE_7]
    text = "{} is ahead of {}"
    claims = [
        compared(text.format("recurrence", "none"), found["short-xl"], found["short-alone"]),
        compared(text.format("the paper's encoding", "Shaw et al.'s"), found["short-xl"], found["short-shaw"]),
    ]
    return Section(
        name="table7",
        title=f"Table 7: {published.TABLE_7.title}",
        scale=shop.scale.name,
        notes=[shop.scale.says],
        grids=[Grid(["method", "ppl", "paper: ppl"], rows, "Perplexity of the test split; the paper names no split.")],
        claims=claims,
        data={key: one.values for key, one in found.items()},
    )


def _lengths(shop: Workshop, key: str) -> dict[str, Any]:
    """Perplexity of valid at the length of training and at the best one, by seed; the lengths that were tried."""
    init, best, lengths, tried = [], [], [], {}
    for seed in shop.seeds:
        run = shop.run(key, seed)
        train = run.settings.train
        if train.mem_len:
            at_training, auto = {"mem_len": str(train.mem_len)}, {"mem_len": "auto"}
        else:
            at_training, auto = {"attn_len": str(train.seg_len)}, {"attn_len": "auto"}
            at_training["stride"] = auto["stride"] = min(shop.scale.stride, max(1, train.seg_len // 16))  # type: ignore[assignment]
        init.append(shop.evaluated(run, "valid", **at_training)["rows"][0]["ppl"])
        found = shop.evaluated(run, "valid", **auto)
        best.append(found["rows"][0]["ppl"])
        lengths.append(found["search"]["found"])
        if seed == shop.seeds[0]:
            tried = {one["length"]: one["loss_nats"] for one in found["search"]["tried"]}
    return {"init": Measured(tuple(init)), "best": Measured(tuple(best)), "attn_len": lengths, "tried": tried}


def _at(shop: Workshop, key: str, times: int) -> dict[str, Any]:
    """Perplexity of valid at a multiple of the trained memory length."""
    values, length = [], 0
    for seed in shop.seeds:
        run = shop.run(key, seed)
        length = times * run.settings.train.mem_len
        values.append(shop.evaluated(run, "valid", mem_len=str(length))["rows"][0]["ppl"])
    return {"init": None, "best": Measured(tuple(values)), "attn_len": [length], "tried": {}}


def _row(row: published.Ablation, found: dict[str, Any]) -> list[str]:
    words = [row.remark, "recurrence" if row.recurrence else "no recurrence", row.encoding, f"{row.loss_part} loss"]
    lengths = sorted(set(found["attn_len"]))
    return [
        ", ".join(word for word in words if word),
        str(found["init"] or "-"),
        str(found["best"]),
        " to ".join(str(length) for length in dict.fromkeys((lengths[0], lengths[-1]))),
        str(row.ppl_init or "-"),
        str(row.ppl_best),
        str(row.attn_len),
    ]


def _claims(found: dict[str, Any], pairs: tuple[tuple[str, str, str], ...]) -> list[Claim]:
    return [compared(text, found[better]["best"], found[worse]["best"]) for better, worse, text in pairs]


def _flat(tried: dict[int, float], mem_len: int) -> Claim:
    """Up to four times the trained M, the longest of the lengths tried is within half a percent of the best."""
    longest, best = max(tried), min(tried, key=lambda length: tried[length])
    compared_at = max(length for length in tried if length <= 4 * mem_len)
    worse = {length: f"{_worse(tried, length):+.2%} at {length}" for length in (compared_at, longest)}
    text = "With recurrence, attention up to four times as long as in training does no harm (perplexity within 0.5 %)"
    return Claim(
        text, _worse(tried, compared_at) <= 0.005, f"here {' and '.join(worse.values())}, from the best at {best}"
    )


def _worse(tried: dict[int, float], length: int) -> float:
    """How far above the best of the lengths tried the perplexity is at one of them."""
    return perplexity(tried[length] - min(tried.values())) - 1


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "init": found["init"].values, "best": found["best"].values}


def _drawn(found: dict[str, Any], folder: Path, name: str) -> list[list[str]]:
    """Perplexity by length, a curve for each model, as far as the searches went."""
    curves = {
        key.removeprefix("ablation-"): (
            [length for length in one["tried"] if length],
            [perplexity(loss) for length, loss in one["tried"].items() if length],
        )
        for key, one in found.items()
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
    data: dict[str, Any],
    figures: list[list[str]],
) -> Section:
    seeds = len(shop.seeds)
    caption = (
        "Perplexity per token of the validation split, as in the paper. init: at the length of training; best: at the "
        "shortest length beyond which perplexity falls by less than 0.1 %, which is the attention length. "
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
        data=data,
    )
