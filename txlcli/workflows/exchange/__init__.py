"""Files of other systems, read and written: weights, settings, vocabularies, tokens and text."""
