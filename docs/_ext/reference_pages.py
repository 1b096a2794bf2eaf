"""Sphinx extension that generates the reference parts of the manual from the program itself.

A page names a part by a comment of its own line, `<!-- generated: settings -->`; the part replaces it before Sphinx
parses the page. A setting, command, option or recipe without a description stops the build.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands_page
import settings_page
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"^<!-- generated: (\w+) -->$", flags=re.MULTILINE)


def recipes() -> Iterator[str]:
    """Yield the Markdown of the table of packaged recipes."""
    yield "| recipe | store | parameters | paper: valid / test | model |"
    yield "| --- | --- | ---: | --- | --- |"
    for path in sorted((ROOT / "recipes").glob("*.toml"), key=lambda path: path.stem):
        text = path.read_text(encoding="utf-8")
        settings = tomllib.loads(text)
        published = settings.get("published", {})
        count = f"{published['parameters']:,}" if "parameters" in published else "-"
        results = [str(published.get(split, "-")) for split in ("valid", "test")]
        shown = "-" if results == ["-", "-"] else " / ".join(results)
        yield f"| `{path.stem}` | `{settings['corpus']['store']}` | {count} | {shown} | {title_of(text, path.stem)} |"


def title_of(text: str, name: str) -> str:
    """Return the first sentence of a recipe's header, up to a colon, which the paper's numbers follow.

    Raises:
        LookupError: the recipe has no header.
    """
    paragraph = re.split(r"\n(?:#\n|\n)", text)[0]
    title = " ".join(line.removeprefix("# ") for line in paragraph.splitlines() if line.startswith("# "))
    title = re.split(r"[:;] |\.(?: (?=[A-Z])|$)", title)[0].strip()
    if not title:
        raise LookupError(f"recipes/{name}.toml has no header that describes it")
    return title


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "recipes": recipes,
    "settings": settings_page.lines,
    "commands": commands_page.lines,
}


def insert_parts(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the markers of a page by what they name."""

    def part(marker: re.Match[str]) -> str:
        try:
            return "\n".join(PARTS[marker[1]]())
        except LookupError as error:
            raise ExtensionError(f"{docname}: {error}") from error

    source[0] = MARKER.sub(part, source[0])


def always_read(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages with generated parts, which depend on more than their own text."""
    return [name for name in env.found_docs if MARKER.search(Path(env.doc2path(name)).read_text(encoding="utf-8"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", insert_parts)
    app.connect("env-get-outdated", always_read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
