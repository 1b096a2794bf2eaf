"""Turns the text of a corpus into a token store: reads it in chunks, builds a vocabulary, writes the encoded splits."""
