"""Token stores, vocabularies and files with the loss of each token."""
