"""The corpora that txl knows: one module each, with its data card, its facts and one reader."""

import difflib
from collections.abc import Callable

from corpora import enwik8, folder, lm1b, ptb, stdlib, text8, wt103
from corpora.corpus import Corpus, CorpusError, as_it_is

CORPORA: dict[str, Corpus] = {module.CORPUS.name: module.CORPUS for module in (enwik8, text8, wt103, lm1b, ptb, stdlib)}
OWN_TEXT: Corpus = folder.CORPUS


def get(name: str) -> Corpus:
    """The corpus of that name.

    Raises:
        CorpusError: there is none; the message suggests the nearest.
    """
    if name in CORPORA:
        return CORPORA[name]
    near = difflib.get_close_matches(name, CORPORA, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise CorpusError(f'unknown corpus "{name}"{hint} (known: {", ".join(CORPORA)})')


def detokenizer(name: str) -> Callable[[str], str]:
    """How to spell out the decoded text of a corpus; own text is left as it is."""
    return CORPORA[name].detokenize if name in CORPORA else as_it_is
