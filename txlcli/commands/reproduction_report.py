"""Shows a reproduction on the terminal, and as a Markdown and a self-contained HTML report."""

import base64
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt

from txlcli import __version__, console
from txlcli.commands import attention_plots, plots, recl
from txlcli.commands.training_tables import duration
from txlcli.core.measures.gpus import CPU_SHARE
from txlcli.workflows.reproduction.costs import MAX_S, CostsResult
from txlcli.workflows.reproduction.reproduce import ReproduceResult
from txlcli.workflows.reproduction.runner import Report
from txlcli.workflows.reproduction.section import Section

COLUMNS = 88
"""Largest width of a line of a script, which the manual shows without scrolling."""
PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; vertical-align: top; }
thead th { border-bottom: 2px solid #888; }
pre { background: #f5f5f3; padding: .8rem 1rem; overflow: auto; max-height: 24rem; white-space: pre-wrap; }
img { max-width: 100%; } .held { color: #17692c; } .failed { color: #a11; }
nav a { margin-right: .8rem; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e2; } pre { background: #22252b; }
th, td, h2 { border-color: #3a3d44; } img { background: #fff; } .held { color: #6fcf87; } .failed { color: #ff8a80; }
a { color: #8ab4f8; } }
</style></head><body>
<nav>$links</nav>
$body</body></html>
""")


def render(sections: Sequence[Section], scale_name: str, directory: Path) -> dict[str, str]:
    """Return the text of each file of the report by name; the figures are in `directory`."""
    title = f"Transformer-XL (Dai et al. 2019), reproduced at {scale_name} scale"
    markdown = to_markdown(
        title, sections, f"Made by txl {__version__}. The paper's numbers are those of its Tables 1 to 10."
    )
    return {"report.md": markdown, "report.html": to_html(title, sections, markdown, directory)}


def show(result: ReproduceResult) -> None:
    """Write tables and claims to stdout."""
    for section in result.sections:
        for grid in section.grids:
            console.show_table(section.title, grid.columns, grid.rows, [grid.caption] if grid.caption else ())
        for claim in section.claims:
            console.show_line(f"{claim.verdict}: {claim.text} ({claim.detail})")
        if section.grids or section.claims:
            console.show_line("")
    console.show_line(f"report: {', '.join(result.report)}")


def show_costs(result: CostsResult) -> None:
    """Write the costs of the missing training runs to stdout."""
    lines = []
    for row in result.items:
        time = duration(row.seconds) if row.missing else "-"
        lines.append([row.item, str(row.models), str(row.missing), f"{row.training_flops:.2g}", time])
    notes = [
        result.scale.description,
        "Time: of the missing training runs on an idle machine, without evaluation, from timed steps, or if these take "
        f"too long from {CPU_SHARE:.0%} of the {result.peak_flops_per_s / 1e9:,.0f} GFLOP/s of a matrix product. "
        f"Models whose turn comes after {MAX_S:g} seconds of timing have the median rate of those before. Models that "
        "several items need count for each.",
    ]
    columns = ("item", "training runs", "missing", "FLOP", "time")
    console.show_table(f"{result.scale.name} scale", columns, lines, notes)


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
        cost = f"{section.seconds / 60:.1f} minutes on {section.hardware}."
        parts += [f"{cost} Finished training runs were reused, not counted. Commands:", ""]
        parts += [_fenced(to_script(section.commands), "sh"), ""]
    return "\n".join([*parts, footer, ""])


def to_html(title: str, sections: Sequence[Section], markdown: str, directory: Path) -> str:
    """Return a report in Markdown as one page that contains the figures, which are in `directory`."""
    body: str = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False}).enable("table").render(markdown)
    names = (section.name for section in sections)
    body = re.sub("<h2>", lambda _: f'<h2 id="{next(names)}">', body)
    body = re.sub('src="([^"]+)"', lambda image: f'src="{_embedded(directory / image[1])}"', body)
    for words, css_class in (("as in", "held"), ("NOT", "failed")):
        body = body.replace(f"<strong>{words}", f'<strong class="{css_class}">{words}')
    links = " ".join(f'<a href="#{section.name}">{section.title.partition(":")[0]}</a>' for section in sections)
    return PAGE.substitute(title=title, links=links, body=body)


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


REPORT = Report(
    render=render,
    plot_curves=partial(plots.plot_curves, log_x=True),
    plot_gains=recl.plot_gains,
    plot_perplexities=recl.plot_perplexities,
    plot_attention=attention_plots.plot_figure,
)
