"""Writes what was reproduced as one Markdown file and one HTML file that needs no other."""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; }
pre { background: #f5f5f3; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; }
img { max-width: 100%; } .held { color: #17692c; } .failed { color: #a11; font-weight: 600; }
nav a { margin-right: .8rem; white-space: nowrap; } .note { color: #555; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e2; } pre { background: #22252b; }
th, td, h2 { border-color: #3a3d44; } img { background: #fff; } .held { color: #6fcf87; } .failed { color: #ff8a80; }
.note { color: #a8a8a4; } a { color: #8ab4f8; } }
"""

CLASSES = {True: "held", False: "failed", None: "note"}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and whether these numbers say the same."""

    text: str
    held: bool | None
    """None where the numbers cannot tell."""
    detail: str
    """The numbers that decide."""

    @property
    def verdict(self) -> str:
        """In words."""
        if self.held is None:
            return "undecided"
        return "as in the paper" if self.held else "NOT as in the paper"


@dataclass(frozen=True)
class Grid:
    """A table."""

    columns: list[str]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper, made again."""

    name: str
    """As on the command line: "table6"."""
    title: str
    scale: str
    notes: list[str]
    """What stands for what, and how it was measured: one paragraph each."""
    grids: list[Grid] = field(default_factory=list)
    figures: list[list[str]] = field(default_factory=list)
    """File beside the report, and caption."""
    texts: list[list[str]] = field(default_factory=list)
    """Title and text of samples."""
    claims: list[Claim] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)
    """The conventions by which texts were read."""
    commands: list[str] = field(default_factory=list)
    seconds: float = 0.0
    hardware: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the tables."""

    def to_table(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "Section":
        """The opposite of `to_table`."""
        grids = [Grid(**grid) for grid in table["grids"]]
        return cls(**{**table, "grids": grids, "claims": [Claim(**claim) for claim in table["claims"]]})


def to_markdown(title: str, sections: Sequence[Section], footer: str) -> str:
    """The report; figures are links to files beside it."""
    parts = [f"# {title}", ""]
    for section in sections:
        parts += [f"## {section.title}", ""]
        for note in section.notes:
            parts += [note, ""]
        for grid in section.grids:
            parts += [_markdown_row(grid.columns), _markdown_row(["---", *["---:"] * (len(grid.columns) - 1)])]
            parts += [_markdown_row(row) for row in grid.rows]
            parts += ["", *([grid.caption, ""] if grid.caption else [])]
        for file, caption in section.figures:
            parts += [f"![{caption}]({file})", "", caption, ""]
        for claim in section.claims:
            parts.append(f"- **{claim.verdict}**: {claim.text} ({claim.detail})")
        parts += [""] if section.claims else []
        for name, text in section.texts:
            parts += [f"### {name}", "", _fenced(text), ""]
        parts += [*(f"- Read: {reading}" for reading in section.readings), ""] if section.readings else []
        parts += [f"{_cost(section)} Commands:", "", _fenced("\n".join(section.commands), "sh"), ""]
    return "\n".join([*parts, footer, ""])


def to_html(title: str, sections: Sequence[Section], footer: str, folder: Path) -> str:
    """The report as one page; the figures, which lie in `folder`, stand in it."""
    esc = html.escape
    links = " ".join(f'<a href="#{section.name}">{esc(section.title.partition(":")[0])}</a>' for section in sections)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{esc(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{esc(title)}</h1><nav>{links}</nav>",
    ]
    for section in sections:
        parts.append(f'<h2 id="{section.name}">{esc(section.title)}</h2>')
        parts += [f"<p>{esc(note)}</p>" for note in section.notes]
        for grid in section.grids:
            head = "".join(f"<th>{esc(cell)}</th>" for cell in grid.columns)
            body = "".join("<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
            parts += [f'<p class="note">{esc(grid.caption)}</p>'] if grid.caption else []
        for file, caption in section.figures:
            parts.append(f"<figure>{_image(folder / file, caption)}<figcaption>{esc(caption)}</figcaption></figure>")
        if section.claims:
            items = "".join(
                f'<li><span class="{CLASSES[claim.held]}">{claim.verdict}</span>: '
                f"{esc(claim.text)} ({esc(claim.detail)})</li>"
                for claim in section.claims
            )
            parts.append(f"<ul>{items}</ul>")
        for name, text in section.texts:
            parts.append(f"<h3>{esc(name)}</h3><pre>{esc(text)}</pre>")
        if section.readings:
            parts.append("".join(f'<p class="note">Read: {esc(reading)}</p>' for reading in section.readings))
        commands = esc("\n".join(section.commands))
        parts.append(
            f'<details><summary class="note">{esc(_cost(section))} Commands</summary><pre>{commands}</pre></details>'
        )
    return "\n".join([*parts, f'<p class="note">{esc(footer)}</p></body></html>', ""])


def _image(path: Path, caption: str) -> str:
    """A figure within the page; one that somebody has removed is only named."""
    if not path.is_file():
        return f"<p>{html.escape(path.name)} is missing; make it again with txl reproduce</p>"
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _fenced(text: str, language: str = "") -> str:
    """A block that the text cannot end."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _cost(section: Section) -> str:
    return (
        f"{section.seconds / 60:.1f} minutes in all, trainings that were there already left out, on {section.hardware}."
    )
