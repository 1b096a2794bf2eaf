"""What `txl attention` found: the pictures and the JSON object."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlcli.config.settings import EvalSettings
    from txlcli.core.measures.attention_maps import AttentionMaps, Numbers
    from txlcli.runs.loading import OpenRun
    from txlcli.views import attention_plots
    from txlcli.workflows.evaluation.texts import ScoredText

DIGITS = 7  # of the numbers in JSON; float32 has no more

Head = tuple[int, int]
"""(layer, head), both from 1."""


@dataclass(frozen=True)
class Found:
    """What was measured, as figures and as numbers."""

    opened: "OpenRun"
    source: "ScoredText"
    reading: "EvalSettings"
    figures: tuple[int, ...]
    heads: tuple[Head, ...]
    """Those of Figure 6."""
    maps: "AttentionMaps"

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """The names of the R target tokens, and of the C tokens before the first of them."""
        at, rows, places = self.maps.at, self.maps.rows.shape[2], self.maps.distances
        named = self.opened.vocab.symbol
        targets = [named(int(number)) for number in self.source.targets[at : at + rows]]
        before = range(at - places + 1, at + 1)  # without same_length the first of them may lie before the text
        return targets, [named(int(self.source.inputs[place])) if place >= 0 else "" for place in before]

    def draw(self, figure: int, path: Path) -> None:
        """Draw a figure of the paper."""
        from txlcli.views import attention_plots

        maps = self.maps
        about = f"{self.opened.run.name} on {self.source.title}"
        averaged = f"{about}, averaged over {maps.queries:,} tokens"
        if figure == 5:
            attention_plots.draw_by_distance(path, maps.by_distance, title=f"Attention of {averaged}")
        elif figure == 6:
            targets, context = self.tokens
            title = f"{about}, from token {maps.at:,} on"
            pictures = [self._picture(head) for head in self.heads]
            attention_plots.draw_heads(path, pictures, targets=targets, context=context, title=title)
        else:
            attention_plots.draw_terms(path, maps.by_term, title=f"Softmax of each term, {averaged}")

    def _picture(self, which: Head) -> "attention_plots.HeadPicture":
        from txlcli.core.measures.attention_maps import strongest
        from txlcli.views import attention_plots

        layer, head = which
        attention = self.maps.context_of(layer - 1, head - 1)
        width = self.maps.width[layer - 1, head - 1]
        title = f"head {layer}.{head} (layer.head), {width:.0f} tokens wide"
        return attention_plots.HeadPicture(title, attention, strongest(attention))

    def as_result(self) -> dict[str, Any]:
        """The object that --json prints.

        "heads" has an entry per head: mean_distance_tokens, width_tokens (exp of the entropy of its averaged
        attention), entropy_nats (of one query's attention, averaged), memory_share (of its attention). "figure5" and
        the terms of "figure7" are [layer][head][distance], shares that sum to 1 over the distances. "figure6" has
        "attention" per head, [row][place], null where nothing is seen, and "top", the places in red. A figure that was
        not asked for is null. Layers and heads count from 1, places and tokens of the split from 0.
        """
        maps, reading = self.maps, self.reading
        model: Any = self.opened.run.settings.model
        return {
            "run": str(self.opened.run.folder),
            "step": self.opened.checkpoint.state["step"],
            "text": self.source.title,
            "unit": self.source.unit,
            "position": model.position,
            "seg_len": reading.seg_len,
            "mem_len": reading.mem_len,
            "attn_len_max": maps.distances,
            "max_distance": reading.max_distance,
            "same_length": reading.same_length,
            "precision": self.opened.precision,
            "first_position": maps.first,
            "positions": maps.queries,
            "heads": self._heads(),
            "figure5": _plain(maps.by_distance) if 5 in self.figures else None,
            "figure6": self._figure6() if 6 in self.figures else None,
            "figure7": {name: _plain(term) for name, term in maps.by_term.items()} if 7 in self.figures else None,
        }

    def _heads(self) -> list[dict[str, Any]]:
        maps = self.maps
        measured = {
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
                **{key: _rounded(value[layer, head]) for key, value in measured.items()},
            }
            for layer in range(layers)
            for head in range(heads)
        ]

    def _figure6(self) -> dict[str, Any]:
        from txlcli.core.measures.attention_maps import strongest

        targets, context = self.tokens
        heads = []
        for layer, head in self.heads:
            attention = self.maps.context_of(layer - 1, head - 1)
            top = [row.nonzero()[0].tolist() for row in strongest(attention)]
            heads.append({"layer": layer, "head": head, "attention": _plain(attention), "top": top})
        return {"at": self.maps.at, "targets": targets, "context": context, "heads": heads}


def _plain(numbers: "Numbers") -> list[Any]:
    """Nested lists; None where there is no number."""
    if numbers.ndim > 1:
        return [_plain(part) for part in numbers]
    return [None if math.isnan(number) else _rounded(number) for number in numbers.tolist()]


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
