"""Reads the pages of the manual."""

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(?:\{code-block\} *)?(\w+)\n((?::\w+:[^\n]*\n)*)(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def pages():
    """Return the pages, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}


def blocks(text):
    """Return language, caption and text of every code block of a page."""
    found = []
    for language, options, code in BLOCK.findall(text):
        caption = re.search(r":caption: (.*)", options)
        found.append((language, caption[1] if caption else None, code))
    return found


def txl_lines(code):
    """Return the words after `txl` of every txl command in a block of shell."""
    joined = re.sub(r"\\\n\s*", " ", code)
    commands = [part for line in joined.splitlines() for part in line.split("&&")]
    found = [shlex.split(command.replace('"$@"', ""), comments=True) for command in commands if "txl" in command]
    return [words[1:] for words in found if words[:1] == ["txl"]]
