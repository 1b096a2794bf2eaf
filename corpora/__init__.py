"""The corpora of txl: one module each, with a reader; their data cards are in cards.toml."""

from collections.abc import Callable

from . import directory, enwik8, lm1b, ptb, stdlib, text8, wt103
from .corpus import Corpus, unchanged

CORPORA: dict[str, Corpus] = {module.CORPUS.name: module.CORPUS for module in (enwik8, text8, wt103, lm1b, ptb, stdlib)}
OWN_TEXT: Corpus = directory.CORPUS


def detokenizer(name: str) -> Callable[[str], str]:
    """Return the function that detokenizes the decoded text of a corpus; own text is not changed."""
    return CORPORA[name].detokenize if name in CORPORA else unchanged
