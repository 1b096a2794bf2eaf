"""Figures 5 to 7 (Appendix D): attention by distance, of the score and of its terms, and of heads to tokens."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, to_rgb

from txlcli.commands import plots
from txlcli.core.measures.attention_maps import Numbers, strongest
from txlcli.workflows.attention import AttentionResult

MAX_LAYER_LABELS = 16
SHADES = "YlGnBu"
UNSEEN, SEEN, MARKED = "#dfe7f2", "0.25", "#d62728"
FAINTEST = 30  # the palest colour is uniform attention / 30
FAINT_RED = 0.15  # a marked token stays visible even without attention
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
NAMES = {" ": "␣", "\\n": "⏎", "\\t": "⇥", "\\r": "␍"}


def plot_figure(result: AttentionResult, figure: int, path: Path) -> None:
    """Plot Figure 5, 6 or 7 to a file; the extension selects the format."""
    maps = result.maps
    subject = f"{result.opened.run.name} on {result.text.title}"
    if figure == 6:
        heads = {
            f"head {layer}.{head} (layer.head), {maps.width[layer - 1, head - 1]:.0f} tokens wide": maps.context_of(
                layer - 1, head - 1
            )
            for layer, head in result.shown
        }
        targets, context = result.tokens
        plot_heads(path, heads, targets=targets, context=context, title=f"{subject}, from token {maps.at:,} on")
        return
    what, terms = ("Attention of", {"": maps.by_distance}) if figure == 5 else ("Softmax of each term,", maps.by_term)
    plot_by_distance(path, terms, title=f"{what} {subject}, averaged over {maps.queries:,} tokens")


def plot_by_distance(path: Path, terms: Mapping[str, Numbers], *, title: str) -> None:
    """Plot Figure 5, or Figure 7: (N, H, n) of each term, side by side with one colour scale.

    A panel has one row per head, layers from bottom to top, distance 0 at the right as in text.
    """
    layers, heads, distances = next(iter(terms.values())).shape
    height = min(12.0, max(3.4, 1.4 + 0.06 * layers * heads))
    figure = plots.new_figure(max(9.6, 2.2 + 4.2 * len(terms)), height)
    row = figure.subplots(1, len(terms), sharey=True, squeeze=False)[0]
    uniform, most = 1 / distances, max(float(term.max()) for term in terms.values())
    # From well below uniform attention to the maximum.
    scale = LogNorm(vmin=min(uniform, most) / FAINTEST, vmax=max(most, 2 * uniform), clip=True)
    for number, (axes, (name, attention)) in enumerate(zip(row, terms.items(), strict=True)):
        image = _show_heads(axes, attention, scale, labelled=number == 0)
        axes.set_title(TERM_TITLES.get(name, ""), fontsize=10)
    figure.suptitle(plots.literal(title), fontsize=11)
    bar = figure.colorbar(image, ax=list(row), pad=0.01, fraction=0.05)
    bar.set_label("average attention (line: uniform)", fontsize=9)
    bar.ax.axhline(uniform, color="black", linewidth=1.5)
    plots.save(figure, path)


def plot_heads(
    path: Path, heads: Mapping[str, Numbers], *, targets: Sequence[str], context: Sequence[str], title: str
) -> None:
    """Plot Figure 6: one panel per head, one row per target token, one column per context token of the first target.

    Args:
        heads: (R, C) by title, NaN where the query sees no key.
        targets: names of the R tokens.
        context: names of the C tokens, shown if there is room.
    """
    count = len(context)
    wide = count > 100
    width, margin = (13.0, 1.1) if wide else (max(7.0, 2.2 + 0.13 * count), 1.7)
    figure = plots.new_figure(width, margin + (0.55 + 0.17 * len(targets)) * len(heads))
    column = figure.subplots(len(heads), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, attention) in zip(column, heads.items(), strict=True):
        show_head(axes, attention)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_yticks(range(len(targets)), map(token_label, targets), fontsize=7, parse_math=False)
        axes.tick_params(axis="y" if wide else "both", length=0)
    if wide:
        ticks = [1, *round_distances(count + 1)[1:]]
        axes.set_xticks([count - tick for tick in ticks], map(str, ticks), fontsize=8)
        axes.set_xlabel("context (tokens before the first target)")
    else:
        labels = [token_label(token) for token in context]
        size, turn = (7, 0) if max(map(len, labels)) <= 1 else (6, 90)
        axes.set_xticks(range(count), labels, fontsize=size, rotation=turn, parse_math=False)
        axes.set_xlabel("context, up to the first target")
    figure.supylabel("target token", fontsize=10)
    figure.suptitle(f"{plots.literal(title)}\n{LEGEND}", fontsize=10)
    plots.save(figure, path)


def _show_heads(axes: Axes, attention: Numbers, scale: LogNorm, *, labelled: bool) -> ScalarMappable:
    layers, heads, distances = attention.shape
    rows = attention.reshape(layers * heads, distances)[:, ::-1]
    edges = (-(distances - 0.5), 0.5, -0.5, layers * heads - 0.5)
    image = axes.imshow(
        rows, aspect="auto", origin="lower", interpolation="nearest", cmap=SHADES, norm=scale, extent=edges
    )
    for border in range(1, layers):
        axes.axhline(border * heads - 0.5, color="0.3", linewidth=0.6)
    ticks = [-tick for tick in round_distances(distances)]
    axes.set_xticks(ticks, [str(-tick) for tick in ticks])
    axes.set_xlabel("distance (tokens before the query)")
    if labelled:
        every = -(-layers // MAX_LAYER_LABELS)
        named = [layer for layer in range(layers) if layer % every == 0 or layer == layers - 1]
        axes.set_yticks([(layer + 0.5) * heads - 0.5 for layer in named], [str(layer + 1) for layer in named])
        axes.set_ylabel(f"layer ({heads} heads each)" if heads > 1 else "layer")
    axes.tick_params(axis="y", length=0)
    return image


def show_head(axes: Axes, attention: Numbers) -> None:
    """Show attention (R, C) as grey, the strongest fifth red; a shade is the same multiple of uniform attention."""
    strength = np.sqrt(np.clip(np.nan_to_num(attention) * attention.shape[1] / FULL, 0, 1))[..., None]  # (R, C, 1)
    white, grey, red, unseen = (np.array(to_rgb(colour)) for colour in ("white", SEEN, MARKED, UNSEEN))
    picture = white + (grey - white) * strength
    marked = white + (red - white) * (FAINT_RED + (1 - FAINT_RED) * strength)
    picture = np.where(strongest(attention)[..., None], marked, picture)
    axes.imshow(np.where(np.isnan(attention)[..., None], unseen, picture), aspect="auto", interpolation="nearest")


def round_distances(distances: int) -> list[int]:
    """Return about eight round numbers from 0 to n - 1."""
    rough = max(1.0, (distances - 1) / 8)
    power = 10 ** math.floor(math.log10(rough))
    step = next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= rough)
    return list(range(0, distances, step))


def token_label(token: str) -> str:
    """Return the name of a token, shortened."""
    token = NAMES.get(token, token)
    return token if len(token) <= LONGEST_LABEL else token[: LONGEST_LABEL - 1] + "…"
