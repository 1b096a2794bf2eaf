"""Token stores, vocabularies and files of per-token losses."""
