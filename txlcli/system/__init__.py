"""Atomic files, locks, torchrun's environment, processors, memory."""
