"""From the text of a corpus to a token store: planned, cut into chunks, counted, encoded, written."""
