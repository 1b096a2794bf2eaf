"""Table 9, Figures 5 to 7 and Appendix E: speed, attention, samples."""

import itertools
from pathlib import Path
from typing import Any

from txlcli import console, opening, published
from txlcli.commands import attention_figures
from txlcli.reproduction.report import Claim, Grid, Section
from txlcli.reproduction.workshop import FIRST_SEED, Workshop

SUBJECT = "words-xl"  # the paper's figures and samples are of its standard model on WikiText-103
TIMED = "enwik8"
TITLES = {
    5: "average attention over the previous tokens",
    6: "attention of the widest heads, the highest fifth in red",
    7: "terms (a), (b) and (d) of the attention score",
}


def table9(shop: Workshop) -> Section:
    """How much slower prediction is without memory."""
    result = shop.timed(TIMED, ())
    rows = [
        [
            f"{row['attn_len']:,}",
            f"{row['xl_ms_per_token']:.3f}",
            f"{row['vanilla_ms_per_token']:.1f}",
            console.times(row["slowdown"]),
            console.times(row["slowdown_batched"]),
            f"{row['paper_slowdown']:,}x" if row["paper_slowdown"] else "-",
        ]
        for row in result["slowdown"]
    ]
    columns = ["attention", "XL ms/token", "vanilla ms/token", "slowdown", "windows batched", "paper"]
    ordered = sorted(result["slowdown"], key=lambda row: row["attn_len"])
    grows = all(a["slowdown"] < b["slowdown"] for a, b in itertools.pairwise(ordered))
    told = ", ".join(f"{console.times(row['slowdown'])} at {row['attn_len']}" for row in ordered)
    return Section(
        name="table9",
        title=f"Table 9: {published.TABLE_9.title}",
        scale=shop.scale.name,
        notes=[
            f"The model of recipes/{TIMED}.toml with random weights, since speed does not depend on them. Vanilla: the "
            "same weights without memory, one window computed anew for every prediction; batched: as many windows at "
            "once as serve it best."
        ],
        grids=[Grid(columns, rows, f"{result['device']}, {result['precision']}, medians of {result['repeat']}.")],
        claims=[Claim("Vanilla falls behind further as attention grows", grows, told)],
        data={"slowdown": result["slowdown"]},
    )


def figure(shop: Workshop, number: int, folder: Path) -> Section:
    """Figure 5, 6 or 7, of the standard model on the validation split."""
    run = shop.run(SUBJECT)
    shop.note("attention", str(run.folder), "--figure", str(number), "--out", str(folder))
    opened = opening.open_run(str(run.folder), shop.runs_dir, device=shop.device.value, precision=None)
    wish = attention_figures.Wish(figures=(number,))
    result = attention_figures.make(
        opened, wish, folder=folder, ending="png", force=True, data_dir=shop.data_dir, shown=True
    )
    (file,) = (Path(path).name for path in result["files"])
    return Section(
        name=f"figure{number}",
        title=f"Figure {number}: {TITLES[number]}",
        scale=shop.scale.name,
        notes=[shop.scale.says],
        figures=[[file, f"Figure {number}, {run.name}, {opened.run.settings.corpus.store} valid"]],
    )


def appendix_e(shop: Workshop) -> Section:
    """Samples, the first ones drawn, each beside the text that really follows."""
    run = shop.run(SUBJECT)
    texts = []
    for number, tokens in enumerate(shop.scale.sample_tokens):
        result = shop.drawn(run, tokens=tokens, seed=FIRST_SEED + number)
        texts += _told(number + 1, tokens, result)
    return Section(
        name="appendix-e",
        title="Appendix E: generated text",
        scale=shop.scale.name,
        notes=[shop.scale.says, "The first samples drawn, none chosen; contexts are random places of the test split."],
        texts=texts,
    )


def _told(number: int, tokens: int, result: dict[str, Any]) -> list[list[str]]:
    return [
        [f"Context {number}", result["context"]],
        [f"Generated text {number}, {tokens:,} tokens", result["samples"][0]["text"]],
        [f"How the text really goes on, {number}", result["reference"]],
    ]
