"""Self-contained HTML pages, made from the templates of this package: a page loads nothing from anywhere else."""

import base64
import html
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt

from txlcli.workflows.reproduction.section import Section

TEMPLATES = files("txlcli.commands") / "templates"
COLUMNS = 88
"""Largest width of a line of a script, which the manual shows without scrolling."""


def template(name: str) -> str:
    """Return the text of a template."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Return a page with the style that all pages share; `body` is HTML."""
    return Template(template("page.html")).substitute(title=html.escape(title), body=body)


def render(title: str, sections: Sequence[Section], footer: str, directory: Path) -> dict[str, str]:
    """Return the text of each file of a report by name; the figures are in `directory`."""
    markdown = to_markdown(title, sections, footer)
    return {"report.md": markdown, "report.html": to_html(title, sections, markdown, directory)}


def to_markdown(title: str, sections: Sequence[Section], footer: str) -> str:
    """Return the report as Markdown; figures are links to files in its directory."""
    parts = [f"# {title}", ""]
    for section in sections:
        for paragraph in (f"## {section.title}", *section.notes):
            parts += [paragraph, ""]
        for grid in section.grids:
            head = [grid.columns, ["---", *["---:"] * (len(grid.columns) - 1)]]
            parts += [*map(_markdown_row, head + grid.rows), "", *([grid.caption, ""] if grid.caption else [])]
        for file, caption in section.figures:
            parts += [f"![{caption}]({file})", "", caption, ""]
        claims = [f"- **{claim.verdict}**: {claim.text} ({claim.detail})" for claim in section.claims]
        parts += [*claims, ""] if claims else []
        for name, text in section.texts:
            parts += [f"### {name}", "", _fenced(text), ""]
        parts += [*(f"- Evaluation: {sentence}" for sentence in section.readings), ""] if section.readings else []
        if section.commands:
            cost = f"{section.seconds / 60:.1f} minutes on {section.hardware}."
            parts += [f"{cost} Finished training runs were reused, not counted. Commands:", ""]
            parts += [_fenced(to_script(section.commands), "sh"), ""]
    return "\n".join([*parts, footer, ""])


def to_html(title: str, sections: Sequence[Section], markdown: str, directory: Path) -> str:
    """Return a report in Markdown as one page that contains the figures, which are in `directory`."""
    body: str = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False}).enable("table").render(markdown)
    names = (section.name for section in sections)
    body = re.sub("<h2>", lambda _: f'<h2 id="{next(names)}">', body)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    body = re.sub('src="([^"]+)"', lambda image: f'src="{_embedded(directory / image[1])}"', body)
    for words, css_class in (("as in", "held"), ("NOT", "failed")):
        body = body.replace(f"<strong>{words}", f'<strong class="{css_class}">{words}')
    links = " ".join(f'<a href="#{section.name}">{section.title.partition(":")[0]}</a>' for section in sections)
    return page(title, f"<nav>{links}</nav>\n{body}")


def _embedded(path: Path) -> str:
    """Return a figure as the address of an image; its name if the file is missing."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" if path.is_file() else path.name


def to_script(commands: Sequence[str]) -> str:
    """Return commands as a shell script, in which long lines are continued."""
    return "\n".join(map(_continued, commands))


def _continued(line: str) -> str:
    """Break a command between its options, so that its lines have at most COLUMNS if possible."""
    lines = [""]
    for word in shlex.split(line):
        quoted = shlex.quote(word)
        if word.startswith("--") and len(lines[-1]) + len(quoted) > COLUMNS - 30:
            lines.append("   ")
        lines[-1] += f" {quoted}" if lines[-1] else quoted
    return " \\\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _fenced(text: str, language: str = "") -> str:
    """Return a fenced block whose fence does not occur in the text."""
    longest = max((len(backticks) for backticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
