"""Self-contained HTML pages, made from the templates of this package: a page loads nothing from anywhere else."""

import html
from importlib.resources import files
from string import Template

TEMPLATES = files("txlcli.commands") / "templates"


def template(name: str) -> str:
    """Return the text of a template."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Return a page with the style that all pages share; `body` is HTML."""
    return Template(template("page.html")).substitute(title=html.escape(title), body=body)
