"""The corpora that txl knows: one module each, with its data card, its facts and one reader."""

from collections.abc import Callable

from corpora import enwik8, folder, lm1b, ptb, stdlib, text8, wt103
from corpora.corpus import Corpus, as_it_is

CORPORA: dict[str, Corpus] = {module.CORPUS.name: module.CORPUS for module in (enwik8, text8, wt103, lm1b, ptb, stdlib)}
OWN_TEXT: Corpus = folder.CORPUS


def detokenizer(name: str) -> Callable[[str], str]:
    """How to spell out the decoded text of a corpus; own text is left as it is."""
    return CORPORA[name].detokenize if name in CORPORA else as_it_is
