"""Detokenizes English text."""

import re

_RULES = (
    (r" (n't|'s|'re|'ve|'ll|'m|'d)(?!\w)", r"\1"),
    (r" ([.,;:!?%)\]}])", r"\1"),
    (r"([(\[{$#]) ", r"\1"),
    (r'(^|\s)" ([^"\n]*?) "', r'\1"\2"'),
)


def join_english(text: str) -> str:
    """Join punctuation and clitics to their words; line breaks and case, which are lost, are not restored."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text


def join_wikitext(text: str) -> str:
    """Undo WikiText's `@-@`, `@,@`, `@.@` and the spaces around punctuation."""
    return join_english(re.sub(r" @([-,.])@ ", r"\1", text))
