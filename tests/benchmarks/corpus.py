"""A text of words drawn by Zipf's law."""

import numpy as np

WORDS_PER_LINE, WORDS_PER_BLOCK = 23, 10_007
LETTERS = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))


def write_text(path, size, types):
    """Write about `size` bytes; every word occurs at least once if there is room for it."""
    words = np.array([word(rank) for rank in range(types)])
    random, ranks = np.random.default_rng(5), np.arange(types)
    with path.open("w") as file:
        while file.tell() < size:
            for first in range(0, len(ranks), WORDS_PER_LINE):
                file.write(" ".join(words[ranks[first : first + WORDS_PER_LINE]]) + "\n")
            ranks = np.exp(random.random(WORDS_PER_BLOCK) * np.log(types + 1)).astype(np.int64) - 1


def word(rank):
    """Return the word of a rank, in base 26: frequent words are short."""
    letters = ""
    while rank >= 0:
        letters += LETTERS[rank % 26]
        rank = rank // 26 - 1
    return letters
