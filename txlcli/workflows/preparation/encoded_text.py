"""The encoded chunks of a text, by split."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txlcli.data.token_store import SplitInfo
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.reporter import Step


@dataclass(frozen=True)
class EncodedText:
    """The encoded chunks of each split, in order."""

    chunks: Mapping[str, list[EncodedChunk]]

    def total(self, name: str, *splits: str) -> int:
        """Return the sum of a count of the chunks, by default of all splits."""
        return sum(getattr(chunk, name) for split in splits or self.chunks for chunk in self.chunks[split])

    def info(self, split: str, *, count_line_ends: bool) -> SplitInfo:
        """Return the counts of a split."""
        words, lines, tokens, size, unknown = (
            self.total(name, split) for name in ("words", "lines", "tokens", "bytes", "unknown")
        )
        if not tokens:
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        return SplitInfo(tokens=tokens, words=words + count_line_ends * lines, bytes=size, unknown=unknown)

    def starts(self, split: str) -> NDArray[np.integer]:
        """Return the places of the ids that begin a document."""
        chunks = self.chunks[split]
        ends = np.cumsum([chunk.tokens for chunk in chunks])
        places = (chunk.starts + end - chunk.tokens for chunk, end in zip(chunks, ends, strict=True))
        return np.unique(np.concatenate([[0], *places]))

    def blocks(self, split: str, step: Step) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of each chunk, and remove its file."""
        for chunk in self.chunks[split]:
            yield np.load(chunk.path)
            step.advance(chunk.tokens)
            chunk.path.unlink()
