"""The corpora of txl; their data cards are in cards.toml."""

from collections.abc import Callable

from . import directory, stdlib
from .corpus import Corpus, from_card
from .english import join_english, join_wikitext
from .locate import read_files, read_prefix

CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        from_card("enwik8", read_prefix),
        from_card("text8", read_prefix),
        from_card("wt103", read_files, detokenize=join_wikitext),
        from_card("wt2", read_files, detokenize=join_wikitext),
        from_card("lm1b", read_files, detokenize=join_english),
        from_card("ptb", read_files, detokenize=join_english),
        from_card("stdlib", stdlib.read),
    )
}
OWN_TEXT = from_card("text", directory.read)


def detokenizer(name: str) -> Callable[[str], str]:
    """Return the function that detokenizes the decoded text of a corpus; own text is not changed."""
    return CORPORA.get(name, OWN_TEXT).detokenize
