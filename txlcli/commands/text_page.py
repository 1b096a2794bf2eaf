"""The page of `txl eval --html`: a text coloured by loss, and by what memory gained."""

import base64
import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from txlcli import console
from txlcli.commands import pages
from txlcli.data.vocabulary import smallest_dtype
from txlcli.paper import metrics
from txlcli.system.atomic_files import write_text
from txlcli.workflows.evaluation.annotated import AnnotatedText

LEVELS = np.iinfo(np.uint16).max
"""Largest value of a loss on the page, which is stored as a multiple of "scale"."""
SHARES = np.iinfo(np.uint8).max
"""Value that stands for a probability of 1."""


def write(path: Path, text: AnnotatedText) -> None:
    """Write the page to a file."""
    write_text(path, render(text))
    console.say(f"page written to {path}")


def render(text: AnnotatedText) -> str:
    """Return the page."""
    facts = json.dumps(_facts(text), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    data = f'<script type="application/json" id="data">{facts}</script>'
    return pages.page(text.title, data + pages.template("text.html"))


def _facts(text: AnnotatedText) -> dict[str, object]:
    """Return what the page shows; texts of pieces are cut from "text" by their lengths in UTF-16 units."""
    ids, numbers = np.unique(np.vstack([text.targets, text.likeliest]), return_inverse=True)
    targets, *likeliest = numbers.reshape(-1, len(text.pieces))
    bits = text.loss_nats / np.log(2)
    scale = max(float(bits.max()), 1.0) / LEVELS
    firsts, by_position = text.by_position()
    first_tokens = np.cumsum(text.tokens) - text.tokens
    return {
        "title": text.title,
        "settings": text.settings,
        "metric": metrics.METRIC_TITLES[text.metric],
        "rows": [
            {"mem_len": row.mem_len, "bits": metrics.bits(row.loss_nats), "measure": row.measures[text.metric]}
            for row in text.rows
        ],
        "before": text.before,
        "text": "".join(text.pieces),
        "lengths": _pack(np.array([len(piece.encode("utf-16-le")) // 2 for piece in text.pieces])),
        "tokens": _pack(text.tokens),
        "scale": scale,
        "bits": _pack(np.rint(bits / scale)),
        "names": [text.symbol(number) for number in ids.tolist()],
        "targets": _pack(targets),
        "likeliest": _pack(np.array(likeliest)),
        "probabilities": _pack(np.rint(text.probabilities * SHARES)),
        "bins": [{"piece": int(first), "token": int(first_tokens[first])} for first in firsts],
        "by_position": (by_position / np.log(2)).round(4).tolist(),
    }


def _pack(numbers: NDArray[np.generic]) -> dict[str, str]:
    """Return whole numbers in their smallest type, little-endian: its name, and the deflated bytes in base64."""
    dtype = smallest_dtype(int(numbers.max()) + 1)
    data = zlib.compress(numbers.astype(dtype.newbyteorder("<")).tobytes())
    return {"dtype": dtype.name, "data": base64.b64encode(data).decode()}
