"""Turns tokenized English back into ordinary spelling."""

import re

_RULES = (
    (re.compile(r" (n't|'s|'re|'ve|'ll|'m|'d)(?!\w)"), r"\1"),
    (re.compile(r" ([.,;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$#]) "), r"\1"),
    (re.compile(r'(^|\s)" ([^"\n]*?) "'), r'\1"\2"'),
)


def join_english(text: str) -> str:
    """Join punctuation and clitics to their words; what cannot be known (line breaks, case) stays as it is."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
