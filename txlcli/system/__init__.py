"""Atomic files, locks, the environment of torchrun, processors, memory."""
