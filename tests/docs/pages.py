"""Reads the pages of the manual."""

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(?:\{code-block\} *)?(\w+)\n((?::\w+:[^\n]*\n)*)(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def pages():
    """Return the pages, by their path in the manual."""
    paths = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if not name.startswith("_build/")}


def blocks(text):
    """Return language, caption and text of every code block of a page."""
    found = []
    for language, options, code in BLOCK.findall(text):
        caption = re.search(r":caption: (.*)", options)
        found.append((language, caption[1] if caption else None, code))
    return found


def txl_lines(code):
    """Return the words after `txl` of every txl command in a block of shell, without loops and redirections."""
    joined = re.sub(r"\\\n\s*", " ", code)
    for name, value in re.findall(r'^(\w+)="(.*)"$', joined, flags=re.MULTILINE):
        joined = joined.replace(f"${name}", value)
    joined = re.sub(
        r"for (\w+) in (\w+) .*?; do (.*?); done", lambda loop: loop[3].replace(f"${loop[1]}", loop[2]), joined
    )
    commands = [part for line in joined.splitlines() for part in line.split("&&")]
    typed = [re.sub(r" > \S+|\"\$@\"", "", command) for command in commands if "txl" in command]
    found = [shlex.split(command, comments=True) for command in typed]
    return [words[1:] for words in found if words[:1] == ["txl"]]
