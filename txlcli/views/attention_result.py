"""Shows the attention of a run as a table, as figures, or as JSON."""

import math
from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.config.encodings import ENCODINGS, limits_distance
from txlcli.core.measures.attention_maps import Numbers, strongest
from txlcli.views import attention_plots
from txlcli.views.attention_plots import HeadPicture
from txlcli.workflows.attention import AttentionResult, Head

DIGITS = 7  # significant digits in JSON, as many as float32 has


def to_json(result: AttentionResult) -> dict[str, Any]:
    """Return the object that --json prints, apart from the paths of the figures.

    "heads" has an entry per head: mean_distance_tokens, width_tokens (exp of the entropy of its averaged attention),
    entropy_nats (of one query's attention, averaged), memory_share (of its attention). "figure5" and the terms of
    "figure7" are [layer][head][distance], shares that sum to 1 over the distances. "figure6" has "attention" per head,
    [row][column], null where a query sees no key, and "top", the columns in red. A figure that was not requested is
    null. Layers and heads count from 1, columns and tokens of the split from 0.
    """
    maps, settings, opened = result.maps, result.settings, result.opened
    model: Any = opened.run.settings.model
    return {
        "run": str(opened.run.directory),
        "step": opened.checkpoint.state["step"],
        "text": result.text.title,
        "unit": result.text.unit,
        "position": model.position,
        "seg_len": settings.seg_len,
        "mem_len": settings.mem_len,
        "attn_len_max": maps.distances,
        "max_distance": settings.max_distance,
        "same_length": settings.same_length,
        "precision": opened.precision,
        "first_position": maps.first,
        "positions": maps.queries,
        "heads": _heads(result),
        "figure5": _to_lists(maps.by_distance) if 5 in result.figures else None,
        "figure6": _figure6(result) if 6 in result.figures else None,
        "figure7": {name: _to_lists(term) for name, term in maps.by_term.items()} if 7 in result.figures else None,
    }


def _heads(result: AttentionResult) -> list[dict[str, Any]]:
    maps = result.maps
    measures = {
        "mean_distance_tokens": maps.mean_distance,
        "width_tokens": maps.width,
        "entropy_nats": maps.entropy_nats,
        "memory_share": maps.memory_share,
    }
    layers, heads = maps.width.shape
    return [
        {
            "layer": layer + 1,
            "head": head + 1,
            **{key: _rounded(value[layer, head]) for key, value in measures.items()},
        }
        for layer in range(layers)
        for head in range(heads)
    ]


def _figure6(result: AttentionResult) -> dict[str, Any]:
    targets, context = result.tokens
    heads = []
    for layer, head in result.heads:
        attention = result.maps.context_of(layer - 1, head - 1)
        top = [row.nonzero()[0].tolist() for row in strongest(attention)]
        heads.append({"layer": layer, "head": head, "attention": _to_lists(attention), "top": top})
    return {"at": result.maps.at, "targets": targets, "context": context, "heads": heads}


def _to_lists(numbers: Numbers) -> list[Any]:
    """Convert an array to nested lists, NaN to None."""
    if numbers.ndim > 1:
        return [_to_lists(part) for part in numbers]
    return [None if math.isnan(number) else _rounded(number) for number in numbers.tolist()]


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def plot_figure(result: AttentionResult, figure: int, path: Path) -> None:
    """Plot Figure 5, 6 or 7 to a file."""
    maps = result.maps
    subject = f"{result.opened.run.name} on {result.text.title}"
    averaged = f"{subject}, averaged over {maps.queries:,} tokens"
    if figure == 5:
        attention_plots.plot_by_distance(path, maps.by_distance, title=f"Attention of {averaged}")
    elif figure == 6:
        targets, context = result.tokens
        title = f"{subject}, from token {maps.at:,} on"
        pictures = [_head_picture(result, head) for head in result.heads]
        attention_plots.plot_heads(path, pictures, targets=targets, context=context, title=title)
    else:
        attention_plots.plot_terms(path, maps.by_term, title=f"Softmax of each term, {averaged}")


def _head_picture(result: AttentionResult, layer_and_head: Head) -> HeadPicture:
    layer, head = layer_and_head
    attention = result.maps.context_of(layer - 1, head - 1)
    width = result.maps.width[layer - 1, head - 1]
    return HeadPicture(f"head {layer}.{head} (layer.head), {width:.0f} tokens wide", attention, strongest(attention))


def show(result: dict[str, Any], *, verbose: bool = False) -> None:
    """Write the table to stdout, of the object that `to_json` returns."""
    rows = []
    for layer in dict.fromkeys(head["layer"] for head in result["heads"]):
        heads = [head for head in result["heads"] if head["layer"] == layer]
        widest = max(heads, key=lambda head: head["width_tokens"])
        rows.append(
            [
                str(layer),
                f"{_mean(heads, 'mean_distance_tokens'):,.1f}",
                f"{_mean(heads, 'entropy_nats'):.2f}",
                f"{_mean(heads, 'memory_share'):.1%}",
                f"{layer}.{widest['head']}",
                f"{widest['width_tokens']:,.1f}",
            ]
        )
    columns = ["layer", "mean distance", "entropy (nats)", "in memory", "widest head", "width"]
    title = f"Attention of {result['run']} on {result['text']}, {result['positions']:,} tokens"
    console.show_table(title, columns, rows, _notes(result), verbose=verbose)


def _mean(heads: list[dict[str, Any]], key: str) -> float:
    return sum(head[key] for head in heads) / len(heads)


def _notes(result: dict[str, Any]) -> list[str]:
    limit = f"max_distance = {result['max_distance']}, " if limits_distance(result["position"]) else ""
    notes = [
        f"L = {result['seg_len']}, M = {result['mem_len']}, up to {result['attn_len_max']:,} keys per query, "
        f"same_length = {result['same_length']}, {limit}{result['precision']}.",
        "Means over a layer's heads, distances and widths in tokens; in memory: share of the attention to the memory.",
    ]
    if result["figure6"] is not None:
        heads = ", ".join(f"{head['layer']}.{head['head']}" for head in result["figure6"]["heads"])
        notes.append(f"Figure 6: heads {heads} from token {result['figure6']['at']:,} on.")
    terms = ENCODINGS[result["position"]].score_terms
    if result["figure7"] is not None and terms == ("a", "b"):
        notes.append("Figure 7: terms (a) and (b) only; this encoding has no biases u and v, so no (c) and (d).")
    if not terms:
        notes.append(f'Figure 7: none; the score of position = "{result["position"]}" is term (a) alone.')
    notes.append("width: number of distances over which a head's average attention is spread (exp of its entropy).")
    return notes
