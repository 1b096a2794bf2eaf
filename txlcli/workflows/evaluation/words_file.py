"""The columns of a file of words, without PyTorch."""

COLUMNS = ("word", "start", "end", "tokens", "unknown")
"""First columns; `start` and `end` are offsets in characters. Those of bits follow, one for each reading."""
DOCUMENT = "document"
"""Column before those of bits with the name of the document, if the text has several."""
SIGNATURE = "\t".join(COLUMNS)
"""Beginning of a file of words."""
