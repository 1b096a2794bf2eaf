"""Self-contained HTML pages, made from the templates of this package: a page loads nothing from anywhere else."""

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
from markdown_it import MarkdownIt
from numpy.typing import NDArray

from txlcli.data.vocabulary import smallest_dtype
from txlcli.system.atomic_files import write_text
from txlcli.workflows.evaluation.annotated import AnnotatedText
from txlcli.workflows.reproduction.section import ReportSection

TEMPLATES = files("txlcli.report") / "templates"


def template(name: str) -> str:
    """Return the text of a template."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Return a page with the style that all pages share; `body` is HTML."""
    return Template(template("page.html")).substitute(title=html.escape(title), body=body)


def write_report(title: str, sections: Sequence[ReportSection], footer: str, directory: Path) -> list[str]:
    """Write a report as Markdown and as one page to a directory, which has its figures; return the paths."""
    markdown = to_markdown(title, sections, footer)
    texts = {"report.md": markdown, "report.html": to_html(title, sections, markdown, directory)}
    for name, text in texts.items():
        write_text(directory / name, text)
    return [str(directory / name) for name in texts]


def to_markdown(title: str, sections: Sequence[ReportSection], footer: str) -> str:
    """Return the report as Markdown; figures are links to files in its directory."""
    blocks = [f"# {title}"]
    for section in sections:
        blocks += _markdown_blocks(section)
    blocks.append(footer)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _markdown_blocks(section: ReportSection) -> list[str]:
    """Return the blocks of one section; an empty one is to be left out."""
    blocks = [f"## {section.title}", *section.notes]
    for grid in section.grids:
        rule = ["---", *["---:"] * (len(grid.columns) - 1)]
        lines = map(_markdown_row, [grid.columns, rule, *grid.rows])
        blocks += ["\n".join(lines), grid.caption]
    for file, caption in section.figures:
        blocks += [f"![{caption}]({file})", caption]
    claims = [f"- **{claim.verdict}**: {claim.text} ({claim.detail})" for claim in section.claims]
    blocks.append("\n".join(claims))
    for name, text in section.texts:
        blocks += [f"### {name}", _fenced(text)]
    blocks.append("\n".join(f"- Evaluation: {sentence}" for sentence in section.readings))
    if section.commands:
        cost = f"{section.seconds / 60:.1f} minutes on {section.hardware}."
        blocks.append(f"{cost} Finished training runs were reused, not counted. Commands:")
        blocks.append(_fenced("\n".join(section.commands), "sh"))
    return blocks


def to_html(title: str, sections: Sequence[ReportSection], markdown: str, directory: Path) -> str:
    """Return a report in Markdown as one page that contains the figures, which are in `directory`."""
    body: str = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False}).enable("table").render(markdown)
    titles = [section.title.partition(":")[0] for section in sections]
    anchors = [re.sub(r"\W+", "-", title).lower() for title in titles]
    heads = iter(anchors)
    body = re.sub("<h2>", lambda _: f'<h2 id="{next(heads)}">', body)
    body = body.replace("<table>", '<div class="wide"><table>')
    body = body.replace("</table>", "</table></div>")
    body = re.sub('src="([^"]+)"', lambda image: f'src="{_embedded(directory / image[1])}"', body)
    for words, css_class in (("as in", "held"), ("NOT", "failed")):
        body = body.replace(f"<strong>{words}", f'<strong class="{css_class}">{words}')
    links = " ".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in zip(anchors, titles, strict=True))
    return page(title, f"<nav>{links}</nav>\n{body}")


def _embedded(path: Path) -> str:
    """Return a figure as the address of an image; its name if the file is missing."""
    if not path.is_file():
        return path.name
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _fenced(text: str, language: str = "") -> str:
    """Return a fenced block whose fence does not occur in the text."""
    longest = max((len(backticks) for backticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def text_page(text: AnnotatedText) -> str:
    """Return the page of a text coloured by loss, and by what memory gained; its script reads the fields."""
    fields = {}
    for name, value in vars(text).items():
        fields[name] = _pack(value) if isinstance(value, np.ndarray) else value
    facts = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    facts = facts.replace("<", "\\u003c")  # no text ends the script
    data = f'<script type="application/json" id="data">{facts}</script>'
    return page(text.title, data + template("text.html"))


def _pack(numbers: NDArray[np.generic]) -> dict[str, str]:
    """Return whole numbers in their smallest type, little-endian: its name, and the deflated bytes in base64."""
    dtype = smallest_dtype(int(numbers.max()) + 1)
    data = zlib.compress(numbers.astype(dtype.newbyteorder("<")).tobytes())
    return {"dtype": dtype.name, "data": base64.b64encode(data).decode()}
