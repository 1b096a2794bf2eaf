"""Figures, tables and pages of results, for the commands and for Python."""
