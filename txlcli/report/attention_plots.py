"""Figures 5 to 7 (Appendix D): attention by distance, of the score and of its terms, and of heads to tokens."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from txlcli.core.measures.attention_maps import Numbers, strongest
from txlcli.report import plots
from txlcli.workflows.attention import AttentionResult

MAX_LAYER_LABELS = 16
UNSEEN = "#dfe7f2"
FAINTEST = 30  # the palest colour is uniform attention / 30
FAINTEST_RED = -0.25  # a marked token stays visible even without attention
FULL = 8  # the strongest grey or red is 8 times uniform attention
LONGEST_LABEL = 14
LEGEND = (
    "red: the fifth of the context with the most attention; stronger: more attention; blue: not visible to the query"
)
TERM_TITLES = {
    "a": "(a) content addressing",
    "b": "(b) content-dependent position bias",
    "d": "(d) global position bias",
}


def plot_figure(result: AttentionResult, figure: int, path: Path) -> None:
    """Plot Figure 5, 6 or 7 to a file; the extension selects the format."""
    maps = result.maps
    subject = f"{result.opened.run.name} on {result.text.title}"
    average = f"{subject}, averaged over {maps.queries:,} tokens"
    if figure == 5:
        plot_by_distance(path, {"": maps.by_distance}, title=f"Attention of {average}")
    elif figure == 6:
        heads = {}
        for (layer, head), attention in result.attention_of_shown.items():
            width = maps.width[layer - 1, head - 1]
            heads[f"head {layer}.{head} (layer.head), {width:.0f} tokens wide"] = attention
        plot_heads(path, heads, targets=result.target_names, title=f"{subject}, from token {maps.at:,} on")
    else:
        plot_by_distance(path, maps.by_term, title=f"Softmax of each term, {average}")


def plot_by_distance(path: Path, terms: Mapping[str, Numbers], *, title: str) -> None:
    """Plot Figure 5, or Figure 7: (N, H, n) of each term, side by side with one colour scale.

    A panel has one row per head, layers from bottom to top, distance 0 at the right as in text.
    """
    layers, heads, distances = next(iter(terms.values())).shape
    height = min(12.0, max(3.4, 1.4 + 0.06 * layers * heads))
    figure = plots.new_figure(max(9.6, 2.2 + 4.2 * len(terms)), height)
    row = figure.subplots(1, len(terms), sharey=True, squeeze=False)[0]
    uniform = 1 / distances
    highest = max(float(term.max()) for term in terms.values())
    # From well below uniform attention to the maximum.
    scale = LogNorm(vmin=min(uniform, highest) / FAINTEST, vmax=max(highest, 2 * uniform), clip=True)
    for axes, (name, attention) in zip(row, terms.items(), strict=True):
        image = _show_heads(axes, attention, scale, labelled=axes is row[0])
        axes.set_title(TERM_TITLES.get(name, ""), fontsize=12)
    figure.suptitle(plots.literal(title), fontsize=13)
    bar = figure.colorbar(image, ax=list(row), pad=0.01, fraction=0.05)
    bar.set_label("average attention (line: uniform)", fontsize=11)
    bar.ax.axhline(uniform, color="black", linewidth=1.5)
    plots.save(figure, path)


def _show_heads(axes: Axes, attention: Numbers, scale: LogNorm, *, labelled: bool) -> ScalarMappable:
    layers, heads, distances = attention.shape
    rows = attention.reshape(layers * heads, distances)[:, ::-1]
    edges = (distances - 0.5, -0.5, -0.5, layers * heads - 0.5)
    image = axes.imshow(
        rows, aspect="auto", origin="lower", interpolation="nearest", cmap="YlGnBu", norm=scale, extent=edges
    )
    for border in range(1, layers):
        axes.axhline(border * heads - 0.5, color="0.3", linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("distance (tokens before the query)")
    if labelled:
        named = range(0, layers, -(-layers // MAX_LAYER_LABELS))
        middles = [(layer + 0.5) * heads - 0.5 for layer in named]
        axes.set_yticks(middles, [str(layer + 1) for layer in named])
        axes.set_ylabel(f"layer ({heads} heads each)" if heads > 1 else "layer")
    axes.tick_params(axis="y", length=0)
    return image


def plot_heads(path: Path, heads: Mapping[str, Numbers], *, targets: Sequence[str], title: str) -> None:
    """Plot Figure 6: one panel per head, one row per target token, one column per context token of the first target.

    `heads` has attention (R, n) by title, NaN where the query sees no key; `targets` the names of the R tokens.
    """
    figure = plots.new_figure(13.0, 1.1 + (0.55 + 0.17 * len(targets)) * len(heads))
    column = figure.subplots(len(heads), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, attention) in zip(column, heads.items(), strict=True):
        show_head(axes, attention)
        axes.set_title(name, fontsize=11, loc="left")
        axes.set_yticks(range(len(targets)), map(token_label, targets), fontsize=9, parse_math=False)
        axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("context (tokens before the first target)")
    figure.supylabel("target token", fontsize=12)
    figure.suptitle(f"{plots.literal(title)}\n{LEGEND}", fontsize=12)
    plots.save(figure, path)


def show_head(axes: Axes, attention: Numbers) -> None:
    """Show attention (R, n) as grey, the strongest fifth red; a shade is the same multiple of uniform attention."""
    queries, context = attention.shape
    marked = strongest(attention)
    edges = (context + 0.5, 0.5, queries - 0.5, -0.5)
    axes.set_facecolor(UNSEEN)  # NaN has no colour
    for shown, colours, least in ((~marked, "Greys", 0.0), (marked, "Reds", FAINTEST_RED)):
        strength = np.ma.masked_where(~shown, np.sqrt(attention * context / FULL))
        axes.imshow(strength, cmap=colours, vmin=least, vmax=1, aspect="auto", interpolation="nearest", extent=edges)


def token_label(token: str) -> str:
    """Return the name of a token, shortened, with a visible blank."""
    token = token.replace(" ", "␣")
    if len(token) > LONGEST_LABEL:
        return token[: LONGEST_LABEL - 1] + "…"
    return token
