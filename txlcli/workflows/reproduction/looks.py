"""Figures 5 to 7: where the heads of the standard model look."""

from pathlib import Path

from txlcli.runs import loading
from txlcli.workflows import attention
from txlcli.workflows.reproduction.report import Section
from txlcli.workflows.reproduction.workshop import Workshop

SUBJECT = "words-xl"  # the paper's figures are of its standard model on WikiText-103
TITLES = {
    5: "average attention over the previous tokens",
    6: "attention of the widest heads, the highest fifth in red",
    7: "terms (a), (b) and (d) of the attention score",
}


def figure(shop: Workshop, number: int, folder: Path) -> Section:
    """Figure 5, 6 or 7, of the standard model on the validation split."""
    run = shop.run(SUBJECT)
    shop.note("attention", str(run.folder), "--figure", str(number), "--out", str(folder), "--force")
    opened = loading.open_run(str(run.folder), shop.runs_dir, device=shop.device.value, precision=None)
    wishes = attention.AttentionWishes(figures=(number,))
    result = attention.make(opened, wishes, folder=folder, ending="png", force=True, data_dir=shop.data_dir, shown=True)
    (file,) = (Path(path).name for path in result["files"])
    return Section(
        name=f"figure{number}",
        title=f"Figure {number}: {TITLES[number]}",
        scale=shop.scale.name,
        notes=[shop.scale.says],
        figures=[[file, f"Figure {number}, {run.name}, {opened.run.settings.corpus.store} valid"]],
    )
