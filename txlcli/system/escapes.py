"""Escapes characters that control a terminal: names, notes and texts come from files of others."""

import re

# C0, DEL and C1 except tab and line end; marks that change the direction of text; line and paragraph separators;
# unpaired surrogates, which have no UTF-8: Python reads other bytes in a path as these.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text in which characters that control a terminal are escaped (`\\x1b`); tabs and line ends are kept."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """Return printable text in which line ends are escaped, too."""
    return printable(text).replace("\n", "\\n")
