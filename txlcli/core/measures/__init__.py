"""Measurements of a model: losses by context, RECL, attention maps, time, cost."""
