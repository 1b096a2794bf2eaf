"""Results as tables, figures, JSON and reports."""
