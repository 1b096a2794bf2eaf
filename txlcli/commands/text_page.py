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
from txlcli.system.atomic_files import write_text
from txlcli.workflows.evaluation.annotated import AnnotatedText


def write(path: Path, text: AnnotatedText) -> None:
    """Write the page to a file."""
    write_text(path, render(text))
    console.say(f"page written to {path}")


def render(text: AnnotatedText) -> str:
    """Return the page, whose script reads the fields of the text."""
    fields = {name: _pack(value) if isinstance(value, np.ndarray) else value for name, value in vars(text).items()}
    facts = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    data = f'<script type="application/json" id="data">{facts}</script>'
    return pages.page(text.title, data + pages.template("text.html"))


def _pack(numbers: NDArray[np.generic]) -> dict[str, str]:
    """Return whole numbers in their smallest type, little-endian: its name, and the deflated bytes in base64."""
    dtype = smallest_dtype(int(numbers.max()) + 1)
    data = zlib.compress(numbers.astype(dtype.newbyteorder("<")).tobytes())
    return {"dtype": dtype.name, "data": base64.b64encode(data).decode()}
